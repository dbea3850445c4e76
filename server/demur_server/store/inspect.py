"""Into a store beside its collector, which may be running: for looking, and for who may call.

A collector believes its memory about what is counted, so nobody else may change that. What it reads
anew every second anybody may change: tokens, devices and named credentials.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from demur_proto.errors import NotFoundError, StateError, StorageError, UnsupportedError
from demur_server.store.schema import HEAD
from demur_server.store.sqlite import BUSY_MS


class SideDoor:
    """A connection of its own to a store. Made by `sqlite_door` or `postgres_door`."""

    def __init__(self, name: str, raw: Any, sql: sa.Connection, *, snapshot: str) -> None:
        self.name = name  #: of the store, without a password
        self.raw = raw
        self.sql = sql
        self._snapshot = snapshot

    @contextmanager
    def looking(self) -> Iterator[sa.Connection]:
        """Everything as of one moment, whatever a collector does meanwhile; nothing is changed."""
        with self._transaction(self._snapshot, "ROLLBACK"):
            yield self.sql

    @contextmanager
    def changing(self) -> Iterator[sa.Connection]:
        """All of the block or nothing. For tokens, devices and named credentials only."""
        begin = "BEGIN IMMEDIATE" if self.sql.dialect.name == "sqlite" else "BEGIN"
        with self._transaction(begin, "COMMIT"):
            yield self.sql

    @contextmanager
    def _transaction(self, begin: str, end: str) -> Iterator[None]:
        try:
            self.raw.execute(begin)
            try:
                yield
                self.raw.execute(end)
            except BaseException:
                with suppress(Exception):
                    self.raw.execute("ROLLBACK")
                raise
        except (sa.exc.SQLAlchemyError, sqlite3.Error) as error:
            raise _trouble(self.name, error) from None
        except Exception as error:
            if type(error).__module__.partition(".")[0] != "psycopg":
                raise
            raise _trouble(self.name, error) from None


@contextmanager
def sqlite_door(path: Path) -> Iterator[SideDoor]:
    """Into a file.

    Raises:
        NotFoundError: there is no such file.
        StateError: its schema is older: a collector has to bring it up to date first.
        UnsupportedError: its schema is newer, or it is no store.
        StorageError: it cannot be read.
    """
    if not path.is_file():
        raise NotFoundError(
            f"there is no store {path}; demur serve makes one, and one in PostgreSQL is named by "
            "--config"
        )
    try:
        # mode=rw: a reader of a write-ahead log shares memory with its writer.
        raw = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode=rw",
            uri=True,
            timeout=BUSY_MS / 1000,
            isolation_level=None,
        )
    except sqlite3.Error as error:
        raise _trouble(str(path), error) from None
    try:
        try:
            for pragma in ("secure_delete = ON", "synchronous = FULL", "foreign_keys = ON"):
                raw.execute(f"PRAGMA {pragma}").fetchall()
        except sqlite3.Error as error:
            raise _trouble(str(path), error) from None
        with _connected("sqlite://", raw) as sql:
            door = SideDoor(str(path), raw, sql, snapshot="BEGIN")
            _check_schema(door)
            yield door
    finally:
        raw.close()


@contextmanager
def postgres_door(conninfo: str) -> Iterator[SideDoor]:
    """Into a PostgreSQL database.

    Raises:
        ParameterError: the address is none.
        NotFoundError, StateError, UnsupportedError, StorageError: as `sqlite_door`.
    """
    import psycopg

    from demur_server.store.postgres import PostgresDatabase

    name = PostgresDatabase(conninfo).name
    try:
        raw = psycopg.connect(
            conninfo, autocommit=True, connect_timeout=5, options="-c lock_timeout=10s"
        )
    except psycopg.Error as error:
        raise StorageError(f"{name} is out of reach: {_first_line(error)}") from None
    try:
        with _connected("postgresql+psycopg://", raw) as sql:
            snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
            door = SideDoor(name, raw, sql, snapshot=snapshot)
            _check_schema(door)
            yield door
    finally:
        raw.close()


@contextmanager
def _connected(url: str, raw: Any) -> Iterator[sa.Connection]:
    engine = sa.create_engine(
        url,
        creator=lambda: raw,
        poolclass=sa.StaticPool,
        isolation_level="AUTOCOMMIT",
        hide_parameters=True,
    )
    sql = engine.connect()
    try:
        yield sql
    finally:
        with suppress(Exception):
            sql.close()


def _check_schema(door: SideDoor) -> None:
    with door.looking() as sql:
        revision = None
        if sa.inspect(sql).has_table("alembic_version"):
            revision = sql.scalar(sa.text("SELECT version_num FROM alembic_version"))
    if revision is None:
        raise NotFoundError(f"{door.name} holds no store of a collector; demur serve makes one")
    if revision == HEAD:
        return
    if str(revision) < HEAD:
        raise StateError(f"{door.name} has the older schema {revision}; demur serve updates it")
    raise UnsupportedError(
        f"{door.name} has schema {revision}, which this version does not know; it knows up to "
        f"{HEAD}, so use the newer demur that made it"
    )


def _trouble(name: str, error: BaseException) -> StorageError:
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) and error.orig else error
    hint = ""
    text = _first_line(cause)
    if "malformed" in text or "not a database" in text:
        hint = "; restore a backup"
    return StorageError(f"{name}: {text}{hint}")


def _first_line(error: BaseException) -> str:
    """The others may quote values."""
    text = str(error)
    return text.splitlines()[0] if text else type(error).__name__
