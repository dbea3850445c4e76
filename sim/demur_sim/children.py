"""Child processes that cannot outlive their parent, and say why when they stop."""

import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import anyio

from demur_proto.errors import ConnectionLost, DemurError

STOP_S = 10.0  #: how long a child may take to stop when asked


class Child:
    """A process started with `spawn` (gRPC does not survive a fork) and a pipe to it."""

    def __init__(self, name: str, main: Callable[..., None], *arguments: object) -> None:
        """Start it.

        Args:
            name: what errors call it.
            main: a function of this package; called with the child's end of the pipe and the
                arguments.
            arguments: picklable.
        """
        context = multiprocessing.get_context("spawn")
        self.name = name
        self._pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(
            target=_run, args=(main, theirs, *arguments), name=name, daemon=True
        )
        self.process.start()
        theirs.close()

    def tell(self, message: object) -> None:
        """Send it something.

        Raises:
            ConnectionLost: it has stopped.
        """
        try:
            self._pipe.send(message)
        except OSError:
            raise self._how_it_stopped() from None

    async def hear(self) -> Any:
        """The next thing it says.

        Raises:
            DemurError: what ended it, if it said so.
            ConnectionLost: it stopped without a word.
        """
        try:
            if not self._pipe.poll():
                await anyio.wait_readable(self._pipe)
            message = self._pipe.recv()
        except (EOFError, OSError):
            raise self._how_it_stopped() from None
        if isinstance(message, DemurError):
            raise message
        return message

    def stopped(self) -> ConnectionLost | None:
        """How it stopped, if it has."""
        self.process.join(0.2)
        return self._how_it_stopped() if self.process.exitcode is not None else None

    def _how_it_stopped(self) -> ConnectionLost:
        self.process.join(STOP_S)
        code = self.process.exitcode
        if code is None:
            return ConnectionLost(f"the {self.name} process closed its pipe")
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        return ConnectionLost(f"the {self.name} process {how} before it was done")

    def end(self) -> None:
        """Make sure that it is gone."""
        self._pipe.close()
        self.process.join(0.1 if self.process.is_alive() else 0)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join(STOP_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()


def _run(main: Callable[..., None], pipe: Connection, *arguments: object) -> None:
    """In the child: end with the parent, and hand our own errors to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        main(pipe, *arguments)
    except BaseException as error:
        ours = ours_in(error)
        if ours is None:
            raise
        try:
            pipe.send(ours)
        except OSError:
            sys.exit(1)  # the parent is gone, so is the need to tell


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def ours_in(error: BaseException) -> DemurError | None:
    """The first error of our own in an exception or a group of them."""
    if isinstance(error, DemurError):
        return error
    if isinstance(error, BaseExceptionGroup):
        found = (ours_in(member) for member in error.exceptions)
        return next((member for member in found if member is not None), None)
    return None


def peak_rss_mb() -> float:
    """This process's largest resident size so far, MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
