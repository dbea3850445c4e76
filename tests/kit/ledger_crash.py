"""Ledgers whose process is killed at a step named beforehand.

As a program it forks processes that tell a story to a ledger and kill themselves at its first step,
its second, and so on. A step is before and after each statement, each call that makes names or bytes
last on a disk, and each place inside the making of an answer. It has imported everything, and never
touches gRPC.

    python -m ledger_crash FOLDER SEED LENGTH STRIDE
"""

import functools
import itertools
import os
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from demur_client.ledger.counter import FileCounter
from demur_client.ledger.file import LedgerFile
from ledger_model import READING, STORY, Event, random_story

FILE_CALLS = ("open", "write", "fsync", "replace", "unlink")
KILLED, FINAL = "killed", "final"
DAMAGED = -1  #: the seed of the story that begins with a ledger which has lost its reports


class Doom:
    """Counts steps, and kills its own process at the one that it was told."""

    def __init__(self, step: int | None) -> None:
        self._left = step

    def arm(self, step: int | None) -> None:
        """From now on it is so many steps, or none."""
        self._left = step

    def take(self, _: str = "") -> None:
        """A step."""
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)


def watch(doom: Doom) -> None:
    """Make steps of what this process does."""

    class Watched(sqlite3.Connection):
        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            doom.take()
            cursor = super().execute(*arguments)
            doom.take()
            return cursor

        def close(self) -> None:
            doom.take()
            super().close()
            doom.take()

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def stepping(*arguments: Any, **options: Any) -> Any:
            doom.take()
            result = function(*arguments, **options)
            doom.take()
            return result

        return stepping

    replace(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Watched))
    for name in FILE_CALLS:
        replace(os, name, watched(getattr(os, name)))


def replace(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


def story_of(seed: int, length: int) -> tuple[Event, ...]:
    """The story of seed 0 holds everything once; others are drawn."""
    return STORY if seed in (0, DAMAGED) else random_story(seed, length=length)


def damage(folder: Path) -> None:
    """A ledger that cannot be believed, after the first events of the story."""
    live(folder, STORY[:4], Doom(None))
    connection = sqlite3.connect(folder / "ledger", isolation_level=None)
    connection.execute("UPDATE changes SET sealed = NULL")
    connection.close()


def live(folder: Path, story: tuple[Event, ...], doom: Doom) -> None:
    """Go on with a story where it was left, and write down what is done and what has left."""
    log = os.open(folder / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    write = os.write
    write(log, b"started\n")

    def tell(step: str) -> None:
        if step.startswith(READING):
            write(log, f"{step}\n".encode())
        doom.take()

    done = (folder / "log").read_text().count("done\n")
    watch(doom)
    with LedgerFile(folder / "ledger", counter=FileCounter(folder / "counter")) as ledger:
        for event in story[done:]:
            sent = event.to_ledger(ledger, tell=tell)
            if sent is not None:
                write(log, f"sent {event.which} {event.number} {sent.hex()}\n".encode())
            write(log, b"done\n")


def fork(action: Callable[[], None]) -> int:
    """Do something in a process of its own; how that ended."""
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException as error:  # noqa: BLE001  told by the status
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def main() -> None:
    """Kill a story at each of its steps, until it has no such step."""
    base, seed, length, stride = Path(sys.argv[1]), *map(int, sys.argv[2:])
    story = story_of(seed, length)
    for step in itertools.count(1, stride):
        folder = base / f"{seed}-{step}"
        folder.mkdir()
        if seed == DAMAGED:
            assert fork(functools.partial(damage, folder)) == 0
            story = STORY[:4]  # nothing is left to do but to open it
        status = fork(functools.partial(live, folder, story, Doom(step)))
        if os.WIFEXITED(status):
            assert status == 0, status
            shutil.rmtree(folder)
            return
        shutil.copytree(folder, base / f"{seed}-{step}-{KILLED}")
        status = fork(functools.partial(live, folder, story, Doom(None)))
        if status:
            sys.exit(f"step {step} of story {seed} could not be gone on with")
        folder.rename(base / f"{seed}-{step}-{FINAL}")


if __name__ == "__main__":
    main()
