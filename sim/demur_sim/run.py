"""Run a scenario to its end: one question a period, and what came of it."""

import asyncio
import time
from collections.abc import Callable

import anyio
import anyio.from_thread
import numpy as np

from demur_proto.arrays import Values
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.round import Feature
from demur_sim.cohort import block_count
from demur_sim.populations import Population
from demur_sim.questions import blocks
from demur_sim.results import Result
from demur_sim.scenario import Scenario, population_of
from demur_sim.session import Fidelity
from demur_sim.simulation import hands, open_session

Progress = Callable[[int, int, int], None]  # rounds done, rounds in all, reports so far


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

    if not _has_running_loop():
        return anyio.run(whole)
    with anyio.from_thread.start_blocking_portal() as portal:  # a notebook's loop is taken
        return portal.call(whole)


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
    questions = [question(scenario, period) for period in range(1, rounds + 1)]
    truth = [clipped_total(people, asked, clip=scenario.clip) for asked in questions]
    releases = []
    async with open_session(
        scenario,
        seed=seed,
        fidelity=fidelity,
        workers=workers,
        population=people,
        horizon=rounds,
        collector_port=collector_port,
        record=record,
    ) as session:
        reports = 0
        for asked in questions:
            release = await session.ask(asked)
            releases.append(release)
            reports += release.reports
            if progress:
                progress(len(releases), rounds, reports)
        aftermath = await session.finish()
        study = session.study
    return Result(
        scenario=scenario,
        seed=seed,
        fidelity=Fidelity(fidelity),
        workers=min(hands(workers), block_count(people.devices)),
        devices=people.devices,
        study=study,
        releases=tuple(releases),
        truth=np.array(truth),
        aftermath=aftermath,
        wall_s=time.monotonic() - started,
    )


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


def _clipped(values: Values, clip: float) -> Values:
    norms = np.linalg.norm(values, axis=1, keepdims=True)
    clipped: Values = values * np.minimum(1.0, clip / np.maximum(norms, clip))
    return clipped
