"""A device as shipped, in a process of its own: an agent, its ledger, its policy, its evaluator.

    python tests/kit/edge_device.py '{"target": "127.0.0.1:1", "folder": "/dev/shm/x", ...}'

Its owner's data are one word in a file, which whoever watches may change between rounds: the name of one
of the `TRAPS`. So one device is both, the device with such data and the one without, and nothing that
is public tells which.
"""

import ctypes
import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, final

import anyio
import numpy as np
import numpy.typing as npt

from demur_client.agent import Agent
from demur_client.connection import connected
from demur_client.evaluator.base import Evaluator
from demur_client.evaluator.opening import open_evaluator
from demur_client.ledger.file import LedgerFile
from demur_client.policy import OwnerPolicy
from demur_client.sources.sql import Limits, TableSource
from demur_proto.arrays import Values
from demur_proto.queries import Feature
from demur_sim.engine.devices import InProcessEvaluator

ROWS = 3000  #: of the large table: its cross join with itself twice takes days
SQL = "SELECT count(*) > 0 FROM t a, t b, t c WHERE a.x + b.x + c.x = -5"
WORD = 16  #: bytes of the file that holds the data
UNITS = 65_000  #: of the hidden layer


def burn() -> NoReturn:
    """Compute for ever, in Python."""
    while True:
        pass


def burn_a_while(seconds: float) -> None:
    """The same with an end: in the sender's own process nothing could stop it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def hold_a_while(seconds: float) -> None:
    """As `hold_the_lock`, with an end: about 10 ms at a time."""
    end = time.monotonic() + seconds
    objects = np.arange(500_000).astype(object)
    while time.monotonic() < end:
        objects.sum()


def hold_the_lock() -> NoReturn:
    """Compute for ever, in numpy, which never lets go of the interpreter's lock here."""
    objects = np.arange(1_500_000).astype(object)
    while True:
        objects.sum()


def eat() -> NoReturn:
    """Take memory until there is none."""
    eaten = []
    while True:
        eaten.append(np.ones(1 << 20))


def run_out() -> NoReturn:
    raise MemoryError


def recurse() -> NoReturn:
    """Recurse until Python says no."""
    recurse()
    raise AssertionError


def overflow() -> NoReturn:
    """Recurse in C until the stack is full, which is a signal."""
    sys.setrecursionlimit(1 << 30)
    nested: list[object] = []
    for _ in range(10_000_000):
        nested = [nested]
    repr(nested)
    raise AssertionError


def print_on() -> NoReturn:
    """Write to wherever output goes, for ever."""
    line = b"what nobody may see\n" * 1000
    while True:
        for file in (1, 2):
            os.write(file, line)


def multiply() -> NoReturn:
    """Leave a process behind that belongs to no group of ours, and burns."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
    burn()


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def stop() -> NoReturn:
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1e6)
    raise AssertionError


def leave() -> NoReturn:
    os._exit(0)


TRAPS: dict[str, Callable[[], object]] = {
    "burn": burn,
    "lock": hold_the_lock,
    "eat": eat,
    "memory": run_out,
    "recurse": recurse,
    "overflow": overflow,
    "print": print_on,
    "multiply": multiply,
    "die": die,
    "stop": stop,
    "leave": leave,
    "sleep": lambda: time.sleep(1e6),
}


WHILES: dict[str, Callable[[float], None]] = {
    "burn a while": burn_a_while,
    "hold a while": hold_a_while,
}


@final
class Owner:
    """A source that does what the word in the file says. Anything unknown there is a number at once."""

    def __init__(self, folder: Path, *, slot_s: float) -> None:
        self._word = folder / "word"
        self._slot_s = slot_s
        self._tables = {
            "sql": _table(folder / "much.sqlite", rows=ROWS, limits=Limits()),
            "limit": _table(folder / "as-much.sqlite", rows=ROWS, limits=Limits(time_limit_s=0.02)),
        }
        drawn = np.random.default_rng(1)
        self._rows = drawn.normal(size=(400, 1))
        self._images = drawn.integers(0, 255, size=(1, 28, 28)).astype(np.uint8)

    def evaluate(self, feature: Feature) -> Values:
        word = self._read()
        if word in self._tables:
            return self._tables[word].evaluate(feature)
        if word in WHILES:
            WHILES[word](1.3 * self._slot_s)
        if word in TRAPS:
            TRAPS[word]()
        return np.array([[1.0]])

    def examples(self) -> tuple[npt.ArrayLike, npt.ArrayLike]:
        word = self._read()
        if word == "many":
            return self._rows, np.zeros(len(self._rows), dtype=np.int64)
        if word == "image":
            return self._images, np.zeros(1, dtype=np.int64)
        return [], []

    def _read(self) -> str:
        return self._word.read_bytes()[:WORD].decode().strip()


def _table(path: Path, *, rows: int, limits: Limits) -> TableSource:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x INTEGER)")
        connection.executemany("INSERT INTO t VALUES (?)", ((i,) for i in range(rows)))
    connection.close()
    return TableSource(path, {"x": SQL}, limits=limits)


def main(options: dict[str, object]) -> None:
    """Be a device until killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # never outlive whoever watches
    cpus = options["cpus"]
    assert isinstance(cpus, list)
    os.sched_setaffinity(0, cpus)
    folder = Path(str(options["folder"]))
    slot_ms, memory_mib = options["slot_ms"], options["memory_mib"]
    assert isinstance(slot_ms, int)
    assert isinstance(memory_mib, int)
    source = Owner(folder, slot_s=slot_ms / 1000)

    policy = OwnerPolicy(shortest_slot_ms=slot_ms, evaluation_memory_mib=memory_mib)

    async def run(evaluator: Evaluator) -> None:
        with LedgerFile(folder / "ledger") as ledger:
            agent = Agent(
                ledger,
                evaluator,
                policy=policy,
                open_channel=lambda: connected(str(options["target"])),
            )
            await agent.run()

    if options["evaluator"] == "thread":
        anyio.run(run, InProcessEvaluator(source))
    else:
        with open_evaluator(source, policy) as evaluator:
            anyio.run(run, evaluator)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
