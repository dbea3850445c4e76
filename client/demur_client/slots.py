"""When a report leaves: in a public slot, whatever it holds and however long that took."""

import math
import time
from dataclasses import dataclass
from typing import Self, final

import anyio

from demur_client.device import Device
from demur_client.evaluator.base import READY, Evaluation, Evaluator, NoValue, Slot
from demur_proto.errors import PolicyError
from demur_proto.models.definition import DefinedModel
from demur_proto.round import Round
from demur_proto.v1.report_pb2 import Report
from demur_proto.wire.definition import Defined
from demur_proto.wire.frames import report_messages

ROUNDED_UP_S = 0.002  #: event loops round waits up to whole milliseconds, and wake late


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A report as it is sent: large ones take a while to write down, so that is done before the slot is over."""

    report_id: bytes
    messages: tuple[bytes, ...]  #: each a serialised `VisitRequest`

    @classmethod
    def of(cls, report: Report) -> Self:
        """Written down."""
        messages = (message.SerializeToString() for message in report_messages(report))
        return cls(report_id=report.report_id, messages=tuple(messages))


def check_slot(device: Device, asked: Defined[Round], *, slot_ms: int) -> None:
    """Refuse, in public, a slot in whose last tenth this device cannot make its report.

    Twice what it takes must fit: it is also kept on the disk. Every device of this kind refuses it, whatever
    its owner's data.

    Args:
        device: which device.
        asked: a round of its study.
        slot_ms: the round's slot; 0 for none, which is long enough.

    Raises:
        PolicyError: it is too short.
        ParameterError: as `Device.report`.
    """
    least_ms = 2 * 1000 * device.rehearsed_s(asked) / (1 - READY)
    if slot_ms and least_ms > slot_ms:
        raise PolicyError(
            f"round {asked.value.number} is refused: its slot of {slot_ms} ms is too short for this device, "
            f"which makes such a report in slots of at least {math.ceil(least_ms)} ms"
        )


async def prepared(received_s: float, *, slot_ms: int) -> None:
    """Wait until a whole number of tenths of the slot has passed since a round was received.

    How long it takes to fetch and prepare a model depends a little on what the machine did before, and that may
    have been an evaluation.

    Args:
        received_s: when the round was, by `time.monotonic`.
        slot_ms: its slot; 0 for none, which waits for nothing.
    """
    if slot_ms:
        tenth_s = slot_ms / 1000 / 10
        await _until(received_s + tenth_s * math.ceil((time.monotonic() - received_s) / tenth_s))


async def report_in_slot(
    device: Device,
    asked: Defined[Round],
    evaluator: Evaluator,
    model: DefinedModel | None,
    *,
    slot_ms: int,
) -> tuple[Outgoing, Evaluation]:
    """The report to a round, when its public slot has come, and all that is left to do is to write it.

    The ledger notes first that the round was begun: whatever then happens to this process, it is not
    evaluated again after a restart. The value is computed elsewhere, and what is not there when it is looked
    for is answered with cover, so that neither the size of a person's data nor a failure shows in the time. Nobody
    waits for the value: everybody sleeps until nine tenths of the slot and then looks, once. Where many
    devices share a machine that falls behind, who wakes in another way would be served in another
    order, and that would show. The report is made then even where the value came sooner: making a
    large one takes longer than what is left, and would show which it was.

    Args:
        device: whose report it is.
        asked: the round, which was received just now.
        evaluator: of this device.
        model: the one that the round names, prepared; None where it names none.
        slot_ms: how long after now the report leaves; 0, for made-up data only, as soon as its value is
            computed.

    Returns:
        the report, and the evaluation, which is to be told of its acknowledgement.

    Raises:
        ParameterError: as `Device.report`; or there is no slot, and the evaluator needs one.
        StateError, StorageError: as `Device.report`.
    """
    slot = Slot(received_s=time.monotonic(), length_s=slot_ms / 1000) if slot_ms else None
    evaluation: Evaluation = NoValue("")  # the ledger says why, or has what a halt count asks for
    if device.begin(asked):
        evaluation = evaluator.begin(device, asked, model, slot=slot)
    try:
        if slot:
            await _until(slot.ended_s)
            evaluation.end()
            await _until(slot.ready_s)
        report = _made(device, asked, evaluation)
        if slot:
            await _until(slot.left_s)
    except BaseException:  # the visit ended, for all to see: nobody waits for it any more
        evaluation.acknowledged()
        raise
    return report, evaluation


def _made(device: Device, asked: Defined[Round], evaluation: Evaluation) -> Outgoing:
    """The report, sealed. A value is forgotten here: letting go of a large one while it is sent could show."""
    value, note = evaluation.taken()
    return Outgoing.of(device.report(asked, value, note=note))


async def _until(when: float) -> None:
    """Sleep to a time of `time.monotonic`: at last without the event loop, which rounds waits up.

    Else a report would leave so many whole milliseconds after it was made, and how long it took to make may
    depend on what it holds.
    """
    await anyio.sleep(max(0.0, when - ROUNDED_UP_S - time.monotonic()))
    time.sleep(max(0.0, when - time.monotonic()))  # noqa: ASYNC251  for 2 ms at most, at a public time
