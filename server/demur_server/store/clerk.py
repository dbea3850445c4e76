"""What a durable store does on its one thread, whichever database it has.

Memory follows the database and never leads: reports are decided on in memory, kept in one
transaction, and only then acknowledged. If anything goes wrong in between, nothing in memory is
believed any more: the link is closed, and all of it is read again from the database.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from demur_proto.definition import Defined
from demur_proto.errors import DemurError, NotFoundError, StateError, StorageError
from demur_proto.release import Release
from demur_proto.round import Round
from demur_proto.v1 import report_pb2
from demur_server.store import models, records
from demur_server.store.base import Batch, Counted, Totals
from demur_server.store.counting import Counting
from demur_server.store.link import Change, Database, Link
from demur_server.store.packing import RECORD_BYTES, checksum, pack_records, unpack_records
from demur_server.store.writer import Admission, Outcome

TRY_LATER = int(report_pb2.DISPOSITION_TRY_LATER)
ROUND_CLOSED = int(report_pb2.DISPOSITION_ROUND_CLOSED)
FIRST_RETRY_S, LAST_RETRY_S = 0.1, 5.0  #: between attempts to get a database in trouble back
GATHERED = 1e8  #: bytes of sums that are worth a second of waiting for more reports
LONGEST_S = 0.02  #: and no more than this
SCRUB_AGAIN_S = 1.0  #: between attempts to scrub while somebody reads

logger = logging.getLogger(__name__)
Value = TypeVar("Value")


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
                models.forget_model(link.sql, row.id)
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
