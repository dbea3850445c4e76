"""What every evaluator does: a value by a public time, or none, and nobody outside can tell which."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from demur_client.device import Device
from demur_client.evaluator.limits import EvaluationLimits
from demur_client.sources.base import DataSource, ExampleSource
from demur_proto.arrays import Values
from demur_proto.errors import ParameterError, UnsupportedError
from demur_proto.models.definition import DefinedModel
from demur_proto.models.gradients import working_set
from demur_proto.round import Round
from demur_proto.wire.definition import Defined

ENDED = 0.8  #: of a slot: when an evaluation is ended, whether it is done or not
READY = 0.9  #: of a slot: when the report is made, so that it has left by the slot's end
LEAST_REST_S = 0.04  #: between the end of an evaluation and the report's leaving


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """When what happens to one round, by `time.monotonic`. All of it is public.

    >>> slot = Slot(received_s=100.0, length_s=1.0)
    >>> slot.ended_s, slot.ready_s, slot.left_s
    (100.8, 100.9, 101.0)
    >>> Slot(received_s=100.0, length_s=0.1).ended_s  # at least 40 ms before the report leaves
    100.06
    """

    received_s: float  #: when the round was received
    length_s: float  #: of the slot, seconds; > 0

    @property
    def ended_s(self) -> float:
        """When the evaluation is ended."""
        return self.received_s + max(0.0, min(ENDED * self.length_s, self.length_s - LEAST_REST_S))

    @property
    def ready_s(self) -> float:
        """When the sender looks for the value, once, and makes the report."""
        return self.received_s + READY * self.length_s

    @property
    def left_s(self) -> float:
        """When the report leaves."""
        return self.received_s + self.length_s


class Evaluation(Protocol):
    """One evaluation under way. Its methods are called at public times only."""

    def end(self) -> None:
        """The time is up: whatever still runs is ended."""

    def taken(self) -> tuple[Values | None, str]:
        """The value [1, v], None where there is none, and a note for the owner. Secret, both.

        Raises:
            DemurError: the round cannot be evaluated for a public reason.
        """

    def acknowledged(self) -> None:
        """The collector has answered the report: nothing need hide how busy the evaluation was."""


class NoValue:
    """The evaluation of what is not evaluated.

    Args:
        note: why there is no value, for the owner. Secret.
    """

    def __init__(self, note: str) -> None:
        self._note = note

    def end(self) -> None:
        """Nothing runs."""

    def taken(self) -> tuple[Values | None, str]:
        """No value."""
        return None, self._note

    def acknowledged(self) -> None:
        """Nothing was busy."""


class Evaluator(Protocol):
    """Evaluates rounds on its owner's data."""

    @property
    def source(self) -> DataSource | ExampleSource:
        """Its owner's data."""

    @property
    def turn(self) -> AbstractAsyncContextManager[object]:
        """Held from before a round is prepared until its report has left: one round at a time.

        Else how long it takes to prepare or send one of another study would tell how busy this one's
        evaluation keeps the processor. When a turn comes follows from slots, which are public.
        """

    async def prepare(self, model: DefinedModel | None) -> None:
        """Do everything for a round that needs no data, before its slot begins, whoever has data or not.

        Args:
            model: the one that the round names; None where it names none.

        Raises:
            UnsupportedError: this device does not do it, for a public reason.
        """

    def begin(
        self,
        device: Device,
        asked: Defined[Round],
        model: DefinedModel | None,
        *,
        slot: Slot | None,
    ) -> Evaluation:
        """Start on the value of a round.

        Args:
            device: whose value, and in which study.
            asked: the round, which the device has checked; one that asks for its owner's data.
            model: the one that it names, which was prepared; None where it names none.
            slot: the round's; None, for made-up data only, where it has none.

        Raises:
            ParameterError: there is no slot, and this evaluator needs one.
        """


def check_working_set(model: DefinedModel, limits: EvaluationLimits) -> None:
    """Refuse, in public, a model that takes more memory than the owner's limit, whatever the data.

    Raises:
        UnsupportedError: it does.
    """
    needed = working_set(model.value)
    if needed > limits.memory_bytes:
        raise UnsupportedError(
            f"the model takes {-(-needed >> 20)} MiB to evaluate, whatever the data, above the limit of "
            f"{limits.memory_mib} MiB (evaluation_memory_mib)"
        )


def required_slot(slot: Slot | None) -> Slot:
    """The slot of a round, without which the time of its report would tell how long its value took.

    Raises:
        ParameterError: it has none.
    """
    if slot is None:
        raise ParameterError("slot", "0 ms", "at least 1 ms on a device with its owner's data")
    return slot
