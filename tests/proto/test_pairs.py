import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.accounting.conversions import (
    gdp_delta,
    gdp_renyi,
    pair_epsilon_delta,
    pair_mu,
    pair_renyi,
    pair_rho,
)
from demur_proto.accounting.divergences import randomized_response_renyi
from demur_proto.errors import ParameterError

CLOSED_FORM = 1e-12


def log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(math.exp)


epsilons = log_uniform(1e-9, 1e3)
deltas = log_uniform(1e-299, 0.9) | log_uniform(1e-15, 0.5).map(lambda rest: 1 - rest)
orders = log_uniform(1e-3, 1e4).map(lambda beta: 2 + beta)


@given(mu=log_uniform(1e-3, 3.0), epsilon=st.floats(0.0, 10.0))
def test_the_pair_bound_covers_what_two_gaussians_twice_as_far_apart_really_leak(
    mu: float, epsilon: float
) -> None:
    pair = pair_epsilon_delta(epsilon, gdp_delta(mu, epsilon=epsilon))

    assert gdp_delta(pair_mu(mu), epsilon=pair[0]) <= pair[1]
    assert pair_rho(mu**2 / 2) == pytest.approx(pair_mu(mu) ** 2 / 2)


@given(epsilon=epsilons, delta=deltas)
def test_the_pair_delta_is_just_above_its_formula(epsilon: float, delta: float) -> None:
    with localcontext(prec=60):
        truth = (1 + Decimal(epsilon).exp()) * Decimal(delta)

    doubled, pair_delta = pair_epsilon_delta(epsilon, delta)

    assert doubled == 2 * epsilon
    assert min(truth, Decimal(1)) <= Decimal(pair_delta)
    assert pair_delta <= min(1.0, float(min(truth, Decimal(2))) * (1 + CLOSED_FORM))


def test_the_pair_bound_survives_an_epsilon_whose_exponential_is_no_float() -> None:
    assert pair_epsilon_delta(800.0, 1e-300) == (1600.0, 1.0)
    assert pair_epsilon_delta(1e6, 5e-324) == (2e6, 1.0)
    assert pair_epsilon_delta(1e6, 0.0) == (2e6, 0.0)
    assert pair_epsilon_delta(0.0, 1.0) == (0.0, 1.0)


laws = st.lists(st.integers(1, 1000), min_size=3, max_size=3).map(
    lambda weights: [Fraction(weight, sum(weights)) for weight in weights]
)


def renyi(p: list[Fraction], q: list[Fraction], order: float) -> float:
    """The larger of D_α(P ‖ Q) and D_α(Q ‖ P), from the definition."""
    sums = [
        math.fsum(float(a) * float(a / b) ** (order - 1) for a, b in zip(one, other, strict=True))
        for one, other in ((p, q), (q, p))
    ]
    return math.log(max(sums)) / (order - 1)


@given(one=laws, other=laws, reference=laws, order=st.floats(2.01, 20.0))
def test_the_chain_through_the_reference_bounds_any_two_laws(
    one: list[Fraction], other: list[Fraction], reference: list[Fraction], order: float
) -> None:
    bound = max(renyi(one, reference, order), renyi(other, reference, order))

    pair_order, pair_bound = pair_renyi(max(bound, 0.0), order=order)

    assert pair_order == order / 2
    if pair_order > 1:
        assert renyi(one, other, pair_order) <= pair_bound + 1e-9


@given(mu=log_uniform(1e-3, 10.0), order=orders)
def test_the_chain_bounds_two_gaussians_and_loses_a_little(mu: float, order: float) -> None:
    pair_order, pair_bound = pair_renyi(gdp_renyi(mu, order=order), order=order)

    exact = gdp_renyi(2 * mu, order=pair_order)
    assert exact <= pair_bound
    # D_{α−1} ≤ D_α gives away a factor of α/(α−1) in half of it.
    assert pair_bound == pytest.approx(exact * (1 + 1 / (2 * (order - 2))), rel=1e-12)


@given(bound=epsilons, order=orders)
def test_the_pair_bound_is_the_least_float_not_below_its_formula(
    bound: float, order: float
) -> None:
    alpha = Fraction(order)
    exact = Fraction(bound) * (2 * alpha - 3) / (alpha - 2)

    value = pair_renyi(bound, order=order)[1]

    assert Fraction(math.nextafter(value, 0)) < exact <= Fraction(value)


def test_pure_bounds_add_up() -> None:
    bound = randomized_response_renyi(0.3, options=2, order=math.inf)

    assert pair_renyi(bound, order=math.inf) == (math.inf, 0.6)


@pytest.mark.parametrize("order", [1.5, 2.0])
def test_at_order_two_and_below_nothing_holds_between_two_people(order: float) -> None:
    with pytest.raises(ParameterError, match="order must be above 2"):
        pair_renyi(1.0, order=order)


VALID_CALLS: list[tuple[Callable[..., object], dict[str, float]]] = [
    (pair_mu, {"mu": 1.0}),
    (pair_rho, {"rho": 1.0}),
    (pair_epsilon_delta, {"epsilon": 1.0, "delta": 1e-5}),
    (pair_renyi, {"bound": 1.0, "order": 4.0}),
]


@pytest.mark.parametrize("bad", [math.nan, -math.inf, -1e-300, 1e300])
@pytest.mark.parametrize(("function", "arguments"), VALID_CALLS)
def test_a_number_outside_its_range_is_refused_by_name(
    function: Callable[..., object], arguments: dict[str, float], bad: Any
) -> None:
    function(**arguments)

    for name in arguments:
        with pytest.raises(ParameterError) as caught:
            function(**{**arguments, name: bad})
        assert caught.value.name == name
