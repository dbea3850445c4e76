import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from demur_proto.accounting.divergences import laplace_renyi
from demur_proto.accounting.laws import discrete_laplace_renyi
from demur_proto.accounting.pure import pure_rho
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.for_study.laplace import LaplaceLaw, LaplaceSum
from demur_proto.mechanisms.for_study.numeric import FULL_CHARGE
from demur_sim.engine.sampling import FastSampler

LAWS = [LaplaceLaw.ROUNDED, LaplaceLaw.DISCRETE]


def sampler(seed: int = 1) -> FastSampler:
    return FastSampler(np.random.Generator(np.random.SFC64(seed)))


def mechanism(
    law: LaplaceLaw, *, clip: float = 1.0, exponent: int = -14, scale: float = 2.0
) -> LaplaceSum:
    return LaplaceSum(clip=clip, grid_exponent=exponent, scale=scale, law=law)


# Charges.


@pytest.mark.parametrize("steps", [1, -100, 1 << 14])
@pytest.mark.parametrize("order", [1.0, 1.5, 8.0, 1e4, math.inf])
def test_charges_are_those_of_the_law_that_is_added(steps: int, order: float) -> None:
    rounded, discrete = (mechanism(law) for law in LAWS)

    size, scale = abs(steps), 2.0 * (1 << 14)
    assert rounded.charge_renyi(steps, order=order) == laplace_renyi(
        size / (1 << 14), scale=2.0, order=order
    )
    assert discrete.charge_renyi(steps, order=order) == discrete_laplace_renyi(
        size, scale=scale, order=order
    )


def rounded_law(steps: int, scale: float, reach: int) -> list[float]:
    """P(steps + round(X) = z) for −reach ≤ z ≤ reach, by differences of the distribution function."""

    def below(x: float) -> float:
        return math.exp(x / scale) / 2 if x < 0 else 1 - math.exp(-x / scale) / 2

    return [below(z + 0.5 - steps) - below(z - 0.5 - steps) for z in range(-reach, reach + 1)]


@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
@pytest.mark.parametrize("scale", [0.7, 2.0, 10.0])
def test_rounding_continuous_noise_never_tells_more_than_the_continuous_noise(
    order: float, scale: float
) -> None:
    for steps in (1, 2, 5):
        reach = steps + math.ceil(30 * scale)
        p, q = rounded_law(steps, scale, reach), rounded_law(0, scale, reach)
        told = [a**order * b ** (1 - order) for a, b in zip(p, q, strict=True) if a and b]
        reports = math.log(math.fsum(told)) / (order - 1)

        charge = laplace_renyi(float(steps), scale=scale, order=order)

        assert reports <= charge * (1 + 1e-9)
        # And not by much: what a report tells is nearly all of it.
        assert reports > charge * (1 - 0.3 / scale)


@pytest.mark.parametrize("law", LAWS)
def test_charges_in_weights_are_never_below_their_share_and_0_is_free(law: LaplaceLaw) -> None:
    noisy = mechanism(law, clip=4.0)
    values = np.array([[0.0], [-1e-4], [0.3], [-2.0], [4.0], [9.0]])

    steps, charges = noisy.encode(values, sampler())

    full = Fraction(noisy.charge_zcdp(noisy.reach))
    assert charges[0] == 0
    assert charges[-2:].tolist() == [noisy.largest] * 2 == [FULL_CHARGE] * 2
    for (step,), charge in zip(steps.tolist(), charges.tolist(), strict=True):
        share = Fraction(noisy.charge_zcdp(step)) / full
        assert share * FULL_CHARGE * (1 - Fraction(2, 10**9)) <= charge
        assert noisy.charge_zcdp(step) <= pure_rho(noisy.charge_pure(step))
    assert charges.tolist() == sorted(charges.tolist())
    assert noisy.charge_renyi(0, order=2.0) == noisy.charge_zcdp(0) == noisy.charge_pure(0) == 0.0


# Reports and estimates.


@pytest.mark.parametrize("law", LAWS)
def test_values_are_clipped_and_rounded_without_bias(law: LaplaceLaw) -> None:
    noisy, n = mechanism(law, exponent=0, clip=3.5, scale=4.0), 40_000

    steps, _ = noisy.encode(np.full((n, 1), 1.25), sampler())
    ends, _ = noisy.encode(np.array([[7.0], [-1e300], [math.inf], [math.nan], [-0.0]]), sampler())

    assert set(steps[:, 0].tolist()) == {1, 2}
    assert abs(steps.mean() - 1.25) < 4 * math.sqrt(0.25 * 0.75 / n)
    assert ends[:, 0].tolist() == [3, -3, 0, 0, 0]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [0.5, 3.0, 1e4])
def test_the_variance_is_that_of_the_noise_and_of_rounding(law: LaplaceLaw, scale: float) -> None:
    noisy = mechanism(law, exponent=0, clip=5.0, scale=scale)
    if law is LaplaceLaw.ROUNDED:  # Σ z² P(z) from tails: P(|Z| ≥ z) = e^(−(z − ½)/b)
        tails = [math.exp(-(z - 0.5) / scale) for z in range(1, math.ceil(60 * scale) + 60)]
    else:
        q = math.exp(-1 / scale)
        tails = [2 * q**z / (1 + q) for z in range(1, math.ceil(60 * scale) + 60)]
    noise = math.fsum((2 * z - 1) * tail for z, tail in enumerate(tails, start=1))

    assert noisy.variance(reports=7) == pytest.approx(7 * (noise + 0.25), rel=1e-9)


def check(law: LaplaceLaw, *, runs: int, seed: int) -> None:
    noisy, people = mechanism(law, clip=1.0, exponent=-4, scale=1.5), 200
    values, drawn = np.linspace(-1.0, 0.7, people)[:, None], sampler(seed)
    misses, covered = [], []
    for _ in range(runs):
        reports = noisy.randomise(noisy.encode(values, drawn)[0], drawn)
        assert noisy.valid(reports).all()
        result = noisy.estimate(noisy.tally(reports), reports=people)
        misses.append(result.estimate[0] - values.sum())
        covered.append(abs(misses[-1]) <= result.half_width[0])

    # What rounding adds is at most a quarter of 2^-8, beside 4.5.
    theory = noisy.variance(reports=people)
    assert abs(np.mean(np.square(misses)) / theory - 1) < 3 * math.sqrt(2 / runs)
    assert abs(np.mean(misses)) < 3 * math.sqrt(theory / runs)
    assert abs(np.mean(covered) - 0.95) < 3 * math.sqrt(0.95 * 0.05 / runs)


@pytest.mark.parametrize("law", LAWS)
def test_estimates_miss_by_what_theory_says_and_intervals_cover(law: LaplaceLaw) -> None:
    check(law, runs=400, seed=7)


@pytest.mark.long
@pytest.mark.parametrize("law", LAWS)
def test_mechanisms_laplace_estimates_over_thousands_of_runs(law: LaplaceLaw) -> None:
    check(law, runs=10_000, seed=4)


@pytest.mark.parametrize("law", LAWS)
def test_cover_reports_do_not_move_the_estimate(law: LaplaceLaw) -> None:
    noisy, drawn, runs = mechanism(law), sampler(5), 300
    steps, _ = noisy.encode(np.full((300, 1), 0.5), drawn)
    steps[100:] = 0

    totals = [
        noisy.estimate(noisy.tally(noisy.randomise(steps, drawn)), reports=300).estimate[0]
        for _ in range(runs)
    ]

    assert abs(np.mean(totals) - 50) < 3.5 * math.sqrt(noisy.variance(reports=300) / runs)


# What is refused.


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("clip", 0.0),
        ("clip", math.nan),
        ("scale", 0.0),
        ("scale", math.inf),
        ("scale", 0.01),  # ε = 100
        ("scale", 1e300),
        ("scale", 5e-324),
        ("scale", "1"),
        ("clip", True),
        ("grid_exponent", 1),
        ("grid_exponent", -60),
        ("grid_exponent", 0.5),
        ("law", "rounded?"),
    ],
)
def test_an_absurd_field_is_refused_by_name(field: str, value: Any) -> None:
    fields: dict[str, Any] = {"clip": 1.0, "grid_exponent": -14, "scale": 2.0}

    with pytest.raises(ParameterError, match=rf"^{field} [^\n]*$"):
        LaplaceSum(**{**fields, field: value})


def test_bad_input_is_refused_in_one_line_without_repeating_secrets() -> None:
    noisy = mechanism(LaplaceLaw.ROUNDED)

    for words in (np.array([[(1 << 14) + 1]]), np.array([[0.5]]), np.zeros((1, 2), dtype=int)):
        with pytest.raises(ParameterError, match=r"^words [^\n]*$"):
            noisy.randomise(words, sampler())
    for steps in ((1 << 14) + 1, 0.5, True, math.nan, None):
        with pytest.raises(ParameterError, match=r"^steps must be .* got 'another value'$"):
            noisy.charge_renyi(steps, order=2.0)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"^values "):
        noisy.encode(np.zeros((2, 2)), sampler())
    limit = noisy.word_limit
    inside = noisy.valid(np.array([[limit], [-limit], [limit + 1], [-(1 << 63)]]))
    assert inside.tolist() == [True, True, False, False]
    assert not noisy.valid(np.zeros((3, 2), dtype=np.int64)).any()
    for reports in (np.array([[limit + 1]]), np.array([[0, 1]]), np.array([[0.0]])):
        with pytest.raises(ParameterError, match=r"^reports [^\n]*$"):
            noisy.tally(reports)
    with pytest.raises(ParameterError, match=r"^reports "):
        noisy.estimate(np.array([0]), reports=0)
    for sums in (np.array([1, 1]), np.array([0.5])):
        with pytest.raises(ParameterError, match=r"^sums [^\n]*$"):
            noisy.estimate(sums, reports=2)
