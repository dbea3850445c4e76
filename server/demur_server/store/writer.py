"""Group commit: one thread does a store's work, and what waits meanwhile shares one commit.

A commit costs about as much for one report as for ten thousand, most of it waiting for the disk.
So while one commit is on its way the next reports gather, and all of them are acknowledged
together, after the commit and never before.
"""

import asyncio
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from demur_proto.errors import StorageError
from demur_server.store.base import Batch

GROUP_REPORTS = 1 << 15  #: a commit takes up no more batches once it has this many reports
GROUP_WORDS = 1 << 23  #: nor once it has this many words
ENOUGH_JOBS = 16  #: nor waits for more once it has this many batches
WAITING_REPORTS = 1 << 20  #: beyond this much work in hand, more is put off
WAITING_WORDS = 1 << 26  #: likewise: 512 MiB

Outcome = list[int] | Exception
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Admission:
    """Reports that somebody waits to have counted."""

    round_hash: bytes
    batch: Batch


@dataclass(frozen=True, slots=True, repr=False)
class _Job:
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"
    work: Admission | Callable[[], Any]


class Writer:
    """A thread that counts reports in groups and does everything else in between, in order.

    Args:
        count: counts a group: one outcome for each admission, all of them final.
        patience_s: how long a commit for an admission may wait for company, seconds.
    """

    def __init__(
        self,
        count: Callable[[Sequence[Admission]], Sequence[Outcome]],
        *,
        patience_s: Callable[[Admission], float] = lambda _: 0.0,
    ) -> None:
        self._count = count
        self._patience_s = patience_s
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._taken: deque[_Job] = deque()  # from the queue, not yet done
        self._submitting = threading.Lock()
        self._waiting_reports = 0
        self._waiting_words = 0
        self._stopped = False
        self._alone = True  # the last commit was for one admission
        self._last: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="demur-store", daemon=True)
        self._thread.start()

    async def admit(self, admission: Admission) -> list[int] | None:
        """Have reports counted; None: there is too much to do, try later.

        A caller that is cancelled meanwhile leaves the reports to be counted all the same.
        """
        reports, words = admission.batch.words.shape[0], admission.batch.words.size
        too_many = self._waiting_reports + reports > WAITING_REPORTS
        if self._waiting_reports and (too_many or self._waiting_words + words > WAITING_WORDS):
            return None
        dispositions: list[int] = await self._submit(admission)
        return dispositions

    async def call(self, work: Callable[[], Value]) -> Value:
        """Do something else in turn."""
        value: Value = await self._submit(work)
        return value

    async def stop(self, last: Callable[[], None]) -> None:
        """Finish what was begun, and one last thing; then nothing more is taken."""
        with self._submitting:
            if not self._stopped:
                self._stopped = True
                self._last = last
                self._jobs.put(None)
        while self._thread.is_alive():  # noqa: ASYNC110  a thread rings no bell when it ends
            await asyncio.sleep(0.001)

    async def _submit(self, work: Admission | Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        job = _Job(loop, loop.create_future(), work)
        with self._submitting:  # or a job could slip in behind the last one
            if self._stopped:
                raise StorageError("the store is closed")
            self._weigh(job, 1)
            self._jobs.put(job)
        return await job.future

    def _weigh(self, job: _Job, sign: int) -> None:
        if isinstance(job.work, Admission):
            self._waiting_reports += sign * job.work.batch.words.shape[0]
            self._waiting_words += sign * job.work.batch.words.size

    def _run(self) -> None:
        jobs: list[_Job] = []
        try:
            while True:
                jobs = self._next_jobs()
                if not jobs:
                    self._last()
                    return
                _settle(jobs, self._outcomes(jobs))
                with self._submitting:
                    for job in jobs:
                        self._weigh(job, -1)
        except BaseException as error:
            # Not an error of the work but the end of the process, or a bug right here.
            with self._submitting:
                self._stopped = True
            while self._take_one(timeout_s=0.0):
                pass
            lost = StorageError("the store has stopped")
            _settle([*jobs, *self._taken], [lost] * (len(jobs) + len(self._taken)))
            if isinstance(error, Exception):
                raise

    def _outcomes(self, jobs: Sequence[_Job]) -> Sequence[Any]:
        first = jobs[0].work
        if not isinstance(first, Admission):
            try:
                return [first()]
            except Exception as error:  # noqa: BLE001  it belongs to whoever asked
                return [error]
        try:
            return self._count([job.work for job in jobs if isinstance(job.work, Admission)])
        except Exception as error:  # noqa: BLE001  likewise
            return [error] * len(jobs)

    def _next_jobs(self) -> list[_Job]:
        """The next group of admissions, or the next other job; nothing: it is time to stop."""
        if not self._taken and not self._take_one():
            return []
        while self._take_one(timeout_s=0.0):
            pass
        self._gather()
        first = self._taken.popleft()
        jobs = [first]
        if not isinstance(first.work, Admission):
            return jobs
        reports, words = first.work.batch.words.shape[0], first.work.batch.words.size
        while self._taken and isinstance(self._taken[0].work, Admission):
            batch = self._taken[0].work.batch
            reports, words = reports + batch.words.shape[0], words + batch.words.size
            if reports > GROUP_REPORTS or words > GROUP_WORDS:
                break
            jobs.append(self._taken.popleft())
        self._alone = len(jobs) == 1
        return jobs

    def _gather(self) -> None:
        """Wait for company where it is worth it, unless whoever sends waits for each answer."""
        first = self._taken[0].work
        if not isinstance(first, Admission) or (len(self._taken) == 1 and self._alone):
            return
        until = time.monotonic() + self._patience_s(first)
        while not _are_enough(self._taken) and (left := until - time.monotonic()) > 0:
            if self._stopped or not isinstance(self._taken[-1].work, Admission):
                return
            self._take_one(timeout_s=left)

    def _take_one(self, *, timeout_s: float | None = None) -> bool:
        with suppress(Empty):
            job = self._jobs.get(block=timeout_s != 0.0, timeout=timeout_s or None)
            if job is not None:
                self._taken.append(job)
                return True
            self._jobs.put(None)  # stay stopped
        return False


def _are_enough(jobs: Collection[_Job]) -> bool:
    """Whether a group of these would be full, or is not worth waiting for any longer."""
    batches = [job.work.batch for job in jobs if isinstance(job.work, Admission)]
    return (
        len(jobs) >= ENOUGH_JOBS
        or sum(batch.words.shape[0] for batch in batches) >= GROUP_REPORTS
        or sum(batch.words.size for batch in batches) >= GROUP_WORDS
    )


def _settle(jobs: Sequence[_Job], outcomes: Sequence[Any]) -> None:
    """Tell everyone who waits, with one wake-up for each event loop."""
    by_loop = defaultdict(list)
    for job, outcome in zip(jobs, outcomes, strict=True):
        by_loop[job.loop].append((job.future, outcome))
    for loop, told in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            loop.call_soon_threadsafe(_tell, told)


def _tell(told: "Sequence[tuple[asyncio.Future[Any], Any]]") -> None:
    for future, outcome in told:
        if future.done():
            continue  # whoever waited has left
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
