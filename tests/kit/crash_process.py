"""A collector as it is deployed, in a process of its own that ends at a step named beforehand.

Processes are forked from one that has imported everything, so that one starts in about 25 ms. That
one never touches gRPC beyond importing it: gRPC does not survive a fork.
"""

import asyncio
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial, wraps
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from crash_bugs import BUGS
from demur_proto.errors import DemurError
from demur_server import serve as running
from demur_server.admin.data_folder import Listening
from demur_server.collector.collector import Collector
from demur_server.config import ServerConfig
from demur_server.store import postgres
from demur_server.store import worker as clerk
from demur_server.store.sqlite import SqliteDatabase
from store_kit import Fuse, fused_postgres, fused_sqlite

# What a collector needs, down to what is otherwise imported on first use. What is not there any
# more is skipped without a word, and processes start more slowly.
IMPORTED = (
    "crash_process",
    "alembic.command",
    "anyio._backends._asyncio",
    "anyio._core._sockets",
    "anyio._core._synchronization",
    "demur_proto.queries.registry",
    "demur_server.serve",
    "demur_server.store.postgres",
    "encodings.idna",
    "grpc_health.v1.health",
    "psycopg",
    "pytest",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite",
)
FILE_STEPS = ("open", "replace", "unlink", "mkdir", "fsync", "close")


class Step(StrEnum):
    """What a collector does next, or has just done."""

    STATEMENT = "statement"  #: before the database is asked
    DONE = "done"  #: after the database has done it, before anybody knows
    FILE = "file"  #: before and after each of FILE_STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """When a process ends: at the n-th step of a kind from now."""

    step: Step
    n: int  #: >= 1


class Doom:
    """Counts steps, and kills its own process at the one that it was told."""

    def __init__(self) -> None:
        self._fate: Fate | None = None
        self._left = 0

    def seal(self, fate: Fate | None) -> None:
        """From now on."""
        self._fate, self._left = fate, 0 if fate is None else fate.n

    def take(self, step: Step) -> None:
        """A step."""
        if self._fate is not None and step is self._fate.step:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)


class Watched(Fuse):
    """Statements as steps."""

    def __init__(self, doom: Doom) -> None:
        super().__init__()
        self._doom = doom

    def run(self, statement: Callable[[], Any]) -> Any:
        """Do a statement."""
        self._doom.take(Step.STATEMENT)
        result = statement()
        self._doom.take(Step.DONE)
        return result


def _watch(doom: Doom) -> None:
    """Make steps of what this process does, by the places where tests put faults in between."""
    fuse = Watched(doom)
    _replace(running, "SqliteDatabase", partial(SqliteDatabase, connection=fused_sqlite(fuse)))
    _replace(
        postgres,
        "PostgresDatabase",
        partial(postgres.PostgresDatabase, connection=fused_postgres(fuse)),
    )
    for name in FILE_STEPS:
        _replace(os, name, _watched(getattr(os, name), doom))


def _watched(function: Callable[..., Any], doom: Doom) -> Callable[..., Any]:
    @wraps(function)
    def stepping(*arguments: Any, **options: Any) -> Any:
        doom.take(Step.FILE)
        result = function(*arguments, **options)
        doom.take(Step.FILE)
        return result

    return stepping


def _be_impatient() -> None:
    """Nobody waits long for a database, or for the collectors of other shards."""
    _replace(clerk, "FIRST_RETRY_S", 0.01)
    _replace(clerk, "LAST_RETRY_S", 0.05)
    follow = Collector.follow

    async def follow_closely(collector: Collector) -> None:
        await follow(collector, every_s=0.02)

    _replace(Collector, "follow", follow_closely)


def _replace(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


def _live(
    config: ServerConfig, fate: Fate | None, bug: str | None, log: Path, say: Connection
) -> None:
    """What the process does."""
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    _be_impatient()
    if bug is not None:
        BUGS[bug]()
    doom = Doom()
    _watch(doom)
    doom.seal(fate)

    async def serve() -> None:
        def hear() -> None:
            try:
                doom.seal(say.recv())
            except EOFError:
                os._exit(1)  # the test is over

        asyncio.get_running_loop().add_reader(say.fileno(), hear)
        await running.serve(config, say=lambda started: say.send(started.listening))

    try:
        asyncio.run(serve())
    except DemurError as error:
        say.send(str(error))
        sys.exit(1)


def fork_server() -> ForkServerContext:
    """With a server to fork from, which has imported everything, this module included."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED))
    with pytest.MonkeyPatch.context() as patch:
        # Only for the moment in which it starts: it does not take over `sys.path` by itself.
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        forkserver.ensure_running()
    return context


class Process:
    """A collector that starts.

    Args:
        config: what it is told.
        fate: when it ends by itself.
        bug: one of BUGS to plant in it.
        log: where it writes what it logs.
    """

    def __init__(
        self, config: ServerConfig, *, fate: Fate | None, bug: str | None, log: Path
    ) -> None:
        context = fork_server()
        self._pipe, theirs = context.Pipe()
        self._process: ForkServerProcess = context.Process(
            target=_live, args=(config, fate, bug, log, theirs), daemon=True
        )
        self._process.start()
        theirs.close()

    def fileno(self) -> int:
        """Can be read when it says something, or has ended."""
        return self._pipe.fileno()

    def said(self) -> Listening | str | None:
        """Where it listens, or why it does not start; None: it has ended."""
        try:
            told: Listening | str = self._pipe.recv()
        except (EOFError, OSError):
            return None
        return told

    def seal(self, fate: Fate) -> None:
        """Let it end at a step from now on."""
        with suppress(OSError):
            self._pipe.send(fate)

    def kill(self) -> None:
        """Kill it from outside."""
        self._process.kill()

    def ended(self) -> int:
        """Wait for its end: a negative number is the signal that ended it."""
        self._process.join()
        self._pipe.close()
        status = self._process.exitcode
        self._process.close()
        assert status is not None
        return status
