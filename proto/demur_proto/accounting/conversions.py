"""Which proof turns a bound on divergences into (ε, δ)."""

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Literal

from demur_proto.accounting.numerics import (
    SLACK,
    ceil_float,
    check_amount,
    check_delta,
    check_order,
    down,
    exp_exact,
    log_tail,
    newton,
    tails,
    up,
)
from demur_proto.errors import ParameterError

Grade = Literal["simple", "improved"]
"""Bun & Steinke's and Mironov's proof, or that of Canonne, Kamath & Steinke."""


def is_simple(grade: Grade) -> bool:
    """Whether it is the simple one; anything but the two grades is refused.

    >>> is_simple("improved")
    False
    """
    if grade not in ("simple", "improved"):
        raise ParameterError("grade", grade, '"simple" or "improved"')
    return grade == "simple"


# From budgets to (ε, δ) and back. Scalars in, scalars out.
#
# Three measures meet here: GDP (μ), zCDP (ρ) and (ε, δ)-DP. Every result is rounded to the safe side:
# ε and δ are never below the true value, μ and ρ never above it. Terms are computed to a few units in
# the last place, then moved outward by `SLACK` of their size.
#
# The result is within 1e-12 relative, with one exception: where a guarantee is almost free, ε is
# a small difference of larger terms, and it is these terms that are known so well.


def gdp_delta(mu: float, *, epsilon: float) -> float:
    """The δ at which μ-GDP gives (ε, δ)-DP, exactly; rounded up.

        δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)

    Args:
        mu: GDP parameter μ, standard deviations; 0 ≤ μ ≤ 1e15.
        epsilon: ε in nats; 0 ≤ ε ≤ 1e15.

    Returns:
        δ, a probability; 0 only if μ = 0.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Balle & Wang 2018, arXiv:1805.06530, Theorem 8; Dong, Roth & Su 2019, arXiv:1905.02383,
    Corollary 2.13. Within one standard deviation lie 68.27 % of a normal law:

    >>> round(gdp_delta(2.0, epsilon=0.0), 4)
    0.6827
    """
    mu = check_amount("mu", mu)
    epsilon = check_amount("epsilon", epsilon)
    if mu == 0:
        return 0.0
    delta, rest = tails(mu, epsilon)
    if up(delta) <= 0.5:
        return up(delta)
    delta = 1 - down(rest)
    return delta if 1 - delta <= down(rest) else math.nextafter(delta, 1)


def gdp_epsilon(mu: float, *, delta: float) -> float:
    """The smallest ε at which μ-GDP gives (ε, δ)-DP; rounded up.

        the ε with gdp_delta(μ, ε) = δ, or 0 where gdp_delta(μ, 0) ≤ δ

    Args:
        mu: GDP parameter μ, standard deviations; 0 ≤ μ ≤ 1e15.
        delta: δ, a probability; 1e-300 ≤ δ < 1.

    Returns:
        ε in nats, for which `gdp_delta` is at most δ.

    Raises:
        ParameterError: an argument is outside its range.

    Source: as `gdp_delta`, which at μ = ε = 2 reads ½ − e²Φ(−2):

    >>> round(gdp_epsilon(2.0, delta=0.5 - math.exp(2) * 0.022750131948), 9)
    2.0
    """
    mu = check_amount("mu", mu)
    delta = check_delta("delta", delta)
    if gdp_delta(mu, epsilon=0.0) <= delta:
        return 0.0
    small = delta <= 0.5
    target = math.log(delta if small else 1 - delta)
    if small:  # δ ≤ φ(a) min(√(2π), μ) for a ≥ 0, so the root is not to the right of this a
        start = math.sqrt(2 * max(0.0, min(0.0, math.log(mu) - 0.9) - target))
    else:  # 1 − δ ≤ e^(−a²/2) for a ≤ 0, so the root is not to the left of this a
        start = max(-math.sqrt(-2 * target), -mu / 2)

    def excess(epsilon: float) -> tuple[float, float]:
        value, by_epsilon, _ = log_tail(mu, epsilon, small=small)
        return value - target, by_epsilon

    epsilon = max(0.0, newton(excess, mu * (start + mu / 2)))
    step = math.ulp(epsilon)
    while (beyond := _gdp_excess(mu, epsilon, delta)) > 0:  # seldom more than once
        slope = min(delta, 1 - delta) * abs(excess(epsilon)[1])
        epsilon += step + beyond / slope
        step *= 2
    return epsilon


def gdp_mu(epsilon: float, *, delta: float) -> float:
    """The largest μ whose μ-GDP gives (ε, δ)-DP; rounded down.

        the μ with gdp_delta(μ, ε) = δ

    Args:
        epsilon: ε in nats; 0 ≤ ε ≤ 1e15.
        delta: δ, a probability; 1e-300 ≤ δ < 1.

    Returns:
        The GDP budget μ, standard deviations, for which `gdp_delta` is at most δ.

    Raises:
        ParameterError: an argument is outside its range.

    Source: as `gdp_delta`.

    >>> round(gdp_mu(0.0, delta=0.682689492), 8)
    2.0
    """
    epsilon = check_amount("epsilon", epsilon)
    delta = check_delta("delta", delta)
    small = delta <= 0.5
    target = math.log(delta if small else 1 - delta)
    if small:  # from the simple zCDP budget, and δ ≤ μ/√(2π): the root is not to the left
        start = max(1.4 * _root_of_simple_rho(epsilon, -target), 2.5 * delta)
    else:  # a as in `gdp_epsilon`: the root is not to the right
        start = math.sqrt(-2 * target) + math.sqrt(2 * epsilon - 2 * target)

    def excess(mu: float) -> tuple[float, float]:
        value, _, by_mu = log_tail(mu, epsilon, small=small)
        return value - target, by_mu

    mu = newton(excess, start)
    step = math.ulp(mu)
    while (beyond := _gdp_excess(mu, epsilon, delta)) > 0:  # seldom more than once
        slope = min(delta, 1 - delta) * abs(excess(mu)[1])
        mu = max(0.0, mu - step - beyond / slope)
        step *= 2
    return mu


def zcdp_epsilon(rho: float, *, delta: float, grade: Grade = "improved") -> float:
    """The smallest ε at which ρ-zCDP is proved to give (ε, δ)-DP; rounded up.

        simple    ε = ρ + 2√(ρ ln(1/δ))
        improved  ε = min over real α > 1 of αρ + ln(1/(αδ))/(α−1) + ln(1 − 1/α), at least 0
                  where ρ(α−1)² + ln α = ln(1/δ)

    Args:
        rho: zCDP parameter ρ in nats; 0 ≤ ρ ≤ 1e15.
        delta: δ, a probability; 1e-300 ≤ δ < 1.
        grade: which proof.

    Returns:
        ε in nats.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Bun & Steinke 2016, arXiv:1605.02065, Proposition 1.3, which is Mironov 2017,
    arXiv:1702.07476, Proposition 3 at the best real α; Canonne, Kamath & Steinke 2020,
    arXiv:2004.00010, Proposition 12. At ρ = 1, δ = 1/(2e) the best order is 2, and ε = 3 − ln 2:

    >>> round(zcdp_epsilon(1.0, delta=1 / (2 * math.e)) + math.log(2), 9)
    3.0
    >>> round(zcdp_epsilon(1.0, delta=1 / math.e, grade="simple"), 9)
    3.0
    """
    rho = check_amount("rho", rho)
    delta = check_delta("delta", delta)
    level = -math.log(delta)
    if is_simple(grade):
        return up(rho + 2 * math.sqrt(rho) * math.sqrt(level)) if rho else 0.0
    if rho == 0:
        return 0.0

    def excess(w: float) -> tuple[float, float]:
        t = _order(w)
        return rho * t * t + math.log1p(t) - level, -(2 * rho * t * t * (1 + t) + t)

    t = _order(newton(excess, max(-math.log1p(-delta), math.log1p(math.sqrt(rho / level)))))
    w, log_order = math.log1p(1 / t), math.log1p(t)
    value = rho * (1 + t) + (level - log_order) / t - w
    size = rho * (1 + t) + (level + log_order) / t + w
    return max(0.0, value + SLACK * size)


def zcdp_delta(rho: float, *, epsilon: float, grade: Grade = "improved") -> float:
    """The smallest δ at which ρ-zCDP is proved to give (ε, δ)-DP; rounded up.

        simple    δ = e^(−(ε−ρ)²/(4ρ)), or 1 where ε ≤ ρ
        improved  δ = min over real α > 1 of e^((α−1)(αρ−ε)) (1 − 1/α)^α / (α−1)
                  where ρ(2α−1) + ln(1 − 1/α) = ε

    Args:
        rho: zCDP parameter ρ in nats; 0 ≤ ρ ≤ 1e15.
        epsilon: ε in nats; 0 ≤ ε ≤ 1e15.
        grade: which proof.

    Returns:
        δ, a probability; 0 only if ρ = 0.

    Raises:
        ParameterError: an argument is outside its range.

    Source: as `zcdp_epsilon`, and the same points.

    >>> round(zcdp_delta(1.0, epsilon=3 - math.log(2)) * 2 * math.e, 9)
    1.0
    >>> round(zcdp_delta(1.0, epsilon=3.0, grade="simple") * math.e, 9)
    1.0
    """
    rho = check_amount("rho", rho)
    epsilon = check_amount("epsilon", epsilon)
    simple = is_simple(grade)
    if rho == 0:
        return 0.0
    if rho - epsilon >= (0 if simple else 40):  # improved: ln(1/δ) < 2e^(−40)
        return 1.0
    if epsilon > rho and (epsilon / rho - 1) * (epsilon - rho) / 4 > 800:  # no float is so small
        return up(0.0)
    e, r = Fraction(epsilon), Fraction(rho)
    if simple:
        return min(1.0, up(exp_exact(-((e - r) ** 2) / (4 * r))))

    def excess(w: float) -> tuple[float, float]:
        t = _order(w)
        return rho * (1 + 2 * t) - epsilon - w, -(2 * rho * t * (1 + t) + 1)

    start = 4 * rho / (epsilon + math.sqrt(epsilon * epsilon + 8 * rho))  # since tanh x < min(1, x)
    t = _order(newton(excess, max(rho - epsilon, start)))
    power = exp_exact(Fraction(t) * ((1 + Fraction(t)) * r - e))
    return min(1.0, up(power * math.exp(-t * math.log1p(1 / t)) / (1 + t)))


def zcdp_rho(epsilon: float, *, delta: float, grade: Grade = "improved") -> float:
    """The largest ρ whose ρ-zCDP is proved to give (ε, δ)-DP; rounded down.

        simple    ρ = (√(ln(1/δ) + ε) − √ln(1/δ))²
        improved  ρ = max over real α > 1 of (ε − ln(1/(αδ))/(α−1) − ln(1 − 1/α)) / α
                  where (ε − ln(1 − 1/α))(α−1)²/(2α−1) + ln α = ln(1/δ)

    Args:
        epsilon: ε in nats; 0 ≤ ε ≤ 1e15.
        delta: δ, a probability; 1e-300 ≤ δ < 1.
        grade: which proof.

    Returns:
        The zCDP budget ρ in nats.

    Raises:
        ParameterError: an argument is outside its range.

    Source: as `zcdp_epsilon`, and the same points; simple is also Feldman & Zrnic,
    arXiv:2008.11193, Theorem "dp-filter-general".

    >>> round(zcdp_rho(3 - math.log(2), delta=1 / (2 * math.e)), 9)
    1.0
    >>> round(zcdp_rho(3.0, delta=1 / math.e, grade="simple"), 9)
    1.0
    """
    epsilon = check_amount("epsilon", epsilon)
    delta = check_delta("delta", delta)
    level = -math.log(delta)
    if is_simple(grade):
        return down(_root_of_simple_rho(epsilon, level) ** 2)

    def excess(w: float) -> tuple[float, float]:
        t = _order(w)
        k = t / (2 + 1 / t)  # 1/(e^(2w) − 1)
        mass = (epsilon + w) * k
        return mass + math.log1p(t) - level, k - 2 * mass * (1 + k) - t

    t = _order(newton(excess, max(-math.log1p(-delta), math.log1p(epsilon / level) / 2)))
    w, log_order = math.log1p(1 / t), math.log1p(t)
    value = epsilon - (level - log_order) / t + w
    size = epsilon + (level + log_order) / t + w
    return max(0.0, (value - SLACK * size) / (1 + t))


def _gdp_excess(mu: float, epsilon: float, delta: float) -> float:
    """By how much δ misses the mark; at most 0 exactly when gdp_delta(mu, epsilon) ≤ delta."""
    reached, rest = tails(mu, epsilon)
    return up(reached) - delta if delta <= 0.5 else (1 - delta) - down(rest)


def _root_of_simple_rho(epsilon: float, level: float) -> float:
    return epsilon / (math.sqrt(level + epsilon) + math.sqrt(level))


def _order(w: float) -> float:
    """α − 1 for w = −ln(1 − 1/α): in w all three conditions on the best order are convex."""
    return math.exp(-w) / -math.expm1(-w)


# From Rényi divergences to (ε, δ) and back, at one order or at the best of several.
#
# Rounded to the safe side: ε, δ and divergences up, budgets down. Terms are computed to a few units
# in the last place, then moved outward by `SLACK` of their size; where ε or a budget is a small
# difference of larger terms, it is these terms that are known to 1e-12.


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


# What a guarantee against the reference is worth between two arbitrary people.
#
# The chain goes through the reference: from one person to nothing, from nothing to the other. Every
# result is rounded up.


def pair_mu(mu: float) -> float:
    """GDP between two arbitrary people whose reports are each μ-GDP against the reference: 2μ.

    Source: Dong, Roth & Su 2019, arXiv:1905.02383, Theorem 2.14 with k = 2.

    >>> pair_mu(0.5)
    1.0
    """
    return 2 * check_amount("mu", mu)


def pair_rho(rho: float) -> float:
    """ZCDP in nats between two arbitrary people, each ρ-zCDP against the reference: 4ρ.

    Source: Bun & Steinke 2016, arXiv:1605.02065, Proposition 1.9 with k = 2.

    >>> pair_rho(0.5)
    2.0
    """
    return 4 * check_amount("rho", rho)


def pair_epsilon_delta(epsilon: float, delta: float) -> tuple[float, float]:
    """(ε, δ) between two arbitrary people, each (ε, δ)-DP against the reference; rounded up.

        (2ε, (1 + e^ε) δ), the second at most 1

    Args:
        epsilon: ε in nats; 0 ≤ ε ≤ 1e15.
        delta: δ, a probability; 0 ≤ δ ≤ 1.

    Returns:
        ε in nats and δ.

    Raises:
        ParameterError: an argument is outside its range.

    Source: P(S) ≤ e^ε R(S) + δ ≤ e^ε (e^ε Q(S) + δ) + δ, R being the reference.

    >>> pair_epsilon_delta(0.5, 0.0)
    (1.0, 0.0)
    """
    epsilon = check_amount("epsilon", epsilon)
    delta = check_amount("delta", delta)
    if not delta <= 1:
        raise ParameterError("delta", delta, "a probability")
    if delta == 0:
        return 2 * epsilon, 0.0
    root = math.exp(min(epsilon, 1400.0) / 2)  # beyond that (1 + e^ε) δ > 1 for every float δ
    return 2 * epsilon, min(1.0, up(delta + root * (root * delta)))


def pair_renyi(bound: float, *, order: float) -> tuple[float, float]:
    """Rényi bound between two arbitrary people, each within `bound` at `order` of the reference.

        D_{α/2} ≤ B (2α − 3)/(α − 2), and D_∞ ≤ 2B

    Args:
        bound: B in nats, for both directions; 0 ≤ B ≤ 1e15.
        order: Rényi order α; 2 < α ≤ 1e15, or infinite.

    Returns:
        The order α/2 and the bound at it in nats, rounded up.

    Raises:
        ParameterError: an argument is outside its range; at order 2 and below there is no bound.

    Source: Mironov 2017, arXiv:1702.07476, Proposition 11 (the weak triangle inequality) with
    p = q = 2, and D_{α−1} ≤ D_α.

    >>> pair_renyi(1.0, order=4.0)
    (2.0, 2.5)
    """
    bound = check_amount("bound", bound)
    order = check_order("order", order)
    if order == math.inf:
        return order, 2 * bound
    if not order > 2:
        raise ParameterError("order", order, "above 2, or there is no bound between two people")
    exact = Fraction(order)
    return order / 2, ceil_float(Fraction(bound) * (2 * exact - 3) / (exact - 2))
