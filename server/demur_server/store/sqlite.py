"""A lock that the operating system takes back when its process ends, however it ends."""

import os
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa

from demur_proto.errors import StateError, StorageError
from demur_server.store.link import Change, checksum
from demur_server.store.migrating import bring_up_to_date

if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> None:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            raise BlockingIOError from None
else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


class FileLock:
    """Holds a file from birth to `release`. The file stays: removing it would let two hold it.

    Raises:
        BlockingIOError: somebody else holds it.
        OSError: it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._handle: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(self._handle)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let others have it; again, nothing happens."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


# SQLite: the embedded database, one file, one owner.

PRAGMAS = (
    "PRAGMA page_size = 8192",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",  # the log reaches the disk before a commit returns
    "PRAGMA fullfsync = ON",  # where a plain fsync stops at the drive's cache
    "PRAGMA checkpoint_fullfsync = ON",
    "PRAGMA secure_delete = ON",  # what is deleted is overwritten with zeros
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cell_size_check = ON",
    "PRAGMA foreign_keys = ON",
)
INSERT_COMMIT = (
    "INSERT INTO commits (round_id, shard, seq, records, checksum) VALUES (?, 0, ?, ?, ?)"
)
UPDATE_TOTALS = (
    "UPDATE totals SET seq = ?, reports = ?, conflicts = ?, sums = ?, checksum = ?"
    " WHERE round_id = ? AND shard = 0 AND seq = ?"
)
CHECKED = ("studies", "rounds", "totals", "credentials")  # small; of the others every row is
SHARD = 0  # there is only one
BUSY_MS = 5_000  #: how long to wait for a program that has the file locked
SCRUB_MS = 100  #: how long to wait for a reader, such as a backup, before scrubbing is put off

Connect = Callable[[Path], sqlite3.Connection]


class Raw(Protocol):
    """What the hot path needs of a connection."""

    def execute(self, sql: str, parameters: tuple[object, ...] = ..., /) -> Any:
        """Run one statement; the answer has a `rowcount`."""


def connect(path: Path) -> sqlite3.Connection:
    """A plain connection to a file."""
    return sqlite3.connect(
        path, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False
    )


class SqliteDatabase:
    """A file that belongs to one process for as long as this object is open.

    Args:
        path: the file; its folder is made if need be, for its owner only.
        connection: makes the driver's connection; tests put faults in between.

    Raises:
        StateError: another process has it.
        StorageError: the folder cannot be made or written.
    """

    def __init__(self, path: Path, *, connection: Connect = connect) -> None:
        self.name = str(path)
        self._path = path
        self._connection = connection
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = FileLock(path.with_name(path.name + ".lock"))
        except BlockingIOError:
            raise StateError(
                f"{path} is in use by another collector; stop that one, or choose another folder"
            ) from None
        except OSError as error:
            raise StorageError(f"no store can be kept in {path.parent}: {error.strerror}") from None

    def connect(self) -> "SqliteLink":
        """Make a link, and bring the schema up to date."""
        try:
            _create_private(self._path)
            raw = self._connection(self._path)
        except (sqlite3.Error, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise StorageError(f"{self.name} cannot be opened: {reason}") from None
        try:
            for pragma in PRAGMAS:
                raw.execute(pragma).fetchall()
            link = SqliteLink(raw)
            with link.transaction():
                bring_up_to_date(link.sql, name=self.name)
            link.check()
        except BaseException as error:
            with suppress(sqlite3.Error):
                raw.close()
            if isinstance(error, SqliteLink.trouble):
                raise StorageError(f"{self.name}: {_explain(error)}") from None
            raise
        return link

    def close(self) -> None:
        """Let others have the file."""
        self._lock.release()


class SqliteLink:
    """The one connection to the file."""

    # The last: a damaged file may hold what is no text, down to the messages about it.
    trouble: tuple[type[Exception], ...] = (
        sqlite3.Error,
        sa.exc.SQLAlchemyError,
        UnicodeDecodeError,
    )
    shard = SHARD
    shards = 1

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._raw = raw
        engine = sa.create_engine(
            "sqlite://",
            creator=lambda: raw,
            poolclass=sa.StaticPool,
            pool_reset_on_return=None,  # a link is never used again
            isolation_level="AUTOCOMMIT",
            hide_parameters=True,
        )
        self.sql = engine.connect()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block or nothing."""
        with _transaction(self._raw):
            yield

    def check(self) -> None:
        """Find what no checksum would: a damaged index hides rows that are there.

        Raises:
            StorageError: something is damaged.
        """
        for table in CHECKED:
            if self._raw.execute(f"PRAGMA integrity_check({table})").fetchall() != [("ok",)]:
                raise StorageError(f"the table {table} is damaged; restore a backup")

    def count(self, changes: Sequence[Change]) -> set[int]:
        """Keep changes in one durable transaction. Nobody else could have closed a round."""
        keep(self._raw, changes)
        return set()

    def closed_among(self, round_ids: Sequence[int]) -> set[int]:
        """None: nobody else writes to this file."""
        return set()

    def commits(self, round_id: int) -> Iterator[tuple[int, bytes, int]]:
        """The commits to a round, in order."""
        yield from self._raw.execute(
            "SELECT seq, records, checksum FROM commits WHERE round_id = ? ORDER BY seq",
            (round_id,),
        )

    def lock_round(self, round_id: int) -> None:
        """The transaction has locked everything already."""

    def scrub(self) -> bool:
        """Move the log into the file, where what was deleted is zeros, and cut the log off."""
        self._raw.execute(f"PRAGMA busy_timeout = {SCRUB_MS}")  # counting must not wait for it
        [(busy, _, _)] = self._raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._raw.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        return not busy

    def explain(self, error: Exception) -> str:
        """One line."""
        return _explain(error)

    def close(self) -> None:
        """Close the connection."""
        with suppress(sqlite3.Error, sa.exc.SQLAlchemyError):
            self.sql.close()
        with suppress(sqlite3.Error):
            self._raw.close()


@contextmanager
def _transaction(raw: Raw) -> Iterator[None]:
    raw.execute("BEGIN IMMEDIATE")
    try:
        yield
        raw.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # some errors have rolled back already
            raw.execute("ROLLBACK")
        raise


def keep(raw: Raw, changes: Sequence[Change]) -> None:
    """The hot path: two statements for each round, in one transaction.

    Raises:
        StorageError: the store is not as this process left it.
    """
    with _transaction(raw):
        for change in changes:
            if change.records:
                check = checksum(change.records, change.round_id, SHARD, change.seq)
                raw.execute(INSERT_COMMIT, (change.round_id, change.seq, change.records, check))
            numbers = (change.seq, change.reports, change.conflicts)
            check = checksum(change.sums, change.round_id, SHARD, *numbers)
            before = change.seq - 1 if change.records else change.seq
            updated = raw.execute(
                UPDATE_TOTALS, (*numbers, change.sums, check, change.round_id, before)
            )
            if updated.rowcount != 1:
                raise StorageError("somebody else has written to the store")


def _explain(error: BaseException) -> str:
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    if isinstance(cause, UnicodeDecodeError):
        return "it is malformed; restore a backup"
    text = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
    if "malformed" in text or "not a database" in text:
        text += "; restore a backup"
    return text


def _create_private(path: Path) -> None:
    """Make the file before SQLite does, readable by its owner only; its log gets the same mode."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
