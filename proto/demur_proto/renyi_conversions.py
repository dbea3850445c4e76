"""From Rényi divergences to (ε, δ) and back, at one order or at the best of several.

Rounded to the safe side: ε, δ and divergences up, budgets down. Terms are computed to a few units
in the last place, then moved outward by `SLACK` of their size; where ε or a budget is a small
difference of larger terms, it is these terms that are known to 1e-12.
"""

import math
from collections.abc import Iterable
from fractions import Fraction

from demur_proto.errors import ParameterError
from demur_proto.grades import Grade, is_simple
from demur_proto.normal import exp_exact
from demur_proto.outward import SLACK, ceil_float, up
from demur_proto.ranges import check_amount, check_delta, check_order


def renyi_epsilon(bound: float, *, order: float, delta: float, grade: Grade = "improved") -> float:
    """The ε at which a bound on the Rényi divergence at one order gives (ε, δ)-DP; rounded up.

        simple    ε = ρ + ln(1/δ)/(α−1)
        improved  ε = ρ + ln(1/(αδ))/(α−1) + ln(1 − 1/α), at least 0

    Args:
        bound: ρ in nats, for both directions; 0 ≤ ρ ≤ 1e15, or infinite.
        order: Rényi order α; 1 < α ≤ 1e15, or infinite (pure DP: then ε = ρ).
        delta: δ, a probability; 1e-300 ≤ δ < 1.
        grade: which proof.

    Returns:
        ε in nats; 0 where ρ = 0, infinite where ρ is.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Mironov 2017, arXiv:1702.07476, Proposition 3; Canonne, Kamath & Steinke 2020,
    arXiv:2004.00010, Proposition 12. At order 2 with δ = 1/(2e), ρ = 2 gives ε = 3 − ln 2:

    >>> round(renyi_epsilon(2.0, order=2.0, delta=1 / (2 * math.e)) + math.log(2), 9)
    3.0
    """
    bound = _check_bound("bound", bound)
    order = check_order("order", order)
    price, size = _price(order, check_delta("delta", delta), grade)
    if bound == 0 or order == math.inf or bound == math.inf:
        return bound
    return max(0.0, bound + price + SLACK * (bound + size))


def renyi_delta(bound: float, *, order: float, epsilon: float, grade: Grade = "improved") -> float:
    """The δ at which a bound on the Rényi divergence at one order gives (ε, δ)-DP; rounded up.

        simple    δ = e^((α−1)(ρ−ε))
        improved  δ = e^((α−1)(ρ−ε)) (1 − 1/α)^α / (α−1)

    Args:
        bound: ρ in nats, for both directions; 0 ≤ ρ ≤ 1e15, or infinite.
        order: Rényi order α; 1 < α ≤ 1e15, or infinite (pure DP: then δ is 0 or 1).
        epsilon: ε in nats; 0 ≤ ε ≤ 1e15.
        grade: which proof.

    Returns:
        δ, at most 1; 0 only if ρ = 0, or at an infinite order.

    Raises:
        ParameterError: an argument is outside its range.

    Source: as `renyi_epsilon`, and the same point.

    >>> round(renyi_delta(2.0, order=2.0, epsilon=3 - math.log(2)) * 2 * math.e, 9)
    1.0
    """
    bound = _check_bound("bound", bound)
    order = check_order("order", order)
    epsilon = check_amount("epsilon", epsilon)
    simple = is_simple(grade)
    if bound == 0:
        return 0.0
    if order == math.inf:
        return 0.0 if bound <= epsilon else 1.0
    t = order - 1
    rough = t * (bound - epsilon)
    if rough >= (0 if simple else 80):  # improved: the other factor is at least 1/(eα) > e^(−40)
        return 1.0
    if rough < -800:  # no float is so small
        return up(0.0)
    power = exp_exact(Fraction(t) * (Fraction(bound) - Fraction(epsilon)))
    if simple:
        return min(1.0, up(power))
    return min(1.0, up(power * math.exp(-t * math.log1p(1 / t)) / order))


def renyi_budget(epsilon: float, *, order: float, delta: float, grade: Grade = "improved") -> float:
    """The largest bound on the Rényi divergence at one order that gives (ε, δ)-DP; rounded down.

        simple    B(α) = ε − ln(1/δ)/(α−1)
        improved  B(α) = ε − ln(1/(αδ))/(α−1) − ln(1 − 1/α)

    Args:
        epsilon: ε in nats; 0 ≤ ε ≤ 1e15.
        order: Rényi order α; 1 < α ≤ 1e15, or infinite (pure DP: then B = ε).
        delta: δ, a probability; 1e-300 ≤ δ < 1.
        grade: which proof.

    Returns:
        B(α) in nats; 0 where this order proves nothing at these ε and δ.

    Raises:
        ParameterError: an argument is outside its range.

    Source: as `renyi_epsilon`, and the same point.

    >>> round(renyi_budget(3 - math.log(2), order=2.0, delta=1 / (2 * math.e)), 9)
    2.0
    """
    epsilon = check_amount("epsilon", epsilon)
    order = check_order("order", order)
    price, size = _price(order, check_delta("delta", delta), grade)
    if order == math.inf:
        return epsilon
    return max(0.0, epsilon - price - SLACK * (epsilon + size))


def curve_epsilon(
    curve: Iterable[tuple[float, float]], *, delta: float, grade: Grade = "improved"
) -> float:
    """The least ε that any of several orders proves; rounded up.

    Args:
        curve: pairs of an order and the bound at it, as in `renyi_epsilon`; at least one.
        delta: δ, a probability; 1e-300 ≤ δ < 1.
        grade: which proof.

    Returns:
        ε in nats.

    Raises:
        ParameterError: an argument is outside its range.

    Source: all bounds hold at once, so the best conversion does.

    >>> curve_epsilon([(math.inf, 2.0), (2.0, 1.9)], delta=1e-9)
    2.0
    """
    return min(
        renyi_epsilon(bound, order=order, delta=delta, grade=grade)
        for order, bound in _points(curve)
    )


def curve_delta(
    curve: Iterable[tuple[float, float]], *, epsilon: float, grade: Grade = "improved"
) -> float:
    """The least δ that any of several orders proves; rounded up.

    Args:
        curve: pairs of an order and the bound at it, as in `renyi_delta`; at least one.
        epsilon: ε in nats; 0 ≤ ε ≤ 1e15.
        grade: which proof.

    Returns:
        δ, at most 1.

    Raises:
        ParameterError: an argument is outside its range.

    Source: as `curve_epsilon`.

    >>> curve_delta([(math.inf, 2.0), (2.0, 1.9)], epsilon=2.0)
    0.0
    """
    return min(
        renyi_delta(bound, order=order, epsilon=epsilon, grade=grade)
        for order, bound in _points(curve)
    )


def zcdp_renyi(rho: float, *, order: float) -> float:
    """The Rényi divergence that ρ-zCDP allows at an order: αρ in nats.

    The least float that is not below it; infinite at an infinite order, unless ρ = 0.

    Source: Bun & Steinke 2016, arXiv:1605.02065, Definition 1.1.

    >>> zcdp_renyi(0.5, order=4.0)
    2.0
    """
    return _linear(Fraction(check_amount("rho", rho)), order)


def gdp_renyi(mu: float, *, order: float) -> float:
    """The Rényi divergence that μ-GDP allows at an order: αμ²/2 in nats.

    The least float that is not below it; infinite at an infinite order, unless μ = 0.

    Source: Dong, Roth & Su 2019, arXiv:1905.02383, Corollary B.6.

    >>> gdp_renyi(1.0, order=4.0)
    2.0
    """
    return _linear(Fraction(check_amount("mu", mu)) ** 2 / 2, order)


def _linear(slope: Fraction, order: float) -> float:
    order = check_order("order", order, kl=True)
    if order == math.inf:
        return math.inf if slope else 0.0
    return ceil_float(slope * Fraction(order))


def _price(order: float, delta: float, grade: Grade) -> tuple[float, float]:
    """What an order adds to the bound to make it an ε, and the size of the terms in it."""
    simple = is_simple(grade)
    if order == math.inf:
        return 0.0, 0.0
    t = order - 1
    level = -math.log(delta)
    if simple:
        return level / t, level / t
    w, log_order = math.log1p(1 / t), math.log1p(t)
    return (level - log_order) / t - w, (level + log_order) / t + w


def _points(curve: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    points = list(curve)
    if not points:
        raise ParameterError("curve", points, "at least one order and the bound at it")
    return points


def _check_bound(name: str, value: float) -> float:
    return math.inf if value == math.inf else check_amount(name, value)
