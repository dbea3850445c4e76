"""The law of the rounded Gaussian, against Φ differences; every seed is fixed."""

import math
from typing import Any

import numpy as np
import pytest

from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_sim.engine.sampling import NARROW_STEPS, PIECE_WORDS, FastSampler

Rng = np.random.Generator


def probability(k: int, s: float) -> float:
    """P(round(N(0, s²)) = k) = Φ((k + ½)/s) − Φ((k − ½)/s)."""
    root = s * math.sqrt(2)
    return (math.erf((k + 0.5) / root) - math.erf((k - 0.5) / root)) / 2


@pytest.mark.parametrize("s", [0.4, 1.5, 8.0])
def test_noise_follows_the_rounded_gaussian_law(s: float, rng: Rng) -> None:
    n = 400_000
    reach = math.floor(3 * s)  # cells −reach..reach, and one for each tail

    words = FastSampler(rng).gaussian(s, reports=n, dimension=1).ravel()

    cells = list(range(-reach, reach + 1))
    expected = [n * probability(k, s) for k in cells]
    tail = (n - sum(expected)) / 2
    counts = [int((words == k).sum()) for k in cells]
    observed = [int((words < -reach).sum()), *counts, int((words > reach).sum())]
    wanted = [tail, *expected, tail]
    assert min(wanted) > 5
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, wanted, strict=True))
    # Chi-square with f degrees of freedom: mean f, variance 2f.
    freedom = len(wanted) - 1
    assert statistic < freedom + 5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("s", [0.7, 1.0])
def test_rounding_adds_one_twelfth_to_the_variance(s: float, rng: Rng) -> None:
    n = 400_000

    words = FastSampler(rng).gaussian(s, reports=n, dimension=1).ravel()

    variance = s * s + 1 / 12
    # The variance of a sample variance is 2v²/n for a Gaussian; 5 sigma. At these s that is about
    # a tenth of the 1/12 itself, so noise that is not rounded, or rounded down, would fail.
    tolerance = 5 * variance * math.sqrt(2 / n)
    assert tolerance < 1 / 12 / 5
    assert float(np.mean(words.astype(float) ** 2)) == pytest.approx(variance, abs=tolerance)
    assert float(words.mean()) == pytest.approx(0, abs=5 * math.sqrt(variance / n))


@pytest.mark.parametrize("s", [1.0, 8.0, 30.0])
def test_the_exact_variance_is_that_formula_up_to_aliasing(s: float) -> None:
    exact = sum(k * k * probability(k, s) for k in range(-int(12 * s), int(12 * s) + 1))

    # The first aliasing term, (4s² + 1/π²) e^(−2π²s²), is 1.1e-8 at s = 1 and nothing at s = 8;
    # a difference of two erf near 1 costs about 1e-16·k².
    assert exact == pytest.approx(s * s + 1 / 12, rel=2e-8 if s == 1 else 1e-12)


@pytest.mark.parametrize("s", [0.05, 0.2, 0.5])
def test_below_one_step_the_formula_errs_towards_more(s: float) -> None:
    exact = sum(k * k * probability(k, s) for k in range(-20, 21))

    assert exact < s * s + 1 / 12


def test_the_standard_error_is_that_of_a_sum_of_shares(rng: Rng) -> None:
    shares, repeats = 400, 1500
    mechanism = GaussianLinear(
        dimension=repeats,
        clip=1.0,
        grid_exponent=0,
        sigma=160.0,
        shares=shares,
        on_grid=True,
    )
    assert mechanism.noise_steps == 8.0

    sums = mechanism.noise(FastSampler(rng), reports=shares).sum(axis=0)

    error = mechanism.standard_error(shares)
    assert error == pytest.approx(math.sqrt(shares * (64 + 1 / 12)), rel=1e-12)
    # The relative standard deviation of a sample standard deviation is 1/√(2·repeats); 5 sigma.
    spread = math.sqrt(float(np.mean(sums.astype(float) ** 2)))
    assert spread == pytest.approx(error, rel=5 / math.sqrt(2 * repeats))


def test_coordinates_of_noise_are_independent_of_each_other(rng: Rng) -> None:
    n = 100_000

    words = FastSampler(rng).gaussian(8.0, reports=n, dimension=2).astype(float)

    correlation = float(np.mean(words[:, 0] * words[:, 1])) / (64 + 1 / 12)
    assert correlation == pytest.approx(0, abs=5 / math.sqrt(n))


def test_coins_are_uniform_on_the_half_open_unit_interval(rng: Rng) -> None:
    n = 100_000

    coins = FastSampler(rng).uniform(reports=n, dimension=1).ravel()

    assert coins.min() >= 0
    assert coins.max() < 1
    counts, _ = np.histogram(coins, bins=10, range=(0, 1))
    statistic = float(((counts - n / 10) ** 2 / (n / 10)).sum())
    assert statistic < 9 + 5 * math.sqrt(18)


def test_the_same_seed_gives_the_same_noise() -> None:
    draws = [
        FastSampler(np.random.default_rng(5)).gaussian(8.0, reports=3, dimension=2)
        for _ in range(2)
    ]

    assert np.array_equal(draws[0], draws[1])
    assert draws[0].dtype == np.int64
    assert draws[0].shape == (3, 2)


@pytest.mark.parametrize(
    "steps", [8.0, float(NARROW_STEPS), math.nextafter(NARROW_STEPS, math.inf)]
)
def test_narrow_noise_is_the_same_noise_where_it_surely_fits(steps: float) -> None:
    n = PIECE_WORDS + 5

    wide = FastSampler(np.random.default_rng(5)).gaussian(steps, reports=n, dimension=1)
    narrow = FastSampler(np.random.default_rng(5), widen=False).gaussian(
        steps, reports=n, dimension=1
    )

    assert np.array_equal(narrow, wide)
    assert narrow.dtype == (np.int32 if steps <= NARROW_STEPS else np.int64)


def test_noise_drawn_in_pieces_is_that_of_one_draw() -> None:
    shape = (3, PIECE_WORDS // 2 + 1)

    noise = FastSampler(np.random.default_rng(5)).gaussian(8.0, reports=3, dimension=shape[1])

    whole = np.random.default_rng(5).standard_normal(shape)
    assert np.array_equal(noise, np.rint(8.0 * whole))


@pytest.mark.parametrize(("width", "widen"), [(np.int32, True), (np.int64, False)])
def test_words_of_one_width_and_noise_of_another_add_up_exactly(width: type, widen: bool) -> None:
    mechanism = GaussianLinear(
        dimension=2, clip=1.0, grid_exponent=-14, sigma=1.0, shares=1, on_grid=False
    )
    words: Any = np.array([[2**31 - 1, -(2**31)]], dtype=width)

    sampler, same = (FastSampler(np.random.default_rng(5), widen=widen) for _ in range(2))
    drawn, reports = mechanism.noise(sampler, reports=1), mechanism.randomise(words, same)

    assert drawn.dtype != words.dtype
    assert reports.tolist() == [[2**31 - 1 + int(drawn[0, 0]), -(2**31) + int(drawn[0, 1])]]
