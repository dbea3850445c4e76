"""Losses as integer charges: the ceiling of an exact quotient, in every measure."""

import math
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_client.budget.charges import (
    AnswersBudget,
    ApproxDpBudget,
    GdpBudget,
    RenyiBudget,
    ZcdpBudget,
    charge_each,
)
from demur_client.budget.filters import Filter, RenyiFilter
from demur_proto.accounting.calibration import GRAIN
from demur_proto.accounting.conversions import renyi_budget, zcdp_rho
from demur_proto.accounting.divergences import gaussian_renyi, laplace_renyi
from demur_proto.errors import ParameterError

LARGEST = (1 << 62) - 1

amounts = st.one_of(
    st.floats(0, 1e300),
    st.floats(0, 1),
    st.fractions(0, 10),
    st.integers(0, 10),
    st.sampled_from([5e-324, 1e308, 2.0**-52]),
)
units = st.one_of(st.integers(1, 100), st.integers(1, LARGEST), st.sampled_from([GRAIN, LARGEST]))


def quotient(loss: Any, bound: Any, budget_units: int) -> int:
    """⌈T·ρ/B⌉, or T + 1, from its definition: the least n with n·B ≥ T·ρ."""
    loss, bound = Fraction(loss), Fraction(bound)
    if loss > bound:
        return budget_units + 1
    if loss == 0:
        return 0
    product = budget_units * loss
    n = int(product / bound)
    while n * bound < product:
        n += 1
    while n and (n - 1) * bound >= product:
        n -= 1
    return n


def test_the_grain_is_what_the_design_says() -> None:
    assert GRAIN == 5342931457063200
    assert ZcdpBudget(rho=1).budget_units == GRAIN
    assert GdpBudget(mu=1).budget_units == GRAIN
    assert RenyiBudget(bounds={2: 1}).budget_units == GRAIN
    assert ApproxDpBudget(epsilon=1.0, delta=1e-5).budget_units == GRAIN


@given(amounts, amounts, units)
def test_a_charge_is_the_ceiling_of_the_exact_quotient(loss: Any, bound: Any, count: int) -> None:
    expected = quotient(loss, bound, count)

    assert ZcdpBudget(rho=bound, budget_units=count).charge(loss) == expected
    assert RenyiBudget(bounds={3: bound, 7: bound}, budget_units=count).charge([loss, loss]) == (
        expected,
        expected,
    )
    assert GdpBudget(mu=bound, budget_units=count).charge(loss) == quotient(
        Fraction(loss) ** 2, Fraction(bound) ** 2, count
    )


@given(amounts, amounts, units)
def test_a_charge_never_says_less_than_was_lost(loss: Any, bound: Any, count: int) -> None:
    charge = ZcdpBudget(rho=bound, budget_units=count).charge(loss)

    assert 0 <= charge <= count + 1
    assert (charge == 0) == (loss == 0)
    if charge <= count:
        assert Fraction(charge) * Fraction(bound) >= count * Fraction(loss)
    else:
        assert Fraction(loss) > Fraction(bound)


@given(st.lists(amounts, min_size=2, max_size=2), units)
def test_who_loses_more_pays_no_less(losses: list[Any], count: int) -> None:
    budgets: list[Any] = [
        ZcdpBudget(rho=Fraction(5, 7), budget_units=count),
        GdpBudget(mu=0.7, budget_units=count),
        ApproxDpBudget(epsilon=1.0, delta=1e-6, budget_units=count),
    ]
    less, more = sorted(losses, key=Fraction)

    for budget in budgets:
        assert budget.charge(less) <= budget.charge(more)


def test_the_square_of_a_gaussian_is_charged_without_its_root() -> None:
    budget = GdpBudget(mu=Fraction(3, 2), budget_units=900)

    assert budget.charge_square(2) == 800  # of 9/4; the root of 2 is not rational
    assert budget.charge(Fraction(4, 5)) == budget.charge_square(Fraction(16, 25)) == 256


def test_a_budget_of_nothing_gives_what_costs_nothing() -> None:
    for budget in (ZcdpBudget(rho=0), GdpBudget(mu=0), ApproxDpBudget(epsilon=0.0, delta=1e-5)):
        tiny = math.sqrt(5e-324) if isinstance(budget, GdpBudget) else 1e-3
        mine = Filter.within(budget)

        assert mine.try_charge(budget.charge(0))
        assert mine.try_charge(budget.charge(0.0))
        assert mine.try_charge(budget.charge(-0.0))
        assert not mine.try_charge(budget.charge(tiny))


# approx_dp: pure rounds against an irrational budget.


def exact_tight(epsilon: Any) -> Fraction:
    """ε tanh(ε/2) to fifty digits; ε may be so small that e^ε − 1 loses 324 others."""
    context, exact = Context(prec=400), Fraction(epsilon)
    power = context.exp(context.divide(Decimal(exact.numerator), Decimal(exact.denominator)))
    return exact * Fraction(context.subtract(power, Decimal(1))) / (1 + Fraction(power))


@given(st.floats(0, 40) | st.fractions(0, 40), units)
def test_pure_rounds_are_charged_up_and_hardly_so(epsilon: Any, count: int) -> None:
    budget = ApproxDpBudget(epsilon=2.0, delta=1e-6, budget_units=count)

    charge = budget.charge(epsilon)

    needed = count * exact_tight(epsilon) / Fraction(budget.rho)
    slack = 1 + Fraction(1, 10**12)
    if charge <= count:
        assert needed / (1 + Fraction(1, 10**50)) <= charge <= needed * slack + 1
    else:
        assert needed * slack > count


@given(st.floats(0, 2) | st.fractions(0, 2), units)
def test_the_quadratic_charge_is_exact(epsilon: Any, count: int) -> None:
    budget = ApproxDpBudget(
        epsilon=1.0, delta=1e-5, grade="simple", charging="quadratic", budget_units=count
    )

    assert budget.charge(epsilon) == quotient(Fraction(epsilon) ** 2 / 2, budget.rho, count)


@pytest.mark.parametrize("grade", ["simple", "improved"])
def test_the_budget_of_pure_rounds_is_that_of_the_conversion(grade: Any) -> None:
    budget = ApproxDpBudget(epsilon=1.0, delta=1e-5, grade=grade)

    assert budget.rho == zcdp_rho(1.0, delta=1e-5, grade=grade)
    assert round(budget.rho, 5) == {"simple": 0.02082, "improved": 0.03056}[grade]


def test_pure_rounds_have_no_gaussian_grade() -> None:
    gaussian: Any = "gaussian"

    with pytest.raises(ParameterError, match="grade"):
        ApproxDpBudget(epsilon=1.0, delta=1e-5, grade=gaussian)


def test_the_tight_charge_is_never_above_the_quadratic_one() -> None:
    tight = ApproxDpBudget(epsilon=3.0, delta=1e-5)
    quadratic = ApproxDpBudget(epsilon=3.0, delta=1e-5, charging="quadratic")

    for epsilon in [*np.geomspace(1e-9, 0.7, 60).tolist(), Fraction(1, 3)]:
        assert tight.charge(epsilon) <= quadratic.charge(epsilon)
    assert tight.charge(0.6) < quadratic.charge(0.6)


# renyi.


def test_the_bounds_of_a_guarantee_are_those_of_the_conversion() -> None:
    budget = RenyiBudget.of(1.0, delta=1e-5, orders=[16, 32, 64.5])

    assert budget.orders == (16.0, 32.0, 64.5)
    for order, bound in budget.bounds.items():
        assert bound == renyi_budget(1.0, order=order, delta=1e-5)


def test_an_order_that_proves_nothing_is_named() -> None:
    with pytest.raises(ParameterError, match=r"orders must be large enough .*, got 2"):
        RenyiBudget.of(1.0, delta=1e-5, orders=[32, 2])


@given(st.fractions(0, 3), st.lists(st.floats(1.001, 1e4), min_size=1, max_size=5, unique=True))
def test_a_gaussian_is_charged_exactly_at_every_order(rho: Fraction, orders: list[float]) -> None:
    budget = RenyiBudget(bounds={order: Fraction(7, 3) for order in orders})

    charges = budget.charge_zcdp(rho)

    assert charges == tuple(
        quotient(Fraction(order) * rho, Fraction(7, 3), GRAIN) for order in orders
    )
    assert charges == budget.charge_curve(lambda order: Fraction(order) * rho)


def test_curves_of_other_mechanisms_are_charged_order_by_order() -> None:
    budget = RenyiBudget(bounds={2: 0.5, 8: 1.5, math.inf: 2.0}, budget_units=1000)

    laplace = budget.charge_curve(lambda order: laplace_renyi(1.0, scale=2.0, order=order))
    gaussian = budget.charge_curve(lambda order: gaussian_renyi(1.0, sigma=4.0, order=order))

    assert laplace[2] == 251  # ε = ½ of 2, rounded up
    assert gaussian == (125, 167, 1001)  # α/32 of ½ and of 3/2; no bound at an infinite order
    assert budget.charge_zcdp(Fraction(1, 32)) == gaussian
    assert budget.charge_zcdp(0) == (0, 0, 0)
    assert RenyiFilter.within(budget).try_charge(laplace)


# Like answers.


@given(st.integers(1, LARGEST))
def test_a_budget_of_like_answers_is_theirs_times_the_largest_power_of_two(answers: int) -> None:
    budget = AnswersBudget(answers=answers)
    weight = budget.charge()

    assert budget.budget_units == answers * weight
    assert weight & (weight - 1) == 0
    assert budget.budget_units < 1 << 62 <= 2 * budget.budget_units


# Many people.


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30))
def test_a_cohort_is_charged_as_its_people_are(squares: list[int]) -> None:
    budget = RenyiBudget(bounds={2: 1, 16: Fraction(7, 3)})
    single = ZcdpBudget(rho=1)
    step = Fraction(1, 1000)

    several = charge_each(lambda z: budget.charge_zcdp(z * step), np.array(squares))
    one = charge_each(lambda z: single.charge(z * step), np.array(squares))

    assert several.dtype == one.dtype == np.int64
    assert [tuple(row) for row in np.atleast_2d(several).tolist()] == [
        budget.charge_zcdp(z * step) for z in squares
    ]
    assert one.tolist() == [single.charge(z * step) for z in squares]


# What is refused as wrong.

ZCDP = ZcdpBudget(rho=1)
GDP = GdpBudget(mu=1)
RENYI = RenyiBudget(bounds={2: 1})
PURE = ApproxDpBudget(epsilon=1.0, delta=1e-5)
ANSWERS = AnswersBudget(answers=3)
CHARGES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "zcdp": ("rho", ZCDP.charge),
    "gdp": ("mu", GDP.charge),
    "gdp square": ("square", GDP.charge_square),
    "renyi": ("losses", lambda loss: RENYI.charge([loss])),
    "renyi zcdp": ("rho", RENYI.charge_zcdp),
    "renyi curve": ("losses", lambda loss: RENYI.charge_curve(lambda order: loss)),
    "approx_dp": ("epsilon", PURE.charge),
    "answers": ("answers", ANSWERS.charge),
}


@pytest.mark.parametrize(
    "wrong", [math.nan, -math.inf, -1, -1e-300, Fraction(-1, 7), True, "1", None]
)
@pytest.mark.parametrize("kind", CHARGES)
def test_what_is_no_loss_is_refused_without_a_word_about_it(kind: str, wrong: Any) -> None:
    name, charge = CHARGES[kind]

    with pytest.raises(ParameterError) as caught:
        charge(wrong)

    assert caught.value.name == name
    assert caught.value.value == "something else"
    assert caught.value.expected == "a number >= 0, infinity included"


@pytest.mark.parametrize("kind", CHARGES)
def test_an_infinite_loss_exceeds_every_budget(kind: str) -> None:
    charge = CHARGES[kind][1](math.inf)

    budget_units = ANSWERS.budget_units if kind == "answers" else GRAIN
    assert charge in (budget_units + 1, (budget_units + 1,))


BUDGETS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "zcdp": ("rho", lambda wrong: ZcdpBudget(rho=wrong)),
    "gdp": ("mu", lambda wrong: GdpBudget(mu=wrong)),
    "renyi": ("bounds[2]", lambda wrong: RenyiBudget(bounds={2: wrong})),
    "renyi order": (
        "order",
        lambda wrong: RenyiBudget(bounds={0 if wrong == math.inf else wrong: 1}),
    ),
    "renyi epsilon": ("epsilon", lambda wrong: RenyiBudget.of(wrong, delta=0.1, orders=[2])),
    "renyi delta": ("delta", lambda wrong: RenyiBudget.of(1.0, delta=wrong, orders=[2])),
    "pure epsilon": ("epsilon", lambda wrong: ApproxDpBudget(epsilon=wrong, delta=1e-5)),
    "pure delta": ("delta", lambda wrong: ApproxDpBudget(epsilon=1.0, delta=wrong)),
    "answers": ("answers", lambda wrong: AnswersBudget(answers=wrong)),
    "zcdp units": ("budget_units", lambda wrong: ZcdpBudget(rho=1, budget_units=wrong)),
    "gdp units": ("budget_units", lambda wrong: GdpBudget(mu=1, budget_units=wrong)),
    "renyi units": ("budget_units", lambda wrong: RenyiBudget(bounds={2: 1}, budget_units=wrong)),
    "pure units": (
        "budget_units",
        lambda wrong: ApproxDpBudget(epsilon=1.0, delta=1e-5, budget_units=wrong),
    ),
}


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, -1, True, "1", None])
@pytest.mark.parametrize("kind", BUDGETS)
def test_what_is_no_budget_is_refused_by_name(kind: str, wrong: Any) -> None:
    name, make = BUDGETS[kind]

    with pytest.raises(ParameterError) as caught:
        make(wrong)

    assert caught.value.name == name
    assert (
        str(caught.value) == f"{name} must be {caught.value.expected}, got {caught.value.value!r}"
    )


@pytest.mark.parametrize("units_", [0, 1 << 62, 1.0])
def test_budgets_of_no_unit_or_too_many_are_refused(units_: Any) -> None:
    with pytest.raises(ParameterError, match="budget_units"):
        ZcdpBudget(rho=1, budget_units=units_)


@pytest.mark.parametrize("bounds", [{}, [], None, 3])
def test_orders_come_with_their_bounds(bounds: Any) -> None:
    with pytest.raises(ParameterError, match="bounds"):
        RenyiBudget(bounds=bounds)


@pytest.mark.parametrize("losses", [[], [1, 1]])
def test_a_loss_for_each_order_is_needed(losses: list[int]) -> None:
    with pytest.raises(ParameterError, match="losses must be 1 losses"):
        RENYI.charge(losses)


def test_a_way_of_charging_that_does_not_exist_is_refused() -> None:
    wrong: Any = "cubic"

    with pytest.raises(ParameterError, match="charge"):
        ApproxDpBudget(epsilon=1.0, delta=1e-5, charging=wrong)


def test_budgets_are_values_that_nobody_can_change() -> None:
    bounds = {2.0: 1.0}
    budget = RenyiBudget(bounds=bounds)

    bounds[2.0] = 100.0

    assert dict(budget.bounds) == {2.0: 1.0}
    writable: Any = budget.bounds
    with pytest.raises(TypeError):
        writable[2.0] = 3.0
    with pytest.raises(AttributeError):
        setattr(budget, "budget_units", 1)  # noqa: B010  assignment would not pass mypy
