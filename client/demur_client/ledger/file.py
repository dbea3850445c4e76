"""The ledger of a deployed device: one SQLite file, whose every change is a transaction on the disk."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self, final

from demur_client.ledger import schema
from demur_client.ledger.book import Book, Entry
from demur_client.ledger.chain import Broken, follow, row_of
from demur_client.ledger.changes import Change
from demur_client.ledger.counter import Counter
from demur_client.ledger.keeping import KeptLedger, secret_of
from demur_client.ledger.opening import open_file, set_aside
from demur_client.ledger.owner import Owner
from demur_client.ledger.purse import LifetimeCap
from demur_client.ledger.replay import replay
from demur_proto.errors import StorageError


@final
class LedgerFile(KeptLedger):
    """Keeps everything in a file that one process owns at a time.

    A file that is missing although there was one, damaged, or older than the counter says makes way
    for a new one in which every budget counts as spent; the old one is set aside. The
    device goes on answering, with cover, and no report shows it; that it answers open rounds anew
    may show.

    Without a counter, a whole older copy of the file is believed.

    Args:
        path: of the file, in a folder of the device's own; made where there is none.
        counter: what knows how far this ledger had come.
        caps: over all studies together, those too that were agreed to before.
        secret: the device's, where the file is made; drawn when not given.

    Raises:
        ParameterError: the secret is not 32 bytes.
        StateError: another process has the ledger, or the file is another database.
        UnsupportedError: a newer version has written it.
        StorageError: it cannot be read or kept for now.
    """

    def __init__(
        self,
        path: Path,
        *,
        counter: Counter | None = None,
        caps: Iterable[LifetimeCap] = (),
        secret: bytes | None = None,
    ) -> None:
        super().__init__()
        self._path = path
        self._counter = counter
        self._caps = tuple(caps)
        self._failed = False  # whether the book may not be what is kept
        self._confirmed = False  # whether the counter knows the last change
        drawn = secret_of(secret)
        self._owner = Owner(path)
        try:
            mark = None if counter is None else counter.read()
            self._connection, found = open_file(
                path, self._owner, mark=mark, caps=self._caps, secret=drawn
            )
        except BaseException:
            self._owner.release()
            raise
        self._book, self._head = found.book, found.head
        try:
            self._confirm()
            self._owner.remember(self._book.doubt)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; again, nothing happens."""
        with self._lock:
            self._connection.close()
            self._owner.release()

    def _read(self) -> Book:
        if self._failed:
            with self._reading():
                found = replay(self._connection, self._caps)
            self._book, self._head = found.book, found.head
            self._failed = self._confirmed = False
        self._confirm()
        return self._book

    def _keep(
        self,
        change: Change,
        *,
        sealed: bytes | None = None,
        dropped: Sequence[int] = (),
        erased: Sequence[int] = (),
    ) -> None:
        connection, row = self._connection, row_of(change, after=self._head)
        self._failed = True  # until it is known that it is not
        try:
            schema.keep_row(connection, row, sealed=sealed, dropped=dropped, erased=erased)
        except (sqlite3.Error, OSError) as error:
            raise StorageError(f"the ledger {self._path} cannot be kept: {error}") from error
        self._book.apply(row.number, change)
        self._head = row.mark
        self._failed = self._confirmed = False
        self._confirm()

    def _confirm(self) -> None:
        """Tell the counter of the last change, before anything that follows from it may leave."""
        if self._counter is not None and not self._confirmed and self._counter.read() != self._head:
            self._counter.advance(self._head)
        self._confirmed = True

    def _bytes(self, entry: Entry) -> bytes:
        with self._reading():
            sealed = schema.report_at(self._connection, entry.at)
        if sealed is None:
            raise StorageError(f"the ledger {self._path} has lost a report; start the device again")
        return sealed

    def _changes(self) -> Iterator[Change]:
        with self._reading():
            rows = list(follow(schema.rows_of(self._connection)))
        return (change for _, change in rows if change is not None)

    def _scrub(self) -> None:
        with self._reading():
            for path in set_aside(self._path):
                path.unlink(missing_ok=True)
            done = schema.scrub(self._connection)
        if not done:
            raise StorageError(
                f"the ledger {self._path} is being read; what was forgotten is still in "
                "its log: forget it again in a moment"
            )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """While the ledger is open, damage is an error like others; the next start sees to it."""
        try:
            with schema.reading(self._path):
                yield
        except Broken as error:
            raise StorageError(
                f"the ledger {self._path} is damaged; start the device again"
            ) from error
