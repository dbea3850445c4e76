"""Simulated people who can be asked for gradients, whatever the fidelity and the arithmetic."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, final

import anyio.lowlevel
import numpy as np
import numpy.typing as npt

from demur_proto.arrays import Flags, Integers, Vector
from demur_proto.errors import DataError, ParameterError, StateError
from demur_proto.models.definition import DefinedModel
from demur_proto.queries import Gradient
from demur_proto.round import round_of
from demur_proto.study import Study
from demur_proto.wire.definition import Defined
from demur_server.training.analyst_source import sums_of
from demur_sim.engine.children import peak_rss_mb
from demur_sim.engine.cohort import Cohort
from demur_sim.engine.float_cohort import FloatCohort
from demur_sim.engine.processes import ProcessSession
from demur_sim.engine.sampling import Noise
from demur_sim.people.labelled import LabelledPeople
from demur_sim.scenario import Refusal

DeviceState = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Ending:
    """What only a simulator knows when a training has ended."""

    spent: Integers  #: of everyone's budget, in units of the study [devices]
    refused: Flags  #: who was refused or shrunk at least once [devices]
    peak_rss_mb: float


class TrainingSource(Protocol):
    """A `GradientSource` whose people are simulated."""

    @property
    def replays(self) -> bool:
        """Whether a training goes on by asking everything again: nothing of it outlives the run."""

    @property
    def active(self) -> int:
        """Simulator's truth: how many were neither refused nor shrunk so far."""

    async def gradient(self, model: DefinedModel, *, number: int) -> Vector:
        """The noisy sum of clipped gradients [d], data units; numbers count from 1, in order."""

    def refused(self) -> Flags:
        """Simulator's truth: who was refused or shrunk so far [devices]."""

    def covered(self) -> Flags:
        """Simulator's truth: who ever gave less than their gradient so far [devices]."""

    def snapshot(self) -> DeviceState:
        """What the devices know, for a checkpoint."""

    def restore(self, state: DeviceState, *, number: int) -> None:
        """Go on after so many rounds, with what the devices knew then."""

    async def finish(self) -> Ending:
        """End it. No gradient can follow."""


@final
class CohortSource:
    """Everyone as arrays in this process. Releases are those of processes, bit for bit.

    Args:
        study: of the gradients.
        people: in the order in which they were dealt to devices.
        seed: of the whole run.
        pool: of threads.
        threads: how many.
        clip: ℓ₂ radius of one person's gradient.
        noise: every device its own, or all of it in one draw.
    """

    replays = False

    def __init__(
        self,
        study: Defined[Study],
        people: LabelledPeople,
        *,
        seed: int,
        pool: ThreadPoolExecutor,
        threads: int,
        clip: float,
        noise: Noise = Noise.SHARES,
    ) -> None:
        self._cohort = Cohort(study, people, seed=seed, refusal=Refusal.COVER)
        self._pool = pool
        self._threads = threads
        self._clip = clip
        self._noise = noise
        self._rounds = 0

    @property
    def active(self) -> int:
        """How many were neither refused nor shrunk so far."""
        return int(np.count_nonzero(~self._cohort.refused()))

    async def gradient(self, model: DefinedModel, *, number: int) -> Vector:
        """The noisy sum of clipped gradients [d]; see `TrainingSource`."""
        await anyio.lowlevel.checkpoint()
        check_next(number, self._rounds)
        asked = round_of(
            self._cohort.study,
            Gradient(model_hash=model.hash, dimension=model.parameters, clip=self._clip),
            number=number,
        )
        answers = self._cohort.sum(
            asked, self._pool, threads=self._threads, model=model.value, noise=self._noise
        )
        self._rounds = number
        exponent = self._cohort.study.value.base_grid_exponent
        sums: Vector = np.ldexp(answers.sums.astype(np.float64), exponent)
        return sums

    def refused(self) -> Flags:
        """Who was refused or shrunk so far [devices]."""
        return self._cohort.refused()

    def covered(self) -> Flags:
        """Who ever gave less than their gradient so far [devices]."""
        return self._cohort.covered()

    def snapshot(self) -> DeviceState:
        """Everyone's filter."""
        return snapshot_of(self._cohort)

    def restore(self, state: DeviceState, *, number: int) -> None:
        """Everyone's filter as it was after so many rounds."""
        restore_into(self._cohort, state)
        self._rounds = number

    async def finish(self) -> Ending:
        """What only a simulator knows."""
        return Ending(
            spent=self._cohort.spent(),
            refused=self._cohort.refused(),
            peak_rss_mb=peak_rss_mb(),
        )


class KeptInProcesses:
    """What of people in processes goes into a checkpoint: nothing."""

    def snapshot(self) -> DeviceState:
        """Nothing: a device's state never leaves its process."""
        return {}

    def restore(self, state: DeviceState, *, number: int) -> None:
        """Refuse: everything is asked again instead.

        Raises:
            StateError: always.
        """
        raise StateError("processes cannot go on from a checkpoint; they answer everything again")


@final
class ProcessSource(KeptInProcesses):
    """Worker processes that speak gRPC to a collector."""

    replays = True

    def __init__(self, session: ProcessSession, *, clip: float) -> None:
        self.session = session
        self._clip = clip

    @property
    def active(self) -> int:
        """How many were neither refused nor shrunk so far."""
        after = self.session.refused_after
        return self.session.devices - (after[-1] if after else 0)

    async def gradient(self, model: DefinedModel, *, number: int) -> Vector:
        """The noisy sum of clipped gradients [d]; see `TrainingSource`."""
        check_next(number, len(self.session.refused_after))
        return sums_of(await self.session.ask(Gradient.about(model, clip=self._clip)))

    def refused(self) -> Flags:
        """Refuse: while it runs, only the workers know.

        Raises:
            StateError: always.
        """
        raise StateError("while processes run, only they know who was refused")

    def covered(self) -> Flags:
        """Refuse, as `refused` does.

        Raises:
            StateError: always.
        """
        raise StateError("while processes run, only they know who gave less than their gradient")

    async def finish(self) -> Ending:
        """What only a simulator knows."""
        aftermath = await self.session.finish()
        return Ending(
            spent=aftermath.spent, refused=aftermath.refused, peak_rss_mb=aftermath.peak_rss_mb
        )


def check_next(number: int, rounds: int) -> None:
    """Refuse a step that is not the next one.

    Raises:
        StateError: it is another one.
    """
    if number != rounds + 1:
        raise StateError(f"step {number} cannot follow step {rounds}")


def snapshot_of(cohort: Cohort) -> dict[str, npt.NDArray[np.generic]]:
    """Everyone's filter in a cohort."""
    return {"spent": cohort.spent(), "refused": cohort.refused(), "covered": cohort.covered()}


def restore_into(cohort: Cohort, state: DeviceState) -> None:
    """Everyone's filter as it was.

    Raises:
        DataError: the state is not that of so many devices.
    """
    refused = cohort.refused()
    kinds = {"spent": np.int64, "refused": np.bool_, "covered": np.bool_}
    for name, kind in kinds.items():
        if name not in state or state[name].shape != refused.shape or state[name].dtype != kind:
            raise DataError(f"the checkpoint has no {name} of {len(refused)} devices")
    budget, spent = cohort.study.value.budget_units, state["spent"]
    if spent.min(initial=0) < 0 or spent.max(initial=0) > budget:
        raise DataError(
            "the checkpoint says that devices spent less than nothing, or more than all"
        )
    start = 0
    for block in cohort.blocks:
        stop = start + len(block.refused)
        block.remaining[:] = budget - spent[start:stop]
        block.refused[:] = state["refused"][start:stop]
        block.covered[:] = state["covered"][start:stop]
        start = stop


# Everyone as arrays in this process, in floating point: for models too large for integers.


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
