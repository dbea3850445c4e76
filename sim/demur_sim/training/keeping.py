"""What goes on beside the loop of a training: counts, curves, checkpoints, and a check on replay."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from demur_proto.errors import DataError, StateError
from demur_server.training.checkpoints import Checkpoint
from demur_server.training.trainer import TrainingState
from demur_sim.training.error_counts import SimulatedErrors
from demur_sim.training.halts import SimulatedHalts
from demur_sim.training.people import Task
from demur_sim.training.source import DeviceState, TrainingSource

Progress = Callable[[TrainingState, float], None]  # after a step, with the accuracy on the tests


@dataclass(kw_only=True, repr=False)
class Run:
    """What goes on beside the loop: counts, curves, checkpoints, and a comparison on replay."""

    task: Task
    source: TrainingSource
    progress: Progress | None
    errors: SimulatedErrors | None = None
    halts: SimulatedHalts | None = None
    keep: Callable[[TrainingState], None] | None = None
    expected: TrainingState | None = None  # what a replay has to come to
    accuracies: list[float] = field(default_factory=list)
    actives: list[int] = field(default_factory=list)

    def after(self, state: TrainingState) -> None:
        """Take note of a step."""
        accuracy = self.task.accuracy(state.candidate)
        self.accuracies.append(accuracy)
        self.actives.append(self.source.active)
        expected = self.expected
        if expected is not None and state.number == expected.number:
            if not np.array_equal(state.theta, expected.theta):
                raise StateError(
                    f"asked again, devices answered otherwise: after step {state.number} the "
                    "parameters are not those of the checkpoint"
                )
            self.expected = None
        if self.keep is not None and self.expected is None:
            self.keep(state)
        if self.progress is not None:
            self.progress(state, accuracy)

    def extra(self) -> dict[str, npt.NDArray[np.generic]]:
        """What a checkpoint holds besides the state."""
        parts: dict[str, DeviceState] = {
            "devices": self.source.snapshot(),
            "errors": {} if self.errors is None else self.errors.snapshot(),
            "halts": {} if self.halts is None else self.halts.snapshot(),
            "curve": {
                "accuracy": np.array(self.accuracies),
                "active": np.array(self.actives, dtype=np.int64),
            },
        }
        return {
            f"{part}.{name}": each for part, state in parts.items() for name, each in state.items()
        }

    def go_on(self, checkpoint: Checkpoint, *, begun: TrainingState) -> TrainingState:
        """Bring everything to where it was.

        Args:
            checkpoint: of these settings.
            begun: the same training before its first step.

        Raises:
            DataError: the checkpoint does not hold all of it.
        """
        state, extra = checkpoint.state, checkpoint.extra
        _check_sizes(state, begun)

        def part(name: str) -> DeviceState:
            prefix = f"{name}."
            return {
                key.removeprefix(prefix): each
                for key, each in extra.items()
                if key.startswith(prefix)
            }

        if state.number and not part("devices"):
            raise DataError(
                "the checkpoint holds no devices: they were processes, so go on with the fidelity "
                "processes, which asks them again"
            )
        try:
            if state.number:
                self.source.restore(part("devices"), number=state.number)
            if self.errors is not None and state.errors:
                self.errors.restore(part("errors"), number=len(state.errors))
            if self.halts is not None and state.halts:
                self.halts.restore(part("halts"), number=len(state.halts))
            accuracies, actives = (part("curve")[name] for name in ("accuracy", "active"))
        except KeyError as error:
            raise DataError(f"the checkpoint lacks {error}") from None
        self.accuracies = accuracies.astype(np.float64).tolist()
        self.actives = actives.astype(np.int64).tolist()
        if not len(self.accuracies) == len(self.actives) == state.number:
            raise DataError(f"the checkpoint has no curve of {state.number} steps")
        return state


def _check_sizes(state: TrainingState, begun: TrainingState) -> None:
    """Refuse a state of another model or of another optimiser."""
    kept, expected = (
        [each.shape for each in (one.theta, one.total, *one.memory)] for one in (state, begun)
    )
    best = begun.theta.shape if state.best is None else state.best.shape
    if kept != expected or best != begun.theta.shape:
        raise DataError(
            f"the checkpoint is of no training with {len(begun.theta)} parameters and this optimiser"
        )
