"""What a run of a scenario is besides the scenario."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, final

import anyio
import anyio.from_thread
import numpy as np

from demur_proto.accounting.windows import Window, Windows, over_windows
from demur_proto.arrays import Flags, Values
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.queries import Feature, HaltCount, Histogram, Linear, RunningCount
from demur_proto.release import Release
from demur_proto.study import Study
from demur_sim.comparison.beside import Beside, Candidates, candidates_of, simulate_beside
from demur_sim.engine.counting_studies import design_counting, halts_segment
from demur_sim.engine.sampling import Purpose, seed_of
from demur_sim.engine.session import Fidelity, Session
from demur_sim.engine.simulation import deal, hands, open_session, query_of, study_of
from demur_sim.people.populations import Population
from demur_sim.people.presence import Turnout, block_count, fewest_expected
from demur_sim.people.states import States
from demur_sim.results.base import Result
from demur_sim.results.histograms import HistogramResult
from demur_sim.results.running import (
    BOUND,
    RunningResult,
    category_counts,
    states_total,
    value_totals,
)
from demur_sim.results.sums import LinearResult
from demur_sim.results.windows import WindowedResult, studies_of
from demur_sim.scenario import Kind, Scenario

Progress = Callable[[int, int, int], None]  # rounds done, rounds in all, reports so far


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class How:
    """How to run a scenario. What is out of range is refused when the run begins."""

    seed: int = 0  #: everything random follows from it; >= 0
    fidelity: Fidelity | str = Fidelity.COHORT  #: arrays here, or real processes over gRPC
    workers: int | None = None  #: threads (cohort) or worker processes; None: one per core
    population: Population | None = None  #: one's own people; None: the scenario's
    collector_port: int = 0  #: where devices reach the collector (processes); 0: a free port
    record: bool = False  #: keep what a watcher of the network would see (processes)
    progress: Progress | None = None  #: told after every round


# Run a scenario to its end: one question a period, and what came of it.

Ask = Callable[[Session, Feature], Awaitable[Release]]

Ended = TypeVar("Ended")


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
    how = How(
        seed=seed,
        fidelity=fidelity,
        workers=workers,
        population=population,
        collector_port=collector_port,
        record=record,
        progress=progress,
    )
    return run_anywhere(lambda: run_scenario(scenario, how))


async def run_scenario(scenario: Scenario, how: How) -> Result:
    """The same, for those who have an event loop."""
    started = time.monotonic()
    if scenario.window:
        expected = "0; windowed_run.simulate_windows runs this one"
        raise ParameterError("window", scenario.window, expected)
    return await run_plan(scenario, make_plan(scenario, how), started=started)


def make_plan(scenario: Scenario, how: How) -> "Plan":
    """Who is asked what in all rounds of a scenario, and how.

    Raises:
        DemurError: see `open_session`.
    """
    check_integer("seed", how.seed, 0)
    people = deal(scenario, how.population, seed=how.seed)
    check_integer("rounds", scenario.rounds, 0, people.periods)
    rounds = scenario.rounds or people.periods
    _check_cohort(scenario, devices=people.devices, rounds=rounds)
    others = 1 if scenario.beside else 0
    if scenario.kind is not Kind.HISTOGRAM:
        others = len(candidates_of(scenario, rounds=rounds))  # or refuse before anybody is asked
    return Plan(
        people=people,
        turnout=Turnout(presence=scenario.presence, seed=how.seed),
        questions=tuple(question(scenario, period) for period in range(1, rounds + 1)),
        streams=how.seed,
        how=how,
        tally=Tally(rounds * (1 + others), how.progress),
    )


def _check_cohort(scenario: Scenario, *, devices: int, rounds: int) -> None:
    """Refuse a minimum cohort that hardly any round would reach."""
    if scenario.presence.is_whole:
        return
    most = fewest_expected(scenario.presence, devices=devices, rounds=rounds)
    if not 1 <= scenario.minimum_cohort <= most:
        expected = f"from 1 to {most}, the fewest reports to be expected in a round"
        raise ParameterError("minimum_cohort", scenario.minimum_cohort, expected)


async def run_plan(scenario: Scenario, plan: "Plan", *, started: float) -> Result:
    """Ask the questions of a plan in one study, with its companions."""
    if scenario.kind is Kind.HISTOGRAM:
        return await _counts(scenario, plan, started=started)
    others = candidates_of(scenario, rounds=len(plan.questions))
    asked = _sums if scenario.kind is Kind.LINEAR else _running
    result = await asked(scenario, plan, started=started)
    return replace(result, beside=await plan.simulate_beside(others))


@final
class Tally:
    """How far a run is.

    Args:
        rounds: how many there are in all.
        progress: told after every one.
    """

    def __init__(self, rounds: int, progress: Progress | None) -> None:
        self._rounds = rounds
        self._progress = progress
        self.done = self._reports = 0  #: rounds

    def add(self, reports: int) -> None:
        """Another round has ended."""
        self.reach(self.done + 1, self._reports + reports)

    def reach(self, done: int, reports: int) -> None:
        """So many rounds have ended, with so many reports."""
        self.done, self._reports = done, reports
        if self._progress:
            self._progress(done, self._rounds, reports)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Plan:
    """Who is asked what, and how."""

    people: Population  #: as they were dealt to devices
    turnout: Turnout  #: who of them is there
    questions: tuple[Feature, ...]
    streams: int  #: seed of what is drawn in this study
    how: How
    tally: Tally

    async def carry_out(
        self,
        scenario: Scenario,
        ask: Ask,
        *,
        truth: Values,
        started: float,
        companions: Sequence[Study] = (),
    ) -> dict[str, Any]:
        """Ask everything of a scenario; returns the fields that every result has.

        Args:
            scenario: what to simulate.
            ask: puts one question.
            truth: of every question.
            started: when, by `time.monotonic`.
            companions: other studies that they are in, for `ask` to use.
        """
        releases: list[Release] = []
        async with open_session(
            replace(scenario, shuffle=False),  # they are dealt
            seed=self.streams,
            fidelity=self.how.fidelity,
            workers=self.how.workers,
            population=self.people,
            horizon=len(self.questions),
            collector_port=self.how.collector_port,
            record=self.how.record,
            companions=companions,
            turnout=self.turnout,
        ) as session:
            for asked in self.questions:
                release = await ask(session, asked)
                releases.append(release)
                self.tally.add(release.reports)
            aftermath = await session.finish()
            study = session.study
        return {
            "scenario": scenario,
            "seed": self.how.seed,
            "fidelity": Fidelity(self.how.fidelity),
            "workers": self._workers,
            "devices": self.people.devices,
            "study": study,
            "releases": tuple(releases),
            "truth": truth,
            "aftermath": aftermath,
            "turnout": None if self.turnout.presence.is_whole else self.turnout,
            "wall_s": time.monotonic() - started,
        }

    def enrolled(self) -> Iterator[Flags | None]:
        """Who is enrolled in each round [devices]; None for everybody."""
        whole = self.turnout.presence.all_take_part
        blocks = [] if whole else self.turnout.blocks(self.people.devices)
        for number in range(1, len(self.questions) + 1):
            yield None if whole else np.concatenate([block.enrolled(number) for block in blocks])

    async def simulate_beside(self, candidates: Candidates) -> tuple[Beside, ...]:
        """Other designs for the same people, once they have been asked everything."""
        before = self.tally.done

        def done(designs: float) -> None:
            rounds = before + int(designs * len(self.questions))
            self.tally.reach(rounds, rounds * self.people.devices)

        return await simulate_beside(
            candidates,
            self.people,
            self.questions,
            seed=self.streams,
            threads=hands(self.how.workers),
            progress=done,
        )

    @property
    def _workers(self) -> int:
        if self.how.fidelity == Fidelity.DEVICE:
            return self.people.devices
        return min(hands(self.how.workers), block_count(self.people.devices))


async def _sums(scenario: Scenario, plan: Plan, *, started: float) -> LinearResult:
    truth, clipped = (
        np.array(sums)
        for sums in zip(
            *(
                value_totals(plan.people, asked, clip=scenario.clip, among=enrolled)
                for asked, enrolled in zip(plan.questions, plan.enrolled(), strict=True)
            ),
            strict=True,
        )
    )

    async def ask(session: Session, asked: Feature) -> Release:
        return await session.ask(Linear([asked], clip=scenario.clip, on_grid=scenario.on_grid))

    common = await plan.carry_out(scenario, ask, truth=truth, started=started)
    return LinearResult(**common, clipped_truth=clipped)


async def _running(scenario: Scenario, plan: Plan, *, started: float) -> RunningResult:
    people, rounds = plan.people, len(plan.questions)
    truth = [states_total(people, asked) for asked in plan.questions[:1]]
    if isinstance(people, States):  # who changed is known, and nobody else need be looked at
        before = plan.turnout.before
        truth = people.totals()[before : before + rounds].tolist()
    else:
        truth += [states_total(people, asked) for asked in plan.questions[1:]]
    design = design_counting(scenario, devices=people.devices, rounds=rounds)
    companions = () if design.halts is None else (design.halts,)
    segment = design.segment
    halts: list[Release] = []

    async def ask(session: Session, asked: Feature) -> Release:
        nonlocal segment
        release = await session.ask(
            RunningCount(asked, segment, bound=BOUND, admission=scenario.admission)
        )
        for companion in session.companions.values():
            halts.append(await companion.ask(HaltCount(session.study.hash, halts_segment(segment))))
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


async def _counts(scenario: Scenario, plan: Plan, *, started: float) -> HistogramResult:
    categories = scenario.categories
    counts = [
        category_counts(plan.people, each, categories, among=enrolled)
        for each, enrolled in zip(plan.questions, plan.enrolled(), strict=True)
    ]
    truth = np.array(counts, dtype=np.float64)
    result = await _counts_of_one(scenario, plan, truth=truth, started=started)
    if not scenario.beside:
        return result
    other = replace(scenario, mechanism=scenario.beside, beside="")
    beside = await _counts_of_one(other, plan, truth=truth, started=time.monotonic())
    return replace(result, beside=beside)


async def _counts_of_one(
    scenario: Scenario, plan: Plan, *, truth: Values, started: float
) -> HistogramResult:
    """The study of one mechanism."""
    study = study_of(scenario, devices=plan.people.devices, horizon=len(plan.questions))
    query = query_of(scenario, study)

    async def ask(session: Session, asked: Feature) -> Release:
        return await session.ask(
            Histogram(
                asked, categories=query.categories, mechanism=query.mechanism, epsilon=query.epsilon
            )
        )

    common = await plan.carry_out(scenario, ask, truth=truth, started=started)
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


# Run a scenario whose budgets are for windows of rounds: one study after the other, of the same people.

LONGEST_NAME = 160  #: of a scenario, within the names of its studies


def simulate_windows(
    scenario: Scenario,
    *,
    seed: int = 0,
    fidelity: Fidelity | str = Fidelity.COHORT,
    workers: int | None = None,
    population: Population | None = None,
    collector_port: int = 0,
    record: bool = False,
    progress: Progress | None = None,
) -> WindowedResult:
    """Run a scenario that has a `window` to its end, as `run.simulate` runs one without.

    The same people live on the same devices in all windows, and come and go once. In each there is a
    study of its own: fresh filters, and noise that no other window draws. A running count begins anew.

    Args:
        scenario: what to simulate; `window` at least 1.
        seed: everything random follows from it; >= 0.
        fidelity: as of `run.simulate`, and so are the others.
        workers: likewise.
        population: likewise.
        collector_port: likewise.
        record: likewise.
        progress: likewise.

    Raises:
        DemurError: see `open_session`.
    """
    how = How(
        seed=seed,
        fidelity=fidelity,
        workers=workers,
        population=population,
        collector_port=collector_port,
        record=record,
        progress=progress,
    )
    return run_anywhere(lambda: run_windows(scenario, how))


async def run_windows(scenario: Scenario, how: How) -> WindowedResult:
    """The same, for those who have an event loop."""
    started = time.monotonic()
    plan = make_plan(scenario, how)
    schedule = Windows.every(scenario.window, horizon=len(plan.questions))
    results: list[Result] = []
    for number, window in enumerate(schedule.windows, start=1):
        name = f"{scenario.name[:LONGEST_NAME]}: window {number}"
        part = replace(scenario, name=name, window=0)
        begun = time.monotonic()
        results.append(await run_plan(part, _part(plan, window, number=number), started=begun))
        if number == 1:  # windows that promise nothing together are refused before the others run
            many = len(schedule.windows)
            over_windows([studies_of(results[0])] * many, stay=many, delta=scenario.delta)
    return WindowedResult(
        scenario=scenario,
        schedule=schedule,
        results=tuple(results),
        wall_s=time.monotonic() - started,
    )


def _part(plan: Plan, window: Window, *, number: int) -> Plan:
    """What is asked in one window."""
    before = window.first - 1
    return replace(
        plan,
        questions=plan.questions[before : window.last],
        turnout=replace(plan.turnout, before=before),
        streams=seed_of(plan.how.seed, Purpose.WINDOWS, number),
    )
