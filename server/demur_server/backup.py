"""Copies of a store, made while its collector runs, and what may come back from one.

A copy is always a SQLite file, whatever the store is in. It has no keys: those of rounds must die
with their rounds, and a copy would keep them alive.

What comes back is less than what was copied. Between the copy and its return the collector may have
gone on, so a round that was open then may have been released since, with more reports. Released once
more from the copy, the difference of the two would be the sum over the few people in between, with
hardly any noise. So a round that was open comes back closed and empty, and is withheld. A token that
was unused may have been used since, so unused tokens do not come back.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from demur_proto.errors import StateError, StorageError
from demur_server.store import records
from demur_server.store.copying import copy_rows
from demur_server.store.link import Link
from demur_server.store.migrating import bring_up_to_date
from demur_server.store.packing import checksum
from demur_server.store.schema import commits, metadata, tokens, totals
from demur_server.store.side_door import SideDoor, sqlite_door
from demur_server.store.sqlite import SqliteDatabase
from demur_server.verifying import verify


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What came back from a copy."""

    studies: int
    rounds: int
    releases: int
    voided_rounds: int  #: open when the copy was made: closed now, empty, to be withheld
    dropped_tokens: int  #: unused when the copy was made


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
            raise StorageError(f"{door.name} cannot be copied: {error}") from None
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
    with _checked(backup) as door, _new_file(destination) as partial:
        with closing(sqlite3.connect(partial, isolation_level=None)) as copy:
            copy.execute("PRAGMA secure_delete = ON")
            door.raw.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE").fetchall()
        database = SqliteDatabase(partial)
        try:
            restored = _come_back(database.connect())
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
        try:
            with link.transaction(), door.looking() as source:
                for table in metadata.sorted_tables:
                    if link.sql.execute(sa.select(sa.func.count()).select_from(table)).scalar():
                        raise StateError(f"{database.name} holds a store; name an empty database")
                copy_rows(source, link.sql)
        except link.trouble as error:
            link.close()
            raise StorageError(f"{database.name}: {link.explain(error)}") from None
        except BaseException:
            link.close()
            raise
        return _come_back(link)


def _come_back(link: Link) -> Restored:
    """Take away what must not come back, and let go of the link."""
    sql = link.sql
    try:
        with link.transaction():
            opened = [row for row in records.all_rounds(sql) if not row.closed]
            for round_id in [row.id for row in opened]:
                sql.execute(commits.delete().where(commits.c.round_id == round_id))
                mine = totals.select().where(totals.c.round_id == round_id)
                for kept in sql.execute(mine).all():
                    sums = bytes(len(kept.sums))
                    check = checksum(sums, round_id, kept.shard, 0, 0, 0)
                    empty = {"seq": 0, "reports": 0, "conflicts": 0, "sums": sums}
                    sql.execute(
                        totals.update()
                        .where(totals.c.round_id == round_id, totals.c.shard == kept.shard)
                        .values(**empty, checksum=check)
                    )
            for row in opened:
                records.mark_closed(sql, row)
            dropped = sql.execute(tokens.delete().where(tokens.c.nonce_hash.is_(None))).rowcount
            verified = verify(sql, keys_folder=None)
            if verified.problems:
                raise StorageError(f"what came back is damaged: {verified.problems[0]}")
        link.scrub()
        return Restored(
            studies=verified.studies,
            rounds=verified.rounds,
            releases=verified.releases,
            voided_rounds=len(opened),
            dropped_tokens=dropped,
        )
    except link.trouble as error:
        raise StorageError(f"the copy cannot be made: {link.explain(error)}") from None
    finally:
        link.close()


@contextmanager
def _checked(backup: Path) -> Iterator[SideDoor]:
    with sqlite_door(backup) as door:
        with door.looking() as sql:
            problems = verify(sql, keys_folder=None).problems
        if problems:
            raise StorageError(f"the backup {backup} is damaged: {problems[0]}")
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
    if os.path.lexists(destination):
        raise StateError(f"{destination} exists and is kept; name another file, or move it away")
    partial = destination.with_name(destination.name + ".partial")
    try:
        partial.unlink(missing_ok=True)
        os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            yield partial
            with open(partial, "rb+") as file:
                os.fsync(file.fileno())
            os.link(partial, destination)  # unlike a rename, over nothing
        finally:
            for end in ("", "-wal", "-shm", "-journal"):
                with suppress(OSError):
                    partial.with_name(partial.name + end).unlink()
    except FileExistsError:
        raise StateError(f"{destination} exists and is kept") from None
    except OSError as error:
        raise StorageError(f"{destination} cannot be written: {error.strerror}") from None
