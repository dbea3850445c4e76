import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from demur_proto.accounting.laws import discrete_gaussian_renyi
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.for_study.gaussian import DiscreteGaussianLinear
from demur_sim.engine.sampling import FastSampler


def sampler(seed: int = 1) -> FastSampler:
    return FastSampler(np.random.Generator(np.random.SFC64(seed)))


def mechanism(**changes: Any) -> DiscreteGaussianLinear:
    fields: dict[str, Any] = {"dimension": 2, "clip": 1.0, "grid_exponent": -7, "sigma": 4.0}
    return DiscreteGaussianLinear(**{**fields, **changes})


def test_the_zcdp_charge_is_exact_and_holds_at_every_order() -> None:
    noisy = mechanism(grid_exponent=0, clip=5.0, sigma=0.75)

    for steps in ([1, 0], [3, -4], [0, 2]):
        square = sum(step * step for step in steps)
        rho = noisy.charge_zcdp(square)
        assert Fraction(rho) >= Fraction(square) / (2 * Fraction(0.75) ** 2)
        assert rho == pytest.approx(square / (2 * 0.75**2), rel=1e-15)
        for order in (1.0, 1.3, 2.0, 7.7, 1e4):
            charge = noisy.charge_renyi(steps, order=order)
            assert charge <= order * rho * (1 + 1e-14)
            parts = [discrete_gaussian_renyi(abs(z), sigma=0.75, order=order) for z in steps]
            assert charge == pytest.approx(sum(parts), rel=1e-14)
            assert charge >= math.fsum(parts)


def test_the_reference_is_free_and_nothing_else_is_pure() -> None:
    noisy = mechanism()

    assert noisy.charge_zcdp(0) == noisy.charge_pure(0) == 0.0
    assert noisy.charge_renyi([0, 0], order=math.inf) == 0.0
    assert noisy.charge_pure(1) == noisy.charge_renyi([1, 0], order=math.inf) == math.inf


def test_it_offers_no_gdp_charge_and_no_shares() -> None:
    noisy = mechanism()

    assert not hasattr(noisy, "charge_gdp")
    with pytest.raises(TypeError):
        mechanism(shares=2)


def test_values_become_the_words_of_the_gaussian_mechanism() -> None:
    noisy = mechanism()
    values = np.array([[0.5, 0.25], [3.0, 4.0], [math.nan, 0.0], [0.1, -0.2]])

    words, squares = noisy.encode(values, sampler(2))
    same, norms = noisy.grid.encode(values, sampler(2))

    assert words.tolist() == same.tolist()
    assert squares.tolist() == norms.tolist()
    assert words[0].tolist() == [64, 32]
    assert squares.max() <= noisy.largest == 128**2


def test_a_report_is_the_words_plus_the_drawn_noise() -> None:
    noisy, words = mechanism(), np.array([[1, 2], [3, 4], [5, 6]])

    reports = noisy.randomise(words, sampler(3))

    noise = noisy.noise.draw(6, sampler(3)).reshape(3, 2)
    assert reports.tolist() == (words + noise).tolist()


def check(*, runs: int, seed: int) -> None:
    noisy, people = mechanism(dimension=2, clip=1.0, grid_exponent=-2, sigma=0.125), 100
    values, drawn = np.tile([[0.3, -0.5]], (people, 1)), sampler(seed)
    misses, covered = [], []
    for _ in range(runs):
        reports = noisy.randomise(noisy.encode(values, drawn)[0], drawn)
        result = noisy.estimate(noisy.tally(reports), reports=people)
        misses.append(np.array(result.estimate) - values.sum(axis=0))
        covered.append(np.abs(misses[-1]) <= result.half_width[0])

    # σ = ½ step, and rounding adds f(1 − f), f of a step being .2 or 0.
    noise = sum(2 * z * z * math.exp(-2 * z * z) for z in range(1, 9)) / (
        1 + 2 * sum(math.exp(-2 * z * z) for z in range(1, 9))
    )
    theory = people * (noise + np.array([0.2 * 0.8, 0.0])) / 16
    assert noisy.variance(reports=people) == pytest.approx(people * (noise + 0.25) / 16)
    squares = np.square(misses).mean(axis=0)
    assert (np.abs(squares / theory - 1) < 3 * math.sqrt(2 / runs)).all()
    bias = np.abs(np.mean(misses, axis=0))
    assert (bias < 3 * np.sqrt(theory / runs) + noisy.grid.clipping_bias(people)).all()
    assert (np.mean(covered, axis=0) > 0.95 - 3 * math.sqrt(0.95 * 0.05 / runs)).all()


def test_estimates_miss_by_what_theory_says_and_intervals_cover() -> None:
    check(runs=400, seed=4)


@pytest.mark.long
def test_mechanisms_discrete_gaussian_estimates_over_thousands_of_runs() -> None:
    check(runs=10_000, seed=5)


def check_coverage(*, runs: int, seed: int) -> None:
    """Where nothing is rounded the interval is exact."""
    noisy, people = mechanism(dimension=1, on_grid=True), 50
    words, drawn = np.full((people, 1), 64), sampler(seed)

    half = noisy.estimate(np.array([0]), reports=people).half_width[0]
    sums = [noisy.tally(noisy.randomise(words, drawn))[0] for _ in range(runs)]

    covered = np.abs(np.array(sums) / 128 - people / 2) <= half
    assert abs(covered.mean() - 0.95) < 3 * math.sqrt(0.95 * 0.05 / runs)
    assert half == pytest.approx(1.959964 * 4.0 * math.sqrt(people), rel=1e-6)


def test_intervals_cover_as_often_as_they_say() -> None:
    check_coverage(runs=400, seed=6)


@pytest.mark.long
def test_mechanisms_discrete_gaussian_coverage_over_thousands_of_runs() -> None:
    check_coverage(runs=10_000, seed=7)


def test_cover_reports_do_not_move_the_estimate() -> None:
    noisy, drawn, runs = mechanism(), sampler(8), 200
    words = np.zeros((300, 2), dtype=np.int64)
    words[:100] = [64, 32]

    totals = [
        noisy.estimate(noisy.tally(noisy.randomise(words, drawn)), reports=300).estimate
        for _ in range(runs)
    ]

    error = math.sqrt(noisy.variance(reports=300) / runs)
    assert (np.abs(np.mean(totals, axis=0) - [50, 25]) < 3.5 * error).all()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dimension", 0),
        ("clip", math.nan),
        ("dimension", 1.0),
        ("clip", -1.0),
        ("clip", True),
        ("sigma", 0.0),
        ("sigma", "1"),
        ("sigma", math.inf),
        ("grid_exponent", 9),
        ("grid_exponent", -60),
    ],
)
def test_an_absurd_field_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=rf"^{field} [^\n]*$"):
        mechanism(**{field: value})


def test_bad_input_is_refused_in_one_line_without_repeating_secrets() -> None:
    noisy = mechanism()

    for steps in ([1], [1, 2, 3], [1.0, 0], [True, 0], [128, 1]):
        with pytest.raises(ParameterError, match=r"^steps [^\n]*$") as caught:
            noisy.charge_renyi(steps, order=2.0)  # type: ignore[arg-type]
        assert "128" not in str(caught.value).partition("got")[2]
    for square in (-1, 128**2 + 1, 1.0, True, math.nan):
        with pytest.raises(ParameterError, match=r"^squared_norm .*got 'another value'$"):
            noisy.charge_zcdp(square)  # type: ignore[arg-type]
        with pytest.raises(ParameterError, match=r"^squared_norm "):
            noisy.charge_pure(square)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"^reports "):
        noisy.randomise(np.zeros((2, 3), dtype=np.int64), sampler())
    with pytest.raises(ParameterError, match=r"^reports "):
        noisy.tally(np.full((1, 2), noisy.grid.word_limit + 1))
    with pytest.raises(ParameterError, match=r"^reports "):
        noisy.tally(np.zeros((1, 3), dtype=np.int64))
    with pytest.raises(ParameterError, match=r"^reports "):
        noisy.estimate(np.zeros(2, dtype=np.int64), reports=0)
    with pytest.raises(ParameterError, match=r"^sums "):
        noisy.estimate(np.zeros(3, dtype=np.int64), reports=1)
    with pytest.raises(ParameterError, match=r"^values "):
        noisy.encode(np.zeros((2, 3)), sampler())
