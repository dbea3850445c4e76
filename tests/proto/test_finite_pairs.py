import math
from collections.abc import Sequence
from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from demur_proto.accounting.divergences import (
    GAP,
    LEAST_PURE,
    Level,
    apart_levels,
    curvature,
    levels_renyi,
    levels_zcdp,
)
from demur_proto.accounting.pure import pure_rho
from demur_proto.errors import ParameterError

CLOSED_FORM = Fraction(1, 10**12)  # what divergences promise, relative
GIVEN = 2.0**-50  # and what they assume of the levels

Pair = tuple[list[Decimal], list[Decimal]]


def log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(math.exp)


orders = log_uniform(1e-12, 1e5).map(lambda beta: 1 + beta)


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    """Two laws on a few outputs, of ratios up to e^100 and down to 1 + 1e-7, in a hundred digits."""
    count = draw(st.integers(2, 6))
    scale = draw(log_uniform(1e-7, 50.0))
    weights = [Decimal(draw(log_uniform(1e-12, 1.0))) for _ in range(count)]
    tilts = [Decimal(scale) * draw(st.integers(-999, 999)) / 999 for _ in range(count)]
    assume(len(set(tilts)) > 1)
    with localcontext(prec=100):
        tilted = [w * t.exp() for w, t in zip(weights, tilts, strict=True)]
        q, p = sum(weights), sum(tilted)
        return [t / p for t in tilted], [w / q for w in weights]


def levels_of(pair: Pair) -> list[Level]:
    with localcontext(prec=100):
        return [
            Level(mass=float(q), log_ratio=float((p / q).ln())) for p, q in zip(*pair, strict=True)
        ]


def exact(pair: Pair, order: float) -> Decimal:
    """D_α from its definition, the larger of both directions."""
    p, q = pair
    with localcontext(prec=100, Emax=MAX_EMAX, Emin=MIN_EMIN):
        return max(one_way(p, q, order), one_way(q, p, order))


def one_way(p: Sequence[Decimal], q: Sequence[Decimal], order: float) -> Decimal:
    alpha = Decimal(order)
    if alpha == 1:
        return sum((a * (a / b).ln() for a, b in zip(p, q, strict=True)), Decimal(0))
    terms = (a * ((alpha - 1) * (a / b).ln()).exp() for a, b in zip(p, q, strict=True))
    return sum(terms, Decimal(0)).ln() / (alpha - 1)


def binary(epsilon: float) -> list[Level]:
    """Binary randomised response."""
    rare = 1 / (1 + math.exp(epsilon))
    return [
        Level(mass=rare, log_ratio=epsilon),
        Level(mass=math.exp(epsilon) * rare, log_ratio=-epsilon),
    ]


EPSILONS = [1e-9, 1e-6, 1e-3, 0.1, 1.0, 5.0, 20.0, 50.0]


# Rényi divergences.


@settings(max_examples=150)
@given(pair=pairs(), order=orders | st.just(1.0))
def test_a_divergence_is_the_sum_over_the_outputs_rounded_up(pair: Pair, order: float) -> None:
    value = levels_renyi(levels_of(pair), order=order)

    truth = Fraction(exact(pair, order))
    assert truth <= Fraction(value) <= truth * (1 + CLOSED_FORM)


@given(pair=pairs())
def test_an_infinite_order_is_the_largest_ratio_rounded_up(pair: Pair) -> None:
    with localcontext(prec=100):
        truth = max(abs((p / q).ln()) for p, q in zip(*pair, strict=True))

    value = levels_renyi(levels_of(pair), order=math.inf)

    assert Fraction(truth) <= Fraction(value) <= Fraction(truth) * (1 + CLOSED_FORM)


@settings(max_examples=50)
@given(pair=pairs(), order=orders, errors=st.lists(st.floats(-GIVEN, GIVEN), min_size=12))
def test_levels_may_be_wrong_by_as_much_as_is_said(
    pair: Pair, order: float, errors: list[float]
) -> None:
    blurred = [
        Level(
            mass=min(1.0, level.mass * (1 + errors[at])),
            log_ratio=level.log_ratio * (1 + errors[at + 6]),
        )
        for at, level in enumerate(levels_of(pair))
    ]

    assert Fraction(levels_renyi(blurred, order=order)) >= Fraction(exact(pair, order))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_a_divergence_rises_with_the_order_up_to_the_pure_one(epsilon: float) -> None:
    curve = [
        levels_renyi(binary(epsilon), order=order)
        for order in (1.0, 1 + 1e-12, 1.001, 1.5, 2.0, 8.0, 1e2, 1e4, 1e6, 1e9, 1e15, math.inf)
    ]

    assert all(later >= earlier * (1 - 1e-13) for earlier, later in pairwise(curve))
    assert 0 < curve[0] < math.inf
    assert curve[-1] == pytest.approx(epsilon, rel=1e-14)


def test_both_directions_are_looked_at() -> None:
    fair = [Level(mass=0.25, log_ratio=math.log(2)), Level(mass=0.75, log_ratio=math.log(2 / 3))]
    back = [Level(mass=0.5, log_ratio=-math.log(2)), Level(mass=0.5, log_ratio=math.log(1.5))]

    # Σ p²/q is 4/3 for (½, ½) against (¼, ¾), and 5/4 the other way.
    assert levels_renyi(fair, order=2.0) == pytest.approx(math.log(4 / 3), rel=1e-12)
    assert levels_renyi(back, order=2.0) == pytest.approx(math.log(4 / 3), rel=1e-12)


def test_the_same_law_twice_costs_exactly_nothing() -> None:
    same = [Level(mass=0.3, log_ratio=0.0), Level(mass=0.7, log_ratio=-0.0)]

    assert [levels_renyi(same, order=order) for order in (1.0, 2.0, math.inf)] == [0.0] * 3
    assert levels_zcdp(same) == 0.0


def test_the_rarest_and_most_telling_outputs_are_still_finite() -> None:
    rare = [Level(mass=1e-100, log_ratio=200.0), Level(mass=1.0, log_ratio=-7.225973768125749e-14)]

    for levels in (rare, apart_levels(200.0, apart=1e-100)):
        curve = [levels_renyi(levels, order=order) for order in (1.0, 2.0, 1e4, 1e15, math.inf)]
        assert curve[0] > 0
        assert curve == sorted(curve)
        assert curve[-1] == pytest.approx(200.0, rel=1e-14)
        assert 0 < levels_zcdp(levels) <= 200.0


@pytest.mark.parametrize("x", [1e-9, -1e-5, 0.3, 0.699, 0.701, -0.701, 5.0, -40.0, 600.0])
def test_the_curvature_has_all_its_digits(x: float) -> None:
    with localcontext(prec=400):
        truth = Decimal(x).exp() - 1 - Decimal(x)

    assert curvature(x) == pytest.approx(float(truth), rel=2e-15)


# The zCDP of a pair.


@settings(max_examples=50, deadline=None)
@given(pair=pairs(), tried=st.lists(orders, min_size=20, max_size=20))
def test_no_order_is_above_the_zcdp_of_a_pair(pair: Pair, tried: list[float]) -> None:
    rho = levels_zcdp(levels_of(pair))

    for order in [1.0, *tried]:
        assert Fraction(exact(pair, order)) <= Fraction(order) * Fraction(rho)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("apart", [1.0, 1e-3, 1e-9])
def test_the_zcdp_of_a_pair_is_near_a_value_that_is_attained(epsilon: float, apart: float) -> None:
    levels = apart_levels(epsilon, apart=apart / (1 + math.exp(epsilon)))

    rho = levels_zcdp(levels)

    # Grids of orders, each around the best of the one before: at the top D_α/α is flat, so what lies
    # between points of the last, 1e-8 apart, is above them by less than its rounding.
    low, high = math.log(1e-12), math.log(4 * epsilon / rho)
    for _ in range(6):
        tried = [low + (high - low) * at / 100 for at in range(101)]
        values = [levels_renyi(levels, order=1 + math.exp(at)) / (1 + math.exp(at)) for at in tried]
        top = max(range(101), key=lambda at: values[at])
        low, high = tried[max(0, top - 1)], tried[min(100, top + 1)]
    best = max(levels_renyi(levels, order=1.0), *values)
    assert best * (1 - 1e-13) <= rho <= best * (1 + 2 * GAP)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_binary_response_attains_what_any_pure_mechanism_can_cost(epsilon: float) -> None:
    rho = levels_zcdp(binary(epsilon))

    assert rho == pytest.approx(epsilon * math.tanh(epsilon / 2), rel=2 * GAP)
    assert rho <= pure_rho(levels_renyi(binary(epsilon), order=math.inf))


@settings(max_examples=50, deadline=None)
@given(pair=pairs())
def test_no_pair_costs_more_than_its_epsilon_alone_says(pair: Pair) -> None:
    levels = levels_of(pair)

    assert 0 < levels_zcdp(levels) <= pure_rho(levels_renyi(levels, order=math.inf))


def test_next_to_nothing_is_charged_by_its_epsilon_alone() -> None:
    epsilon = LEAST_PURE / 2

    assert levels_zcdp(binary(epsilon)) == pure_rho(levels_renyi(binary(epsilon), order=math.inf))
    assert 0 < levels_zcdp(binary(1e-300)) < 1e-300


# What is refused.


@pytest.mark.parametrize("mass", [0.0, -0.5, 1.1, math.nan, math.inf, True, "1", None, 1e-101])
def test_what_is_no_mass_is_refused(mass: Any) -> None:
    with pytest.raises(ParameterError, match=r"^mass must be"):
        Level(mass=mass, log_ratio=0.0)


@pytest.mark.parametrize("ratio", [701.0, -701.0, math.nan, math.inf, -math.inf, True, "1", None])
def test_what_is_no_ratio_is_refused(ratio: Any) -> None:
    with pytest.raises(ParameterError, match=r"^log_ratio must be"):
        Level(mass=0.5, log_ratio=ratio)


@pytest.mark.parametrize(
    "levels",
    [
        [],
        [Level(mass=0.5, log_ratio=0.0)],
        [Level(mass=0.5, log_ratio=0.1), Level(mass=0.5, log_ratio=0.1)],
        [Level(mass=0.5, log_ratio=600.0), Level(mass=0.5, log_ratio=-600.0)],
    ],
)
def test_what_are_no_two_laws_is_refused(levels: list[Level]) -> None:
    with pytest.raises(ParameterError, match=r"^levels must be [^\n]*$"):
        levels_renyi(levels, order=2.0)
    with pytest.raises(ParameterError, match=r"^levels must be [^\n]*$"):
        levels_zcdp(levels)


@pytest.mark.parametrize("order", [0.5, 0.0, -1.0, math.nan, -math.inf, 1e16, True, "2"])
def test_what_is_no_order_is_refused(order: Any) -> None:
    with pytest.raises(ParameterError, match=r"^order must be"):
        levels_renyi(binary(1.0), order=order)
