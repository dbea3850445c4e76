"""Histograms asked of a session: the same at every fidelity, and refused alike."""

import dataclasses
from functools import cache
from typing import Any

import anyio
import numpy as np
import pytest

from demur_proto.accounting.histograms import epsilon_for_answers
from demur_proto.errors import ParameterError, StateError
from demur_proto.mechanisms.registry import Randomiser
from demur_proto.queries import Feature, Histogram, Linear
from demur_proto.release import Release
from demur_proto.study import Measure, View
from demur_sim.engine.session import Aftermath, Session
from demur_sim.engine.simulation import open_session
from demur_sim.people.populations import ArrayPopulation
from demur_sim.scenario import Refusal, Scenario

DEADLINE_S = 60.0
DEVICES, PERIODS, CATEGORIES = 2 * 4096 + 321, 7, 13  # three blocks, the last one small
COUNTS = Scenario(
    name="counts",
    kind="histogram",  # type: ignore[arg-type]  # as a file says it
    feature="value",
    categories=CATEGORIES,
    mechanism="oue",
    epsilon=2.0,
    budget=3,
    view=View.LOCAL,
    measure=Measure.ZCDP,
)


@cache
def people() -> ArrayPopulation:
    """Everyone has a category in every period, low ones more often; four of seven cannot be paid."""
    rng = np.random.default_rng(1)
    return ArrayPopulation(np.floor(CATEGORIES * rng.random((DEVICES, PERIODS)) ** 2))


def today(period: int) -> Feature:
    return Feature(name="value", parameters={"period": period})


async def ask_all(session: Session) -> list[Release]:
    """Every mechanism once; how much each next round costs depends on the last release."""
    releases: list[Release] = []
    for period, mechanism in enumerate(Randomiser, start=1):
        last = releases[-1].estimate[0] if releases and releases[-1].estimate.size else 0.0
        epsilon = epsilon_for_answers(
            session.study.value,
            mechanism=mechanism,
            categories=CATEGORIES,
            answers=4 if last > DEVICES / 4 else 3,
        )
        releases.append(
            await session.ask(
                Histogram(
                    today(period), categories=CATEGORIES, mechanism=mechanism, epsilon=epsilon
                )
            )
        )
    return releases


async def asked(
    fidelity: str, workers: int, *, scenario: Scenario = COUNTS
) -> tuple[list[Release], Aftermath]:
    with anyio.fail_after(DEADLINE_S):
        async with open_session(
            scenario, seed=3, fidelity=fidelity, workers=workers, population=people()
        ) as session:
            return await ask_all(session), await session.finish()


@pytest.fixture(scope="module")
async def arrays() -> tuple[list[Release], Aftermath]:
    return await asked("cohort", 1)


async def test_a_cohort_counts_everybody_who_can_pay(
    arrays: tuple[list[Release], Aftermath],
) -> None:
    releases, aftermath = arrays

    assert [release.reports for release in releases] == [DEVICES] * PERIODS
    assert aftermath.refused.all()
    assert [counts.sum() for counts in aftermath.contributed[:2]] == [DEVICES, DEVICES]
    for release, counts in zip(releases, aftermath.contributed, strict=True):
        z = (np.array(release.estimate) - counts) / np.array(release.standard_error)
        # Σz² of k counts has mean k and, being close to Gaussian, variance 2k; five sigma.
        assert float(z @ z) <= CATEGORIES + 5 * np.sqrt(2 * CATEGORIES)


async def test_threads_change_nothing(arrays: tuple[list[Release], Aftermath]) -> None:
    releases, aftermath = await asked("cohort", 4)

    assert releases == arrays[0]
    np.testing.assert_array_equal(aftermath.contributed, arrays[1].contributed)


@pytest.mark.parametrize("workers", [1, 2, 4])
async def test_processes_release_what_the_cohort_releases(
    arrays: tuple[list[Release], Aftermath], workers: int
) -> None:
    releases, aftermath = await asked("processes", workers)

    assert releases == arrays[0]  # estimates, errors, widths and guarantees, not only the sums
    np.testing.assert_array_equal(aftermath.contributed, arrays[1].contributed)
    np.testing.assert_array_equal(aftermath.refused, arrays[1].refused)


async def test_silent_devices_leave_gaps() -> None:
    silent = dataclasses.replace(COUNTS, refusal=Refusal.SILENT, minimum_cohort=1)

    releases, _ = await asked("cohort", 2, scenario=silent)

    reports = [release.reports for release in releases]
    assert reports[0] == DEVICES
    assert reports[-1] == 0  # nobody can pay any more
    assert (releases[-1].estimate.size, releases[-1].half_width.size) == (0, 0)


@pytest.mark.parametrize("fidelity", ["cohort", "processes"])
async def test_a_histogram_that_nobody_could_answer_is_refused_and_another_may_follow(
    fidelity: str,
) -> None:
    right: dict[str, Any] = {
        "categories": CATEGORIES,
        "mechanism": Randomiser.HADAMARD,
        "epsilon": 0.5,
    }
    unanswerable: list[tuple[Any, dict[str, Any], str]] = [
        (today(600), {}, "period must be"),
        (Feature(name="nosuch", parameters={"period": 1}), {}, "feature must be"),
        ("value", {}, "feature must be Feature"),
        (today(1), {"categories": 0}, "categories must be"),
        (today(1), {"categories": CATEGORIES + 1}, "categories must be <= 13"),
        (today(1), {"epsilon": float("nan")}, "epsilon must be"),
        (today(1), {"epsilon": 1000.0}, "epsilon must be"),
        (today(1), {"epsilon": 20.0}, "epsilon must be less: no device of this study could afford"),
        (today(1), {"mechanism": "hadamard"}, "mechanism must be a Randomiser"),
    ]
    async with open_session(COUNTS, fidelity=fidelity, workers=1, population=people()) as session:
        for feature, changes, problem in unanswerable:
            with pytest.raises(ParameterError, match=problem) as caught:
                await session.ask(Histogram(feature, **{**right, **changes}))
            assert len(str(caught.value).splitlines()) == 1
        with pytest.raises(ParameterError, match="query must be a histogram"):
            await session.ask(Linear([today(1)]))

        release = await session.ask(Histogram(today(1), **right))
        await session.finish()

        assert (release.number, release.reports) == (1, DEVICES)
        with pytest.raises(StateError, match="the study has ended"):
            await session.ask(Histogram(today(2), **right))


async def test_vectors_and_gaussian_studies_have_no_histograms() -> None:
    linear = Scenario(name="linear", feature="value")
    options: dict[str, Any] = {"categories": 3, "mechanism": Randomiser.OUE, "epsilon": 0.5}
    wide = ArrayPopulation(np.zeros((20, 1, 2)))

    async with open_session(COUNTS, population=wide) as session:
        with pytest.raises(ParameterError, match="one number, the category"):
            await session.ask(Histogram(today(1), **options))
    async with open_session(linear, population=people()) as session:
        with pytest.raises(ParameterError, match="query must be linear"):
            await session.ask(Histogram(today(1), **options))
