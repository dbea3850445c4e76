"""A store that lasts as long as its process."""

from dataclasses import dataclass, field

import numpy as np

from demur_proto.arrays import Integers
from demur_proto.definition import Defined
from demur_proto.errors import NotFoundError
from demur_proto.release import Release
from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.v1 import report_pb2
from demur_server.store.base import Batch, Totals


@dataclass(slots=True, repr=False)
class _Counting:
    """A round while it counts."""

    asked: Defined[Round]
    sums: Integers
    reports: int = 0
    closed: bool = False
    digests: dict[bytes, bytes] = field(default_factory=dict)  # by report id


class MemoryStore:
    """Keeps everything in memory. One event loop at a time may use it."""

    def __init__(self) -> None:
        self._studies: dict[bytes, Defined[Study]] = {}
        self._rounds: dict[bytes, _Counting] = {}
        self._releases: dict[bytes, Release] = {}

    async def add_study(self, study: Defined[Study]) -> None:
        """Keep a study."""
        self._studies.setdefault(study.hash, study)

    async def add_round(self, asked: Defined[Round], *, sums_length: int) -> None:
        """Keep a round, open and empty."""
        empty = np.zeros(sums_length, dtype=np.int64)
        self._rounds.setdefault(asked.hash, _Counting(asked, empty))

    async def admit(self, round_hash: bytes, batch: Batch) -> list[int]:
        """Count each report exactly once."""
        counting = self._counting(round_hash)
        if counting.closed:
            return [report_pb2.DISPOSITION_ROUND_CLOSED] * len(batch.report_ids)
        fresh = dict(zip(batch.report_ids, batch.digests, strict=True))
        if len(fresh) == len(batch.report_ids) and counting.digests.keys().isdisjoint(fresh):
            counting.digests.update(fresh)
            counting.sums += batch.tally(batch.words)
            counting.reports += len(fresh)
            return [report_pb2.DISPOSITION_ACCEPTED] * len(fresh)
        dispositions = [
            self._admit_one(counting, identity, digest)
            for identity, digest in zip(batch.report_ids, batch.digests, strict=True)
        ]
        accepted = np.array(dispositions) == report_pb2.DISPOSITION_ACCEPTED
        counting.sums += batch.tally(batch.words[accepted])
        counting.reports += int(accepted.sum())
        return dispositions

    def _admit_one(self, counting: _Counting, identity: bytes, digest: bytes) -> int:
        known = counting.digests.get(identity)
        if known is not None:
            same = known == digest
            return report_pb2.DISPOSITION_DUPLICATE if same else report_pb2.DISPOSITION_CONFLICT
        counting.digests[identity] = digest
        return report_pb2.DISPOSITION_ACCEPTED

    async def totals(self, round_hash: bytes) -> Totals:
        """What a round has counted so far."""
        counting = self._counting(round_hash)
        return Totals(reports=counting.reports, sums=counting.sums.copy(), closed=counting.closed)

    async def close_round(self, round_hash: bytes) -> Totals:
        """Close a round, for ever."""
        counting = self._counting(round_hash)
        counting.closed = True
        counting.digests.clear()
        return await self.totals(round_hash)

    async def add_release(self, release: Release) -> Release:
        """Keep a release unless the round has one."""
        return self._releases.setdefault(release.round_hash, release)

    async def releases(self, study_hash: bytes, *, from_number: int = 1) -> list[Release]:
        """The releases of a study from a round's number on, by number."""
        mine = (
            release
            for release in self._releases.values()
            if release.study_hash == study_hash and release.number >= from_number
        )
        return sorted(mine, key=lambda release: release.number)

    def _counting(self, round_hash: bytes) -> _Counting:
        try:
            return self._rounds[round_hash]
        except KeyError:
            raise NotFoundError(f"there is no round {round_hash.hex()[:16]}") from None
