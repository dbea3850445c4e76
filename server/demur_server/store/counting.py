"""A round while it counts: the one place where it is decided whether a report counts."""

from collections.abc import Iterable, Sequence
from itertools import repeat

import numpy as np

from demur_proto.v1 import report_pb2
from demur_server.store.base import Batch

ACCEPTED = int(report_pb2.DISPOSITION_ACCEPTED)
DUPLICATE = int(report_pb2.DISPOSITION_DUPLICATE)
CONFLICT = int(report_pb2.DISPOSITION_CONFLICT)
INVALID = int(report_pb2.DISPOSITION_INVALID)


class Counting:
    """What an open round has counted, and from whom."""

    __slots__ = ("_digests", "_ids", "conflicts", "reports", "sums")

    def __init__(self, *, sums_length: int) -> None:
        self.sums = np.zeros(sums_length, dtype=np.int64)
        self.reports = 0
        self.conflicts = 0
        self._digests: dict[bytes, bytes] = {}  # by report id
        self._ids: dict[bytes, bytes] = {}  # by device

    def recall(
        self, report_ids: Sequence[bytes], digests: Iterable[bytes], devices: Iterable[bytes]
    ) -> None:
        """Know reports that were counted earlier; sums and numbers are set apart."""
        self._digests.update(zip(report_ids, digests, strict=True))
        self._ids.update(zip(devices, report_ids, strict=True))

    def admit(self, batch: Batch, *, shards: int = 1) -> tuple[list[int], Sequence[int]]:
        """Count what is new.

        Args:
            batch: the reports.
            shards: among how many the round's capacity is divided, in equal parts.

        Returns:
            One disposition each, in order, and the rows that were counted.
        """
        ids, digests, devices = batch.report_ids, batch.digests, batch.devices
        capacity = batch.capacity // shards
        if (
            self.reports + len(ids) <= capacity
            and self._digests.keys().isdisjoint(ids)
            and self._ids.keys().isdisjoint(devices)
            and len(set(ids)) == len(ids)
            and len(set(devices)) == len(devices)
        ):
            dispositions = list(repeat(ACCEPTED, len(ids)))
            fresh: Sequence[int] = range(len(ids))
            self.recall(ids, digests, devices)
            self.reports += len(ids)
        else:
            dispositions = [
                self._admit_one(*report, capacity)
                for report in zip(ids, digests, devices, strict=True)
            ]
            fresh = [row for row, each in enumerate(dispositions) if each == ACCEPTED]
            self.conflicts += dispositions.count(CONFLICT)
        if len(fresh) == len(ids):
            self.sums += batch.tally(batch.words)
        elif fresh:
            self.sums += batch.tally(batch.words[list(fresh)])
        return dispositions, fresh

    def _admit_one(self, report_id: bytes, digest: bytes, device: bytes, capacity: int) -> int:
        known = self._digests.get(report_id)
        if known is not None:
            same = known == digest and self._ids.get(device) == report_id
            return DUPLICATE if same else CONFLICT
        if device in self._ids:
            return CONFLICT
        if self.reports >= capacity:
            return INVALID
        self._digests[report_id] = digest
        self._ids[device] = report_id
        self.reports += 1
        return ACCEPTED
