"""The device loop: one visit to the collector."""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import anyio
import grpc

from demur_client.connection import send
from demur_client.device import Device
from demur_client.models import ModelCache
from demur_proto.arrays import Values
from demur_proto.calls import CALL_S, PEER, calling
from demur_proto.chunks import report_messages
from demur_proto.credentials import Credential, DeviceCredential, metadata_of
from demur_proto.definition import Defined, read_round, read_study
from demur_proto.errors import ConnectionLost, WireError
from demur_proto.models.definition import DefinedModel
from demur_proto.round import ModelQuery, Round
from demur_proto.study import Study
from demur_proto.v1 import collector_pb2, collector_pb2_grpc, report_pb2
from demur_proto.version import PROTOCOL_VERSION

RETRY_S = 0.5  #: pause before the same bytes are sent again after TRY_LATER
COUNTED = {report_pb2.DISPOSITION_ACCEPTED, report_pb2.DISPOSITION_DUPLICATE}

logger = logging.getLogger(__name__)

Call = grpc.aio.StreamStreamCall[collector_pb2.VisitRequest, collector_pb2.VisitResponse]


class Watcher(Protocol):
    """Someone who sees a device's messages, but not into them."""

    def received(self, round_number: int) -> None:
        """A round reached the device."""

    def sent(self, round_number: int, *, size_bytes: int) -> None:
        """The device sent a message of this size; a large report takes several."""

    def answered(self, round_number: int, *, disposition: int) -> None:
        """The collector answered it."""


async def fetch_study(
    channel: grpc.aio.Channel, *, study_hash: bytes = b"", credential: Credential | None = None
) -> Defined[Study]:
    """A study's definition, checked against its hash.

    Args:
        channel: to the collector.
        study_hash: 32 bytes, or empty for the only study there is.
        credential: a device's or gateway's; None where the collector takes reports from anybody.

    Raises:
        AccessError: the credential was refused.
        DemurError: the collector has no such study, or sent something else.
    """
    stub = collector_pb2_grpc.CollectorStub(channel)
    request = collector_pb2.GetStudyRequest(
        protocol_version=PROTOCOL_VERSION, study_hash=study_hash
    )
    async with calling(PEER):
        response = await stub.GetStudy(request, timeout=CALL_S, metadata=metadata_of(credential))
    study = read_study(response.definition)
    if study_hash and study.hash != study_hash:
        raise WireError("the collector sent another study than the one asked for")
    return study


async def visit(
    device: Device,
    channel: grpc.aio.Channel,
    *,
    after_round: int = 0,
    last_round: int = 0,
    credential: DeviceCredential | None = None,
    watcher: Watcher | None = None,
    models: ModelCache | None = None,
) -> None:
    """Answer every round that the collector pushes, in order.

    Every round gets exactly one report of the same size in its slot, whatever the device decided;
    where it is too large for one message, in chunks whose number and sizes the round gives.
    A round without a slot (`answer_after_ms` is 0) is answered as soon as its value is computed, so
    the time of the report shows how long that took. The model that a round names is fetched first,
    whatever the device has and has spent; the slot begins when it is there.

    Args:
        device: who answers.
        channel: to the collector.
        after_round: answer only rounds with larger numbers.
        last_round: leave once this round's receipt came; 0 stays until the collector ends the
            stream.
        credential: from `enrol`; None where the collector takes reports from anybody.
        watcher: told of every message.
        models: fetched before; given again at the next visit, they need not be fetched again.

    Raises:
        AccessError: the credential was refused, or revoked during the visit.
        ConnectionLost: the collector went away; visiting again resends the same bytes.
        DemurError: the collector refused, or broke the protocol.
    """
    known = ModelCache() if models is None else models

    async def model_for(asked: Defined[Round]) -> DefinedModel | None:
        query = asked.value.query
        if not isinstance(query, ModelQuery):
            return None
        device.check(asked)
        return await known.of(channel, query, credential=credential)

    stub = collector_pb2_grpc.CollectorStub(channel)
    call = stub.Visit(metadata=metadata_of(credential))
    try:
        async with calling(PEER):
            hello = collector_pb2.Hello(
                protocol_version=PROTOCOL_VERSION,
                study_hash=device.study.hash,
                after_round=after_round,
            )
            await send(call, collector_pb2.VisitRequest(hello=hello))
            await _attend(device, call, after_round, last_round, watcher, model_for)
    finally:
        call.cancel()


async def _attend(
    device: Device,
    call: Call,
    reached: int,
    last_round: int,
    watcher: Watcher | None,
    model_for: Callable[[Defined[Round]], Awaitable[DefinedModel | None]],
) -> None:
    """Answer what comes, from the welcome to the last receipt."""
    pending: dict[bytes, tuple[int, report_pb2.Report]] = {}
    evaluation = _Evaluation()

    async def hand_in(number: int, report: report_pb2.Report) -> None:
        pending[report.report_id] = number, report
        for request in report_messages(report):
            if watcher:
                watcher.sent(number, size_bytes=request.ByteSize())
            await send(call, request)

    while pending or not last_round or reached < last_round:
        message = await call.read()
        if not isinstance(message, collector_pb2.VisitResponse):
            if pending or last_round:
                raise ConnectionLost(f"{PEER} ended the visit before it was over")
            return
        kind = message.WhichOneof("message")
        if kind == "opened_round":
            asked = read_round(message.opened_round.definition, study=device.study)
            number = asked.value.number
            if watcher:
                watcher.received(number)
            model = await model_for(asked)
            await hand_in(number, await _in_its_slot(device, asked, evaluation, model))
            reached = max(reached, number)
        elif kind == "receipt":
            if message.receipt.report_id not in pending:
                raise WireError(f"{PEER} acknowledged a report that was never sent")
            number, report = pending.pop(message.receipt.report_id)
            disposition = message.receipt.disposition
            if watcher:
                watcher.answered(number, disposition=disposition)
            if disposition == report_pb2.DISPOSITION_TRY_LATER:
                await anyio.sleep(RETRY_S)
                await hand_in(number, report)
            elif disposition not in COUNTED:
                logger.warning("round %d: not counted, disposition %s", number, disposition)


async def _in_its_slot(
    device: Device, asked: Defined[Round], evaluation: "_Evaluation", model: DefinedModel | None
) -> report_pb2.Report:
    """The report to a round, when its public slot has come.

    The value is computed aside; what is not ready when the slot comes is answered with cover, so
    that neither the size of a person's data nor a failure shows in the time. The report is made at
    nine tenths of the slot even where the value came sooner: making a large one takes longer than what
    is left, and would show which it was. A source must let other threads run: one that holds the
    interpreter's lock holds up the report as well.
    """
    if not asked.value.answer_after_ms:
        return device.report(asked, device.evaluate(asked, model))
    length_s = asked.value.answer_after_ms / 1000
    received = time.monotonic()
    ready, slot = received + 0.9 * length_s, received + length_s
    value: Values | None = None
    with anyio.move_on_after(0.9 * length_s):
        value = await evaluation.of(device, asked, model)
    await anyio.sleep(max(0.0, ready - time.monotonic()))
    report = device.report(asked, value)
    await anyio.sleep(max(0.0, slot - time.monotonic()))
    return report


class _Evaluation:
    """Evaluates beside the event loop, one round at a time.

    A late evaluation cannot be stopped. While it goes on, later rounds get cover, so that a source
    that hangs never holds more than one thread, nor the end of the process.
    """

    def __init__(self) -> None:
        self._idle = threading.Event()
        self._idle.set()

    async def of(
        self, device: Device, asked: Defined[Round], model: DefinedModel | None
    ) -> Values | None:
        """The value of a round; None where it failed, or where another is still under way."""
        if not self._idle.is_set():
            return None
        device.check(asked)
        self._idle.clear()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Values | None] = loop.create_future()

        def evaluate() -> None:
            try:
                value = device.evaluate(asked, model)
            finally:
                self._idle.set()
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, value)

        def settle(value: Values | None) -> None:
            if not done.done():
                done.set_result(value)

        threading.Thread(target=evaluate, daemon=True).start()
        return await done
