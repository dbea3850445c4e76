"""Budgets and weights: characterised by inequalities between exact rationals."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_client.budget.filters import Filter
from demur_proto.accounting.calibration import (
    RADIUS_LIMIT,
    UNITS_LIMIT,
    base_units,
    grid_step,
    round_weight,
    squared_radius,
)
from demur_proto.errors import ParameterError
from demur_proto.study import Policy

exponents = st.integers(-40, 40)
sigmas = st.floats(1e-3, 1e6)


@given(exponents)
def test_a_grid_step_is_the_power_of_two(exponent: int) -> None:
    assert grid_step(exponent) == Fraction(math.ldexp(1.0, exponent))


@given(st.floats(1e-3, 1e2), st.integers(-23, -10))
def test_the_squared_radius_is_the_largest_integer_inside_the_clip(
    clip: float, exponent: int
) -> None:
    radius = squared_radius(clip, exponent)

    step = Fraction(1, 2**-exponent)
    assert radius * step**2 <= Fraction(clip) ** 2 < (radius + 1) * step**2


def test_squared_radii_of_2_to_61_and_more_are_refused() -> None:
    largest = math.nextafter(2.0**30.5, 0)  # not on the grid: its square is below 2^61

    assert squared_radius(largest, 0) < RADIUS_LIMIT
    with pytest.raises(ParameterError, match="2\\^61"):
        squared_radius(2.0**31, 0)
    with pytest.raises(ParameterError, match="2\\^61"):
        squared_radius(math.nextafter(2.0**30.5, 2.0**31), 0)


def test_a_clip_below_one_grid_step_is_refused() -> None:
    assert squared_radius(1.0, 0) == 1
    with pytest.raises(ParameterError):
        squared_radius(math.nextafter(1.0, 0), 0)


@given(st.fractions(Fraction(1, 1000), 10**9), st.integers(-15, 10))
def test_the_budget_is_the_largest_below_2_to_62_with_a_power_of_two_for_weight(
    budget_norm: Fraction, exponent: int
) -> None:
    square = Fraction(2) ** (2 * exponent)
    if budget_norm < square:
        with pytest.raises(ParameterError):
            base_units(budget_norm, exponent)
        return

    units, weight = base_units(budget_norm, exponent)

    steps, rest = divmod(units, weight)
    assert rest == 0
    assert steps * square <= budget_norm < (steps + 1) * square
    assert weight.bit_count() == 1
    assert units < 1 << 62 <= 2 * units


@pytest.mark.parametrize(
    ("steps", "weight"),
    [(1, 1 << 61), (2, 1 << 60), (3, 1 << 60), ((1 << 62) - 1, 1), (1 << 61, 1)],
)
def test_budgets_up_to_the_limit_fit(steps: int, weight: int) -> None:
    assert base_units(Fraction(steps), 0) == (steps * weight, weight)


@pytest.mark.parametrize(
    "budget_norm", [Fraction(1, 2), Fraction(1 << 62), Fraction(1 << 63), Fraction(10**400)]
)
def test_budgets_outside_the_limits_are_refused_and_never_wrapped(budget_norm: Fraction) -> None:
    with pytest.raises(ParameterError, match="between one and 2\\^62"):
        base_units(budget_norm, 0)


@given(sigmas, exponents, sigmas, exponents, st.integers(0, 61))
def test_a_weight_is_the_exact_price_rounded_up_to_an_integer(
    sigma: float, exponent: int, base_sigma: float, base_exponent: int, log_weight: int
) -> None:
    base_weight = 1 << log_weight

    weight = round_weight(
        sigma=sigma,
        exponent=exponent,
        base_sigma=base_sigma,
        base_exponent=base_exponent,
        base_weight=base_weight,
        budget_units=UNITS_LIMIT - 1,
    )

    price = Fraction(4) ** exponent / Fraction(sigma) ** 2
    base_price = Fraction(4) ** base_exponent / Fraction(base_sigma) ** 2
    if weight == UNITS_LIMIT:
        assert weight - 1 < base_weight * price / base_price
    else:
        assert weight - 1 < base_weight * price / base_price <= weight


def test_a_round_in_which_nothing_fits_costs_one_more_than_the_budget() -> None:
    weight = round_weight(
        sigma=1e-9, exponent=0, base_sigma=1.0, base_exponent=0, base_weight=1, budget_units=1000
    )

    assert weight == 1001


@given(sigmas, exponents, st.integers(0, 61))
def test_a_round_like_the_base_round_weighs_the_base_weight(
    sigma: float, exponent: int, log_weight: int
) -> None:
    weight = round_weight(
        sigma=sigma,
        exponent=exponent,
        base_sigma=sigma,
        base_exponent=exponent,
        base_weight=1 << log_weight,
        budget_units=UNITS_LIMIT - 1,
    )

    assert weight == 1 << log_weight


@given(st.fractions(1, 500), st.integers(1, 40), st.integers(0, 5))
def test_exactly_as_many_like_answers_fit_as_the_budget_holds_of_their_squared_norm(
    budget_norm: Fraction, squared_steps: int, fineness: int
) -> None:
    units, weight = base_units(budget_norm, -fineness)
    mine = Filter(budget_units=units, policy=Policy.SKIP)
    squared_norm = squared_steps * Fraction(1, 4**fineness)  # in data units²

    attempts = min(int(budget_norm / squared_norm) + 1, 600)
    given_ = [mine.try_spend(squared_steps, weight=weight) for _ in range(attempts)]

    assert sum(given_) == min(int(budget_norm / squared_norm), 600)


questions = st.tuples(
    st.floats(0.05, 50.0),  # sigma
    st.integers(-8, 2),  # grid exponent
    st.integers(0, 5000),  # squared norm in grid steps
)


@given(
    budget_norm=st.fractions(Fraction(1, 10), 100),
    base_sigma=st.floats(0.05, 50.0),
    base_exponent=st.integers(-8, -2),
    policy=st.sampled_from(Policy),
    asked=st.lists(questions, max_size=40),
)
def test_no_sequence_of_rounds_overspends_the_budget_in_exact_rationals(
    budget_norm: Fraction,
    base_sigma: float,
    base_exponent: int,
    policy: Policy,
    asked: list[tuple[float, int, int]],
) -> None:
    units, base_weight = base_units(budget_norm, base_exponent)
    mine = Filter(budget_units=units, policy=policy)

    spent = Fraction(0)  # Σ γ²‖z‖²/σ² over the answers given, which is Σμ² = 2Σρ
    for sigma, exponent, squared_norm in asked:
        weight = round_weight(
            sigma=sigma,
            exponent=exponent,
            base_sigma=base_sigma,
            base_exponent=base_exponent,
            base_weight=base_weight,
            budget_units=units,
        )
        if mine.try_spend(squared_norm, weight=weight):
            spent += squared_norm * Fraction(4) ** exponent / Fraction(sigma) ** 2

    assert spent <= budget_norm / Fraction(base_sigma) ** 2
