"""Reports on their way into a collector: what is sound is counted, each report on its own."""

import logging
from collections.abc import Awaitable, Callable

import anyio
import numpy as np

from demur_proto.arrays import Flags
from demur_proto.definition import REPORT_ID_BYTES
from demur_proto.hmacs import hash_payloads
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.v1 import report_pb2
from demur_proto.words import Payload, decode_words
from demur_server.admission import (
    check_devices,
    check_words,
    make_batch,
    pick,
    report_count,
    split,
    unauthenticated_devices,
)
from demur_server.assembling import Form, Whole
from demur_server.gathering import Gathering
from demur_server.live import LiveRound
from demur_server.store.base import Batch, Store

LARGE_BYTES = 1 << 21  #: hashing words beyond this, a millisecond, is worth the way to a thread
SMALL_BYTES = 1 << 12  #: of one report's words; more gain little from company

logger = logging.getLogger(__name__)


class Intake:
    """Counts reports to the rounds of a collector.

    Args:
        store: decides which report counts.
        find: the round of a hash; raises NotFoundError where there is none.
        open_access: take reports from anybody.
    """

    def __init__(
        self, store: Store, find: Callable[[bytes], LiveRound], *, open_access: bool
    ) -> None:
        self._store = store
        self._asking = find
        self._open_access = open_access
        self._gathering = Gathering(self._submit_together)

    def submit_one(
        self, round_hash: bytes, report_id: bytes, words: Payload, *, device: bytes | None = None
    ) -> Awaitable[int]:
        """Have one report counted that came on its own; as `submit`, which says more.

        What concerns this report alone is checked at once. A short one is then counted together with
        others that come meanwhile.
        """
        asking = self._asking(round_hash)
        if len(words) > SMALL_BYTES or not asking.answerable:
            return self._submit_alone(round_hash, report_id, words, device)
        check_words(asking, words, reports=report_count(report_id))
        if not self._open_access:
            check_devices(device, reports=1)
        return self._gathering.add(round_hash, report_id, bytes(words), device=device)

    async def _submit_alone(
        self, round_hash: bytes, report_id: bytes, words: Payload, device: bytes | None
    ) -> int:
        [disposition] = await self.submit(round_hash, report_id, words, devices=device)
        return disposition

    async def _submit_together(
        self, round_hash: bytes, report_ids: bytes, words: bytes, devices: bytes | None
    ) -> list[int]:
        return await self.submit(round_hash, report_ids, words, devices=devices)

    async def submit(
        self,
        round_hash: bytes,
        report_ids: bytes,
        words: Payload,
        *,
        devices: bytes | None = None,
        payload_hashes: list[bytes] | None = None,
    ) -> list[int]:
        """Count reports; one disposition each, in order.

        One bad report never fails the others: words that the round's mechanism could not have made
        render their report INVALID, while ids or words of the wrong length in all make the whole call
        fail. A call that is cancelled may have counted its reports; sent again, they are DUPLICATE.

        Args:
            round_hash: the round they answer.
            report_ids: 16 bytes each.
            words: of each report as the round's word type says, report by report.
            devices: who sent each, authenticated by the caller, 16 bytes each. Under open access
                every report id stands for a device of its own, whatever is given here.
            payload_hashes: `hash_payloads` of the words, if the caller has them already.

        Raises:
            NotFoundError: no such round.
            WireError: the lengths do not fit, or there are no devices.
            StateError: a device belongs to another shard; nothing was counted.
        """
        asking = self._asking(round_hash)
        reports = report_count(report_ids)
        check_words(asking, words, reports=reports)
        identities = split(report_ids, REPORT_ID_BYTES)
        senders = (
            unauthenticated_devices(identities)
            if self._open_access
            else check_devices(devices, reports=reports)
        )
        key = asking.digest_key
        if not asking.answerable or key is None:
            return [_unanswerable(asking)] * reports
        form = self.form(round_hash)

        def prepare() -> tuple[Batch, Flags]:
            rows, sound = decode_words(
                words,
                form.word_type,
                reports=reports,
                dimension=form.length,
                widen=not isinstance(asking.mechanism, GaussianLinear),  # it adds up any width
            )
            batch, valid = make_batch(
                asking,
                key,
                report_ids=identities,
                devices=senders,
                rows=rows,
                payload_hashes=payload_hashes or hash_payloads(words, reports=reports),
            )
            return batch, valid & sound

        # Words are hashed while the event loop receives the next ones, if there are enough of them.
        large = payload_hashes is None and len(words) > LARGE_BYTES
        batch, valid = await anyio.to_thread.run_sync(prepare) if large else prepare()
        return await self._admit_valid(asking, batch, valid)

    def form(self, round_hash: bytes) -> Form:
        """What the reports to a round look like.

        Raises:
            NotFoundError: no such round.
        """
        asking = self._asking(round_hash)
        return Form(word_type=asking.asked.value.word_type, length=asking.mechanism.report_length)

    def settled(self, round_hash: bytes) -> int | None:
        """What becomes of every report to a round by now, whatever it says; None: that depends.

        Raises:
            NotFoundError: no such round.
        """
        asking = self._asking(round_hash)
        return None if asking.answerable else _unanswerable(asking)

    async def submit_whole(
        self, round_hash: bytes, report_id: bytes, whole: Whole, *, device: bytes | None = None
    ) -> int:
        """Count one report that came in chunks; as `submit`, which says more.

        Args:
            round_hash: the round it answers.
            report_id: 16 bytes.
            whole: the report.
            device: who sent it, authenticated by the caller.

        Raises:
            NotFoundError: no such round.
            WireError: the id's length does not fit, or there is no device.
            StateError: the device belongs to another shard; nothing was counted.
        """
        asking = self._asking(round_hash)
        report_count(report_id)
        senders = (
            unauthenticated_devices([report_id])
            if self._open_access
            else check_devices(device, reports=1)
        )
        key = asking.digest_key
        if not asking.answerable or key is None:
            return _unanswerable(asking)

        def prepare() -> tuple[Batch, Flags]:
            batch, valid = make_batch(
                asking,
                key,
                report_ids=[report_id],
                devices=senders,
                rows=whole.rows,
                payload_hashes=[whole.payload_hash],
            )
            return batch, valid & whole.sound

        [disposition] = await self._admit_valid(asking, *await anyio.to_thread.run_sync(prepare))
        return disposition

    async def _admit_valid(self, asking: LiveRound, batch: Batch, valid: Flags) -> list[int]:
        """Count the valid reports of a batch; the others are INVALID."""
        if valid.all():
            return await self._admit(asking, batch)
        good = np.flatnonzero(valid).tolist()
        dispositions = [int(report_pb2.DISPOSITION_INVALID)] * len(valid)
        admitted = await self._admit(asking, pick(batch, good))
        for i, disposition in zip(good, admitted, strict=True):
            dispositions[i] = disposition
        return dispositions

    async def _admit(self, asking: LiveRound, batch: Batch) -> list[int]:
        dispositions = await self._store.admit(asking.asked.hash, batch)
        asking.conflicts += dispositions.count(report_pb2.DISPOSITION_CONFLICT)
        if asking.conflicts >= asking.alarm_at:  # one line each time their number has doubled
            asking.alarm_at = 2 * asking.conflicts
            logger.error(
                "round %d: %d conflicting reports so far: other bytes under a known id, or a "
                "second id of one device",
                asking.number,
                asking.conflicts,
            )
        if report_pb2.DISPOSITION_ACCEPTED in dispositions:
            asking.news.ring()
        return dispositions


def _unanswerable(asking: LiveRound) -> int:
    """What becomes of reports to a round that counts none."""
    if asking.open:
        return report_pb2.DISPOSITION_TRY_LATER
    return report_pb2.DISPOSITION_ROUND_CLOSED
