"""Group commit: one thread does a store's work, and what waits meanwhile shares one commit.

A commit costs about as much for one report as for ten thousand, most of it waiting for the disk.
So while one commit is on its way the next reports gather, and all of them are acknowledged
together, after the commit and never before.
"""

import asyncio
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import numpy as np

from demur_proto.errors import DemurError, NotFoundError, StateError, StorageError
from demur_proto.release import Release
from demur_proto.round import Round
from demur_proto.v1 import report_pb2
from demur_proto.wire.definition import Defined
from demur_server.store import records
from demur_server.store.base import Batch, Counted, Counting, Totals
from demur_server.store.link import (
    RECORD_BYTES,
    Change,
    Database,
    Link,
    checksum,
    pack_records,
    unpack_records,
)

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


# What a durable store does on its one thread, whichever database it has.
#
# Memory follows the database and never leads: reports are decided on in memory, kept in one
# transaction, and only then acknowledged. If anything goes wrong in between, nothing in memory is
# believed any more: the link is closed, and all of it is read again from the database.

TRY_LATER = int(report_pb2.DISPOSITION_TRY_LATER)
ROUND_CLOSED = int(report_pb2.DISPOSITION_ROUND_CLOSED)
FIRST_RETRY_S, LAST_RETRY_S = 0.1, 5.0  #: between attempts to get a database in trouble back
GATHERED = 1e8  #: bytes of sums that are worth a second of waiting for more reports
LONGEST_S = 0.02  #: and no more than this
SCRUB_AGAIN_S = 1.0  #: between attempts to scrub while somebody reads

logger = logging.getLogger(__name__)


@dataclass(slots=True, repr=False, eq=False)
class _Open:
    """A round that may count, and what this commit adds to it."""

    row: records.RoundRow
    counting: Counting
    seq: int
    batches: list[tuple[Batch, Sequence[int]]] = field(default_factory=list)
    conflicts: int = 0  # as of the last commit


class Clerk:
    """Counts reports and keeps records, one thing at a time.

    Args:
        database: where to keep them.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._link: Link | None = None
        self._open: dict[bytes, _Open] = {}
        self._closed: set[bytes] = set()
        self._retry_s = FIRST_RETRY_S
        self._retry_at = 0.0
        self._trouble = ""
        self._scrub_at: float | None = None

    # ---- the link ----------------------------------------------------------------------------

    def connect(self) -> None:
        """Make the link and read what is open.

        Raises:
            StorageError, StateError, UnsupportedError: as `Database.connect`, or what is kept there
                is damaged, or counts on other shards.
        """
        link = self._database.connect()
        try:
            self._open, self._closed = {}, set()
            for row in records.all_rounds(link.sql):
                self._take_up(link, row)
            self._scrub(link)  # a process may have ended between deleting and scrubbing
        except link.trouble as error:
            link.close()
            raise StorageError(f"{self._database.name}: {link.explain(error)}") from None
        except BaseException:
            link.close()
            raise
        self._link = link

    def call(self, work: Callable[[Link], Value], *, writes: bool = False) -> Value:
        """Do something with the link.

        Args:
            work: what to do.
            writes: it ends with a commit. Only that shows that trouble is over: a full disk can
                still be read.

        Raises:
            StorageError: the database is in trouble; nothing was done, or it may be done again.
        """
        link = self._linked()
        try:
            value = work(link)
            if self._scrub_at is not None and time.monotonic() >= self._scrub_at:
                self._scrub(link)
        except link.trouble as error:
            raise self._lose(link, link.explain(error)) from None
        except StorageError as error:
            raise self._lose(link, str(error)) from None
        except DemurError:
            raise
        except BaseException:
            self._drop(link)
            raise
        if writes:
            self._note_commit()
        return value

    def close(self) -> None:
        """Let go of the database."""
        if self._link is not None:
            self._drop(self._link)
        self._database.close()

    def _linked(self) -> Link:
        """The link, made anew if it was lost and it is time to try again."""
        if self._link is None:
            if time.monotonic() < self._retry_at:
                raise StorageError(self._trouble)
            try:
                self.connect()
            except DemurError as error:
                raise self._postpone(str(error)) from None
        if self._link is None:
            raise StorageError(self._trouble)
        return self._link

    def _lose(self, link: Link, reason: str) -> StorageError:
        self._drop(link)
        return self._postpone(reason)

    def _drop(self, link: Link) -> None:
        """Nothing in memory is known to be true any more."""
        self._link = None
        self._open, self._closed = {}, set()
        link.close()

    def _postpone(self, reason: str) -> StorageError:
        trouble = f"the store is in trouble: {reason}"
        if trouble != self._trouble:  # once, not for every report or attempt
            logger.error("%s; until that is over, reports are answered TRY_LATER", trouble)
        self._trouble = trouble
        self._retry_at = time.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, LAST_RETRY_S)
        return StorageError(trouble)

    def _note_commit(self) -> None:
        if self._trouble:
            logger.warning("the store is back: %s", self._database.name)
        self._trouble = ""
        self._retry_s = FIRST_RETRY_S

    def _scrub(self, link: Link) -> None:
        done = link.scrub()
        if not done and self._scrub_at is None:
            logger.warning("somebody reads the store: what was deleted is overwritten later")
        self._scrub_at = None if done else time.monotonic() + SCRUB_AGAIN_S

    # ---- counting ----------------------------------------------------------------------------

    def count(self, admissions: Sequence[Admission]) -> list[Outcome]:
        """Count a group in one commit; the outcomes are final and durable."""
        try:
            return self.call(lambda link: self._count(link, admissions))
        except StorageError:
            return [[TRY_LATER] * len(each.batch.report_ids) for each in admissions]

    def patience_s(self, admission: Admission) -> float:
        """How long to gather: every commit writes all sums of a round, and large ones take time."""
        mine = self._open.get(admission.round_hash)
        return 0.0 if mine is None else min(LONGEST_S, mine.counting.sums.nbytes / GATHERED)

    def _count(self, link: Link, admissions: Sequence[Admission]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        touched: dict[bytes, _Open] = {}
        for admission in admissions:
            batch, round_hash = admission.batch, admission.round_hash
            try:
                mine = self._find(link, round_hash)
            except (NotFoundError, StateError) as error:
                outcomes.append(error)
                continue
            if mine is None:
                outcomes.append([ROUND_CLOSED] * len(batch.report_ids))
                continue
            if link.shards > 1 and (wrong := _misplaced(link, batch)) is not None:
                outcomes.append(wrong)
                continue
            touched[round_hash] = mine
            dispositions, fresh = mine.counting.admit(batch, shards=link.shards)
            if fresh:
                mine.batches.append((batch, fresh))
            outcomes.append(dispositions)
        changed = [each for each in touched.values() if each.batches or _new_conflicts(each)]
        changes = [_change(each) for each in changed]
        closed = link.count(changes) if changes else set()
        untouched = [each.row.id for each in touched.values() if each not in changed]
        closed |= link.closed_among(untouched) if untouched else set()
        if changes:
            self._note_commit()
        for mine, change in zip(changed, changes, strict=True):
            mine.seq, mine.conflicts = change.seq, change.conflicts
            mine.batches.clear()
        late = {round_hash for round_hash, each in touched.items() if each.row.id in closed}
        for round_hash in late:
            self._forget(round_hash)
        return [
            [ROUND_CLOSED] * len(admission.batch.report_ids)
            if admission.round_hash in late and not isinstance(outcome, Exception)
            else outcome
            for admission, outcome in zip(admissions, outcomes, strict=True)
        ]

    def counted(self, link: Link, round_hash: bytes) -> Counted:
        """How many reports a round has."""
        mine = self._find(link, round_hash)
        if mine is not None and link.shards == 1:
            counting = mine.counting
            return Counted(reports=counting.reports, conflicts=counting.conflicts, closed=False)
        return records.all_counted(link.sql, self._row(link, round_hash))

    def totals(self, link: Link, round_hash: bytes) -> Totals:
        """What a round has counted."""
        mine = self._find(link, round_hash)
        if mine is not None and link.shards == 1:
            counting = mine.counting
            return Totals(
                reports=counting.reports,
                conflicts=counting.conflicts,
                sums=counting.sums.copy(),
                closed=False,
            )
        row = self._row(link, round_hash)
        return records.all_totals(link.sql, row, closed=row.closed)

    # ---- opening and closing -----------------------------------------------------------------

    def add_round(
        self, link: Link, asked: Defined[Round], *, sums_length: int, open_access: bool
    ) -> None:
        """Keep a round, open and empty."""
        with link.transaction():
            records.add_round(
                link.sql,
                asked,
                sums_length=sums_length,
                open_access=open_access,
                shards=link.shards,
            )
        self._find(link, asked.hash)

    def close_round(self, link: Link, round_hash: bytes, *, void: bool) -> Totals:
        """Close a round, for ever, and delete what tells its reports apart."""
        row = self._row(link, round_hash)
        if not row.closed:
            with link.transaction():
                link.lock_round(row.id)
                if void:
                    records.void_round(link.sql, row)
                records.mark_closed(link.sql, row)
                totals = records.all_totals(link.sql, row, closed=True)
                records.delete_commits(link.sql, row.id)
                records.forget_model(link.sql, row.id)
            self._forget(round_hash)
            self._scrub(link)
            return totals
        return records.all_totals(link.sql, row, closed=True)

    def add_release(self, link: Link, release: Release) -> Release:
        """Keep a release unless its round has one."""
        with link.transaction():
            kept = records.add_release(link.sql, release)
        self._scrub(link)
        return kept

    def _row(self, link: Link, round_hash: bytes) -> records.RoundRow:
        row = records.find_round(link.sql, round_hash)
        if row is None:
            raise records.no_round(round_hash)
        return row

    def _find(self, link: Link, round_hash: bytes) -> _Open | None:
        """A round that may count; None: it is closed."""
        if round_hash in self._closed:
            return None
        if round_hash not in self._open:
            self._take_up(link, self._row(link, round_hash))
        return self._open.get(round_hash)

    def _take_up(self, link: Link, row: records.RoundRow) -> None:
        """Read what a round has counted on this shard."""
        if row.closed:
            self._closed.add(row.hash)
            return
        if row.shards != link.shards:
            raise StateError(
                f"round {row.number} is open and counts on {row.shards} shards, not "
                f"{link.shards}; close it before you change the number of shards"
            )
        try:
            self._open[row.hash] = self._read(link, row)
        except StorageError:
            # Another shard may have closed it since its row was read: that is no damage.
            if not self._row(link, row.hash).closed:
                raise
            self._closed.add(row.hash)

    def _read(self, link: Link, row: records.RoundRow) -> _Open:
        kept = records.shard_totals(link.sql, row, shard=link.shard)
        counting = self._recalled(link, row)
        if counting.reports != kept.reports or kept.sums.size != row.sums_length:
            raise records.damaged(row)
        counting.sums = kept.sums
        counting.conflicts = kept.conflicts
        return _Open(row, counting, kept.seq, conflicts=kept.conflicts)

    def _recalled(self, link: Link, row: records.RoundRow) -> Counting:
        """The index of a round, from all its commits."""
        counting = Counting(sums_length=0)
        pieces = []
        for expected, (seq, kept, check) in enumerate(link.commits(row.id), start=1):
            intact = checksum(kept, row.id, link.shard, seq) == check
            if seq != expected or not intact or len(kept) % RECORD_BYTES:
                raise records.damaged(row)
            pieces.append(kept)
        counting.recall(*unpack_records(b"".join(pieces)))
        counting.reports = sum(map(len, pieces)) // RECORD_BYTES
        return counting

    def _forget(self, round_hash: bytes) -> None:
        self._open.pop(round_hash, None)
        self._closed.add(round_hash)


def _new_conflicts(mine: _Open) -> bool:
    return mine.counting.conflicts != mine.conflicts


def _change(mine: _Open) -> Change:
    """What a commit keeps of one round."""
    ids, digests, devices = [], [], []
    for batch, fresh in mine.batches:
        if len(fresh) == len(batch.report_ids):
            ids += batch.report_ids
            digests += batch.digests
            devices += batch.devices
        else:
            ids += [batch.report_ids[i] for i in fresh]
            digests += [batch.digests[i] for i in fresh]
            devices += [batch.devices[i] for i in fresh]
    return Change(
        round_id=mine.row.id,
        seq=mine.seq + bool(ids),
        records=pack_records(ids, digests, devices),
        reports=mine.counting.reports,
        conflicts=mine.counting.conflicts,
        sums=np.asarray(mine.counting.sums, dtype="<i8").tobytes(),
    )


def _misplaced(link: Link, batch: Batch) -> StateError | None:
    for device in batch.devices:
        owner = device[0] % link.shards
        if owner != link.shard:
            return StateError(
                f"a device of shard {owner} reported to shard {link.shard} of {link.shards}; "
                "send its reports to the other collector"
            )
    return None
