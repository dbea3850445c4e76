"""The tables of a ledger's file, and how older ones become them."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from demur_client.ledger.chain import EMPTIED, Broken, Row
from demur_client.ledger.counter import sync_folder
from demur_proto.errors import StateError, StorageError, UnsupportedError

BUSY_S = 5.0  #: how long to wait for a reader, or for a checkpoint
DURABLE = (
    *("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON"),
    *("fullfsync=ON", "checkpoint_fullfsync=ON"),
)
APPLICATION_ID = 0x6465_6D75  #: "demu", in the header of the file
STEPS = (
    """
    CREATE TABLE changes (
        number INTEGER PRIMARY KEY,
        kind TEXT NOT NULL,
        salt BLOB,
        body BLOB,
        cover BLOB NOT NULL,
        link BLOB NOT NULL,
        sealed BLOB
    );
    """,
    "",
    "",
)
"""What brings a file from each version to the next. Version 1 is the first; 0 is an empty file.

All have the same tables. Version 2 has answers in rows of a kind that version 1 does not know, and
version 3 has rows of rounds that were begun."""

# What SQLite says of a file that is not what it wrote: SQLITE_ERROR (a table is missing),
# SQLITE_CORRUPT, SQLITE_NOTADB, SQLITE_IOERR_SHORT_READ. Anything else, such as a full disk, says
# nothing about what the file holds.
DAMAGED = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
FAILED_READ = {sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_DATA}
MISUSED = sqlite3.SQLITE_MISUSE  #: what sqlite3 itself refuses, without a code


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection to a file, which is made where there is none. Changes nothing in it.

    Raises:
        StorageError: it cannot be opened.
    """
    with reading(path):
        if not read_only and not path.exists():
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
            sync_folder(path.parent)
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=BUSY_S,
        )
        # Text that is none any more must not be an error of another kind.
        connection.text_factory = lambda text: text.decode("latin-1")
        for setting in ("trusted_schema=OFF", "cell_size_check=ON", "temp_store=MEMORY"):
            connection.execute(f"PRAGMA {setting}")
    return connection


def make_durable(connection: sqlite3.Connection) -> None:
    """Let every commit outlast a loss of power, and nothing that was deleted remain."""
    for setting in DURABLE:
        connection.execute(f"PRAGMA {setting}")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Tell what the file has lost from what the machine cannot do for now.

    Raises:
        Broken: what was read is not what SQLite wrote.
        StorageError: nothing can be read or kept for now.
    """
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise failure(error, path) from error


def failure(error: sqlite3.Error | OSError, path: Path) -> Broken | StorageError:
    """What to raise, as in `reading`."""
    if isinstance(error, OSError):
        return StorageError(f"the ledger {path}: {error.strerror or error}")
    code = getattr(error, "sqlite_errorcode", MISUSED)
    if code & 0xFF in DAMAGED or code in FAILED_READ:
        return Broken(str(error))
    return StorageError(f"the ledger {path}: {error}")


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """The version of the file's tables; 0 where there are none.

    Raises:
        Broken: there are tables of no version.
        UnsupportedError: it is newer than this one.
        StateError: it is a database, but no ledger.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not (version or application or tables):
        return 0
    if application != APPLICATION_ID:
        raise StateError(f"{path} is a database, but not a device's ledger; name another file")
    if version > len(STEPS):
        raise UnsupportedError(
            f"the ledger {path} has version {version}, and this demur knows {len(STEPS)} at most; "
            "install a newer one"
        )
    if version < 1:
        raise Broken("tables of no version")
    return int(version)


def migrate(connection: sqlite3.Connection, version: int, steps: Sequence[str]) -> None:
    """Bring the tables from a version to the newest, in the transaction that is open."""
    for number, step in enumerate(steps[version:], start=version + 1):
        for statement in filter(str.strip, step.split(";")):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version={number}")
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")


@contextmanager
def changing(connection: sqlite3.Connection) -> Iterator[None]:
    """A transaction: all of it is kept when it ends, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def check_pages(connection: sqlite3.Connection) -> None:
    """See that the file is whole, also where nothing is read from it.

    Raises:
        Broken: it is not.
    """
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise Broken("pages are damaged")


def rows_of(connection: sqlite3.Connection) -> Iterator[Row]:
    """All rows, in order.

    Raises:
        Broken: one is none.
    """
    columns = "number, kind, salt, body, cover, link"
    for row in connection.execute(f"SELECT {columns} FROM changes ORDER BY number"):
        if not all(isinstance(value, kinds) for value, kinds in zip(row, COLUMNS, strict=True)):
            raise Broken("a row of other types")
        number, kind, salt, body, cover, link = row
        yield Row(number=number, kind=kind, salt=salt, body=body, cover=cover, link=link)


COLUMNS = (int, str, bytes | None, bytes | None, bytes, bytes)


def add_row(connection: sqlite3.Connection, row: Row, sealed: bytes | None = None) -> None:
    """Add one to the end, with the bytes of the report that it charges: one page of the log."""
    connection.execute(
        "INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?, ?)",
        (row.number, row.kind, row.salt, row.body, row.cover, row.link, sealed),
    )


def keep_row(
    connection: sqlite3.Connection,
    row: Row,
    *,
    sealed: bytes | None,
    dropped: Sequence[int],
    erased: Sequence[int],
) -> None:
    """Add one, and leave of others no more than is wanted; all of it for good, or nothing.

    Args:
        connection: to a durable file.
        row: the next.
        sealed: the bytes of the report that it charges.
        dropped: numbers of rows whose reports nobody wants.
        erased: numbers of rows of which only the chain needs something.
    """
    if not (dropped or erased):
        add_row(connection, row, sealed)  # a transaction of its own
        return
    with changing(connection):
        add_row(connection, row, sealed)
        for number in dropped:
            connection.execute("UPDATE changes SET sealed = NULL WHERE number = ?", (number,))
        for number in erased:
            connection.execute(
                "UPDATE changes SET kind = ?, salt = NULL, body = NULL, sealed = NULL "
                "WHERE number = ?",
                (EMPTIED, number),
            )


def report_at(connection: sqlite3.Connection, number: int) -> bytes | None:
    """The bytes of the report that a change charged, unless they were dropped."""
    found = connection.execute("SELECT sealed FROM changes WHERE number = ?", (number,)).fetchone()
    return found[0] if found is not None and isinstance(found[0], bytes) else None


def scrub(connection: sqlite3.Connection) -> bool:
    """Leave nothing in the log of what was deleted; False where a reader holds on to it."""
    (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy
