"""Copies of a store, made while its collector runs, and what may come back from one.

A copy is always a SQLite file, whatever the store is in. It has no keys: those of rounds must die
with their rounds, and a copy would keep them alive.

What comes back is less than what was copied. Between the copy and its return the collector may have
gone on, so a round that was open then may have been released since, with more reports. Released once
more from the copy, the difference of the two would be the sum over the few people in between, with
hardly any noise. So a round that was open comes back closed and empty, and is withheld; and since
rounds that were opened in between are not known at all, no study goes on (`store/schema.py`). A
token that was unused may have been used since, and a credential of an analyst or a gateway may have
been removed: neither comes back.
"""

import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from demur_proto.errors import NotFoundError, StateError, StorageError
from demur_server.admin.verifying import verify
from demur_server.collector.keys import sync_folder
from demur_server.store import records, schema
from demur_server.store.inspect import SideDoor, sqlite_door
from demur_server.store.link import Link
from demur_server.store.migrating import bring_up_to_date, copy_rows
from demur_server.store.schema import credentials, metadata, tokens
from demur_server.store.sqlite import SqliteDatabase


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What came back from a copy."""

    studies: int
    rounds: int
    releases: int
    voided_rounds: int  #: open when the copy was made: closed now, empty, to be withheld
    dropped_tokens: int  #: unused when the copy was made
    dropped_credentials: int  #: of analysts and gateways
    mark: str  #: what the names of new studies must hold


def back_up(door: SideDoor, destination: Path) -> int:
    """Copy a store as of one moment into a new file, for its owner only.

    Args:
        door: into the store; its collector may run on, and count on.
        destination: the file to make.

    Returns:
        The size of the file in bytes.

    Raises:
        StateError: the file exists.
        StorageError: it cannot be written, or the store cannot be read.
    """
    with _new_file(destination) as partial:
        try:
            with closing(sqlite3.connect(partial, isolation_level=None)) as copy:
                if door.sql.dialect.name == "sqlite":
                    door.raw.backup(copy)  # in one step, hence of one moment
                    copy.execute("PRAGMA journal_mode = DELETE").fetchall()  # one file
                else:
                    _copy_database(door, copy)
                [(verdict,)] = copy.execute("PRAGMA quick_check(1)").fetchall()
        except (sqlite3.Error, sa.exc.SQLAlchemyError) as error:
            raise StorageError(f"{door.name} cannot be copied to {destination}: {error}") from None
        if verdict != "ok":
            raise StorageError(f"{door.name} is damaged: {verdict}; restore an earlier backup")
    return destination.stat().st_size


def restore_file(backup: Path, destination: Path) -> Restored:
    """Make a SQLite store from a copy.

    Args:
        backup: as `back_up` made it.
        destination: the file to make.

    Raises:
        NotFoundError: there is no backup.
        StateError: the destination exists.
        StorageError: the backup is damaged, or the destination cannot be written.
    """
    try:
        destination.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{destination} cannot be written: {error.strerror}") from None
    with _checked(backup) as door, _new_file(destination) as partial:
        try:
            with closing(sqlite3.connect(partial, isolation_level=None)) as copy:
                copy.execute("PRAGMA secure_delete = ON")
                door.raw.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE").fetchall()
        except sqlite3.Error as error:
            raise StorageError(f"{backup} cannot be copied to {destination}: {error}") from None
        database = SqliteDatabase(partial)
        try:
            link = database.connect()
            with _restoring(link, database.name):
                restored = _take_away(link.sql)
        finally:
            database.close()
            partial.with_name(partial.name + ".lock").unlink(missing_ok=True)
    return restored


def restore_postgres(backup: Path, conninfo: str) -> Restored:
    """Make a PostgreSQL store from a copy, in a database without tables.

    Raises:
        NotFoundError: there is no backup.
        StateError: the database holds something, or a collector runs on it.
        StorageError: the backup is damaged, or the database is out of reach.
        ParameterError: the address is none.
    """
    from demur_server.store.postgres import PostgresDatabase

    database = PostgresDatabase(conninfo)
    with _checked(backup) as door:
        link = database.connect()
        # In one transaction: what was only copied must never be there to be served.
        with door.looking() as source, _restoring(link, database.name):
            for table in metadata.sorted_tables:
                if link.sql.execute(sa.select(sa.func.count()).select_from(table)).scalar():
                    raise StateError(f"{database.name} holds a store; name an empty database")
            copy_rows(source, link.sql)
            restored = _take_away(link.sql)
    return restored


@contextmanager
def _restoring(link: Link, name: str) -> Iterator[None]:
    """All of the block or nothing, after which the link is let go of."""
    try:
        with link.transaction():
            yield
        link.scrub()
    except link.trouble as error:
        raise StorageError(f"{name} cannot be restored: {link.explain(error)}") from None
    finally:
        link.close()


def _take_away(sql: sa.Connection) -> Restored:
    """Remove what must not come back, and check what is left; inside a transaction.

    Raises:
        StorageError: it is damaged.
    """
    opened = [row for row in records.all_rounds(sql) if not row.closed]
    for row in opened:
        records.void_round(sql, row)
        records.mark_closed(sql, row)
    dropped_tokens = sql.execute(tokens.delete().where(tokens.c.nonce_hash.is_(None))).rowcount
    dropped_credentials = sql.execute(credentials.delete()).rowcount
    mark = schema.end_studies(sql)
    verified = verify(sql, keys_folder=None)
    if verified.problems:
        raise StorageError(f"what came back is damaged: {verified.problems[0]}")
    return Restored(
        studies=verified.studies,
        rounds=verified.rounds,
        releases=verified.releases,
        voided_rounds=len(opened),
        dropped_tokens=dropped_tokens,
        dropped_credentials=dropped_credentials,
        mark=mark,
    )


@contextmanager
def _checked(backup: Path) -> Iterator[SideDoor]:
    if not backup.is_file():
        raise NotFoundError(f"there is no backup {backup}")
    with ExitStack() as stack:
        try:
            door = stack.enter_context(sqlite_door(backup))
            with door.looking() as sql:
                problems = verify(sql, keys_folder=None).problems
                # SQLite takes half a page for one that ends in zeros.
                if backup.stat().st_size % sql.execute(sa.text("PRAGMA page_size")).scalar_one():
                    problems = ("its end is missing", *problems)
        except StorageError as error:
            problems = (str(error).removeprefix(f"{backup}: "),)
        if problems:
            reason = problems[0].removesuffix("; restore a backup")
            raise StorageError(f"the backup {backup} is damaged: {reason}; take an earlier one")
        yield door


def _copy_database(door: SideDoor, copy: sqlite3.Connection) -> None:
    """Table by table, from one snapshot."""
    copy.execute("PRAGMA page_size = 8192")
    engine = sa.create_engine(
        "sqlite://",
        creator=lambda: copy,
        poolclass=sa.StaticPool,
        isolation_level="AUTOCOMMIT",
        hide_parameters=True,
    )
    with engine.connect() as sql, door.looking() as source:
        copy.execute("BEGIN")
        bring_up_to_date(sql, name="the copy")
        copy_rows(source, sql)
        copy.execute("COMMIT")


@contextmanager
def _new_file(destination: Path) -> Iterator[Path]:
    """A file under another name, which gets this one once it is whole and durable."""
    for end in ENDS:  # a log that was left there would be taken for the new file's
        there = destination.with_name(destination.name + end)
        if os.path.lexists(there):
            raise StateError(f"{there} exists and is kept; name another file, or move it away")
    # A name of its own: two copies at once must not write into one file.
    partial = destination.with_name(f"{destination.name}.{secrets.token_hex(4)}.partial")
    try:
        os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            yield partial
            with open(partial, "rb+") as file:
                os.fsync(file.fileno())
            os.link(partial, destination)  # unlike a rename, over nothing
            sync_folder(destination.parent)
        finally:
            for end in ENDS:
                with suppress(OSError):
                    partial.with_name(partial.name + end).unlink()
    except FileExistsError:
        raise StateError(f"{destination} exists and is kept") from None
    except OSError as error:
        raise StorageError(f"{destination} cannot be written: {error.strerror}") from None


ENDS = ("", "-wal", "-shm", "-journal")  #: of the files that SQLite makes beside one, and its own
