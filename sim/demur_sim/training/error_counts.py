"""Counts of a model's errors beside a training: a study of its own, of the same people."""

from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, final

import anyio.lowlevel
import numpy as np

from demur_proto.arrays import Integers
from demur_proto.asking import next_error_count
from demur_proto.definition import Defined, define_round
from demur_proto.gradients import dimension_of
from demur_proto.mechanisms.of_round import mechanism_for
from demur_proto.models.definition import DefinedModel
from demur_proto.study import Study
from demur_server.training.analyst_source import count_of
from demur_server.training.stopping import Count
from demur_sim.cohort import Cohort
from demur_sim.labelled_people import LabelledPeople
from demur_sim.process_session import ProcessSession
from demur_sim.scenario import Refusal
from demur_sim.training.source import (
    DeviceState,
    KeptInProcesses,
    check_next,
    restore_into,
    snapshot_of,
)


class SimulatedErrors(Protocol):
    """An `ErrorSource` whose people are simulated."""

    async def errors(self, model: DefinedModel, *, number: int, step: int) -> Count:
        """A noisy count; numbers count from 1, in order."""

    def snapshot(self) -> DeviceState:
        """What the devices know of this study, for a checkpoint."""

    def restore(self, state: DeviceState, *, number: int) -> None:
        """Go on after so many counts, with what the devices knew then."""

    async def finish(self) -> Integers:
        """End it: what everyone has spent in this study, budget units [devices]. No count follows."""


@final
class CohortErrors:
    """Everyone as arrays in this process. Counts are those of processes, bit for bit.

    Args:
        study: its own, with a budget for all counts.
        people: in the order in which they were dealt to devices.
        seed: its own.
        pool: of threads.
        threads: how many.
        on_grid: nobody has more than one example.
    """

    def __init__(
        self,
        study: Defined[Study],
        people: LabelledPeople,
        *,
        seed: int,
        pool: ThreadPoolExecutor,
        threads: int,
        on_grid: bool,
    ) -> None:
        self._cohort = Cohort(study, people, seed=seed, refusal=Refusal.COVER)
        self._pool = pool
        self._threads = threads
        self._on_grid = on_grid
        self._counts = 0

    async def errors(self, model: DefinedModel, *, number: int, step: int) -> Count:
        """A noisy count; see `ErrorSource`."""
        await anyio.lowlevel.checkpoint()
        check_next(number, self._counts)
        study = self._cohort.study
        asked = define_round(
            next_error_count(
                study,
                model.hash,
                number=number,
                parameters=dimension_of(model),
                on_grid=self._on_grid,
            )
        ).value
        answers = self._cohort.sum(asked, self._pool, threads=self._threads, model=model.value)
        self._counts = number
        found = mechanism_for(study.value, asked).estimate(answers.sums, reports=answers.reports)
        return Count(
            step=step,
            value=float(found.estimate[0]),
            standard_error=float(found.standard_error[0]),
        )

    def snapshot(self) -> DeviceState:
        """Everyone's filter of this study."""
        return snapshot_of(self._cohort)

    def restore(self, state: DeviceState, *, number: int) -> None:
        """Everyone's filter as it was after so many counts."""
        restore_into(self._cohort, state)
        self._counts = number

    async def finish(self) -> Integers:
        """What everyone has spent."""
        return self._cohort.spent()


@final
class ProcessErrors(KeptInProcesses):
    """Worker processes that speak gRPC to the collector that has the gradients as well."""

    def __init__(self, session: ProcessSession, *, on_grid: bool) -> None:
        self._session = session
        self._on_grid = on_grid

    async def errors(self, model: DefinedModel, *, number: int, step: int) -> Count:
        """A noisy count; see `ErrorSource`."""
        check_next(number, len(self._session.refused_after))
        release = await self._session.ask_error_count(model.value, on_grid=self._on_grid)
        return count_of(release, step=step)

    async def finish(self) -> Integers:
        """What everyone has spent."""
        return (await self._session.finish()).spent


def overspent(spent: Integers, study: Study) -> int:
    """How many devices spent more than they may: none, unless there is a bug."""
    return int(np.count_nonzero(spent > study.budget_units))
