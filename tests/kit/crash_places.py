"""Where the collectors of the crash tests keep everything: SQLite, or a real PostgreSQL."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import psycopg

from demur_proto.transport.credentials import NamedSecret
from demur_server.admin.data_folder import credential_file, read_secret_file
from demur_server.collector.keys import KeyFolder
from demur_server.config import ServerConfig, StoreConfig
from demur_server.grpc.access import hash_secret, new_named
from demur_server.serve import running
from demur_server.store import records as identities
from demur_server.store.base import NamedCredential, Role
from demur_server.store.inspect import SideDoor, postgres_door, sqlite_door
from store_kit import PostgresPlace, PostgresServer

# Always the same, so that the same devices enrol when a story is told again.
MASTER_KEY = bytes(range(32))
TOKENS = tuple(bytes([number]) * 32 for number in (1, 2))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Furniture:
    """What a collector has before anybody calls."""

    master: bytes
    analyst: NamedSecret
    gateway: NamedSecret
    tokens: tuple[bytes, ...]


def furnish(door: SideDoor, folder: Path) -> Furniture:
    """Add to what the first start has made: a gateway, and tokens."""
    gateway, kept = new_named("gateway", Role.GATEWAY)
    with door.changing() as sql:
        identities.add_credential(sql, kept)
        for token in TOKENS:
            identities.add_token(sql, hash_secret(token))
    return Furniture(
        master=KeyFolder(folder / "keys").master(),
        analyst=read_secret_file(credential_file(folder)),
        gateway=gateway,
        tokens=TOKENS,
    )


class Place(Protocol):
    """Somewhere collectors can live, one story after the other."""

    kind: str
    number: int  #: tells the stories of two places apart
    shareable: bool  #: by several collectors
    blank_rate: float  #: of stories that begin with nothing at all
    trouble_rate: float  #: of stories in which the database fails
    furniture: Furniture

    def emptied(self) -> AbstractContextManager[Path]:
        """A folder for a new story."""

    def config(self, folder: Path, *, shard: int, shards: int) -> ServerConfig:
        """For the collector of a shard."""

    def move_in(self, folder: Path) -> None:
        """Make `folder` what a collector's folder is after its first start, furnished."""

    def furnish(self, folder: Path) -> Furniture:
        """Furnish what was started on nothing."""

    def door(self, folder: Path) -> AbstractContextManager[SideDoor]:
        """Into the store."""

    def disturb(self, chance: float) -> str:
        """Let the database fail, in a way that `chance` (0 to 1) chooses; which it was."""

    def nothing(self) -> None:
        """Let the first start of this story make everything, down to the schema."""


class SqliteHome:
    """A data folder, and nothing else.

    Args:
        folder: for all of it; a quick one, as machines do not end here.
    """

    kind = "sqlite"
    number = 0
    shareable = False
    blank_rate = 0.2
    trouble_rate = 0.0
    furniture: Furniture

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._template = folder / "template"

    @classmethod
    async def prepared(cls, folder: Path) -> "SqliteHome":
        """Start a collector once, and furnish what it has made."""
        home = cls(folder)
        async with running(home.config(home._template, shard=0, shards=1)):
            made = home.furnish(home._template)
        (home._template / "keys/master.key").write_bytes(MASTER_KEY)
        home.furniture = replace(made, master=MASTER_KEY)
        return home

    @contextmanager
    def emptied(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            yield Path(folder)

    def config(self, folder: Path, *, shard: int, shards: int) -> ServerConfig:
        return ServerConfig(folder=folder, drain_s=0)

    def move_in(self, folder: Path) -> None:
        shutil.copytree(self._template, folder)

    def furnish(self, folder: Path) -> Furniture:
        with self.door(folder) as door:
            return furnish(door, folder)

    def door(self, folder: Path) -> AbstractContextManager[SideDoor]:
        return sqlite_door(folder / "store.sqlite")

    def disturb(self, chance: float) -> str:
        raise NotImplementedError

    def nothing(self) -> None:
        """There is nothing."""


class PostgresHome:
    """Data folders, and one database for all of them."""

    kind = "postgres"
    number = 1
    shareable = True
    blank_rate = 0.06  # a new database takes a quarter of a second
    trouble_rate = 0.4
    furniture: Furniture

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        self._folder = folder
        self._server = server
        self._common = PostgresPlace(server)
        self._place = self._common
        self._template = folder / "template"

    @classmethod
    async def prepared(cls, folder: Path, server: PostgresServer) -> "PostgresHome":
        """Start a collector once, and furnish what it has made."""
        home = cls(folder, server)
        async with running(home.config(home._template, shard=0, shards=1)):
            made = home.furnish(home._template)
        (home._template / "keys/master.key").write_bytes(MASTER_KEY)
        home.furniture = replace(made, master=MASTER_KEY)
        return home

    @contextmanager
    def emptied(self) -> Iterator[Path]:
        self._place = self._common
        self._place.clear()
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            yield Path(folder)
        if self._place is not self._common:
            with self._common.admin() as admin:
                name = psycopg.conninfo.conninfo_to_dict(self._place.conninfo)["dbname"]
                admin.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def config(self, folder: Path, *, shard: int, shards: int) -> ServerConfig:
        store = StoreConfig(postgres=self._place.conninfo, shard=shard, shards=shards)
        return ServerConfig(folder=folder, drain_s=0, store=store)

    def move_in(self, folder: Path) -> None:
        shutil.copytree(self._template, folder)
        mine, roles = self.furniture, {"analyst": Role.ANALYST, "gateway": Role.GATEWAY}
        with self.door(folder) as door, door.changing() as sql:
            if identities.all_credentials(sql):
                return  # for another shard
            for name, role in roles.items():
                secret: NamedSecret = getattr(mine, name)
                kept = NamedCredential(
                    name=name, role=role, credential_hash=hash_secret(secret.secret)
                )
                identities.add_credential(sql, kept)
            for token in mine.tokens:
                identities.add_token(sql, hash_secret(token))

    def furnish(self, folder: Path) -> Furniture:
        with self.door(folder) as door:
            return furnish(door, folder)

    def door(self, folder: Path) -> AbstractContextManager[SideDoor]:
        return postgres_door(self._place.conninfo)

    def nothing(self) -> None:
        self._place = PostgresPlace(self._server)

    def disturb(self, chance: float) -> str:
        """End its sessions, or kill it.

        It is not stopped and started: that would fork this process, which is talking gRPC.
        """
        with self._place.admin() as admin:
            found = admin.execute(
                "SELECT pid FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).fetchall()
            if chance < 0.5:
                for (pid,) in found:
                    admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
                return "sessions ended"
            # The server takes the end of one of its processes for a crash: it ends all the others
            # and recovers from its log.
            for (pid,) in found[:1]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return "database killed"
