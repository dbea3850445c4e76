"""Child processes that cannot outlive their parent, and say why when they stop."""

import multiprocessing
import os
import pickle
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import anyio
import anyio.to_thread

from demur_proto.errors import ConnectionLost, DemurError, StateError, ours_in
from demur_server.collector.collector import Collector
from demur_server.grpc.serving import served
from demur_server.store.memory import MemoryStore

STOP_S = 10.0  #: how long a child may take to stop when asked
NO_MAIN_GUARD = 86  #: exit code of a child whose script would start everything again


class Child:
    """A process started with `spawn` (gRPC does not survive a fork) and a pipe to it."""

    def __init__(self, name: str, main: Callable[..., None], *arguments: object) -> None:
        """Start it.

        Args:
            name: what errors call it.
            main: a function of this package; called with the child's end of the pipe and the
                arguments.
            arguments: picklable and small; `hand_over` is for what may be large.
        """
        context = multiprocessing.get_context("spawn")
        self.name = name
        self._pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(
            target=_run, args=(main, theirs, *arguments), name=name, daemon=True
        )
        try:
            with _interrupts_held():
                self.process.start()
        except RuntimeError:  # this is a child itself, which reads a script that starts everything
            sys.exit(NO_MAIN_GUARD)
        theirs.close()

    async def hand_over(self, message: object) -> None:
        """Send it something of any size; picklable.

        Large arguments must not travel with the start: `multiprocessing` would wait for ever for a
        child that stops before it has read them.

        Raises:
            DemurError: it has stopped.
        """
        try:
            await anyio.to_thread.run_sync(say, self._pipe, message)
        except OSError:
            raise self._how_it_stopped() from None

    def tell(self, message: object) -> None:
        """Send it something small.

        Raises:
            DemurError: it has stopped.
        """
        try:
            say(self._pipe, message)
        except OSError:
            raise self._how_it_stopped() from None

    async def hear(self) -> Any:
        """The next thing it says.

        Raises:
            DemurError: what ended it, if it said so; else how it stopped.
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

    def stopped(self) -> DemurError | None:
        """How it stopped, if it has."""
        self.process.join(0.2)
        return self._how_it_stopped() if self.process.exitcode is not None else None

    def _how_it_stopped(self) -> DemurError:
        self.process.join(STOP_S)
        code = self.process.exitcode
        if code is None:
            return ConnectionLost(f"the {self.name} process closed its pipe")
        if code == NO_MAIN_GUARD:
            return StateError(
                "every process reads the script that started it: keep what the script does behind "
                '`if __name__ == "__main__":`'
            )
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


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Start children that never see an interrupt: their parent decides what it means.

    A terminal sends Ctrl-C to all of them. Ignoring it once they run is too late: they take a
    while to get there.
    """
    resource_tracker.ensure_running()  # it is started with the first child, and would lift the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def say(pipe: Connection, message: object) -> None:
    """Send through a pipe. `Connection.send` complains on stderr when the other end has closed."""
    pipe.send_bytes(pickle.dumps(message))


def _run(main: Callable[..., None], pipe: Connection, *arguments: object) -> None:
    """In the child: end with the parent, and hand our own errors to it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        main(pipe, *arguments)
    except BaseException as error:
        if _is_closed(pipe):
            sys.exit(1)  # whatever it is, nobody wants to know
        ours = ours_in(error)
        if ours is None:
            raise
        with suppress(OSError):
            say(pipe, ours)


def _is_closed(pipe: Connection) -> bool:
    """Whether the parent has closed its end, or is gone."""
    try:
        while pipe.poll():
            pipe.recv()
    except (EOFError, OSError):
        return True
    return False


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def peak_rss_mb() -> float:
    """This process's largest resident size so far, MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


# A real collector in a process of its own.


def collect(pipe: Connection, collector_port: int) -> None:
    """Serve until told to stop: says its ports first, its peak memory last."""
    anyio.run(_collect, pipe, collector_port)


async def _collect(pipe: Connection, collector_port: int) -> None:
    async with served(
        Collector(MemoryStore(), open_access=True), collector_port=collector_port
    ) as ports:
        say(pipe, ports)
        await anyio.wait_readable(pipe)  # told to stop, or the parent is gone
    say(pipe, peak_rss_mb())
