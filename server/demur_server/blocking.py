"""A blocking face of `Analyst`, for notebooks and scripts."""

import atexit
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from demur_proto.queries import Query, RunningCount
from demur_proto.release import Release
from demur_proto.round import DEFAULT_SLOT_MS, Round
from demur_proto.study import Study
from demur_proto.transport.channels import ClientTls
from demur_proto.transport.credentials import NamedSecret
from demur_proto.wire.definition import Defined
from demur_server.analyst import Analyst

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager


END_S = 5.0  #: how long what was cancelled may take to end

Value = TypeVar("Value")


class BlockingAnalyst:
    """One analyst, one study, and calls that return when they are done.

    Made by `BlockingAnalyst.connect`. Its event loop runs on a thread of its own, so it works where another
    loop runs already, as in a notebook. An interrupt (Ctrl-C, or "stop" in a notebook) ends the
    call that waits and nothing else: a round that was opened stays open.
    """

    def __init__(self, portal: BlockingPortal, analyst: Analyst) -> None:
        self._portal = portal
        self._analyst = analyst

    @classmethod
    @contextmanager
    def connect(
        cls,
        target: str,
        study: Study | str | None = None,
        *,
        credential: NamedSecret | None = None,
        tls: ClientTls | None = None,
        insecure_plaintext: bool = False,
        answer_after_ms: int = DEFAULT_SLOT_MS,
    ) -> "Iterator[BlockingAnalyst]":
        """Connect to a collector for as long as the block lasts.

        Args:
            target: the collector's analyst port, `HOST:PORT`.
            study: a contract to fix, unless it is fixed already; or the name or hash of a study to go
                on with; None for the only one there is.
            credential: an analyst's; None where the collector takes questions from anybody.
            tls: how to know the collector; None for plaintext, which stays on this machine.
            insecure_plaintext: allow plaintext to another machine; see `Analyst.create`.
            answer_after_ms: when devices send, after they received a round; likewise.

        Raises:
            DemurError: see `Analyst.create` and `Analyst.resume`.
        """
        reached: dict[str, Any] = {
            "credential": credential,
            "tls": tls,
            "insecure_plaintext": insecure_plaintext,
            "answer_after_ms": answer_after_ms,
        }
        made: AbstractAsyncContextManager[Analyst]
        if isinstance(study, Study):
            made = Analyst.create(target, study, **reached)
        else:
            made = Analyst.resume(target, study, **reached)
        portal = _portal()
        with portal.wrap_async_context_manager(made) as analyst:
            yield cls(portal, analyst)

    @property
    def study(self) -> Defined[Study]:
        """What devices must pin."""
        return self._analyst.study

    def ask(self, query: Query, *, reports: int | None = None, timeout_s: float = 60.0) -> Release:
        """Ask a question, wait for the reports, and return the release; `Analyst.ask`."""
        return self._call(partial(self._analyst.ask, query, reports=reports, timeout_s=timeout_s))

    def open(self, query: Query) -> Defined[Round]:
        """Put a question to every device; `Analyst.open`."""
        return self._call(partial(self._analyst.open, query))

    def next_of(self, feature: str) -> RunningCount | None:
        """What the next round of a feature's running count asks; `Analyst.next_of`."""
        return self._call(partial(self._analyst.next_of, feature))

    def close(
        self, asked: Defined[Round], *, after_reports: int = 0, timeout_s: float = 60.0
    ) -> Release:
        """Close a round and return its release; `Analyst.close`."""
        return self._call(
            partial(self._analyst.close, asked, after_reports=after_reports, timeout_s=timeout_s)
        )

    def watch(self, *, from_number: int = 1) -> Iterator[Release]:
        """Every release from a round's number on, then each new one, without end; `Analyst.watch`.

        Leave the loop whenever you like, or interrupt it.
        """
        releases = self._analyst.watch(from_number=from_number)
        try:
            while True:
                release = self._call(partial(anext, releases, None))
                if release is None:
                    return
                yield release
        finally:
            self._call(releases.aclose)

    def _call(self, work: Callable[[], Awaitable[Value]]) -> Value:
        """Do something on the loop; whoever stops waiting stops it."""
        ended = threading.Event()

        async def done() -> Value:
            try:
                return await work()
            finally:
                ended.set()

        future = self._portal.start_task_soon(done)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            ended.wait(END_S)  # whoever calls next must not find it still running
            raise


@cache
def _portal() -> BlockingPortal:
    """The way onto an event loop on a thread of its own: the same for the whole process.

    gRPC is to blame: what it has left over for a loop that was closed disturbs the next one.
    """
    ready: Future[BlockingPortal] = Future()

    async def main() -> None:
        async with BlockingPortal() as portal:
            ready.set_result(portal)
            await portal.sleep_until_stopped()

    thread = threading.Thread(target=anyio.run, args=[main], name="demur-analyst", daemon=True)
    thread.start()
    portal = ready.result()

    def stop() -> None:
        portal.start_task_soon(portal.stop, True)
        thread.join(END_S)

    atexit.register(stop)
    return portal
