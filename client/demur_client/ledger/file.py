"""How a ledger's file is found, and what becomes of one that cannot be believed."""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self, final

from demur_client.ledger import schema
from demur_client.ledger.chain import Broken, follow, row_of
from demur_client.ledger.counter import Counter, Mark, sync_folder
from demur_client.ledger.kept import KeptLedger, secret_of
from demur_client.ledger.owner import Owner
from demur_client.ledger.reading import Found, replay, salvage
from demur_client.ledger.records import Change, Made
from demur_client.ledger.scope import LifetimeCap
from demur_client.ledger.state import Book, Entry
from demur_proto.errors import StorageError

MISSING = "the ledger was gone"
DAMAGED = "the ledger was damaged"
OLD = "an older ledger was put in its place"
LOGS = ("-wal", "-shm")  #: what SQLite puts beside a file, by its name


def open_file(
    path: Path,
    owner: Owner,
    *,
    mark: Mark | None,
    caps: Iterable[LifetimeCap],
    secret: bytes,
) -> tuple[sqlite3.Connection, Found]:
    """The file with what it holds; a new one, in doubt, in place of one that cannot be believed.

    Args:
        path: of the file.
        owner: of the file.
        mark: how far the counter says that it had come.
        caps: for its book.
        secret: of the device, where none can be read.

    Raises:
        DemurError: as `LedgerFile`.
    """
    _finish(path, owner)
    connection = schema.connect(path)
    try:
        found, doubt = _look(connection, path, caps)
        if found is None:
            doubt = doubt or (MISSING if owner.made or mark else "")
        elif not found.agrees(mark):
            found, doubt = None, OLD
        doubt = owner.doubt or doubt
        if found is not None and (found.book.doubt or not doubt):
            return connection, found
        if not doubt:
            first = Mark.first()
            made = Made(secret=secret, start=first.digest)
            _begin(connection, path, [made], after=first)
            return connection, replay(connection, caps)
    except BaseException:
        connection.close()
        raise
    connection.close()
    _replace(path, owner, doubt=doubt, mark=mark, secret=secret)
    connection = schema.connect(path)
    schema.make_durable(connection)
    return connection, replay(connection, caps)


def set_aside(path: Path) -> Iterator[Path]:
    """The files that were set aside in favour of this one."""
    return (each for each in path.parent.iterdir() if each.name.startswith(f"{path.name}.aside-"))


def _look(
    connection: sqlite3.Connection, path: Path, caps: Iterable[LifetimeCap]
) -> tuple[Found | None, str]:
    """What the file holds, or None and why: nothing where it is empty."""
    try:
        with schema.reading(path):
            version = schema.version_of(connection, path)
            if version == 0:
                return None, ""
            schema.make_durable(connection)
            if version < len(schema.STEPS):
                with schema.changing(connection):
                    schema.migrate(connection, version, schema.STEPS)
            schema.check_pages(connection)
            return replay(connection, caps), ""
    except Broken:
        return None, DAMAGED


def _begin(
    connection: sqlite3.Connection, path: Path, changes: Iterable[Change], *, after: Mark
) -> None:
    """Fill an empty file."""
    with schema.reading(path):
        schema.make_durable(connection)
        with schema.changing(connection):
            schema.migrate(connection, 0, schema.STEPS)
            for change in changes:
                row = row_of(change, after=after)
                schema.add_row(connection, row)
                after = row.mark


def _replace(path: Path, owner: Owner, *, doubt: str, mark: Mark | None, secret: bytes) -> None:
    """Put a new file in place of this one, which is set aside.

    The doubt is noted first: a half of what follows must not be taken for a whole ledger.
    """
    owner.remember(doubt)
    saved = salvage(path)
    after = saved.head
    if mark is not None:
        after = Mark(number=max(mark.number, after.number), digest=mark.digest)
    new = _new(path)
    with schema.reading(path):
        for suffix in ("", *LOGS):
            Path(f"{new}{suffix}").unlink(missing_ok=True)
    made = Made(secret=saved.secret or secret, start=after.digest, doubt=doubt)
    connection = schema.connect(new)
    try:
        _begin(connection, new, [made, *saved.changes], after=after)
    finally:
        connection.close()  # which brings all of it into the file itself
    with schema.reading(path):
        number = 1 + sum(not file.name.endswith(LOGS) for file in set_aside(path))
        if path.stat().st_size == 0:
            path.unlink()  # made to look into, where there was none
        for suffix in (*LOGS, ""):
            if Path(f"{path}{suffix}").exists():
                os.replace(f"{path}{suffix}", f"{path}.aside-{number}{suffix}")
        os.replace(new, path)
        sync_folder(path.parent)


def _finish(path: Path, owner: Owner) -> None:
    """End a replacement that a crash has interrupted between its last two steps."""
    with schema.reading(path):
        if owner.doubt and not path.exists() and _new(path).exists():
            os.replace(_new(path), path)
            sync_folder(path.parent)


def _new(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


# The ledger of a deployed device: one SQLite file, whose every change is a transaction on the disk.


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
