import math
from fractions import Fraction

import numpy as np
import pytest

from demur_proto.accounting.laws import cap_share
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.for_study.privunit import PrivUnit
from demur_sim.engine.sampling import FastSampler


def sampler(seed: int = 1) -> FastSampler:
    return FastSampler(np.random.Generator(np.random.SFC64(seed)))


def direction(dimension: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    vector = np.arange(1.0, dimension + 1)[None, :]
    return vector / np.linalg.norm(vector)


CASES = [(2, 0.7, 0.2), (3, 0.75, 0.0), (16, 0.8, 0.3), (256, 0.75, 0.06), (64, 0.9, 0.45)]


@pytest.mark.parametrize(("dimension", "probability", "height"), CASES)
def test_reports_are_directions_in_the_cap_as_often_as_they_should_be(
    dimension: int, probability: float, height: float
) -> None:
    mechanism = PrivUnit(dimension=dimension, probability=probability, height=height)
    u, n = direction(dimension), 4_000

    v = mechanism.randomise(np.repeat(u, n, axis=0), sampler())

    np.testing.assert_allclose(np.linalg.norm(v, axis=1), 1, rtol=1e-12)
    cosines = v @ u[0]
    error = math.sqrt(probability * (1 - probability) / n)
    assert abs((cosines >= height - 1e-12).mean() - probability) < 4 * error
    # Further in, the share is that of the sphere in a narrower cap, given the cap.
    narrow = height + 0.5 / math.sqrt(dimension)
    share = cap_share(narrow, dimension=dimension) / mechanism.share * probability
    assert abs((cosines >= narrow).mean() - share) < 4 * math.sqrt(share * (1 - share) / n)


@pytest.mark.parametrize(("dimension", "probability", "height"), CASES)
def test_estimates_miss_by_what_theory_says(
    dimension: int, probability: float, height: float
) -> None:
    mechanism = PrivUnit(dimension=dimension, probability=probability, height=height)
    u, n, runs = direction(dimension), 20, 400
    drawn = sampler(2)

    reports = mechanism.randomise(np.repeat(u, n * runs, axis=0), drawn).reshape(runs, n, -1)
    results = [mechanism.estimate(each) for each in reports]

    misses = np.array([result.estimate for result in results]) - n * u[0]
    squares = (misses**2).sum(axis=1)
    spread = squares.std(ddof=1) / math.sqrt(runs)
    assert abs(squares.mean() - mechanism.variance(n, reports=n)) < 3 * spread
    along = misses @ u[0]
    assert abs(along.mean()) < 3.5 * along.std(ddof=1) / math.sqrt(runs)
    # The errors that results state, squared, are right in the mean.
    stated = np.array([result.standard_error for result in results])
    assert (stated**2).sum(axis=1).mean() == pytest.approx(squares.mean(), rel=0.15)


def check_coverage(*, runs: int, seed: int) -> None:
    mechanism, u = PrivUnit(dimension=8, probability=0.8, height=0.3), direction(8)
    drawn, n = sampler(seed), 200
    covered = []
    for _ in range(runs):
        result = mechanism.estimate(mechanism.randomise(np.repeat(u, n, axis=0), drawn))
        covered.append(np.abs(np.array(result.estimate) - n * u[0]) <= result.half_width)

    # 200 reports have 199 degrees of freedom: Student's t covers 94.86 % there.
    error = math.sqrt(0.95 * 0.05 / runs)
    assert (np.abs(np.mean(covered, axis=0) - 0.9486) < 3.5 * error).all()


def test_intervals_cover_as_often_as_they_say() -> None:
    check_coverage(runs=400, seed=4)


@pytest.mark.long
def test_mechanisms_privunit_coverage_over_thousands_of_runs() -> None:
    check_coverage(runs=5_000, seed=5)


def test_those_without_a_direction_do_not_move_the_estimate() -> None:
    mechanism, u = PrivUnit(dimension=8, probability=0.8, height=0.3), direction(8)
    rows = np.concatenate([np.repeat(u, 4_000, axis=0), np.zeros((4_000, 8))])

    result = mechanism.estimate(mechanism.randomise(rows, sampler(3)))

    miss = np.array(result.estimate) - 4_000 * u[0]
    assert np.linalg.norm(miss) < 2 * math.sqrt(mechanism.variance(4_000, reports=8_000))
    assert (np.abs(miss) < 4 * np.array(result.standard_error)).all()


def test_charges_come_from_the_cap_and_its_share() -> None:
    mechanism = PrivUnit(dimension=3, probability=0.75, height=0.5)  # a quarter of the sphere

    assert mechanism.charge_pure(True) == pytest.approx(math.log(3), rel=1e-12)
    assert mechanism.epsilon == pytest.approx(math.log(9), rel=1e-12)
    # Σ p²/q over the cap and the rest: 9/4 + 1/12.
    assert mechanism.charge_renyi(True, order=2.0) == pytest.approx(math.log(7 / 3), rel=1e-12)
    assert mechanism.charge_renyi(False, order=2.0) == 0.0
    assert mechanism.charge_zcdp(False) == mechanism.charge_pure(False) == 0.0
    assert mechanism.charge_zcdp(True) >= mechanism.charge_renyi(True, order=2.0) / 2


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"dimension": 1}, "dimension"),
        ({"height": 1.0}, "height"),
        ({"height": math.nan}, "height"),
        ({"probability": 1.0}, "probability"),
        ({"probability": 0.1}, "probability"),
        ({"probability": math.nan}, "probability"),
        ({"dimension": 100_000, "height": 0.9}, "probability"),
        ({"dimension": 1 << 24, "height": 0.003, "probability": 2e-33}, "probability"),
    ],
)
def test_impossible_parameters_are_refused_in_one_line(wrong: dict[str, float], field: str) -> None:
    values = {"dimension": 3, "probability": 0.75, "height": 0.5} | wrong

    with pytest.raises(ParameterError, match=rf"^{field} ") as refused:
        PrivUnit(**values)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)


def test_bad_rows_are_refused_without_being_repeated() -> None:
    mechanism = PrivUnit(dimension=3, probability=0.75, height=0.5)

    for rows in (np.ones((2, 3)), np.zeros((2, 4)), np.full((1, 3), math.nan)):
        with pytest.raises(ParameterError, match=r"^directions "):
            mechanism.randomise(rows, sampler())
    for reports in (np.zeros((0, 3)), np.eye(3)[:1], np.ones((2, 3)), np.eye(4), np.zeros((2, 3))):
        with pytest.raises(ParameterError, match=r"^reports [^\n]*$"):
            mechanism.estimate(reports)
    assert mechanism.valid(np.array([[1.0, 0, 0], [2.0, 0, 0], [math.nan, 0, 0]])).tolist() == [
        True,
        False,
        False,
    ]
    with pytest.raises(ParameterError, match=r"^directions "):
        mechanism.variance(3, reports=2)
    with pytest.raises(ParameterError, match=r"^direction "):
        mechanism.charge_renyi(1, order=2.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("probability", [1 - 1e-6, 1 - 1e-9, math.nextafter(1.0, 0.0)])
def test_a_cap_that_is_all_but_certain_is_charged_for_the_rare_outside(
    probability: float,
) -> None:
    for height in (0.0, 0.1, 0.5):  # Archimedes: the share is (1 - h)/2 in three dimensions
        mechanism = PrivUnit(dimension=3, probability=probability, height=height)
        rare = Fraction(1) - Fraction(probability)

        exact = math.log((1 + Fraction(height)) / 2 / rare)

        assert mechanism.charge_pure(True) >= exact * (1 - 1e-15)
        assert mechanism.charge_pure(True) == pytest.approx(exact, rel=1e-11)
