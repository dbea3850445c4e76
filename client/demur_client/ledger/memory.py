"""A ledger that lasts as long as its process: for simulations and tests."""

from collections.abc import Iterable, Iterator, Sequence
from typing import final

from demur_client.ledger.book import Book, Entry
from demur_client.ledger.changes import Change, Made
from demur_client.ledger.counter import Mark
from demur_client.ledger.keeping import KeptLedger, secret_of
from demur_client.ledger.purse import LifetimeCap


@final
class MemoryLedger(KeptLedger):
    """Keeps everything in memory. A restart forgets what was spent, so no device may be shipped with it.

    Args:
        secret: the device's; drawn when not given.
        caps: over all studies together.

    Raises:
        ParameterError: the secret is not 32 bytes.
    """

    def __init__(self, secret: bytes | None = None, *, caps: Iterable[LifetimeCap] = ()) -> None:
        super().__init__()
        self._book = Book(caps)
        self._number = 0
        self._kept: dict[int, Change] = {}
        self._sealed: dict[int, bytes] = {}
        self._keep(Made(secret=secret_of(secret), start=Mark.first().digest))

    def _read(self) -> Book:
        return self._book

    def _keep(
        self,
        change: Change,
        *,
        sealed: bytes | None = None,
        dropped: Sequence[int] = (),
        erased: Sequence[int] = (),
    ) -> None:
        at = self._number + 1
        self._book.apply(at, change)
        self._number = at
        self._kept[at] = change
        if sealed is not None:
            self._sealed[at] = sealed
        for number in dropped:
            self._sealed.pop(number, None)
        for number in erased:
            self._kept.pop(number, None)

    def _bytes(self, entry: Entry) -> bytes:
        return self._sealed[entry.at]

    def _changes(self) -> Iterator[Change]:
        return iter(self._kept.values())
