import math
from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur_proto.accounting.divergences import laplace_renyi, randomized_response_renyi
from demur_proto.accounting.laws import discrete_laplace_renyi, discrete_laplace_zcdp, laplace_zcdp
from demur_proto.accounting.pure import pure_rho
from demur_proto.errors import ParameterError

CLOSED_FORM = Fraction(1, 10**12)  # what divergences promise, relative
ORDERS = [1.0, 1 + 1e-12, 1.0001, 1.5, 2.0, 8.0, 100.0, 1e4]


def log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(math.exp)


orders = log_uniform(1e-12, 1e5).map(lambda beta: 1 + beta) | st.just(1.0)


def summed(steps: int, scale: float, order: float) -> Decimal:
    """D_α from its definition, integer by integer; what lies beyond both centres is geometric."""
    with localcontext(prec=100, Emax=MAX_EMAX, Emin=MIN_EMIN):
        s, alpha = Decimal(scale), Decimal(order)
        q, c = (-1 / s).exp(), ((1 / s).exp() - 1) / ((1 / s).exp() + 1)
        outputs = [(1 / (1 + q), -steps / s), (q**steps / (1 + q), steps / s)]  # z ≤ 0, z ≥ m
        outputs += [(c * q**z, (2 * z - steps) / s) for z in range(1, steps)]
        if order == 1:
            return sum((mass * -ratio for mass, ratio in outputs), Decimal(0))
        return sum((m * (alpha * r).exp() for m, r in outputs), Decimal(0)).ln() / (alpha - 1)


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 60])
@pytest.mark.parametrize("scale", [0.03, 0.3, 1.0, 2.0, 17.3, 1e3, 1e6, 1e8])
@pytest.mark.parametrize("order", ORDERS)
def test_the_discrete_law_is_the_sum_over_all_integers(
    steps: int, scale: float, order: float
) -> None:
    value = discrete_laplace_renyi(steps, scale=scale, order=order)

    truth = Fraction(summed(steps, scale, order))
    assert truth <= Fraction(value) <= truth * (1 + CLOSED_FORM)


@settings(deadline=None)
@given(steps=st.integers(1, 20), scale=log_uniform(0.01, 1e7), order=orders)
def test_the_discrete_law_is_that_sum_for_any_scale_and_order(
    steps: int, scale: float, order: float
) -> None:
    value = discrete_laplace_renyi(steps, scale=scale, order=order)

    truth = Fraction(summed(steps, scale, order))
    assert truth <= Fraction(value) <= truth * (1 + CLOSED_FORM)


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 15.0, 50.0])
@pytest.mark.parametrize("order", [*ORDERS, math.inf])
def test_one_step_of_the_discrete_law_is_binary_randomised_response(
    epsilon: float, order: float
) -> None:
    value = discrete_laplace_renyi(1, scale=1 / epsilon, order=order)

    expected = randomized_response_renyi(epsilon, options=2, order=order)
    assert value == pytest.approx(expected, rel=1e-13)


@given(
    steps=st.integers(2, 1 << 40), pure=log_uniform(1e-9, 50.0), order=orders | st.just(math.inf)
)
def test_the_discrete_law_lies_between_the_continuous_one_and_one_step_of_it(
    steps: int, pure: float, order: float
) -> None:
    scale = steps / pure
    value = discrete_laplace_renyi(steps, scale=scale, order=order)

    assert value >= laplace_renyi(float(steps), scale=scale, order=order) * (1 - 1e-13)
    assert value <= discrete_laplace_renyi(1, scale=scale / steps, order=order) * (1 + 1e-13)


@given(steps=st.integers(1, 1 << 40), more=st.integers(1, 1000), scale=log_uniform(1.0, 1e12))
def test_a_charge_rises_with_the_distance(steps: int, more: int, scale: float) -> None:
    for order in (1.0, 2.0, 50.0):
        nearer = discrete_laplace_renyi(steps, scale=scale, order=order)
        further = discrete_laplace_renyi(steps + more, scale=scale, order=order)
        assert further >= nearer * (1 - 1e-13)


@pytest.mark.parametrize("pure", [1e-6, 0.1, 1.0, 5.0, 50.0])
@pytest.mark.parametrize("steps", [0, 1, 3, 1 << 14])
def test_the_zcdp_of_a_shift_is_a_supremum_that_is_attained(pure: float, steps: int) -> None:
    """Steps 0 stand for the continuous law."""

    def curve(order: float) -> float:
        if steps:
            return discrete_laplace_renyi(steps, scale=steps / pure, order=order)
        return laplace_renyi(pure, scale=1.0, order=order)

    if steps:
        rho = discrete_laplace_zcdp(steps, scale=steps / pure)
    else:
        rho = laplace_zcdp(pure, scale=1.0)

    # Grids of orders, each around the best of the one before.
    low, high = math.log(1e-12), math.log(4 * pure / rho)
    for _ in range(6):
        tried = [low + (high - low) * at / 100 for at in range(101)]
        values = [curve(1 + math.exp(at)) / (1 + math.exp(at)) for at in tried]
        top = max(range(101), key=lambda at: values[at])
        low, high = tried[max(0, top - 1)], tried[min(100, top + 1)]
    best = max(curve(1.0), *values)
    assert best * (1 - 1e-13) <= rho <= best * (1 + 2e-9)
    assert rho <= pure_rho(math.nextafter(pure, math.inf) * (1 + 1e-14))


def test_no_distance_costs_nothing_and_noise_next_to_nothing_costs_everything() -> None:
    assert discrete_laplace_renyi(0, scale=1.0, order=2.0) == 0.0
    assert discrete_laplace_zcdp(0, scale=1.0) == laplace_zcdp(0.0, scale=1.0) == 0.0
    assert discrete_laplace_renyi(1, scale=1e-16, order=2.0) == math.inf
    assert discrete_laplace_renyi(1, scale=1e-15, order=1e15) <= 1e15 * (1 + 1e-12)
    assert 0 < discrete_laplace_renyi(1, scale=1.7e308, order=1e15) < 1e-300


@pytest.mark.parametrize("bad", [math.nan, -math.inf, -1e-300, -1, True, "2", None])
def test_what_is_out_of_range_is_refused_by_name(bad: Any) -> None:
    calls: list[tuple[Any, dict[str, Any]]] = [
        (discrete_laplace_renyi, {"steps": 1, "scale": 1.0, "order": 2.0}),
        (discrete_laplace_zcdp, {"steps": 1, "scale": 1.0}),
        (laplace_zcdp, {"distance": 1.0, "scale": 1.0}),
    ]
    for function, arguments in calls:
        function(**arguments)
        for name in arguments:
            with pytest.raises(ParameterError, match=rf"^{name} must be [^\n]*$"):
                function(**{**arguments, name: bad})


def test_a_zcdp_charge_that_no_float_could_hold_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"^scale must be"):
        discrete_laplace_zcdp(1, scale=1e-16)
