"""A collector process, from its configuration to its end."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio

from demur_proto.errors import StateError, UnsupportedError, ours_in
from demur_server.admin.data_folder import DataFolder, Listening
from demur_server.collector.chunks import Assembler, AssemblyLimits
from demur_server.collector.collector import Collector
from demur_server.collector.keys import KeyFolder
from demur_server.config import AccessMode, ServerConfig, TlsConfig
from demur_server.grpc.access import CredentialAccess
from demur_server.grpc.serving import served
from demur_server.grpc.tls import ServerTls
from demur_server.store.durable import DurableStore
from demur_server.store.link import Database
from demur_server.store.sqlite import SqliteDatabase

SAME_SIGNAL_S = 0.3  #: who signals a process and its group sends everything twice


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A collector that is ready."""

    listening: Listening
    folder: Path
    folder_is_new: bool
    store: str  #: what it is called, without a password
    access: AccessMode
    analyst_credential: Path | None  #: the file, if one was made just now


@asynccontextmanager
async def running(config: ServerConfig) -> AsyncIterator[Started]:
    """Run a collector for as long as the block lasts, then drain it.

    Raises:
        StateError: the folder, the store or a port is in use.
        StorageError: the folder or the store cannot be used, or is damaged.
        UnsupportedError: the store is of a newer version.
        AccessError: a certificate or key is not good.
        ParameterError: the configuration cannot be done.
    """
    tls, analyst_tls = _read_tls(config.tls), _read_tls(config.analyst_tls)
    folder = DataFolder(config.folder)
    try:
        keys = KeyFolder(config.keys_folder)
        is_open = config.access is AccessMode.OPEN
        _check_store(config)
        database = open_database(config)
        async with _open_store(database) as store:
            collector = Collector(store, keys=keys, open_access=is_open)
            access, made = None, None
            if not is_open:
                _check_master(config)
                access = CredentialAccess(store, master_key=keys.master())
                made = await folder.first_analyst(store)
            await collector.refresh()
            async with (
                _following(collector, shards=config.store.shards),
                served(
                    collector,
                    access=access,
                    host=config.listen.host,
                    collector_port=config.listen.port,
                    analyst_host=config.listen.analyst_host,
                    analyst_port=config.listen.analyst_port,
                    tls=tls,
                    analyst_tls=analyst_tls,
                    insecure_plaintext=config.insecure_plaintext,
                    limits=config.limits,
                    assembler=Assembler(
                        AssemblyLimits(memory_bytes=config.large_reports_mib << 20)
                    ),
                    drain_s=float(config.drain_s),
                ) as ports,
            ):
                host, analyst_host = config.listen.host, config.listen.analyst_host
                listening = Listening(
                    collector=_address(host, ports.collector),
                    analyst=_address(analyst_host or host, ports.analyst),
                )
                folder.say_listening(listening)
                yield Started(
                    listening=listening,
                    folder=config.folder,
                    folder_is_new=folder.is_new,
                    store=database.name,
                    access=config.access,
                    analyst_credential=made,
                )
    finally:
        folder.release()


def open_database(config: ServerConfig) -> Database:
    """The database that a configuration names.

    Raises:
        StateError, StorageError: see `SqliteDatabase`.
        ParameterError: the address of a PostgreSQL database is none.
        UnsupportedError: its driver is not installed.
    """
    if config.store.postgres is None:
        path = config.sqlite_path
        # The lock lies beside the file, so both must be meant by one name.
        return SqliteDatabase(path.resolve() if path.is_symlink() else path)
    try:
        from demur_server.store.postgres import PostgresDatabase
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise UnsupportedError(
            "a PostgreSQL store needs psycopg; install it with: pip install 'demur[postgres]'"
        ) from None
    shard, shards = config.store.shard, config.store.shards
    return PostgresDatabase(config.store.postgres, shard=shard, shards=shards)


@contextmanager
def stoppable() -> Iterator[asyncio.Event]:
    """An event that the first SIGINT or SIGTERM sets; the second ends the process at once.

    That loses nothing: what was acknowledged is durable, and nothing else was promised.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    first_s = 0.0

    def told() -> None:
        nonlocal first_s
        if not stop.is_set():
            first_s = loop.time()
        elif loop.time() - first_s >= SAME_SIGNAL_S:
            print("demur: stopped at once; what was acknowledged is kept", file=sys.stderr)
            sys.stderr.flush()
            os._exit(1)
        stop.set()

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, told)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def serve(config: ServerConfig, *, say: Callable[[Started], None]) -> None:
    """Run a collector until the process is told to stop.

    Args:
        config: what it is told.
        say: called once it is ready.

    Raises:
        DemurError: see `running`.
    """
    with stoppable() as stop:
        async with running(config) as started:
            say(started)
            await stop.wait()


def _check_master(config: ServerConfig) -> None:
    """Refuse a shard that would make a key of its own: it would know no device of the others.

    Raises:
        StateError: the key of the others is not there.
    """
    file = config.keys_folder / "master.key"
    if config.store.shard and not file.exists():
        raise StateError(f"{file} is missing; copy it from shard 0, which all shards share it with")


def _check_store(config: ServerConfig) -> None:
    """Refuse to make a new store beside the key of one that is gone.

    It would know nothing of what was asked and released, and could release some of it again.

    Raises:
        StateError: there is a key, and no store.
    """
    kept = config.store.postgres is not None or os.path.exists(config.sqlite_path)
    if not kept and (config.keys_folder / "master.key").exists():
        raise StateError(
            f"the store {config.sqlite_path} is gone and its key is here; put it back, restore a "
            "backup, or name another folder to start anew"
        )


def _read_tls(files: TlsConfig) -> ServerTls | None:
    if files.certificate is None or files.key is None:
        return None
    return ServerTls.read(files.certificate, files.key, client_ca=files.client_ca)


def _address(host: str, port: int) -> str:
    """Host and port in one.

    >>> _address("0.0.0.0", 5), _address("::1", 5)
    ('0.0.0.0:5', '[::1]:5')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@asynccontextmanager
async def _open_store(database: Database) -> AsyncIterator[DurableStore]:
    store = await DurableStore.open(database)
    try:
        yield store
    finally:
        with anyio.CancelScope(shield=True):
            await store.close()


@asynccontextmanager
async def _following(collector: Collector, *, shards: int) -> AsyncIterator[None]:
    """Keep up with the collectors of the other shards."""
    if shards == 1:
        yield
        return
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(collector.follow)
            yield
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        ours = ours_in(group)
        if ours is None:
            raise
        raise ours from None  # as it was: a group would hide it from the caller's except
