"""The same seed gives the same releases, bit for bit, however real the simulation is."""

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

import anyio
import numpy as np
import pytest

from demur_proto.errors import ParameterError, StateError
from demur_proto.queries import Feature, Linear
from demur_proto.release import Release, Withheld
from demur_proto.study import Measure, Policy, View
from demur_sim.engine.session import Session
from demur_sim.engine.simulation import open_session
from demur_sim.people.populations import ArrayPopulation, EventLog, Population
from demur_sim.people.presence import block_count
from demur_sim.results.base import Result
from demur_sim.run import How, run_scenario
from demur_sim.scenario import Scenario

DEADLINE_S = 60.0
DEVICES, PERIODS = 4 * 4096 + 321, 6  # five blocks, the last one small
RARE = Scenario(name="rare", budget=2, grid_exponent=-9)


@cache
def shoppers() -> EventLog:
    """Each of 16,705 people is active on each of six days with probability 0.3."""
    active = np.random.default_rng(1).random((DEVICES, PERIODS)) < 0.3
    device, period = np.nonzero(active)
    return EventLog.of(
        devices=DEVICES,
        periods=PERIODS,
        device=device,
        period=period + 1,
        amount=5.0 * device % 97,
    )


async def finished(scenario: Scenario, population: Population, **options: Any) -> Result:
    """A whole run, within the deadline."""
    with anyio.fail_after(DEADLINE_S):
        return await run_scenario(scenario, How(population=population, **options))


Run = Callable[..., Awaitable[Result]]


@pytest.fixture(scope="module")
def run() -> Run:
    """Runs of one scenario by fidelity, workers and seed; each of them only once."""
    results: dict[tuple[str, int, int], Result] = {}

    async def once(fidelity: str, workers: int, seed: int = 0) -> Result:
        key = (fidelity, workers, seed)
        if key not in results:
            options = {"fidelity": fidelity, "workers": workers, "seed": seed}
            results[key] = await finished(RARE, shoppers(), **options)
        return results[key]

    return once


@pytest.mark.parametrize("workers", [2, 4])
async def test_threads_change_nothing(run: Run, workers: int) -> None:
    threaded, alone = await run("cohort", workers), await run("cohort", 1)

    assert threaded.releases_sha256 == alone.releases_sha256


@pytest.mark.parametrize("workers", [1, 2, 4])
async def test_processes_release_what_the_cohort_releases(run: Run, workers: int) -> None:
    real, arrays = await run("processes", workers), await run("cohort", 1)

    assert real.releases_sha256 == arrays.releases_sha256
    # Rounds, studies, estimates, intervals, guarantees: not only the sums.
    assert real.releases == arrays.releases
    assert real.study == arrays.study


async def test_a_simulator_knows_the_same_truth_at_either_fidelity(run: Run) -> None:
    real, arrays = await run("processes", 4), await run("cohort", 1)

    np.testing.assert_array_equal(real.truth, arrays.truth)
    np.testing.assert_array_equal(real.active_truth, arrays.active_truth)
    np.testing.assert_array_equal(real.aftermath.refused, arrays.aftermath.refused)
    assert 0 < real.exhausted_fraction < 1
    # Whoever is active on more than two of six days: 1 - P(Binomial(6, 0.3) <= 2) of all.
    assert abs(real.exhausted_fraction - 0.25569) <= 4 * np.sqrt(0.25569 * 0.74431 / DEVICES)


@pytest.mark.parametrize(("fidelity", "workers"), [("cohort", 1), ("processes", 2)])
async def test_everybody_reports_in_every_round(run: Run, fidelity: str, workers: int) -> None:
    result = await run(fidelity, workers)

    assert block_count(DEVICES) == 5
    assert [release.reports for release in result.releases] == [DEVICES] * PERIODS
    assert [release.number for release in result.releases] == list(range(1, PERIODS + 1))
    assert result.summary()["reports"] == DEVICES * PERIODS
    assert result.answered_rounds == PERIODS


async def test_another_seed_gives_other_releases_about_the_same_truth(run: Run) -> None:
    one, other = await run("cohort", 1), await run("cohort", 1, seed=1)

    assert one.releases_sha256 != other.releases_sha256
    assert all(
        a.sums.tolist() != b.sums.tolist()
        for a, b in zip(one.releases, other.releases, strict=True)
    )
    np.testing.assert_array_equal(one.truth, other.truth)


@pytest.mark.parametrize(
    ("scenario", "shape"),
    [
        pytest.param(
            Scenario(
                name="vectors",
                feature="value",
                on_grid=False,
                clip=0.3,
                grid_exponent=-17,
                policy=Policy.RETIRE,
                measure=Measure.ZCDP,
                budget=2,
            ),
            (4100, 4, 3),
            id="vectors off the grid",
        ),
        pytest.param(
            Scenario(name="one", feature="value", view=View.LOCAL, budget=1),
            (1, 3, 1),
            id="one device in view local",
        ),
    ],
)
async def test_small_populations_and_vectors_agree_too(
    scenario: Scenario, shape: tuple[int, int, int]
) -> None:
    rng = np.random.default_rng(2)
    values = np.ones(shape) if scenario.on_grid else rng.normal(size=shape)
    people = ArrayPopulation(values)

    real = await finished(scenario, people, fidelity="processes", workers=4, seed=5)
    arrays = await finished(scenario, people, fidelity="cohort", workers=3, seed=5)

    assert real.releases == arrays.releases
    np.testing.assert_array_equal(real.active_truth, arrays.active_truth)
    np.testing.assert_array_equal(real.aftermath.refused, arrays.aftermath.refused)
    assert real.exhausted_fraction > 0


# ---- adaptive --------------------------------------------------------------------------------


def spent(period: int, threshold: float) -> Feature:
    return Feature(name="amount_at_least", parameters={"period": period, "threshold": threshold})


async def search(session: Session) -> tuple[list[float], list[Release], list[Release]]:
    """Find what half of the buyers of day 1 spent; return thresholds, answers and what was seen."""
    seen: list[Release] = []

    async def follow() -> None:
        async for release in session.watch():
            seen.append(release)
            if len(seen) == 4:
                return

    thresholds, answers = [], []
    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            buyers = await session.ask(
                Linear([Feature(name="active", parameters={"period": 1})], on_grid=True)
            )
            answers.append(buyers)
            low, high = 0.0, 97.0
            for _ in range(3):
                thresholds.append((low + high) / 2)
                answer = await session.ask(Linear([spent(1, thresholds[-1])], on_grid=True))
                answers.append(answer)
                more = answer.estimate[0] > buyers.estimate[0] / 2
                low, high = (thresholds[-1], high) if more else (low, thresholds[-1])
    return thresholds, answers, seen


async def searched(
    fidelity: str, scenario: Scenario
) -> tuple[list[float], list[Release], list[Release]]:
    async with open_session(
        scenario, fidelity=fidelity, workers=2, population=shoppers()
    ) as session:
        for wrong in (Feature(name="nosuch", parameters={"period": 1}), spent(PERIODS + 1, 5.0)):
            with pytest.raises(ParameterError):  # and it is as if it had not been asked
                await session.ask(Linear([wrong], on_grid=True))
        found = await search(session)
        await session.finish()
        return found


async def test_the_next_question_follows_from_the_releases_before_it() -> None:
    scenario = Scenario(name="search", budget=4, grid_exponent=-9)

    thresholds, answers, seen = await searched("processes", scenario)

    # People spent 0 to 96 evenly, so half of them 48 or so: the first halving is undecided and the
    # others turn back towards the middle.
    assert thresholds[0] == 48.5
    assert thresholds[1:] in ([72.75, 60.625], [24.25, 36.375])
    assert seen == answers
    assert await searched("cohort", scenario) == (thresholds, answers, seen)
    assert all(release.withheld is Withheld.NOTHING for release in seen)


async def test_a_watcher_may_start_late_and_from_any_round() -> None:
    async with open_session(RARE, population=shoppers(), workers=2) as session:
        for period in (1, 2, 3):
            await session.ask(
                Linear([Feature(name="active", parameters={"period": period})], on_grid=True)
            )

        numbers = []
        with anyio.fail_after(DEADLINE_S):
            async for release in session.watch(from_number=2):
                numbers.append(release.number)
                if release.number == 3:
                    break

    assert numbers == [2, 3]


# ---- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"seed": -1}, "seed must be"),
        ({"workers": 0}, "workers must be"),
        ({"workers": 257}, "workers must be"),
        ({"fidelity": "people"}, "fidelity must be cohort or processes or device"),
        ({"collector_port": 65_536}, "collector_port must be"),
        ({"record": True}, "record must be"),
    ],
)
async def test_options_out_of_range_are_refused(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ParameterError, match=f"^{expected}"):
        await finished(RARE, shoppers(), **options)


async def test_more_rounds_than_there_are_periods_are_refused() -> None:
    with pytest.raises(ParameterError, match=r"^rounds must be .* <= 6, got 7"):
        await finished(Scenario(name="long", rounds=7, grid_exponent=-9), shoppers())


async def test_a_larger_minimum_cohort_than_there_are_people_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"^minimum_cohort must be <= the number of devices"):
        await finished(Scenario(name="few", minimum_cohort=DEVICES + 1), shoppers())


async def test_nobody_at_all_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"^population must be at least one device"):
        await finished(Scenario(name="x", feature="value"), ArrayPopulation(np.zeros((0, 2))))


@pytest.mark.parametrize("value", [0.3, 1.5])
async def test_a_false_promise_of_the_grid_is_refused_instead_of_counted_as_nothing(
    value: float,
) -> None:
    people = ArrayPopulation(np.array([[0.0, 1.0], [0.0, value]]))

    with pytest.raises(ParameterError, match=r"^on_grid must be false, as not all values"):
        await finished(Scenario(name="own", feature="value"), people)


async def test_a_small_number_of_rounds_has_worst_case_figures_too() -> None:
    # Coarse enough for the noise of 15 answers, too coarse for that of one.
    scenario = Scenario(name="rare", budget=15, grid_exponent=-6, rounds=1)

    summary = (await finished(scenario, shoppers(), workers=1)).summary()

    # One answer needs 1/√15 of the noise of 15.
    assert summary["rmse"]["worst_case_all_rounds"] == pytest.approx(
        summary["sigma"] / np.sqrt(15), rel=1e-2
    )
    assert summary["answered_rounds"] == {"individual": 1, "worst_case_same_noise": 1}


@pytest.mark.parametrize("fidelity", ["cohort", "processes"])
async def test_a_question_that_nobody_could_answer_is_refused_and_another_may_follow(
    fidelity: str,
) -> None:
    async with open_session(RARE, fidelity=fidelity, workers=1, population=shoppers()) as session:
        unanswerable: list[tuple[list[Any], str]] = [
            ([Feature(name="active", parameters={"period": 600})], "period must be"),
            ([Feature(name="amount", parameters={"period": 1})], "on_grid must be false"),
            (["active"], "feature must be Feature"),
            ([], "features must be at least one"),
        ]
        for features, problem in unanswerable:
            with pytest.raises(ParameterError, match=problem):
                await session.ask(Linear(features, on_grid=True))
        with pytest.raises(ParameterError, match="clip must be"):
            await session.ask(Linear([Feature(name="active", parameters={"period": 1})], clip=-1.0))

        release = await session.ask(
            Linear([Feature(name="active", parameters={"period": 1})], on_grid=True)
        )
        await session.finish()

        assert (release.number, release.reports) == (1, DEVICES)
        with pytest.raises(StateError, match="the study has ended"):
            await session.ask(
                Linear([Feature(name="active", parameters={"period": 2})], on_grid=True)
            )


async def test_a_question_broken_off_ends_a_session_of_processes_with_one_clear_line() -> None:
    today = Feature(name="active", parameters={"period": 1})
    async with open_session(
        RARE, fidelity="processes", workers=1, population=shoppers()
    ) as session:
        with anyio.move_on_after(0):
            await session.ask(Linear([today], on_grid=True))

        with pytest.raises(StateError, match="broken off"):
            await session.ask(Linear([today], on_grid=True))
