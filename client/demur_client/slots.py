"""When a report leaves: in a public slot, whatever it holds and however long that took."""

import threading
import time
from typing import final

import anyio

from demur_client.device import Device
from demur_proto.arrays import Values
from demur_proto.definition import Defined
from demur_proto.errors import DemurError
from demur_proto.models.definition import DefinedModel
from demur_proto.round import Round
from demur_proto.v1.report_pb2 import Report

READY = 0.9  #: of a slot: when the report is made, so that it has left by the slot's end


@final
class Evaluation:
    """Evaluates beside the event loop, one round at a time.

    A late evaluation cannot be stopped. While it goes on, later rounds get cover, so that a source
    that hangs never holds more than one thread, nor the end of the process.
    """

    def __init__(self) -> None:
        self._under_way: _Outcome | None = None

    def begin(
        self, device: Device, asked: Defined[Round], model: DefinedModel | None, *, within_s: float
    ) -> "_Outcome":
        """Start on the value of a round, unless another is still under way.

        Args:
            device: whose value.
            asked: the round.
            model: the one that the round names; None where it names none.
            within_s: when it will be looked at, for the owner's note.

        Raises:
            ParameterError: the round is none of this device's study.
        """
        if not device.begin(asked):  # the ledger says with what it is answered, and why
            return _Outcome("")
        if self._under_way is not None and not self._under_way.over:
            return _Outcome("the data source was still busy with an earlier round")
        self._under_way = _Outcome(
            f"the data source took longer than {within_s:g} s, nine tenths of the slot"
        )
        threading.Thread(
            target=self._under_way.find, args=(device, asked, model), daemon=True
        ).start()
        return self._under_way


@final
class _Outcome:
    """What becomes of one evaluation. It is looked at once, at a public time."""

    def __init__(self, note: str) -> None:
        self.over = False
        self._note = note
        self._found: tuple[Values | None, str] | DemurError | None = None

    def find(self, device: Device, asked: Defined[Round], model: DefinedModel | None) -> None:
        """Evaluate: in a thread of its own."""
        notes: list[str] = []
        try:
            value = device.evaluate(asked, model, noted=notes.append)
            self._found = value, "".join(notes)
        except DemurError as error:  # for `taken`, in the thread that waits
            self._found = error
        finally:
            self.over = True

    def taken(self) -> tuple[Values | None, str]:
        """The value and a note, as far as they are there by now; secret."""
        if isinstance(self._found, DemurError):
            raise self._found
        return self._found or (None, self._note)


async def report_in_slot(
    device: Device,
    asked: Defined[Round],
    evaluation: Evaluation,
    model: DefinedModel | None,
    *,
    slot_ms: int,
) -> Report:
    """The report to a round, when its public slot has come.

    The value is computed aside; what is not ready when the slot comes is answered with cover, so
    that neither the size of a person's data nor a failure shows in the time. Nobody waits for the
    value: everybody sleeps until nine tenths of the slot and then looks what is there. Where many
    devices share a machine that falls behind, who wakes in another way would be served in another
    order, and that would show. The report is made then even where the value came sooner: making a
    large one takes longer than what is left, and would show which it was. A source must let other
    threads run: one that holds the interpreter's lock holds up the report as well.

    Args:
        device: whose report it is.
        asked: the round, which was received just now.
        evaluation: of all rounds of this device, one after the other.
        model: the one that the round names; None where it names none.
        slot_ms: how long after now the report leaves; 0 as soon as its value is computed.

    Raises:
        ParameterError, StateError, StorageError: as `Device.report`.
    """
    if not slot_ms:
        notes: list[str] = []
        begun = device.begin(asked)
        value = device.evaluate(asked, model, noted=notes.append) if begun else None
        return device.report(asked, value, note="".join(notes))
    received, within_s = time.monotonic(), READY * slot_ms / 1000
    outcome = evaluation.begin(device, asked, model, within_s=within_s)
    await _until(received + within_s)
    value, note = outcome.taken()
    report = device.report(asked, value, note=note)
    await _until(received + slot_ms / 1000)
    return report


async def _until(when: float) -> None:
    await anyio.sleep(max(0.0, when - time.monotonic()))
