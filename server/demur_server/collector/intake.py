"""From the bytes of reports to a batch that a store can count."""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import anyio
import numpy as np

from demur_proto.arrays import Flags, Words
from demur_proto.errors import DemurError, WireError
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.v1 import report_pb2
from demur_proto.wire.definition import REPORT_ID_BYTES
from demur_proto.wire.hmacs import PreparedKey, hash_payloads, hmac_by_message
from demur_proto.wire.words import Payload, decode_words
from demur_server.collector.chunks import Form, Whole
from demur_server.collector.open_rounds import LiveRound
from demur_server.store.base import Batch, Store

DEVICE_ID_BYTES = 16


def report_count(report_ids: bytes) -> int:
    """How many reports these ids are of.

    Raises:
        WireError: they are not 16 bytes each.
    """
    reports, rest = divmod(len(report_ids), REPORT_ID_BYTES)
    if rest:
        raise WireError(f"report ids are 16 bytes each, got {len(report_ids)} in all")
    return reports


def check_words(live: LiveRound, words: Payload, *, reports: int) -> None:
    """See that the words are those of so many reports to a round.

    Raises:
        WireError: the length does not fit.
    """
    expected = reports * live.report_bytes
    if len(words) != expected:
        word_type, length = live.asked.value.word_type, live.mechanism.report_length
        raise WireError(
            f"{reports} reports of {length} {word_type} words take {expected} bytes, "
            f"got {len(words)}"
        )


def check_devices(devices: bytes | None, *, reports: int) -> list[bytes]:
    """The ids of the devices that sent reports.

    Raises:
        WireError: there are none, or not one for each report.
    """
    if devices is None:
        raise WireError("reports must say which device each is from")
    if len(devices) != DEVICE_ID_BYTES * reports:
        raise WireError(
            f"device ids are 16 bytes for each of {reports} reports, got {len(devices)} in all"
        )
    return split(devices, DEVICE_ID_BYTES)


def unauthenticated_devices(report_ids: Sequence[bytes]) -> list[bytes]:
    """A device of its own for every report id: first 16 bytes of SHA-256(report id).

    >>> unauthenticated_devices([bytes(16)])[0].hex()
    '374708fff7719dd5979ec875d56cd228'
    """
    sha256 = hashlib.sha256
    return [sha256(report_id).digest()[:DEVICE_ID_BYTES] for report_id in report_ids]


def make_batch(
    live: LiveRound,
    key: PreparedKey,
    *,
    report_ids: list[bytes],
    devices: list[bytes],
    rows: Words,
    payload_hashes: list[bytes],
) -> tuple[Batch, Flags]:
    """A batch of all these reports.

    Args:
        live: the round.
        key: that of its digests.
        report_ids: one of each report.
        devices: who sent each.
        rows: the words, decoded [n, w].
        payload_hashes: SHA-256 of each report's words as they came.

    Returns:
        The batch, and which of its reports the round's mechanism could have made.
    """
    batch = Batch(
        report_ids=report_ids,
        digests=hmac_by_message(key, payload_hashes),
        devices=devices,
        words=rows,
        tally=live.mechanism.tally,
        capacity=live.capacity,
    )
    return batch, live.mechanism.valid(rows)


def pick(batch: Batch, chosen: Sequence[int]) -> Batch:
    """Some reports of a batch."""
    return Batch(
        report_ids=[batch.report_ids[i] for i in chosen],
        digests=[batch.digests[i] for i in chosen],
        devices=[batch.devices[i] for i in chosen],
        words=batch.words[chosen],
        tally=batch.tally,
        capacity=batch.capacity,
    )


def split(data: bytes, size: int) -> list[bytes]:
    """Pieces of equal size.

    >>> split(b"aabb", 2)
    [b'aa', b'bb']
    """
    return [data[at : at + size] for at in range(0, len(data), size)]


# Reports that come one at a time, counted many at a time.
#
# A report on its own costs about as much to check, hash and hand over as fifty that come in a frame. So
# while some are being counted, those that come meanwhile gather, and are then counted together.

MOST = 4096  #: reports of a round in one group

Count = Callable[[bytes, bytes, bytes, bytes | None], Awaitable[list[int]]]


@dataclass(slots=True, repr=False, eq=False)  # a frozen one takes four times as long to make
class _Waiting:
    report_id: bytes
    words: bytes
    device: bytes | None
    told: "asyncio.Future[int]"


class Gathering:
    """Brings reports together by round.

    Args:
        count: counts reports to a round, given the round's hash and the ids, words and devices (None
            under open access) of all reports; one disposition each. An error means that none of them
            was counted.
    """

    def __init__(self, count: Count) -> None:
        self._count = count
        self._waiting: dict[bytes, list[_Waiting]] = {}
        self._running: asyncio.Task[None] | None = None

    def add(
        self, round_hash: bytes, report_id: bytes, words: bytes, *, device: bytes | None
    ) -> "asyncio.Future[int]":
        """Have one report counted, with others or alone; its future tells what became of it.

        A caller that is cancelled while it waits leaves its report to be counted all the same. Reports of
        one round must have equally many words.
        """
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(round_hash, []).append(_Waiting(report_id, words, device, told))
        if self._running is None or self._running.done():
            # No caller may own this task: it works for others as well, and must outlive who leaves.
            self._running = asyncio.create_task(self._run(), name="gathered reports")
        return told

    async def _run(self) -> None:
        """Count what waits until nothing does.

        One group of each round at a time. With two, the second would be made ready while the first
        is written; but both would be smaller, which costs more than it gains.
        """
        while self._waiting:
            rounds, self._waiting = self._waiting, {}
            await asyncio.gather(*(self._count_all(*each) for each in rounds.items()))

    async def _count_all(self, round_hash: bytes, group: list[_Waiting]) -> None:
        try:
            for at in range(0, len(group), MOST):
                some = group[at : at + MOST]
                _tell(some, await self._outcomes(round_hash, some))
        finally:
            for each in group:
                each.told.cancel()  # nothing, unless this was cancelled itself

    async def _outcomes(
        self, round_hash: bytes, group: list[_Waiting]
    ) -> Sequence[int | Exception]:
        try:
            return await self._together(round_hash, group)
        except DemurError as error:
            if len(group) == 1:
                return [error]
        except Exception as error:  # noqa: BLE001  it belongs to those who wait
            return [error] * len(group)
        # One of them may be at fault, such as a device of another shard. It must not harm the others,
        # nor keep them waiting: all at once, they share a commit again.
        alone = await asyncio.gather(*(self._outcomes(round_hash, [each]) for each in group))
        return [outcome for [outcome] in alone]

    async def _together(self, round_hash: bytes, group: list[_Waiting]) -> list[int]:
        devices = [each.device for each in group if each.device is not None]
        return await self._count(
            round_hash,
            b"".join([each.report_id for each in group]),
            b"".join([each.words for each in group]),
            b"".join(devices) if len(devices) == len(group) else None,
        )


def _tell(group: Sequence[_Waiting], outcomes: Sequence[int | Exception]) -> None:
    for each, outcome in zip(group, outcomes, strict=True):
        if each.told.done():
            continue  # whoever waited has left
        if isinstance(outcome, Exception):
            each.told.set_exception(outcome)
        else:
            each.told.set_result(outcome)


# Reports on their way into a collector: what is sound is counted, each report on its own.

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
