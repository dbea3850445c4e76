"""Run a scenario to its end: one question a period, and what came of it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import anyio
import anyio.from_thread
import numpy as np

from demur_proto.arrays import Integers, Values
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.release import Release
from demur_proto.round import Feature
from demur_proto.study import Study
from demur_sim.counting_design import design_counting, halts_segment
from demur_sim.histogram_results import HistogramResult, query_of
from demur_sim.linear_results import LinearResult
from demur_sim.populations import Population
from demur_sim.portions import block_count
from demur_sim.questions import blocks
from demur_sim.results import Result
from demur_sim.running_results import BOUND, RunningResult
from demur_sim.scenario import Kind, Scenario, population_of
from demur_sim.session import Fidelity, Session
from demur_sim.simulation import hands, open_session, study_of
from demur_sim.states import States

Progress = Callable[[int, int, int], None]  # rounds done, rounds in all, reports so far
Ask = Callable[[Session, Feature], Awaitable[Release]]

Ended = TypeVar("Ended")

AT_ONCE = 1 << 16  #: people counted in one go


def simulate(
    scenario: Scenario,
    *,
    seed: int = 0,
    fidelity: Fidelity | str = Fidelity.COHORT,
    workers: int | None = None,
    population: Population | None = None,
    collector_port: int = 0,
    record: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Run a scenario to its end. Works in a script and in a notebook alike.

    Fidelity `processes` starts Python again, so a script must keep its own start behind
    `if __name__ == "__main__":`.

    Args:
        scenario: what to simulate.
        seed: everything random follows from it; >= 0.
        fidelity: arrays in this process, or real processes over gRPC.
        workers: threads (cohort) or worker processes; by default one per core.
        population: one's own people; by default the scenario's.
        collector_port: where devices reach the collector (processes); 0 takes a free port.
        record: keep what a watcher of the network would see (processes).
        progress: told after every round.

    Raises:
        DemurError: see `open_session`.
    """

    async def whole() -> Result:
        return await run_scenario(
            scenario,
            seed=seed,
            fidelity=fidelity,
            workers=workers,
            population=population,
            collector_port=collector_port,
            record=record,
            progress=progress,
        )

    return run_anywhere(whole)


async def run_scenario(
    scenario: Scenario,
    *,
    seed: int = 0,
    fidelity: Fidelity | str = Fidelity.COHORT,
    workers: int | None = None,
    population: Population | None = None,
    collector_port: int = 0,
    record: bool = False,
    progress: Progress | None = None,
) -> Result:
    """The same, for those who have an event loop."""
    started = time.monotonic()
    people = population_of(scenario) if population is None else population
    check_integer("rounds", scenario.rounds, 0, people.periods)
    rounds = scenario.rounds or people.periods
    plan = _Plan(
        people=people,
        questions=tuple(question(scenario, period) for period in range(1, rounds + 1)),
        seed=seed,
        fidelity=fidelity,
        workers=workers,
        collector_port=collector_port,
        record=record,
        progress=progress,
        studies=2 if scenario.beside else 1,
    )
    if scenario.kind is Kind.LINEAR:
        return await _sums(scenario, plan, started=started)
    if scenario.kind is Kind.PREFIX:
        return await _running(scenario, plan, started=started)
    return await _counts(scenario, plan, started=started)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Plan:
    """Who is asked what, and how."""

    people: Population
    questions: tuple[Feature, ...]
    seed: int
    fidelity: Fidelity | str
    workers: int | None
    collector_port: int
    record: bool
    progress: Progress | None
    studies: int  # one after the other, of the same people

    async def carry_out(
        self,
        scenario: Scenario,
        ask: Ask,
        *,
        truth: Values,
        started: float,
        earlier: int = 0,
        companions: Sequence[Study] = (),
    ) -> dict[str, Any]:
        """Ask everything of a scenario; returns the fields that every result has.

        Args:
            scenario: what to simulate.
            ask: puts one question.
            truth: of every question.
            started: when, by `time.monotonic`.
            earlier: how many studies of these people came before.
            companions: other studies that they are in, for `ask` to use.
        """
        releases: list[Release] = []
        rounds = len(self.questions)
        async with open_session(
            scenario,
            seed=self.seed,
            fidelity=self.fidelity,
            workers=self.workers,
            population=self.people,
            horizon=rounds,
            collector_port=self.collector_port,
            record=self.record,
            companions=companions,
        ) as session:
            reports = earlier * rounds * self.people.devices
            for asked in self.questions:
                release = await ask(session, asked)
                releases.append(release)
                reports += release.reports
                if self.progress:
                    done = earlier * rounds + len(releases)
                    self.progress(done, self.studies * rounds, reports)
            aftermath = await session.finish()
            study = session.study
        return {
            "scenario": scenario,
            "seed": self.seed,
            "fidelity": Fidelity(self.fidelity),
            "workers": self._workers,
            "devices": self.people.devices,
            "study": study,
            "releases": tuple(releases),
            "truth": truth,
            "aftermath": aftermath,
            "wall_s": time.monotonic() - started,
        }

    @property
    def _workers(self) -> int:
        if self.fidelity == Fidelity.DEVICE:
            return self.people.devices
        return min(hands(self.workers), block_count(self.people.devices))


async def _sums(scenario: Scenario, plan: _Plan, *, started: float) -> LinearResult:
    truth = [clipped_total(plan.people, asked, clip=scenario.clip) for asked in plan.questions]

    async def ask(session: Session, asked: Feature) -> Release:
        return await session.ask(asked)

    common = await plan.carry_out(scenario, ask, truth=np.array(truth), started=started)
    return LinearResult(**common)


async def _running(scenario: Scenario, plan: _Plan, *, started: float) -> RunningResult:
    people, rounds = plan.people, len(plan.questions)
    truth = [states_total(people, asked) for asked in plan.questions[:1]]
    if isinstance(people, States):  # who changed is known, and nobody else need be looked at
        truth = people.totals()[:rounds].tolist()
    else:
        truth += [states_total(people, asked) for asked in plan.questions[1:]]
    design = design_counting(scenario, devices=people.devices, rounds=rounds)
    companions = () if design.halts is None else (design.halts,)
    segment = design.segment
    halts: list[Release] = []

    async def ask(session: Session, asked: Feature) -> Release:
        nonlocal segment
        release = await session.ask_prefix(
            asked, segment, bound=BOUND, admission=scenario.admission
        )
        for companion in session.companions.values():
            halts.append(await companion.ask_halt_count(session.study.hash, halts_segment(segment)))
        segment = segment.following(release.number)
        return release

    common = await plan.carry_out(
        design.scenario,
        ask,
        truth=np.array(truth, dtype=np.float64)[:, None],
        started=started,
        companions=companions,
    )
    return RunningResult(**{**common, "scenario": scenario}, design=design, halts=tuple(halts))


async def _counts(scenario: Scenario, plan: _Plan, *, started: float) -> HistogramResult:
    categories = scenario.categories
    counts = [category_counts(plan.people, each, categories) for each in plan.questions]
    truth = np.array(counts, dtype=np.float64)
    result = await _counts_of_one(scenario, plan, truth=truth, started=started)
    if not scenario.beside:
        return result
    other = replace(scenario, mechanism=scenario.beside, beside="")
    beside = await _counts_of_one(other, plan, truth=truth, started=time.monotonic(), earlier=1)
    return replace(result, beside=beside)


async def _counts_of_one(
    scenario: Scenario, plan: _Plan, *, truth: Values, started: float, earlier: int = 0
) -> HistogramResult:
    """The study of one mechanism."""
    study = study_of(scenario, devices=plan.people.devices, horizon=len(plan.questions))
    query = query_of(scenario, study)

    async def ask(session: Session, asked: Feature) -> Release:
        return await session.ask_histogram(
            asked,
            categories=query.categories,
            mechanism=query.mechanism,
            epsilon=query.epsilon,
        )

    common = await plan.carry_out(scenario, ask, truth=truth, started=started, earlier=earlier)
    return HistogramResult(**common, query=query)


def run_anywhere(whole: Callable[[], Awaitable[Ended]]) -> Ended:
    """Wait for something to end, in a script and in a notebook alike."""
    if not _has_running_loop():
        return anyio.run(whole)
    with anyio.from_thread.start_blocking_portal() as portal:  # a notebook's loop is taken
        return portal.call(whole)


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def question(scenario: Scenario, period: int) -> Feature:
    """What a scenario asks every device in one period; periods count from 1."""
    return Feature(name=scenario.feature, parameters={**scenario.parameters, "period": period})


def clipped_total(people: Population, asked: Feature, *, clip: float) -> list[float]:
    """Simulator's truth: the sum over everyone of their clipped values [d], data units.

    Raises:
        ParameterError: there is nobody, or the population does not know the feature.
    """
    totals = [_clipped(values, clip).sum(axis=0) for values in blocks(people, [asked])]
    if not totals:
        raise ParameterError("population", people.devices, "at least one device")
    result: list[float] = np.sum(totals, axis=0).tolist()
    return result


def category_counts(people: Population, asked: Feature, categories: int) -> Integers:
    """Simulator's truth: how many of everyone have each category [k].

    Raises:
        ParameterError: there is nobody, or the population does not know the feature.
    """
    if not people.devices:
        raise ParameterError("population", people.devices, "at least one device")
    counts = np.zeros(categories, dtype=np.int64)
    for start in range(0, people.devices, AT_ONCE):
        block = slice(start, min(start + AT_ONCE, people.devices))
        values = people.evaluate(asked, block)[:, 0]
        some = values[(values >= 0) & (values < categories)]  # not NaN
        whole = some.astype(np.int64)
        counts += np.bincount(whole[whole == some], minlength=categories)
    return counts


def states_total(people: Population, asked: Feature) -> float:
    """Simulator's truth: the sum over everyone of their state; whoever has none counts as nothing.

    Raises:
        ParameterError: there is nobody, or the population does not know the feature.
    """
    if not people.devices:
        raise ParameterError("population", people.devices, "at least one device")
    total = 0.0
    for start in range(0, people.devices, AT_ONCE):
        values = people.evaluate(asked, slice(start, min(start + AT_ONCE, people.devices)))
        total += float(
            values[(values >= 0) & (values <= BOUND) & (np.rint(values) == values)].sum()
        )
    return total


def _clipped(values: Values, clip: float) -> Values:
    norms = np.linalg.norm(values, axis=1, keepdims=True)
    clipped: Values = values * np.minimum(1.0, clip / np.maximum(norms, clip))
    return clipped
