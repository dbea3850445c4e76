"""Goodness of fit from recorded bytes, tails included, and mutants that must fail the same checks.

Φ comes from `math.erfc` where floats do, and from the 130-digit oracle at the boundaries.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest
from tests.proto.samplers import oracle
from tests.proto.samplers.replay import Extreme, crafted, digits, recorded

from demur_proto.arrays import Integers
from demur_proto.samplers.base import BitSource
from demur_proto.samplers.gaussian import (
    DiscreteGaussianSampler,
    GaussianLevels,
    RoundedGaussianSampler,
    rounded_table,
)
from demur_proto.samplers.laplace import DiscreteLaplaceSampler
from demur_proto.samplers.table import Table

Draw = Callable[[int, BitSource], Integers]
Above = Callable[[int], float]
"""P(Z > z) for z ≥ 0; all laws here are symmetric."""


def normal_above(steps: float) -> Above:
    return lambda z: math.erfc((z + 0.5) / steps / math.sqrt(2)) / 2


def laplace_above(scale: float) -> Above:
    return lambda z: math.exp(-(z + 1) / scale) / (1 + math.exp(-1 / scale))


def discrete_above(sigma: float) -> Above:
    reach = int(9 * sigma) + 2
    weights = [math.exp(-(z**2) / (2 * sigma**2)) for z in range(reach)]
    total = 2 * math.fsum(weights) - 1
    tails = [math.fsum(weights[z:]) / total for z in range(1, reach)]
    return lambda z: tails[z]


def assert_fits(drawn: Integers, ends: Sequence[int], chances: Sequence[float]) -> None:
    """χ² of the counts at ≤ ends[0], between each two, and > the last, against their chances."""
    counts = np.bincount(np.searchsorted(ends, drawn), minlength=len(ends) + 1)
    expected = len(drawn) * np.array(chances)
    assert expected.sum() == pytest.approx(len(drawn), rel=1e-9)
    assert expected.min() > 5
    statistic = float(((counts - expected) ** 2 / expected).sum())
    # χ² with f degrees of freedom has mean f and variance 2f.
    freedom = len(ends)
    assert statistic < freedom + 5 * math.sqrt(2 * freedom), (statistic, freedom)


def cells(above: Above, *, share: float, within: float) -> list[int]:
    """Ascending z ≥ 0: from each to the next, P(Z > z) falls by `share` or more, from `within`."""
    ends: list[int] = []
    left, low = within, -1
    while left > 2 * share:
        reach = 1
        while above(low + reach) > left - share:
            reach *= 2
        # From here to low + reach it falls: the first at or below left − share.
        places = range(low + 1, low + reach)
        low = bisect_left(places, share - left, key=lambda z: -above(z)) + low + 1
        left = above(low)
        ends.append(low)
    return ends


def assert_follows(draw_from: Draw, above: Above, *, tails: bool = True) -> None:
    """The bulk of 200,000 values; and, in the far tails, what 20,000 extreme words give."""
    upper = cells(above, share=0.01, within=0.5)
    ends = [*(-1 - z for z in reversed(upper)), *upper]
    below = [1 - above(z) if z >= 0 else above(-1 - z) for z in ends]
    chances = [high - low for low, high in pairwise([0, *below, 1])]
    assert_fits(draw_from(200_000, recorded("bulk", words=600_000)), ends, chances)
    if not tails:
        return

    extreme = 2.0**-16  # 4.2 σ of a Gaussian, where hardly any of those 200,000 lie
    upper = cells(above, share=extreme * 0.02, within=extreme)
    chances = [low - high for low, high in pairwise([extreme, *map(above, upper), 0])]
    conditional = [chance / extreme for chance in chances]
    source = recorded("tail", words=40_000)
    largest = draw_from(20_000, Extreme(source, upper=True))
    smallest = draw_from(20_000, Extreme(source, upper=False))
    assert_fits(largest, upper, conditional)
    assert_fits(-smallest, upper, conditional)


def assert_boundaries(draw_from: Draw, tails: Sequence[Fraction], *, places: int = 180) -> None:
    """On either side of every boundary of one table, by 2^−places, values are as the law says.

    Of boundaries beyond which less than 2⁻¹²⁷ lies, nothing is claimed.
    """
    step = 1 << 192 - places
    claimed = [int(tail * (1 << 192)) for tail in tails if tail > Fraction(1, 1 << 127)]
    wanted: dict[int, int] = {}
    for z, tail in enumerate(claimed):
        wanted |= {tail - step: -1 - z, tail + step: -z}
        wanted |= {(1 << 192) - bits: -value for bits, value in list(wanted.items())[-2:]}

    assert {bits: int(draw_from(1, crafted(digits(bits)))[0]) for bits in wanted} == wanted


@pytest.mark.parametrize("steps", [0.5, 1.0, 8.0, 16.0, 64.0])
def test_rounded_gaussians_of_one_table_fit_in_bulk_and_tails(steps: float) -> None:
    assert_follows(RoundedGaussianSampler(steps).draw, normal_above(steps), tails=steps > 1)


@pytest.mark.parametrize("steps", [64.5, 100.5, 300.0, 7600.0, 2.0**20])
def test_rounded_gaussians_of_several_tables_fit(steps: float) -> None:
    assert_follows(RoundedGaussianSampler(steps).draw, normal_above(steps), tails=False)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 16.0])
def test_discrete_gaussians_fit_in_bulk_and_tails(sigma: float) -> None:
    assert_follows(DiscreteGaussianSampler(sigma).draw, discrete_above(sigma), tails=sigma > 1)


def test_a_wide_discrete_gaussian_fits() -> None:
    sigma = 2.0**20  # where it and the rounded one differ by less than 1e-13

    assert_follows(DiscreteGaussianSampler(sigma).draw, normal_above(sigma), tails=False)


@pytest.mark.parametrize("scale", [0.7, 16.0, 100.5, 2.0**20])
def test_discrete_laplaces_fit_in_bulk_and_tails(scale: float) -> None:
    sampler = DiscreteLaplaceSampler(scale)

    assert_follows(sampler.draw, laplace_above(scale), tails=scale == 16)


@pytest.mark.parametrize("modulus", [29, 30, 69, 1024])
def test_the_low_digits_of_a_wide_law_are_uniform(modulus: int) -> None:
    for sampler in (
        RoundedGaussianSampler(2.0**20),
        DiscreteGaussianSampler(2.0**20),
        DiscreteLaplaceSampler(2.0**20),
    ):
        drawn = sampler.draw(100_000, recorded("residues", words=300_000)) % modulus

        # Up to 1e-3 relative for Laplace at these moduli, where the noise of a count is 3e-2.
        assert_fits(drawn, range(modulus - 1), [1 / modulus] * modulus)


@pytest.mark.parametrize("steps", [0.5, 16.0])
def test_a_rounded_gaussian_is_exact_on_either_side_of_every_boundary(steps: float) -> None:
    tails = oracle.rounded_tails(Fraction(steps) ** 2)

    assert_boundaries(RoundedGaussianSampler(steps).draw, tails)


@pytest.mark.parametrize("sigma", [0.5, 16.0])
def test_a_discrete_gaussian_is_exact_on_either_side_of_every_boundary(sigma: float) -> None:
    tails = oracle.discrete_tails(Fraction(sigma) ** 2)

    # The table has all of the mass, of which less than 2⁻¹²⁸ should lie beyond its end.
    assert_boundaries(DiscreteGaussianSampler(sigma).draw, tails, places=128)


@pytest.mark.parametrize("steps", [1.0, 16.0, 64.0])
def test_one_table_inverts_the_distribution_function(steps: float) -> None:
    words = recorded("inversion", words=2_000).words(2_000)
    normal = NormalDist(sigma=steps)

    drawn = RoundedGaussianSampler(steps).draw(2_000, crafted(words.tolist()))

    # `inv_cdf` of the standard library errs in the last digits only; none of these words is so
    # near a boundary that this could matter.
    wanted = [round(normal.inv_cdf((word + 0.5) / 2**64)) for word in words.tolist()]
    assert drawn.tolist() == wanted


# ---- mutants ---------------------------------------------------------------------------------

SOUND = rounded_table(Fraction(16**2))
NARROWER = rounded_table(Fraction(31, 2) ** 2)


def of(thresholds: Sequence[int], first: int = SOUND.first) -> Draw:
    table = Table(thresholds=tuple(thresholds), first=first)
    return GaussianLevels(tables=(table,), factors=()).draw


def cut_off(reach: int) -> Draw:
    """No value further out than this."""
    return of(SOUND.thresholds[SOUND.last - reach : SOUND.last + reach], -reach)


def moved(value: int) -> Draw:
    """The boundary above this value lies where the next one should."""
    changed = list(SOUND.thresholds)
    changed[value - SOUND.first] = changed[value + 1 - SOUND.first]
    return of(changed)


def to_odd() -> Draw:
    """Even values never come: each joins the odd one above it."""
    kept = SOUND.thresholds
    return of(
        [kept[place & ~1] if SOUND.first & 1 else kept[place | 1] for place in range(len(kept))]
    )


def other_tail(start: int) -> Draw:
    """From here on, on both sides, the boundaries of 15.5 steps in place of 16."""
    changed = list(SOUND.thresholds)
    for z in range(start, SOUND.last):
        tail = NARROWER.thresholds[-1 - z - NARROWER.first] if z < NARROWER.last else 1
        changed[-1 - z - SOUND.first], changed[z - SOUND.first] = tail, (1 << 192) - tail
    return of(changed)


def digits_kept(kept: int) -> Draw:
    """Probabilities below ½ with so many significant digits, as floats have 53."""
    changed = [t >> max(0, t.bit_length() - kept) << max(0, t.bit_length() - kept) for t in lower()]
    return of([*changed, *((1 << 192) - t for t in reversed(changed))])


def one_word() -> Draw:
    """Thresholds rounded to the 64 digits that are drawn first."""
    return of([t >> 128 << 128 for t in SOUND.thresholds])


def lower() -> tuple[int, ...]:
    return SOUND.thresholds[: SOUND.last]


COARSE = {
    "cut off at 4 sigma": cut_off(64),
    "cut off at 4.5 sigma": cut_off(72),
    "a boundary off by one at 0": moved(0),
    "a boundary off by one at 4.4 sigma": moved(70),
    "a boundary off by one at -4.4 sigma": moved(-70),
    "rounded to odd": to_odd(),
    "another tail from 4.2 sigma on": other_tail(68),
}
FINE = {
    "cut off at 12.8 sigma": cut_off(205),
    "a boundary off by one at 12.8 sigma": moved(205),
    "another tail from 8 sigma on": other_tail(128),
    "probabilities in floats": digits_kept(53),
    "of one word": one_word(),
}


@pytest.mark.parametrize("mutant", COARSE)
def test_a_mutant_fails_the_fit_and_the_boundaries(mutant: str) -> None:
    with pytest.raises(AssertionError):
        assert_follows(COARSE[mutant], normal_above(16.0))
    with pytest.raises(AssertionError):
        assert_boundaries(COARSE[mutant], oracle.rounded_tails(Fraction(16**2)))


@pytest.mark.parametrize("mutant", FINE)
def test_a_mutant_too_fine_for_statistics_fails_the_boundaries(mutant: str) -> None:
    with pytest.raises(AssertionError):
        assert_boundaries(FINE[mutant], oracle.rounded_tails(Fraction(16**2)))


@pytest.mark.parametrize("change", ["a factor too large", "no outermost table", "a wrong order"])
def test_a_mutant_of_several_tables_fails_the_fit(change: str) -> None:
    sound = RoundedGaussianSampler(300.0).levels
    (outer, inner), (factor,) = sound.tables, sound.factors
    mutants = {
        "a factor too large": GaussianLevels(tables=(outer, inner), factors=(factor + 1,)),
        "no outermost table": GaussianLevels(tables=(inner,), factors=()),
        "a wrong order": GaussianLevels(tables=(inner, outer), factors=(factor,)),
    }

    with pytest.raises(AssertionError):
        assert_follows(mutants[change].draw, normal_above(300.0), tails=False)


def test_what_the_mutants_were_made_from_passes() -> None:
    sound = of(SOUND.thresholds)

    assert_follows(sound, normal_above(16.0))
    assert_boundaries(sound, oracle.rounded_tails(Fraction(16**2)))
