import math
from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur_proto.accounting.laws import (
    WIDE,
    discrete_gaussian_renyi,
    discrete_gaussian_variance,
    discrete_gaussian_zcdp,
)
from demur_proto.errors import ParameterError

CLOSED_FORM = Fraction(1, 10**12)  # what divergences promise, relative


def log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(math.exp)


def summed(steps: int, sigma: float, order: float) -> Decimal:
    """D_α from its definition, over all integers that 120 digits can tell from nothing."""
    with localcontext(prec=120, Emax=MAX_EMAX, Emin=MIN_EMIN):
        s, alpha = Decimal(sigma), Decimal(order)
        reach = 30 * sigma + 5

        def weight(centre: Decimal, at: int) -> Decimal:
            return (-((at - centre) ** 2) / (2 * s * s)).exp()

        def span(centre: float) -> range:
            return range(math.floor(centre - reach), math.ceil(centre + reach) + 1)

        whole = sum((weight(Decimal(0), z) for z in span(0.0)), Decimal(0))
        if order == 1:
            gain = (
                weight(Decimal(steps), z) * (2 * z * steps - steps**2) for z in span(float(steps))
            )
            return sum(gain, Decimal(0)) / (2 * s * s) / whole
        middle = order * steps  # where (z − αm)² is small, the product of both laws is large
        terms = (
            (-(alpha * (z - steps) ** 2 + (1 - alpha) * z * z) / (2 * s * s)).exp()
            for z in span(middle)
        )
        return (sum(terms, Decimal(0)) / whole).ln() / (alpha - 1)


def just_above(value: float, truth: Decimal) -> bool:
    exact = Fraction(truth)  # right to 100 digits
    return exact * (1 - Fraction(1, 10**90)) <= Fraction(value) <= exact * (1 + CLOSED_FORM)


@pytest.mark.parametrize("steps", [1, 3, 50])
@pytest.mark.parametrize("sigma", [0.05, 0.3, 0.5, 1.0, 1.99, 2.0, 4.0])
@pytest.mark.parametrize("order", [1.0, 1 + 1e-9, 1.001, 1.5, 3.25, 1e4 / 3])
def test_a_divergence_is_the_sum_over_all_integers(steps: int, sigma: float, order: float) -> None:
    value = discrete_gaussian_renyi(steps, sigma=sigma, order=order)

    assert just_above(value, summed(steps, sigma, order))


@settings(deadline=None, max_examples=40)
@given(
    steps=st.integers(1, 9),
    sigma=log_uniform(0.05, 3.0),
    order=log_uniform(1e-9, 1e3).map(lambda beta: 1 + beta),
)
def test_a_divergence_is_that_sum_for_any_order(steps: int, sigma: float, order: float) -> None:
    value = discrete_gaussian_renyi(steps, sigma=sigma, order=order)

    assert just_above(value, summed(steps, sigma, order))


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.0, 3.0])
def test_the_bound_is_attained_where_the_order_moves_the_centre_by_whole_steps(
    sigma: float,
) -> None:
    for order, steps in ((2.0, 1), (3.0, 7), (1.5, 2), (1.25, 4)):
        value = discrete_gaussian_renyi(steps, sigma=sigma, order=order)
        assert value == pytest.approx(order * steps**2 / (2 * sigma**2), rel=1e-15)
    between = discrete_gaussian_renyi(1, sigma=0.5, order=1.5)
    assert between < 0.99 * 1.5 / (2 * 0.5**2)


@given(
    steps=st.integers(1, 1 << 30),
    sigma=log_uniform(1e-3, 1e9),
    order=st.just(1.0) | log_uniform(1e-12, 1e12).map(lambda beta: 1 + beta),
)
def test_no_divergence_is_above_its_zcdp_bound(steps: int, sigma: float, order: float) -> None:
    rho = discrete_gaussian_zcdp(steps**2, sigma=sigma)

    assert discrete_gaussian_renyi(steps, sigma=sigma, order=order) <= order * rho * (1 + 1e-15)
    assert discrete_gaussian_renyi(steps, sigma=sigma, order=2.0) >= 2 * rho * (1 - 1e-15)


@pytest.mark.parametrize("sigma", [0.01, 0.3, 1.0, 1.99, 2.0, 3.0, 1e6])
def test_the_variance_is_the_sum_and_below_sigma_squared(sigma: float) -> None:
    value = discrete_gaussian_variance(sigma)

    assert value <= sigma**2
    if sigma < 10:
        with localcontext(prec=50):
            s = Decimal(sigma)
            weights = [(-Decimal(z * z) / (2 * s * s)).exp() for z in range(1, 200)]
            squares = sum((2 * z * z * w for z, w in enumerate(weights, start=1)), Decimal(0))
            truth = float(squares / (1 + 2 * sum(weights)))
        assert value == pytest.approx(truth, rel=1e-13, abs=0)
    assert WIDE == 2.0


def test_extremes_are_answered() -> None:
    assert discrete_gaussian_renyi(0, sigma=1.0, order=math.inf) == 0.0
    assert discrete_gaussian_renyi(1, sigma=1.0, order=math.inf) == math.inf
    assert discrete_gaussian_renyi(1, sigma=5e-324, order=1.5) == math.inf
    assert discrete_gaussian_variance(5e-324) == 0.0
    assert 0 < discrete_gaussian_renyi(1, sigma=1.7e308, order=1.5) < 1e-300


@pytest.mark.parametrize("bad", [math.nan, -math.inf, -1e-300, -1, True, "2", None])
def test_what_is_out_of_range_is_refused_by_name(bad: Any) -> None:
    calls: list[tuple[Any, dict[str, Any]]] = [
        (discrete_gaussian_renyi, {"steps": 1, "sigma": 1.0, "order": 2.0}),
        (discrete_gaussian_zcdp, {"squared_norm": 1, "sigma": 1.0}),
        (discrete_gaussian_variance, {"sigma": 1.0}),
    ]
    for function, arguments in calls:
        function(**arguments)
        for name in arguments:
            with pytest.raises(ParameterError, match=rf"^{name} must be [^\n]*$"):
                function(**{**arguments, name: bad})
