import json
import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.accounting.conversions import (
    Grade,
    curve_delta,
    curve_epsilon,
    gdp_delta,
    gdp_renyi,
    renyi_budget,
    renyi_delta,
    renyi_epsilon,
    zcdp_delta,
    zcdp_epsilon,
    zcdp_renyi,
    zcdp_rho,
)
from demur_proto.accounting.divergences import laplace_renyi, randomized_response_renyi
from demur_proto.accounting.pure import pure_delta
from demur_proto.errors import ParameterError

GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "accounting.json").read_text("utf-8")
)["rdp_curves"]
GRADES: list[Grade] = ["simple", "improved"]
GOLDEN_NAME: dict[Grade, str] = {"simple": "simple", "improved": "cks"}
CLOSED_FORM = 1e-12  # what the conversions promise, relative to the terms they add up


def log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(math.exp)


bounds = log_uniform(1e-9, 1e3)
epsilons = log_uniform(1e-9, 1e3)
deltas = log_uniform(1e-299, 0.9) | log_uniform(1e-15, 0.5).map(lambda rest: 1 - rest)
orders = log_uniform(1e-6, 1e6).map(lambda beta: 1 + beta)
grades = st.sampled_from(GRADES)


@pytest.mark.parametrize("grade", GRADES)
@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: f"{row['kind']}-{row['params']}")
def test_the_best_order_of_a_curve_is_just_above_the_reference(
    row: dict[str, Any], grade: Grade
) -> None:
    curve = list(zip(row["orders"], row["rdp"], strict=True))

    for text, reference in row["eps_on_grid"].items():
        epsilon = curve_epsilon(curve, delta=float(text), grade=grade)

        expected = reference[GOLDEN_NAME[grade]]
        assert expected <= epsilon <= expected * (1 + CLOSED_FORM)


# Independent oracles.


def printed_price(order: float, delta: float, grade: Grade) -> tuple[Decimal, Decimal]:
    """What the papers add to the divergence, and the size of its terms."""
    alpha, level = Decimal(order), -Decimal(delta).ln()
    if grade == "simple":
        return level / (alpha - 1), level / (alpha - 1)
    log_ratio = (1 - 1 / alpha).ln()
    share = alpha.ln() / (alpha - 1)
    return level / (alpha - 1) - share + log_ratio, level / (alpha - 1) + share - log_ratio


@given(bound=bounds, order=orders, delta=deltas, grade=grades)
def test_epsilon_at_an_order_is_the_printed_formula_rounded_up(
    bound: float, order: float, delta: float, grade: Grade
) -> None:
    epsilon = renyi_epsilon(bound, order=order, delta=delta, grade=grade)

    with localcontext(prec=60):
        price, size = printed_price(order, delta, grade)
        truth = max(Decimal(bound) + price, Decimal(0))
        assert truth <= Decimal(epsilon) <= truth + (Decimal(bound) + size) * Decimal(CLOSED_FORM)


@given(epsilon=epsilons, order=orders, delta=deltas, grade=grades)
def test_the_budget_of_an_order_is_the_printed_formula_rounded_down(
    epsilon: float, order: float, delta: float, grade: Grade
) -> None:
    budget = renyi_budget(epsilon, order=order, delta=delta, grade=grade)

    with localcontext(prec=60):
        price, size = printed_price(order, delta, grade)
        truth = max(Decimal(epsilon) - price, Decimal(0))
        least = truth - (Decimal(epsilon) + size) * Decimal(CLOSED_FORM)
        assert least <= Decimal(budget) <= truth


@given(bound=bounds, epsilon=epsilons, order=orders, grade=grades)
def test_delta_at_an_order_is_the_printed_formula_rounded_up(
    bound: float, epsilon: float, order: float, grade: Grade
) -> None:
    delta = renyi_delta(bound, order=order, epsilon=epsilon, grade=grade)

    with localcontext(prec=60):
        alpha = Decimal(order)
        exponent = (alpha - 1) * (Decimal(bound) - Decimal(epsilon))
        truth = min(exponent, Decimal(10_000)).exp()
        if grade == "improved":
            truth *= (alpha * (1 - 1 / alpha).ln()).exp() / (alpha - 1)
        assert min(truth, Decimal(1)) <= Decimal(delta)
        assert delta <= min(1.0, float(min(truth, Decimal(2))) * (1 + CLOSED_FORM) + 1e-320)


@given(rho=bounds, order=orders, delta=deltas, epsilon=epsilons, grade=grades)
def test_no_order_beats_the_best_real_order_of_zcdp(
    rho: float, order: float, delta: float, epsilon: float, grade: Grade
) -> None:
    bound = zcdp_renyi(rho, order=order)
    there = renyi_epsilon(bound, order=order, delta=delta, grade=grade)
    budget = renyi_budget(epsilon, order=order, delta=delta, grade=grade)

    assert zcdp_epsilon(rho, delta=delta, grade=grade) <= there * (1 + 1e-12) + 1e-12
    assert zcdp_rho(epsilon, delta=delta, grade=grade) >= budget / order * (1 - 1e-12) - 1e-12
    assert zcdp_delta(rho, epsilon=epsilon, grade=grade) <= (
        renyi_delta(bound, order=order, epsilon=epsilon, grade=grade) * (1 + 1e-12)
    )


def test_a_dense_grid_of_orders_comes_to_the_best_real_order() -> None:
    curve = [(order, zcdp_renyi(0.02, order=order)) for order in np.linspace(1.1, 80.0, 20_000)]

    epsilon = curve_epsilon(curve, delta=1e-5)

    assert epsilon == pytest.approx(zcdp_epsilon(0.02, delta=1e-5), rel=1e-6)
    assert curve_delta(curve, epsilon=epsilon) == pytest.approx(1e-5, rel=1e-6)


# What a conversion claims of a mechanism must hold for it.


@given(pure=log_uniform(1e-3, 20.0), order=orders, share=st.floats(0.0, 1.0), grade=grades)
def test_no_conversion_claims_more_than_randomized_response_keeps(
    pure: float, order: float, share: float, grade: Grade
) -> None:
    epsilon = share * pure
    bound = randomized_response_renyi(pure, options=2, order=order)

    delta = renyi_delta(bound, order=order, epsilon=epsilon, grade=grade)

    assert delta >= pure_delta(pure, epsilon=epsilon) * (1 - 1e-13)


@given(mu=log_uniform(1e-3, 5.0), order=orders, epsilon=log_uniform(1e-3, 20.0), grade=grades)
def test_no_conversion_claims_more_than_a_gaussian_keeps(
    mu: float, order: float, epsilon: float, grade: Grade
) -> None:
    bound = gdp_renyi(mu, order=order)

    delta = renyi_delta(bound, order=order, epsilon=epsilon, grade=grade)

    assert delta >= gdp_delta(mu, epsilon=epsilon) * (1 - 1e-13)


@given(t=log_uniform(1e-2, 20.0), order=orders, share=st.floats(0.0, 1.0), grade=grades)
def test_no_conversion_claims_more_than_laplace_noise_keeps(
    t: float, order: float, share: float, grade: Grade
) -> None:
    epsilon = share * t
    bound = laplace_renyi(t, scale=1.0, order=order)

    delta = renyi_delta(bound, order=order, epsilon=epsilon, grade=grade)

    assert delta >= (1 - math.exp((epsilon - t) / 2)) * (1 - 1e-13)  # its hockey-stick divergence


@given(epsilon=epsilons, order=orders, delta=deltas, grade=grades)
def test_a_budget_costs_the_epsilon_and_delta_it_was_made_for(
    epsilon: float, order: float, delta: float, grade: Grade
) -> None:
    budget = renyi_budget(epsilon, order=order, delta=delta, grade=grade)

    if budget > 0:
        size = epsilon + 50 + abs(math.log(delta)) / (order - 1)
        again = renyi_epsilon(budget, order=order, delta=delta, grade=grade)
        assert again == pytest.approx(epsilon, abs=1e-13 * size)


@given(bound=bounds, order=orders, delta=deltas, factor=st.floats(1.0, 10.0), grade=grades)
def test_conversions_at_an_order_are_monotone(
    bound: float, order: float, delta: float, factor: float, grade: Grade
) -> None:
    wide = 1e-12 * (bound * factor + 50 + abs(math.log(delta)) / (order - 1))
    epsilon = renyi_epsilon(bound, order=order, delta=delta, grade=grade)

    stricter = max(delta / factor, 1e-300)
    assert renyi_epsilon(bound * factor, order=order, delta=delta, grade=grade) >= epsilon - wide
    assert renyi_epsilon(bound, order=order, delta=stricter, grade=grade) >= epsilon - wide
    assert renyi_budget(bound * factor, order=order, delta=delta, grade=grade) >= (
        renyi_budget(bound, order=order, delta=delta, grade=grade) - wide
    )


@pytest.mark.parametrize("grade", GRADES)
def test_an_infinite_order_is_pure_privacy(grade: Grade) -> None:
    assert renyi_epsilon(0.7, order=math.inf, delta=1e-9, grade=grade) == 0.7
    assert renyi_budget(0.7, order=math.inf, delta=1e-9, grade=grade) == 0.7
    assert renyi_delta(0.7, order=math.inf, epsilon=0.7, grade=grade) == 0.0
    assert renyi_delta(0.7, order=math.inf, epsilon=0.6, grade=grade) == 1.0


@pytest.mark.parametrize("grade", GRADES)
def test_equal_laws_leak_nothing_and_an_infinite_divergence_bounds_nothing(grade: Grade) -> None:
    assert renyi_epsilon(0.0, order=1.5, delta=1e-300, grade=grade) == 0.0
    assert renyi_delta(0.0, order=1.5, epsilon=0.0, grade=grade) == 0.0
    assert renyi_epsilon(math.inf, order=1.5, delta=0.5, grade=grade) == math.inf
    assert renyi_delta(math.inf, order=1.5, epsilon=1e15, grade=grade) == 1.0


def test_an_infinite_point_of_a_curve_does_not_spoil_it() -> None:
    curve = [(2.0, 1.0), (64.0, math.inf), (math.inf, math.inf)]

    assert curve_epsilon(curve, delta=1e-5) == renyi_epsilon(1.0, order=2.0, delta=1e-5)
    assert curve_delta(curve, epsilon=3.0) == renyi_delta(1.0, order=2.0, epsilon=3.0)


def test_an_order_too_low_for_its_delta_has_no_budget() -> None:
    assert renyi_budget(1.0, order=2.0, delta=1e-9) == 0.0


@given(mu=log_uniform(1e-9, 1e3), order=orders)
def test_gdp_and_zcdp_rise_linearly_and_exactly(mu: float, order: float) -> None:
    value = gdp_renyi(mu, order=order)

    exact = Fraction(mu) ** 2 / 2 * Fraction(order)
    assert Fraction(math.nextafter(value, 0)) < exact <= Fraction(value)
    assert zcdp_renyi(mu, order=order) >= Fraction(mu) * Fraction(order)
    assert [gdp_renyi(mu, order=math.inf), zcdp_renyi(mu, order=math.inf)] == [math.inf] * 2
    assert gdp_renyi(0.0, order=math.inf) == zcdp_renyi(0.0, order=math.inf) == 0.0


# Ranges.

VALID_CALLS: list[tuple[Callable[..., object], dict[str, float]]] = [
    (renyi_epsilon, {"bound": 1.0, "order": 2.0, "delta": 1e-5}),
    (renyi_delta, {"bound": 1.0, "order": 2.0, "epsilon": 1.0}),
    (renyi_budget, {"epsilon": 1.0, "order": 2.0, "delta": 1e-5}),
    (zcdp_renyi, {"rho": 1.0, "order": 2.0}),
    (gdp_renyi, {"mu": 1.0, "order": 2.0}),
]


@pytest.mark.parametrize("bad", [math.nan, -math.inf, -1e-300, 1e300, 0.999, True, "2"])
@pytest.mark.parametrize(("function", "arguments"), VALID_CALLS)
def test_a_number_outside_its_range_is_refused_by_name(
    function: Callable[..., object], arguments: dict[str, float], bad: Any
) -> None:
    function(**arguments)

    for name in arguments:
        if bad == 0.999 and name != "order":
            continue
        with pytest.raises(ParameterError) as caught:
            function(**{**arguments, name: bad})
        assert caught.value.name == name


@pytest.mark.parametrize("convert", [renyi_epsilon, renyi_budget])
def test_no_conversion_works_at_order_one(convert: Callable[..., float]) -> None:
    with pytest.raises(ParameterError, match="order must be above 1"):
        convert(1.0, order=1.0, delta=1e-5)


def test_a_curve_without_orders_is_refused() -> None:
    with pytest.raises(ParameterError, match="curve must be"):
        curve_epsilon([], delta=1e-5)
    with pytest.raises(ParameterError, match="curve must be"):
        curve_delta([], epsilon=1.0)


def test_an_unknown_grade_is_refused_whatever_the_order() -> None:
    unknown: Any = "exact"

    for order in (2.0, math.inf):
        with pytest.raises(ParameterError, match="grade must be"):
            renyi_epsilon(1.0, order=order, delta=1e-5, grade=unknown)
        with pytest.raises(ParameterError, match="grade must be"):
            renyi_delta(0.0, order=order, epsilon=1.0, grade=unknown)
        with pytest.raises(ParameterError, match="grade must be"):
            renyi_budget(1.0, order=order, delta=1e-5, grade=unknown)
