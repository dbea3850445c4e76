"""The device loop: one visit to the collector."""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import datetime
from typing import Protocol, final

import anyio
import grpc

from demur_client.connection import Backoff, send
from demur_client.device import Device
from demur_client.evaluator.base import Evaluation, Evaluator
from demur_client.ledger.base import Ledger, Settled
from demur_client.models import ModelCache
from demur_client.policy import OwnerPolicy
from demur_client.slots import Outgoing, check_slot, prepared, report_in_slot
from demur_proto.errors import (
    AccessError,
    ConnectionLost,
    DemurError,
    NotFoundError,
    ParameterError,
    PolicyError,
    UnsupportedError,
    WireError,
)
from demur_proto.models.definition import DefinedModel
from demur_proto.queries import ModelQuery
from demur_proto.round import Round
from demur_proto.samplers.base import Sampler
from demur_proto.study import Study
from demur_proto.transport.calls import CALL_S, PEER, calling
from demur_proto.transport.credentials import Credential, DeviceCredential, metadata_of
from demur_proto.v1 import collector_pb2, collector_pb2_grpc, report_pb2
from demur_proto.wire.definition import PROTOCOL_VERSION, Defined, read_round, read_study

RETRY_S = 0.5  #: bound of the first pause before the same bytes are sent again after TRY_LATER
LONGEST_RETRY_S = 30.0  #: bound of all such pauses
COUNTED = {report_pb2.DISPOSITION_ACCEPTED, report_pb2.DISPOSITION_DUPLICATE}

logger = logging.getLogger(__name__)

VISIT = f"/{collector_pb2.DESCRIPTOR.services_by_name['Collector'].full_name}/Visit"  #: messages are given as bytes

Call = grpc.aio.StreamStreamCall[bytes, collector_pb2.VisitResponse]


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
    evaluator: Evaluator,
    after_round: int = 0,
    last_round: int = 0,
    credential: DeviceCredential | None = None,
    watcher: Watcher | None = None,
    models: ModelCache | None = None,
    policy: OwnerPolicy | None = None,
) -> None:
    """Hand in what was not acknowledged, then answer every round that the collector pushes, in order.

    Every round gets exactly one report of the same size in its slot, whatever the device decided;
    where it is too large for one message, in chunks whose number and sizes the round gives.
    A round without a slot is answered as soon as its value is computed, so the time of the report
    shows how long that took; a policy refuses it, unless the owner says otherwise. The model that a
    round names is fetched first, whatever the device has and has spent; then the slot begins, at the next
    whole tenth of it since the round was received.
    A round that the policy refuses, that breaks the contract or that this version cannot do gets no
    answer, and the next one is waited for: ending the visit over it would bring it again at each one.

    Args:
        device: who answers.
        channel: to the collector.
        evaluator: computes the device's values: on a person's device a `SupervisedEvaluator`.
        after_round: answer only rounds with larger numbers; those that the device has answered are
            passed over anyway.
        last_round: leave once this round's receipt came; 0 stays until the collector ends the
            stream.
        credential: from `enrol`; None where the collector takes reports from anybody.
        watcher: told of every message.
        models: fetched before; given again at the next visit, they need not be fetched again.
        policy: the owner's; None refuses no study and no round.

    Raises:
        PolicyError: the policy refuses the device's study; nothing was sent.
        AccessError: the credential was refused, or revoked during the visit.
        ConnectionLost: the collector went away; visiting again resends the same bytes.
        StorageError: the ledger can keep nothing, so nothing more was sent.
        DemurError: the collector refused, or broke the protocol.
    """
    if policy is not None:
        studies = device.ledger.studies()
        agreed = [each.value for each in studies if each.hash != device.study.hash]
        policy.check_study(device.study, agreed=agreed)
    call: Call = channel.stream_stream(
        VISIT, response_deserializer=collector_pb2.VisitResponse.FromString
    )(metadata=metadata_of(credential))
    visited = _Visit(device, call, evaluator, watcher=watcher, policy=policy)
    known = ModelCache() if models is None else models
    after_round = max(after_round, device.ledger.reached(device.study.hash))
    hello = collector_pb2.Hello(
        protocol_version=PROTOCOL_VERSION, study_hash=device.study.hash, after_round=after_round
    )

    async def model_for(asked: Defined[Round]) -> DefinedModel | None:
        query = asked.value.query
        if not isinstance(query, ModelQuery):
            return None
        device.check(asked)
        return await known.of(channel, query, credential=credential)

    try:
        async with calling(PEER):
            await send(call, collector_pb2.VisitRequest(hello=hello).SerializeToString())
            await visited.resend()
            while visited.pending or not last_round or after_round < last_round:
                message = await call.read()
                if not isinstance(message, collector_pb2.VisitResponse):
                    if visited.pending or last_round:
                        raise ConnectionLost(f"{PEER} ended the visit before it was over")
                    return
                kind = message.WhichOneof("message")
                if kind == "welcome":
                    visited.welcome = True
                elif kind == "opened_round":
                    received_s = time.monotonic()
                    asked = visited.readable(message.opened_round.definition)
                    if asked is None:
                        continue
                    if visited.wants(asked):
                        try:
                            model = await model_for(asked)
                            await visited.answer(asked, model, received_s=received_s)
                        except (UnsupportedError, WireError) as error:
                            logger.warning("a round is refused, for its model: %s", error)
                        except PolicyError as error:
                            logger.warning("%s", error)
                    after_round = max(after_round, asked.value.number)
                elif kind == "receipt":
                    await visited.take(message.receipt)
    except NotFoundError:
        visited.expire_unknown()
        raise
    finally:
        visited.leave()
        call.cancel()


@final
class _Visit:
    """What one visit has sent and not seen acknowledged."""

    def __init__(
        self,
        device: Device,
        call: Call,
        evaluator: Evaluator,
        *,
        watcher: Watcher | None,
        policy: OwnerPolicy | None,
    ) -> None:
        self.welcome = False  #: the collector knows the study
        self.pending: dict[bytes, tuple[int, Outgoing]] = {}  #: by id, in the order of sending
        self._device = device
        self._call = call
        self._watcher = watcher
        self._policy = policy
        self._evaluator = evaluator
        self._evaluations: dict[bytes, Evaluation] = {}  # by report, until it is acknowledged
        self._backoff = Backoff(first_s=RETRY_S, longest_s=LONGEST_RETRY_S)

    async def resend(self) -> None:
        """Send again, byte for byte, what earlier visits could not see acknowledged."""
        ledger, study_hash = self._device.ledger, self._device.study.hash
        for number in ledger.waiting(study_hash):
            sealed = ledger.sealed(study_hash, number)
            if sealed is not None and sealed.report is not None:
                await self._send(number, Outgoing.of(sealed.report))

    def readable(self, definition: bytes) -> Defined[Round] | None:
        """The round, if it is one that this device may answer; else None, for public reasons."""
        try:
            asked = read_round(definition, study=self._device.study)
            self._device.check(asked)
        except (ParameterError, UnsupportedError, WireError) as error:
            logger.warning("a round is refused: %s", error)
            return None
        return asked

    def wants(self, asked: Defined[Round]) -> bool:
        """Whether a round is to be answered: it was not, or is not acknowledged, nor refused."""
        number = asked.value.number
        if self._watcher:
            self._watcher.received(number)
        sealed = self._device.ledger.sealed(self._device.study.hash, number)
        if sealed is not None:
            return sealed.settled is None
        try:
            if self._policy is not None:
                self._policy.check_round(asked)
        except PolicyError as error:
            logger.warning("%s", error)
            return False
        return True

    async def answer(
        self, asked: Defined[Round], model: DefinedModel | None, *, received_s: float
    ) -> None:
        """Send the report to a round in its slot, which begins when everything that is public is done.

        Args:
            asked: the round.
            model: the one that it names; None where it names none.
            received_s: when the round was received, by `time.monotonic`.

        Raises:
            PolicyError: its slot is too short for this device.
            UnsupportedError: this device does not do its model.
            DemurError: as `report_in_slot`, and as sending.
        """
        slot_ms = asked.value.answer_after_ms
        async with self._evaluator.turn:
            if self._policy is not None:
                check_slot(self._device, asked, slot_ms=slot_ms)
            await self._evaluator.prepare(model)
            if model is not None:
                await prepared(received_s, slot_ms=slot_ms)
            report, evaluation = await report_in_slot(
                self._device, asked, self._evaluator, model, slot_ms=slot_ms
            )
            self._evaluations[report.report_id] = evaluation
            await self._send(asked.value.number, report)

    async def take(self, receipt: report_pb2.Receipt) -> None:
        """Do what a receipt says."""
        if receipt.report_id not in self.pending:
            raise WireError(f"{PEER} acknowledged a report that was never sent")
        number, report = self.pending.pop(receipt.report_id)
        if evaluation := self._evaluations.pop(receipt.report_id, None):
            evaluation.acknowledged()
        if self._watcher:
            self._watcher.answered(number, disposition=receipt.disposition)
        if receipt.disposition == report_pb2.DISPOSITION_TRY_LATER:
            await anyio.sleep(self._backoff.next_s())
            await self._send(number, report)
            return
        self._backoff.reset()
        counted = receipt.disposition in COUNTED
        self._device.ledger.settle(report.report_id, Settled.ACKED if counted else Settled.EXPIRED)
        if not counted:
            logger.warning("round %d: not counted, disposition %s", number, receipt.disposition)

    def leave(self) -> None:
        """The visit has ended: no acknowledgement comes any more."""
        for evaluation in self._evaluations.values():
            evaluation.acknowledged()

    def expire_unknown(self) -> None:
        """Give up the report that a collector, which knows the study, knows no round for.

        It was restored from a backup, or is another one. It answers reports in the order in which
        they came, so it is the first that is pending.
        """
        if self.welcome and self.pending:
            report_id, (number, _) = next(iter(self.pending.items()))
            logger.warning("round %d: the collector does not know it", number)
            self._device.ledger.settle(report_id, Settled.EXPIRED)

    async def _send(self, number: int, report: Outgoing) -> None:
        self.pending.pop(report.report_id, None)
        self.pending[report.report_id] = number, report
        for message in report.messages:
            if self._watcher:
                self._watcher.sent(number, size_bytes=len(message))
            await send(self._call, message)


# A device that goes on by itself: visits, waits, comes back, for as long as it is left to.

FIRST_RETRY_S = 1.0  #: bound of the first wait after something failed
LONGEST_AWAY_S = 300.0  #: bound of all waits
SETTLED_S = 10.0  #: a visit that lasted so long is no failure
LOOK_S = 30.0  #: between looks at the clock on the wall, which may be set at any time

Opening = Callable[[], AbstractAsyncContextManager[grpc.aio.Channel]]


@final
class Agent:
    """Takes part in every study that its owner's policy allows, one visit at a time in each.

    What it sends, when, and what it logs follows from what is public: the policy, studies and rounds, the
    state of the connection, and waits drawn at random for nothing else. What went wrong with the
    owner's data is in the ledger only.

    Args:
        ledger: what the device must not forget. Nobody else uses it meanwhile.
        evaluator: computes values of its owner's data, for one round of each study at a time: on a person's
            device a `SupervisedEvaluator`.
        policy: its owner's.
        open_channel: opens a channel to the collector, as `connected` does.
        credential: from `enrol`; None where the collector takes reports from anybody.
        sampler: where noise comes from; the exact one when not given.
        watcher: told of every message.
        first_retry_s: bound of the first wait after a failure; they double, at random below that.
        longest_retry_s: bound of all waits.
        now: the clock on the wall, for quiet hours only.

    Raises:
        ParameterError: a bound is not a number above 0.
    """

    def __init__(
        self,
        ledger: Ledger,
        evaluator: Evaluator,
        *,
        policy: OwnerPolicy,
        open_channel: Opening,
        credential: DeviceCredential | None = None,
        sampler: Sampler | None = None,
        watcher: Watcher | None = None,
        first_retry_s: float = FIRST_RETRY_S,
        longest_retry_s: float = LONGEST_AWAY_S,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._ledger = ledger
        self._evaluator = evaluator
        self._policy = policy
        self._open_channel = open_channel
        self._credential = credential
        self._sampler = sampler
        self._watcher = watcher
        self._bounds = Backoff(first_s=first_retry_s, longest_s=longest_retry_s)
        self._now = now
        self._visits: set[anyio.CancelScope] = set()
        self._refusals: list[DemurError] = []

    async def run(self) -> None:
        """Go on until cancelled.

        Raises:
            PolicyError: the policy refuses every study.
            AccessError: the collector does not know this device, or it is not the right one.
        """
        if self._policy.opt_out:
            raise PolicyError("this device takes part in nothing: its owner opted out (opt_out)")
        known = [study.hash for study in self._ledger.studies()]
        # Without a name it is the only one that the collector has.
        hashes = list(self._policy.studies or known or [b""])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_quiet)
            async with anyio.create_task_group() as attending:
                for study_hash in hashes:
                    attending.start_soon(self._attend, study_hash)
            tasks.cancel_scope.cancel()
        raise self._refusals[0]

    async def _attend(self, study_hash: bytes) -> None:
        """Visit for one study, again and again, until that is of no use for good."""
        backoff, models = replace(self._bounds), ModelCache()
        device: Device | None = None
        told = ""  # why there is no study yet
        while True:
            await self._until_loud()
            began = time.monotonic()
            try:
                with anyio.CancelScope() as scope:
                    self._visits.add(scope)
                    async with self._open_channel() as channel:
                        if device is None:
                            device = await self._join(channel, study_hash)
                        await visit(
                            device,
                            channel,
                            evaluator=self._evaluator,
                            credential=self._credential,
                            watcher=self._watcher,
                            models=models,
                            policy=self._policy,
                        )
                        logger.info("the collector ended the visit")
            except (AccessError, PolicyError) as error:
                logger.error("%s", error)
                self._refusals.append(error)
                return
            except NotFoundError as error:
                if device is not None:
                    logger.warning("%s", error)
                elif told != str(error):  # once: it may take days until somebody asks
                    told = str(error)
                    logger.info("waits for a study: %s", told)
            except DemurError as error:
                logger.warning("%s", error)
            finally:
                self._visits.discard(scope)
            if time.monotonic() - began >= SETTLED_S:
                backoff.reset()
            await anyio.sleep(backoff.next_s())

    async def _join(self, channel: grpc.aio.Channel, study_hash: bytes) -> Device:
        """The device for a study, once its owner's policy allows it."""
        known = {study.hash: study for study in self._ledger.studies()}
        study = known.get(study_hash)
        if study is None:
            study = await fetch_study(channel, study_hash=study_hash, credential=self._credential)
            known = {each.hash: each for each in self._ledger.studies()}
        # From here to the agreement nothing else runs: two studies never both take the last room.
        agreed = [each.value for each in known.values() if each.hash != study.hash]
        self._policy.check_study(study, agreed=agreed)
        if self._ledger.forgotten(study.hash):
            # Nobody knows any more which rounds were answered, and none is answered twice.
            raise PolicyError(f"study {study.value.name!r} was forgotten on this device, for good")
        device = Device(
            study, self._evaluator.source, self._sampler, ledger=self._ledger
        )  # it agrees
        logger.info("takes part in study %r, %s", study.value.name, study.hash.hex())
        return device

    async def _until_loud(self) -> None:
        # The clock may be set meanwhile, and no event would tell.
        while left := self._policy.quiet_for(self._now()).total_seconds():  # noqa: ASYNC110
            await anyio.sleep(min(left, LOOK_S))

    async def _keep_quiet(self) -> None:
        """End visits when quiet hours begin. What was sealed is sent after them."""
        while self._policy.quiet_hours:
            if self._policy.quiet_for(self._now()):
                for scope in self._visits:
                    scope.cancel()
            await anyio.sleep(LOOK_S)
