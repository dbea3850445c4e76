"""Looking into the ledger of a device that may be running, for its owner."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import final

from demur_client.ledger import schema
from demur_client.ledger.book import Book, Entry
from demur_client.ledger.chain import Broken, follow
from demur_client.ledger.changes import Change
from demur_client.ledger.keeping import KeptLedger
from demur_client.ledger.purse import LifetimeCap
from demur_client.ledger.replay import replay
from demur_proto.errors import NotFoundError, StateError, StorageError, UnsupportedError


@final
class LedgerCopy(KeptLedger):
    """What a ledger's file held at one moment. It cannot be changed, and no report is in it.

    Whether it is the newest is not known here: only its owner asks the counter.

    Args:
        path: of the file.
        caps: over all studies together.

    Raises:
        NotFoundError: there is no such file, or nothing in it yet.
        StateError: the file is another database.
        UnsupportedError: another version has written it.
        StorageError: it cannot be read, or is damaged.
    """

    def __init__(self, path: Path, *, caps: Iterable[LifetimeCap] = ()) -> None:
        super().__init__()
        if not path.exists():
            raise NotFoundError(f"there is no ledger {path}")
        connection = None
        try:
            with schema.reading(path):
                connection = schema.connect(path, read_only=True)
                connection.execute("BEGIN")  # all of it at one moment
                self._check(schema.version_of(connection, path), path)
                self._book = replay(connection, caps).book
                rows = follow(schema.rows_of(connection))
                self._kept = [change for _, change in rows if change is not None]
        except Broken as error:
            raise StorageError(
                f"the ledger {path} is damaged; a device that starts with it takes all for spent"
            ) from error
        finally:
            if connection is not None:
                connection.close()

    @staticmethod
    def _check(version: int, path: Path) -> None:
        if version == 0:
            raise NotFoundError(f"there is nothing in the ledger {path} yet")
        if version < len(schema.STEPS):
            raise UnsupportedError(
                f"an older demur has written the ledger {path}; start the device once"
            )

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
        raise StateError("this is a copy of a ledger, which cannot be changed")

    def _bytes(self, entry: Entry) -> bytes:
        raise StateError("this is a copy of a ledger, which holds no reports")

    def _changes(self) -> Iterator[Change]:
        return iter(self._kept)
