"""Fidelity `device`: real processes decide and charge as the cohort does, and their noise has its law."""

import anyio
import numpy as np
import pytest

from counting_kit import a_study
from demur_proto.errors import ParameterError
from demur_proto.queries import Feature, RunningCount
from demur_proto.running.segments import Segment
from demur_proto.study import Measure, View
from demur_sim.engine.cohort_session import cohort_session
from demur_sim.engine.processes import device_session
from demur_sim.engine.session import Aftermath, Questions, Session
from demur_sim.people.populations import ArrayPopulation
from demur_sim.results.base import Result
from demur_sim.run import How, run_scenario
from demur_sim.scenario import Kind, Refusal, Scenario

DEADLINE_S = 60.0
ACTIVE = np.array([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0]], dtype=np.float64)
SUMS = Scenario(
    name="sums", feature="value", budget=2, grid_exponent=-7, view=View.LOCAL, shuffle=False
)


async def ran(scenario: Scenario, fidelity: str, values: np.ndarray = ACTIVE) -> Result:
    with anyio.fail_after(DEADLINE_S):
        people = ArrayPopulation(values)
        how = How(fidelity=fidelity, population=people, record=fidelity == "device")
        return await run_scenario(scenario, how)


async def test_devices_decide_and_charge_as_the_cohort_does_and_everybody_reports() -> None:
    real, arrays = [await ran(SUMS, fidelity) for fidelity in ("device", "cohort")]

    assert real.study == arrays.study
    np.testing.assert_array_equal(real.aftermath.contributed, arrays.aftermath.contributed)
    np.testing.assert_array_equal(real.aftermath.refused, arrays.aftermath.refused)
    np.testing.assert_array_equal(real.aftermath.spent, arrays.aftermath.spent)
    assert real.aftermath.refused.tolist() == [True, False, False]
    assert [release.reports for release in real.releases] == [3, 3, 3, 3]
    assert [release.number for release in real.releases] == [1, 2, 3, 4]
    messages = real.aftermath.messages
    assert messages is not None
    assert messages.sent.all()
    assert len(np.unique(messages.size_bytes)) == 1
    assert real.summary()["workers"] == 3
    noise = [
        release.estimate[0] - truth
        for release, truth in zip(real.releases, real.active_truth, strict=True)
    ]
    error = real.releases[0].standard_error[0]
    assert all(0 < abs(each) <= 6 * error for each in noise)  # 2e-9 each; never none at all
    assert real.releases_sha256 != arrays.releases_sha256


@pytest.mark.long
async def test_devices_count_categories_as_the_cohort_does() -> None:
    scenario = Scenario(
        name="counts",
        feature="value",
        kind=Kind.HISTOGRAM,
        categories=4,
        mechanism="krr",
        epsilon=4.0,
        budget=2,
        measure=Measure.ZCDP,
        view=View.LOCAL,
        shuffle=False,
    )
    categories = np.array([[0, 1, 3], [-1, 2, 2]], dtype=np.float64)

    real, arrays = [await ran(scenario, fidelity, categories) for fidelity in ("device", "cohort")]

    np.testing.assert_array_equal(real.aftermath.contributed, arrays.aftermath.contributed)
    np.testing.assert_array_equal(real.aftermath.refused, arrays.aftermath.refused)
    np.testing.assert_array_equal(real.aftermath.spent, arrays.aftermath.spent)
    assert [release.reports for release in real.releases] == [2, 2, 2]


@pytest.mark.long
async def test_devices_keep_running_counts_as_the_cohort_does() -> None:
    states = np.array([[1, 1, 0, 1], [0, 2, 0, 1], [0, 0, 0, 0]], dtype=np.float64)
    study = a_study(answers=5, minimum_cohort=3)
    told = {"population": ArrayPopulation(states), "grid_exponent": -14}

    async def counted(session: Session) -> Aftermath:
        segment = Segment(horizon=4, cohort=3)
        for period in range(1, 5):
            feature = Feature(name="value", parameters={"period": period})
            release = await session.ask(RunningCount(feature, segment, bound=2))
            segment = segment.after(release.number) if period < 4 else segment
        return await session.finish()

    with anyio.fail_after(DEADLINE_S):
        asked = Questions(**told)  # type: ignore[arg-type]
        async with device_session(study, asked, refusal=Refusal.COVER) as processes:
            real = await counted(processes)
        async with cohort_session(
            study, asked, seed=1, refusal=Refusal.COVER, threads=1
        ) as session:
            arrays = await counted(session)

    np.testing.assert_array_equal(real.contributed, arrays.contributed)
    np.testing.assert_array_equal(real.refused, arrays.refused)
    np.testing.assert_array_equal(real.spent, arrays.spent)
    assert real.refused.tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("scenario", "devices", "said"),
    [
        (SUMS, 65, "at most 64"),
        (
            Scenario(name="silent", feature="value", budget=2, refusal=Refusal.SILENT),
            2,
            "never falls silent",
        ),
    ],
)
async def test_what_real_devices_cannot_do_is_one_clear_line(
    scenario: Scenario, devices: int, said: str
) -> None:
    with pytest.raises(ParameterError, match=said):
        await ran(scenario, "device", np.zeros((devices, 1)))
