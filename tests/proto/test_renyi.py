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

from demur_proto.accounting.divergences import (
    gaussian_renyi,
    laplace_renyi,
    randomized_response_renyi,
    uniform_response_renyi,
)
from demur_proto.errors import ParameterError

GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "accounting.json").read_text("utf-8")
)["rdp_curves"]
CLOSED_FORM = 1e-12  # what the divergences promise, relative
NOISE = 2.0**-46  # two answers, each moved outward by 2^-48, may differ by as much


def log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(math.exp)


epsilons = log_uniform(1e-9, 100.0)
orders = log_uniform(1e-9, 1e4).map(lambda beta: 1 + beta)
options_counts = st.integers(2, 100) | st.integers(101, 1 << 53)


def curve(row: dict[str, Any]) -> Callable[[float], float]:
    """The curve that a golden row is about, as a function of the order."""
    params = row["params"]
    match row["kind"]:
        case "gaussian":
            return lambda order: gaussian_renyi(
                params["sensitivity"], sigma=params["sigma"], order=order
            )
        case "laplace":
            return lambda order: laplace_renyi(
                params["sensitivity"], scale=params["b"], order=order
            )
        case "krr_replace":
            return lambda order: randomized_response_renyi(
                params["eps"], options=params["k"], order=order
            )
        case _:
            return lambda order: uniform_response_renyi(
                params["eps"], options=params["k"], order=order
            )


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: f"{row['kind']}-{row['params']}")
def test_a_curve_is_just_above_the_reference(row: dict[str, Any]) -> None:
    value = curve(row)

    for order, reference in [*zip(row["orders"], row["rdp"], strict=True), (1, row["kl"])]:
        assert reference <= value(order) <= reference * (1 + CLOSED_FORM)
    if row["eps_pure"] is None:
        assert value(math.inf) == math.inf
    else:
        assert row["eps_pure"] <= value(math.inf) <= row["eps_pure"] * (1 + CLOSED_FORM)


# Independent oracles: the definition summed or integrated, in a hundred digits or on a fine grid.


def divergence_of_laws(p: list[Decimal], q: list[Decimal], order: float) -> Decimal:
    """D_α(P ‖ Q) from its definition."""
    alpha = Decimal(order)
    if alpha == 1:
        return sum((a * (a / b).ln() for a, b in zip(p, q, strict=True)), Decimal(0))
    terms = (a * ((alpha - 1) * (a / b).ln()).exp() for a, b in zip(p, q, strict=True))
    return sum(terms, Decimal(0)).ln() / (alpha - 1)


def responses(epsilon: float, options: int) -> tuple[list[Decimal], list[Decimal]]:
    """Laws of k-ary randomized response for values 0 and 1; outputs past those two are lumped."""
    odds = Decimal(epsilon).exp()
    total = odds + options - 1
    rest = [(options - 2) / total] if options > 2 else []
    return [odds / total, 1 / total, *rest], [1 / total, odds / total, *rest]


def just_above(value: float, truth: Decimal) -> bool:
    return truth <= Decimal(value) <= truth * (1 + Decimal(CLOSED_FORM))


@given(epsilon=epsilons, options=options_counts, order=orders | st.just(1.0))
def test_randomized_response_is_the_sum_over_its_outputs(
    epsilon: float, options: int, order: float
) -> None:
    value = randomized_response_renyi(epsilon, options=options, order=order)

    with localcontext(prec=100):
        assert just_above(value, divergence_of_laws(*responses(epsilon, options), order))


@given(epsilon=epsilons, options=options_counts, order=orders | st.just(1.0))
def test_the_uniform_draw_is_the_worse_of_the_two_sums(
    epsilon: float, options: int, order: float
) -> None:
    value = uniform_response_renyi(epsilon, options=options, order=order)

    with localcontext(prec=100):
        odds = Decimal(epsilon).exp()
        response = [odds / (odds + options - 1), (options - 1) / (odds + options - 1)]
        uniform = [1 / Decimal(options), (options - 1) / Decimal(options)]
        truth = max(
            divergence_of_laws(response, uniform, order),
            divergence_of_laws(uniform, response, order),
        )
        assert just_above(value, truth)


@given(t=log_uniform(1e-9, 100.0), order=orders)
def test_laplace_is_its_closed_form(t: float, order: float) -> None:
    value = laplace_renyi(t, scale=1.0, order=order)

    with localcontext(prec=100):
        alpha, x = Decimal(order), Decimal(t)
        head = alpha / (2 * alpha - 1) * ((alpha - 1) * x).exp()
        tail = (alpha - 1) / (2 * alpha - 1) * (-alpha * x).exp()
        assert just_above(value, (head + tail).ln() / (alpha - 1))


@pytest.mark.parametrize("t", [0.01, 0.7, 3.0])
@pytest.mark.parametrize("order", [1.0, 1.5, 2.0, 7.0])
def test_laplace_is_the_integral_over_both_densities(t: float, order: float) -> None:
    nodes, weights = np.polynomial.legendre.leggauss(60)
    total = 0.0
    for low, high in [(-40.0, 0.0), (0.0, t), (t, t + 40.0)]:  # smooth between the two kinks
        x = low + (high - low) * (nodes + 1) / 2
        log_p, log_q = -np.abs(x) - math.log(2), -np.abs(x - t) - math.log(2)
        if order == 1:
            density = np.exp(log_p) * (log_p - log_q)
        else:
            density = np.exp(order * log_p + (1 - order) * log_q)
        total += float(weights @ density) * (high - low) / 2
    expected = total if order == 1 else math.log(total) / (order - 1)

    assert laplace_renyi(t, scale=1.0, order=order) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("order", [1.1, 2.0, 9.0])
def test_gaussian_is_the_integral_over_both_densities(order: float) -> None:
    x = np.linspace(-40.0, 60.0, 400_001)
    log_p, log_q = -((x - 1.5) ** 2) / 8, -(x**2) / 8  # 1.5 apart, with a deviation of 2
    density = np.exp(order * log_p + (1 - order) * log_q) / (2 * math.sqrt(2 * math.pi))
    expected = math.log(float(np.trapezoid(density, x))) / (order - 1)

    assert gaussian_renyi(1.5, sigma=2.0, order=order) == pytest.approx(expected, rel=1e-9)


@given(distance=log_uniform(1e-6, 1e6), sigma=log_uniform(1e-6, 1e6), order=orders)
def test_gaussian_is_the_least_float_not_below_the_exact_rational(
    distance: float, sigma: float, order: float
) -> None:
    value = gaussian_renyi(distance, sigma=sigma, order=order)

    exact = Fraction(order) * Fraction(distance) ** 2 / (2 * Fraction(sigma) ** 2)
    assert Fraction(math.nextafter(value, 0)) < exact <= Fraction(value)


# Promises.

CURVES: list[Callable[[float, float], float]] = [
    lambda epsilon, order: gaussian_renyi(epsilon, sigma=1.0, order=order),
    lambda epsilon, order: laplace_renyi(epsilon, scale=1.0, order=order),
    lambda epsilon, order: randomized_response_renyi(epsilon, options=2, order=order),
    lambda epsilon, order: randomized_response_renyi(epsilon, options=1000, order=order),
    lambda epsilon, order: uniform_response_renyi(epsilon, options=16, order=order),
]
NAMES = ["gaussian", "laplace", "binary", "k-ary", "uniform"]
everywhere = pytest.mark.parametrize("divergence", CURVES, ids=NAMES)
wide_orders = st.sampled_from([1.0, math.inf]) | log_uniform(1e-15, 1e15).map(
    lambda beta: min(1 + beta, 1e15)
)


@everywhere
@given(epsilon=log_uniform(1e-12, 699.0), order=wide_orders, factor=st.floats(1.0, 3.0))
def test_a_curve_is_finite_and_rises_with_the_order_and_with_epsilon(
    divergence: Callable[[float, float], float], epsilon: float, order: float, factor: float
) -> None:
    value = divergence(epsilon, order)

    assert 0 < value < math.inf or (order == math.inf and divergence is CURVES[0])
    assert divergence(epsilon, min(order * factor, max(order, 1e15))) >= value * (1 - NOISE)
    assert divergence(min(epsilon * factor, 700.0), order) >= value * (1 - NOISE)


@given(epsilon=log_uniform(1e-12, 1e15), order=wide_orders, options=options_counts)
def test_randomized_response_never_costs_more_than_its_epsilon(
    epsilon: float, order: float, options: int
) -> None:
    value = randomized_response_renyi(epsilon, options=options, order=order)

    assert 0 < value <= epsilon
    assert value <= randomized_response_renyi(epsilon, options=2, order=order) * (1 + NOISE)


@everywhere
def test_the_same_record_costs_exactly_nothing(
    divergence: Callable[[float, float], float],
) -> None:
    assert [divergence(0.0, order) for order in (1.0, 1.5, 1e4, math.inf)] == [0.0] * 4


@everywhere
@pytest.mark.parametrize("epsilon", [1e-6, 0.3, 5.0, 50.0])
def test_the_limits_are_what_nearby_orders_approach(
    divergence: Callable[[float, float], float], epsilon: float
) -> None:
    assert divergence(epsilon, 1 + 1e-12) == pytest.approx(divergence(epsilon, 1.0), rel=1e-9)
    if divergence is not CURVES[0]:
        assert divergence(epsilon, 1e15) == pytest.approx(divergence(epsilon, math.inf), rel=1e-6)


@everywhere
@pytest.mark.parametrize("order", [8.0, 1e4])
def test_a_curve_does_not_jump_where_the_exponential_is_taken_out(
    divergence: Callable[[float, float], float], order: float
) -> None:
    epsilon = 700.0 / (order - 1)

    below, above = divergence(epsilon * (1 - 1e-9), order), divergence(epsilon * (1 + 1e-9), order)

    assert above == pytest.approx(below, rel=1e-8)


# Ranges.

VALID_CALLS: list[tuple[Callable[..., object], dict[str, float]]] = [
    (gaussian_renyi, {"distance": 1.0, "sigma": 1.0, "order": 2.0}),
    (laplace_renyi, {"distance": 1.0, "scale": 1.0, "order": 2.0}),
    (randomized_response_renyi, {"epsilon": 1.0, "options": 3, "order": 2.0}),
    (uniform_response_renyi, {"epsilon": 1.0, "options": 3, "order": 2.0}),
]


@pytest.mark.parametrize("bad", [math.nan, -math.inf, -1e-300, 1e300, True, "2", None])
@pytest.mark.parametrize(("function", "arguments"), VALID_CALLS)
def test_a_number_outside_its_range_is_refused_by_name(
    function: Callable[..., object], arguments: dict[str, float], bad: Any
) -> None:
    function(**arguments)

    for name in arguments:
        if name in ("sigma", "scale") and bad == 1e300:
            continue  # no noise is too large
        with pytest.raises(ParameterError) as caught:
            function(**{**arguments, name: bad})
        assert caught.value.name == name


@pytest.mark.parametrize("bad", [0.5, 1 - 2.0**-53])
def test_an_order_below_one_is_refused(bad: float) -> None:
    with pytest.raises(ParameterError, match="order must be at least 1"):
        gaussian_renyi(1.0, sigma=1.0, order=bad)


def test_noise_next_to_nothing_costs_infinitely_much() -> None:
    assert gaussian_renyi(1e15, sigma=1e-300, order=2.0) == math.inf
    assert laplace_renyi(1e15, scale=1e-300, order=2.0) == math.inf


def test_a_published_curve_with_a_uniform_reference_has_its_own_range() -> None:
    with pytest.raises(ParameterError, match="epsilon must be"):
        uniform_response_renyi(701.0, options=2, order=2.0)
