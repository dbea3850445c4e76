"""Everyone as arrays in this process, in floating point: for models too large for integers."""

from typing import final

import anyio.lowlevel
import numpy as np

from demur_proto.arrays import Flags, Vector
from demur_proto.errors import DataError, ParameterError
from demur_proto.models.definition import DefinedModel
from demur_sim.children import peak_rss_mb
from demur_sim.float_cohort import FloatCohort
from demur_sim.training.source import DeviceState, Ending, check_next


@final
class FloatSource:
    """A `FloatCohort` to train with; see `TrainingSource`."""

    replays = False

    def __init__(self, cohort: FloatCohort) -> None:
        self._cohort = cohort

    @property
    def active(self) -> int:
        """How many were neither refused nor shrunk so far."""
        return int(np.count_nonzero(~self._cohort.refused))

    async def gradient(self, model: DefinedModel, *, number: int) -> Vector:
        """The noisy sum of clipped gradients [d]."""
        await anyio.lowlevel.checkpoint()
        check_next(number, self._cohort.rounds)
        return self._cohort.noisy_sum(model.value, number=number)

    def refused(self) -> Flags:
        """Who was refused or shrunk so far [devices]."""
        return self._cohort.refused.copy()

    def covered(self) -> Flags:
        """Who ever gave less than their gradient so far [devices]."""
        return self._cohort.covered.copy()

    def snapshot(self) -> DeviceState:
        """Everyone's filter."""
        return {
            "spent": self._cohort.spent,
            "refused": self._cohort.refused,
            "covered": self._cohort.covered,
        }

    def restore(self, state: DeviceState, *, number: int) -> None:
        """Everyone's filter as it was after so many rounds.

        Raises:
            DataError: the state is not that of these people.
        """
        try:
            kept = {name: state[name] for name in ("spent", "refused", "covered")}
            self._cohort.restore(**kept, rounds=number)
        except (KeyError, ParameterError) as error:
            raise DataError(f"the checkpoint does not hold these devices: {error}") from None

    async def finish(self) -> Ending:
        """What only a simulator knows."""
        return Ending(
            spent=self._cohort.spent,
            refused=self._cohort.refused.copy(),
            peak_rss_mb=peak_rss_mb(),
        )
