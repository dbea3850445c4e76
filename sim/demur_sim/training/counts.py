"""Counts of a model's errors beside a training: a study of its own, of the same people."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, final

import anyio.lowlevel
import numpy as np

from demur_proto.arrays import Integers
from demur_proto.errors import DataError
from demur_proto.models.definition import DefinedModel
from demur_proto.queries import ErrorCount, HaltCount
from demur_proto.queries.registry import mechanism_for
from demur_proto.round import Round, round_of
from demur_proto.running.estimates import RoundTotal
from demur_proto.running.segments import Segment
from demur_proto.study import Study
from demur_proto.wire.definition import Defined, define_round
from demur_server.collector.estimates import running_count
from demur_server.training.analyst_source import count_of
from demur_server.training.optimisers import Count
from demur_sim.engine.cohort import Cohort
from demur_sim.engine.processes import CompanionSession, ProcessSession
from demur_sim.engine.running_counts import Bunch, Flagged, RunningBlock
from demur_sim.people.labelled import LabelledPeople
from demur_sim.scenario import Refusal
from demur_sim.training.sources import (
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
            round_of(
                study,
                ErrorCount(
                    model_hash=model.hash, parameters=model.parameters, on_grid=self._on_grid
                ),
                number=number,
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
        release = await self._session.ask(ErrorCount.about(model, on_grid=self._on_grid))
        return count_of(release, step=step)

    async def finish(self) -> Integers:
        """What everyone has spent."""
        return (await self._session.finish()).spent


def overspent(spent: Integers, study: Study) -> int:
    """How many devices spent more than they may: none, unless there is a bug."""
    return int(np.count_nonzero(spent > study.budget_units))


# The running count of people who gave less than their gradient: a study of its own, of the same people.
#
# See `Device.ever_covered`: that they did is as secret as what their filter holds, so they pay for it
# like for anything else, once and from a budget of its own.

FIRST = 1  #: the study asks for nothing else, so its first round begins the segment


class SimulatedHalts(Protocol):
    """A `HaltSource` whose people are simulated."""

    async def halts(self, *, number: int, step: int) -> Count:
        """A noisy running count; numbers count from 1, in order."""

    def snapshot(self) -> DeviceState:
        """What the devices know of this study, for a checkpoint."""

    def restore(self, state: DeviceState, *, number: int) -> None:
        """Go on after so many counts, with what the devices knew then."""

    def spent(self) -> Integers:
        """What everyone has spent in this study, budget units [devices]; once the training has ended."""


@final
class ArrayHalts:
    """Everyone as arrays in this process. Counts are those of processes, bit for bit.

    Args:
        study: its own, with a budget for one change.
        gradients: hash of the study that people may have given less to.
        flagged: who did so far.
        people: in the order in which they were dealt to devices.
        horizon: most counts.
        seed: its own.
        pool: of threads.
        threads: how many.
    """

    def __init__(
        self,
        study: Defined[Study],
        gradients: bytes,
        flagged: Flagged,
        people: LabelledPeople,
        *,
        horizon: int,
        seed: int,
        pool: ThreadPoolExecutor,
        threads: int,
    ) -> None:
        self._cohort = Cohort(
            study, people, seed=seed, refusal=Refusal.COVER, beside={gradients: flagged}
        )
        self._gradients = gradients
        self._horizon = horizon
        self._devices = people.devices
        self._pool = pool
        self._threads = threads
        self._totals: list[RoundTotal] = []

    async def halts(self, *, number: int, step: int) -> Count:
        """The noisy running count; see `HaltSource`."""
        await anyio.lowlevel.checkpoint()
        check_next(number, len(self._totals))
        asked = self._asked(number)
        answers = self._cohort.sum(asked, self._pool, threads=self._threads)
        self._totals.append(RoundTotal(sum=int(answers.sums[0]), reports=answers.reports))
        found = running_count(self._cohort.study.value, asked, self._totals)
        return Count(
            step=step,
            value=float(found.estimate[0]),
            standard_error=float(found.standard_error[0]),
        )

    def snapshot(self) -> DeviceState:
        """Everyone's filter of this study, what they have told, and the sums so far."""
        since: Integers = np.zeros(self._devices, dtype=np.int64)  # 0: has not told it yet
        planned: Integers = np.zeros(self._devices, dtype=np.int64)
        for bunch, here in self._bunches():
            if FIRST in bunch.running:
                who, where, _ = bunch.running[FIRST].changes
                since[here][who] = where
                planned[here] = bunch.running[FIRST].planned
        return {
            **snapshot_of(self._cohort),
            "since": since,
            "planned": planned,
            "sums": np.array([total.sum for total in self._totals], dtype=np.int64),
            "reports": np.array([total.reports for total in self._totals], dtype=np.int64),
        }

    def restore(self, state: DeviceState, *, number: int) -> None:
        """All of it as it was after so many counts.

        Raises:
            DataError: the state is not that of these people after so many counts.
        """
        restore_into(self._cohort, state)
        sums, reports = _kept(state, "sums", number), _kept(state, "reports", number)
        self._totals = [
            RoundTotal(sum=int(total), reports=int(count))
            for total, count in zip(sums, reports, strict=True)
        ]
        if number == self._horizon:
            return  # nothing is to come, and nothing was kept
        since, planned = (
            _kept(state, "since", self._devices),
            _kept(state, "planned", self._devices),
        )
        if since.min(initial=0) < 0 or since.max(initial=0) > number:
            raise DataError(f"the checkpoint has changes at none of its {number} counts")
        self._cohort.counting.go_on(self._asked(number))
        for bunch, here in self._bunches():
            running = RunningBlock(len(bunch.refused))
            who = np.flatnonzero(since[here])
            running.take(who, np.ones_like(who), since[here][who])
            running.planned[:] = planned[here]
            bunch.running[FIRST] = running

    def _bunches(self) -> Iterator[tuple[Bunch, slice]]:
        """Each bunch of blocks, and which of the devices it has."""
        start = 0
        for bunch in self._cohort.bunches:
            stop = start + len(bunch.refused)
            yield bunch, slice(start, stop)
            start = stop

    def spent(self) -> Integers:
        """What everyone has spent."""
        return self._cohort.spent()

    def _asked(self, number: int) -> Round:
        segment = _segment(self._horizon, self._devices, number)
        return round_of(self._cohort.study, HaltCount(self._gradients, segment), number=number)


@final
class ProcessHalts(KeptInProcesses):
    """The worker processes that have the gradients as well, and so know who gave less.

    Args:
        session: of the halts, beside that of the gradients.
        gradients: hash of their study.
        horizon: most counts.
    """

    def __init__(self, session: CompanionSession, gradients: bytes, *, horizon: int) -> None:
        self._session = session
        self._gradients = gradients
        self._horizon = horizon

    async def halts(self, *, number: int, step: int) -> Count:
        """The noisy running count; see `HaltSource`."""
        check_next(number, len(self._session.refused_after))
        segment = _segment(self._horizon, self._session.devices, number)
        release = await self._session.ask(HaltCount(self._gradients, segment))
        return count_of(release, step=step)

    def spent(self) -> Integers:
        """What everyone has spent; told when the session beside has ended."""
        return self._session.spent


def _segment(horizon: int, devices: int, number: int) -> Segment:
    return Segment(horizon=horizon, cohort=devices, position=number, first_round=FIRST)


def _kept(state: DeviceState, name: str, length: int) -> Integers:
    found = state.get(name)
    if found is None or found.shape != (length,):
        raise DataError(f"the checkpoint has no {name} of {length}")
    return found.astype(np.int64)
