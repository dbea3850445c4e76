"""The certificate of docs/samplers.md, recomputed against an independent 130-digit arithmetic.

The law that the integer tables imply is compared with the true one in total variation, tails
included, and it must be within 2⁻¹²⁰. Laws of several tables add the bound of the lemma that joins
them; that bound is checked where the joint law can be added up.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

import pytest
from tests.proto.samplers import oracle
from tests.proto.samplers.oracle import TailsOf

from demur_proto.samplers import table as fixed
from demur_proto.samplers.gaussian import (
    DiscreteGaussianSampler,
    GaussianLevels,
    RoundedGaussianSampler,
)
from demur_proto.samplers.laplace import DiscreteLaplaceSampler
from demur_proto.samplers.table import Table

BAR = Fraction(1, 1 << 120)
WIDTHS = [5e-324, 0.01, 0.5, 1.0, 8.0, 16.0, 100.5, 2.0**20, 2.0**40, 2.0**58]
SCALES = [5e-324, 0.01, 0.5, 1.0, 8.0, 31.9, 100.5, 2.0**20, 2.0**40, 2.0**56]


def probabilities(table: Table) -> list[Fraction]:
    """What the table gives to its values, from the first to the last."""
    ends = (0, *table.thresholds, 1 << 192)
    return [Fraction(high - low, 1 << 192) for low, high in pairwise(ends)]


def distance(table: Table, masses: oracle.Masses) -> Fraction:
    """Total variation to a law, at most: ½ Σ |difference|, what lies outside included."""
    given = dict(enumerate(probabilities(table), start=table.first))
    truth = {z: masses.get(z, Fraction(0)) for z in given}
    inside = sum((abs(given[z] - mass) for z, mass in truth.items()), start=Fraction(0))
    outside = 1 - sum(truth.values())
    return (inside + outside) / 2 + oracle.BEYOND + len(given) * oracle.ERROR


@lru_cache(maxsize=64)
def symmetric_distance(table: Table, tails_of: TailsOf, variance: Fraction) -> Fraction:
    return distance(table, oracle.masses_of(tails_of(variance)))


def joint_error(outer: Fraction, factor: int, inner: Fraction) -> Fraction:
    """ε/(1 − ε) with ε = 2 Σ_j exp(−2π²τ²j²), which is at most 2.001 times its first term."""
    tau_squared = 1 / (1 / inner + factor**2 / outer)
    pi_below = Fraction(314159265, 10**8)
    epsilon = Fraction("2.001") * Fraction(oracle.exp(-2 * pi_below**2 * tau_squared))
    return epsilon / (1 - epsilon)


def levels_distance(levels: GaussianLevels, outermost: TailsOf, variance: Fraction) -> Fraction:
    """Total variation to the true law, at most, by the triangle inequality."""
    total = Fraction(0)
    tails_of = outermost
    for table, factor in zip(levels.tables, (*levels.factors, None), strict=True):
        if factor is None:
            return total + symmetric_distance(table, tails_of, variance)
        if tails_of is oracle.rounded_tails:
            level = min(Fraction(64**2), variance / 4)
        else:
            level = Fraction(256**2)
        inner = (variance - level) / factor**2  # so that level + factor²·inner is the variance
        total += symmetric_distance(table, tails_of, level) + joint_error(level, factor, inner)
        variance, tails_of = inner, oracle.discrete_tails
    raise AssertionError


def near(measured: Fraction) -> int:
    """As a power of two, for messages."""
    return measured.numerator.bit_length() - measured.denominator.bit_length()


@pytest.mark.parametrize("steps", WIDTHS)
def test_the_rounded_gaussian_is_within_the_certificate(steps: float) -> None:
    levels = RoundedGaussianSampler(steps).levels

    apart = levels_distance(levels, oracle.rounded_tails, Fraction(steps) ** 2)

    assert apart < BAR / 8, near(apart)


@pytest.mark.parametrize("sigma", WIDTHS)
def test_the_discrete_gaussian_is_within_the_certificate(sigma: float) -> None:
    levels = DiscreteGaussianSampler(sigma).levels

    apart = levels_distance(levels, oracle.discrete_tails, Fraction(sigma) ** 2)

    assert apart < BAR / 8, near(apart)


@pytest.mark.parametrize("scale", SCALES)
def test_the_discrete_laplace_is_within_the_certificate(scale: float) -> None:
    sampler = DiscreteLaplaceSampler(scale)
    t = Fraction(scale)

    leading, *others = sampler.tables
    unit = 1 << sum(sampler.digits)
    assert leading.first == -1 - leading.last
    apart = distance(leading, oracle.laplace_masses(t, unit=unit, count=leading.last + 1))
    for group, table in zip(sampler.digits, others, strict=True):
        unit >>= group
        powers = [Fraction(oracle.exp(-unit * each / t)) for each in range((1 << group) + 1)]
        whole = 1 - powers[-1]
        truth = {z: (powers[z] - powers[z + 1]) / whole for z in range(1 << group)}
        apart += distance(table, truth)

    assert unit == 1
    assert apart < BAR / 256, near(apart)


def test_binary_digits_of_a_geometric_variable_are_independent() -> None:
    sampler = DiscreteLaplaceSampler(100.5)
    leading, last = (probabilities(table) for table in sampler.tables)
    group = sampler.digits[0]
    assert (len(sampler.digits), len(last)) == (1, 1 << group)

    apart = Fraction(0)
    truth = oracle.laplace_masses(Fraction(100.5), unit=1, count=2000)
    for z, mass in truth.items():
        w = z if z >= 0 else -1 - z
        h = w >> group if z >= 0 else -1 - (w >> group)
        given = leading[h - sampler.tables[0].first] * last[w % (1 << group)]
        apart += abs(given - mass)
    assert apart < BAR / 8, near(apart)


def test_a_joint_law_added_up_in_full_is_within_the_certificate() -> None:
    steps = 100.5
    outer, inner = RoundedGaussianSampler(steps).levels.tables
    (factor,) = RoundedGaussianSampler(steps).levels.factors
    assert factor == 1

    joint = products(probabilities(outer), probabilities(inner))  # of the sum X_0 + X_1

    truth = oracle.masses_of(oracle.rounded_tails(Fraction(steps) ** 2))
    values = range(outer.first + inner.first, outer.last + inner.last + 1)
    differences = (abs(p - truth.get(z, 0)) for z, p in zip(values, joint, strict=True))
    apart = sum(differences, start=Fraction(0)) / 2 + oracle.BEYOND + len(joint) * oracle.ERROR
    assert sum(joint) == 1
    assert apart < BAR / 8, near(apart)


def products(first: Sequence[Fraction], second: Sequence[Fraction]) -> list[Fraction]:
    """The law of a sum of two independent values, exactly: one product of two long integers."""
    slot = 512  # binary digits; sums of products of two fractions of 192 digits are below 2⁴⁰⁰
    packed = [
        sum(int(p * (1 << 192)) << slot * place for place, p in enumerate(each))
        for each in (first, second)
    ]
    together = packed[0] * packed[1]
    data = together.to_bytes((len(first) + len(second)) * slot // 8, "little")
    step = slot // 8
    return [
        Fraction(int.from_bytes(data[step * place : step * (place + 1)], "little"), 1 << 384)
        for place in range(len(first) + len(second) - 1)
    ]


@pytest.mark.parametrize("steps", [7600.0, 2.0**20])
def test_single_probabilities_of_a_wide_law_are_right_to_the_certificate(steps: float) -> None:
    levels = RoundedGaussianSampler(steps).levels
    given = [
        (table.first, [int(p * (1 << 192)) for p in probabilities(table)])
        for table in levels.tables
    ]
    assert levels.factors[0] == 30  # the largest, for which the lemma is tightest

    def units(z: int, level: int = 0) -> int:
        """P(X_level + k(…) = z) in units of 2⁻¹⁹² to the number of tables: every split of z."""
        first, table = given[level]
        if level == len(levels.factors):
            return table[z - first] if 0 <= z - first < len(table) else 0
        factor = levels.factors[level]
        splits = range(first + (z - first) % factor, first + len(table), factor)
        return sum(table[x - first] * units((z - x) // factor, level + 1) for x in splits)

    for z in [0, 1, 7, 15, 29, 1001, int(steps), int(2.5 * steps) + 11, -int(4 * steps) - 3]:
        truth = rounded_mass(z, steps)
        apart = abs(Fraction(units(z), 1 << 192 * len(given)) - truth) / truth
        assert apart < Fraction(1, 1 << 126), (z, near(apart))


def rounded_mass(z: int, steps: float) -> Fraction:
    """Φ((z + ½)/s) − Φ((z − ½)/s)."""
    ends = [(2 * abs(z) + side) ** 2 / (4 * Fraction(steps) ** 2) for side in (-1, 1)]
    low, high = (oracle.normal_tail(end) for end in ends)
    return 1 - 2 * high if z == 0 else low - high


def test_what_lies_beyond_the_last_boundary_is_as_the_certificate_says() -> None:
    table = RoundedGaussianSampler(16.0).levels.tables[0]
    beyond = Fraction(table.thresholds[0], 1 << 192)

    # ⌊16·√180 + ½⌋ = 215 boundaries on each side; 215.16 is 13.45 σ.
    assert (table.first, table.last) == (-215, 215)
    assert beyond == Fraction((1 << 192) - table.thresholds[-1], 1 << 192)
    # Mills: Q(x) < φ(x)/x, and x² φ(x)/x/(x² + 1) < Q(x), at x = 214.5/16.
    x = 214.5 / 16
    upper = math.exp(-(x**2) / 2) / math.sqrt(2 * math.pi) / x
    assert upper * x**2 / (x**2 + 1) < beyond < upper
    assert math.log2(beyond) == pytest.approx(-134.72, abs=0.01)


def test_no_value_leaves_63_bits() -> None:
    for largest in (GaussianLevels.rounded, GaussianLevels.discrete):
        levels = largest(Fraction(2) ** 116)
        reach = 0
        for table, factor in zip(levels.tables[::-1], (*levels.factors[::-1], 1), strict=True):
            assert table.first == -table.last
            reach = (reach + table.last) * factor
        assert reach < 20 << 58 < 1 << 63

    sampler = DiscreteLaplaceSampler(2.0**56)
    leading = sampler.tables[0]
    assert (leading.last + 1) << sum(sampler.digits) <= 92 << 56 < 1 << 63
    assert leading.first == -1 - leading.last


@pytest.mark.parametrize("square", [Fraction(1, 10**9), Fraction(1), Fraction(50), Fraction(180)])
def test_the_normal_tail_errs_by_no_more_than_it_says(square: Fraction) -> None:
    weight = fixed.exp_minus(square / 2)

    given = Fraction(fixed.normal_tail(square, weight), fixed.ONE)

    allowed = Fraction((1 << 128) + (1 << 24 + 129), fixed.ONE)
    assert abs(given - oracle.normal_tail(square)) < allowed + oracle.ERROR


@pytest.mark.parametrize("x", [Fraction(1, 1 << 56), Fraction(1, 3), Fraction(90), Fraction(250)])
def test_the_exponential_errs_by_no_more_than_it_says(x: Fraction) -> None:
    given = Fraction(fixed.exp_minus(x), fixed.ONE)

    truth = Fraction(oracle.exp(-x))
    assert abs(given - truth) < Fraction(1 << 24, fixed.ONE) + truth / 10**129


def test_weights_err_by_no_more_than_they_say() -> None:
    variance = Fraction(512**2) / 3
    weights = fixed.gaussian_weights(variance, start=Fraction(1, 2))

    for n, weight in zip(range(4000), weights, strict=False):
        if n % 500 == 0:
            truth = Fraction(oracle.exp(-((2 * n + 1) ** 2) / (8 * variance)))
            allowed = Fraction((1 << 25) * (n + 1) ** 2, fixed.ONE)
            assert abs(Fraction(weight, fixed.ONE) - truth) < allowed


def test_pi_is_pi() -> None:
    assert abs(Fraction(fixed.PI, fixed.ONE) - Fraction(oracle.pi())) < Fraction(1, 10**127)
