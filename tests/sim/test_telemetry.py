"""The scenario telemetry: histograms of everybody, day after day, and how far off they are."""

import math

import numpy as np
import pytest

from demur_proto.errors import ParameterError
from demur_proto.mechanisms.registry import Randomiser
from demur_proto.release import Withheld
from demur_sim.people.populations import ArrayPopulation
from demur_sim.results.histograms import HistogramResult
from demur_sim.results.sums import LinearResult
from demur_sim.run import simulate
from demur_sim.scenario import Scenario
from telemetry_kit import DEVICES, PERIODS, by_category, everything, of_an_array, run, small, whole

# ---- the same releases -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fidelity", "workers"), [("cohort", 2), ("processes", 1), ("processes", 2)]
)
def test_the_same_seed_releases_the_same_however_real_and_by_however_many(
    fidelity: str, workers: int
) -> None:
    cut = ("rounds=3", "budget=1")
    arrays = run(*cut, workers=1, seed=4)

    other = run(*cut, workers=workers, fidelity=fidelity, seed=4)

    assert len(other.side_by_side) == len(arrays.side_by_side) == 2
    for one, another in zip(arrays.side_by_side, other.side_by_side, strict=True):
        assert one.releases == another.releases
        assert one.study == another.study
        np.testing.assert_array_equal(one.active_truth, another.active_truth)
        np.testing.assert_array_equal(one.aftermath.refused, another.aftermath.refused)
    assert other.exhausted_fraction > 0


def test_another_seed_randomises_the_same_people_otherwise() -> None:
    one, other = run("rounds=3", seed=0), run("rounds=3", seed=1)

    assert one.releases_sha256 != other.releases_sha256
    np.testing.assert_array_equal(one.truth, other.truth)


def test_other_people_are_another_seed_of_the_data() -> None:
    one, other = run("rounds=3"), run("rounds=3", "data.seed=1")

    assert (one.truth != other.truth).any()


def test_the_result_beside_is_what_its_mechanism_releases_alone() -> None:
    beside = run("rounds=3").beside
    alone = run("rounds=3", "mechanism=hadamard", "beside=")

    assert beside is not None
    assert alone.beside is None
    assert beside.releases == alone.releases


# ---- the truth -------------------------------------------------------------------------------


def test_the_truth_is_what_counting_everybody_one_by_one_says() -> None:
    result = run()

    np.testing.assert_array_equal(result.truth, by_category(everything(result.scenario), 64))


@pytest.mark.parametrize("policy", ["skip", "retire"])
def test_people_contribute_their_first_events_and_then_nothing(policy: str) -> None:
    result = run("budget=2", f"policy={policy}")
    symbols = everything(result.scenario)

    affordable = np.cumsum(symbols > 0, axis=1) <= 2

    np.testing.assert_array_equal(result.active_truth, by_category(symbols * affordable, 64))
    assert result.exhausted_fraction == (~affordable).any(axis=1).mean()
    assert 0.01 < result.exhausted_fraction < 0.1
    for each in result.side_by_side:
        np.testing.assert_array_equal(each.active_truth, result.active_truth)


# ---- the error -------------------------------------------------------------------------------


def mean_square_over_theory(result: HistogramResult) -> float:
    return (result.active_rmse / result.theory_rmse) ** 2


@pytest.mark.parametrize("which", [0, 1])
def test_the_error_is_that_of_theory(which: int) -> None:
    result = whole().side_by_side[which]

    # Errors of different categories are uncorrelated under OUE and Hadamard response, and close
    # to normal: the mean of 6,400 squares has a relative standard error of √(2/6400).
    assert abs(mean_square_over_theory(result) - 1) <= 4 * math.sqrt(2 / 6400)


@pytest.mark.parametrize("mechanism", [*Randomiser])
def test_every_mechanism_counts_within_its_theory(mechanism: Randomiser) -> None:
    result = run("beside=", f"mechanism={mechanism}")

    # Squares of 12 · 64 errors, which are uncorrelated up to terms of order 1/64.
    assert abs(mean_square_over_theory(result) - 1) <= 5 * math.sqrt(2 / (12 * 64))
    assert result.answered_rounds == PERIODS == 12


@pytest.mark.parametrize("which", [0, 1])
def test_intervals_hold_the_people_who_contributed_as_often_as_they_say(which: int) -> None:
    result = whole().side_by_side[which]

    assert abs(result.coverage - 0.95) <= 3 * math.sqrt(0.95 * 0.05 / 6400)


@pytest.mark.parametrize("which", [0, 1])
def test_devices_that_have_run_out_move_no_estimate(which: int) -> None:
    exhausted = run("budget=1", "data.periods=60").side_by_side[which]
    assert exhausted.exhausted_fraction > 0.3
    late = slice(30, 60)

    errors = (exhausted.estimates - exhausted.active_truth)[late]

    # The mean over 30 rounds and 64 categories, of uncorrelated errors.
    error = exhausted.sigma / math.sqrt(30 * 64)
    assert abs(errors.mean()) <= 4 * error


def test_standard_errors_are_those_of_textbooks() -> None:
    result = whole()
    e = math.exp(result.query.epsilon)

    # Wang et al. 2017, section 4.3: variance n·4e^ε/(e^ε − 1)² for a category that nobody has.
    assert result.sigma == pytest.approx(math.sqrt(DEVICES * 4 * e) / (e - 1), rel=1e-9)
    # Acharya, Sun & Zhang 2019 with a share of one half: ((e^ε + 1)/(e^ε − 1))².
    assert result.beside is not None
    other = math.exp(result.beside.query.epsilon)
    expected = math.sqrt(DEVICES) * (other + 1) / (other - 1)
    assert result.beside.sigma == pytest.approx(expected, rel=1e-9)


def test_a_filter_on_each_device_is_worth_the_root_of_the_rounds_over_the_budget() -> None:
    for result in whole().side_by_side:
        # For small ε, noise grows as the root of how many answers have to fit: √(100/10).
        ratio = result.worst_case_sigma / result.sigma
        assert ratio == pytest.approx(math.sqrt(100 / 10), rel=0.03)
        assert result.worst_case_rounds == result.scenario.budget == 10
        assert result.answered_rounds == 100


def test_one_of_ones_own_arrays_may_hold_categories_and_nothing() -> None:
    values = np.array([[0.0, 2.0], [1.0, -1.0], [1.0, 0.5], [7.0, 3.0]])
    scenario = of_an_array(categories=3, mechanism="oue", budget=2)

    result = simulate(scenario, population=ArrayPopulation(values))

    assert result.truth.tolist() == [[1, 2, 0], [0, 0, 1]]
    np.testing.assert_array_equal(result.truth, result.active_truth)
    assert all(release.withheld is Withheld.NOTHING for release in result.releases)


def test_progress_counts_the_rounds_of_both_studies() -> None:
    seen: list[tuple[int, int, int]] = []

    simulate(small("rounds=2"), progress=lambda *done: seen.append(done))

    assert seen == [(n, 4, n * DEVICES) for n in (1, 2, 3, 4)]


def test_nobody_at_all_is_refused() -> None:
    scenario = of_an_array(categories=3, mechanism="oue")

    with pytest.raises(ParameterError, match="at least one device"):
        simulate(scenario, population=ArrayPopulation(np.zeros((0, 2))))


def test_a_linear_scenario_still_makes_linear_results() -> None:
    scenario = Scenario(name="mine", feature="value", budget=2, grid_exponent=-9)

    result = simulate(scenario, population=ArrayPopulation(np.ones((50, 3))))

    assert isinstance(result, LinearResult)
    assert result.summary()["kind"] == "linear"
