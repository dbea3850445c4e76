"""Rényi divergences of mechanisms, as curves over the order α, and rounded up.

    D_α(P ‖ Q) = ln E_Q[(P/Q)^α] / (α − 1)

Order 1 is the Kullback-Leibler divergence and an infinite order the pure-DP ε: the limits on both
sides. Each formula is arranged as ln(1 + y) with y a sum or product of positive terms, so that
neither a small ε nor an order near 1 costs digits; where e^((α−1)ε) is no float it is taken out.
"""

import math
from fractions import Fraction

from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import ParameterError
from demur_proto.finite_pairs import Level, curvature, levels_renyi
from demur_proto.normal import exp_exact
from demur_proto.outward import ceil_float, up
from demur_proto.ranges import check_amount, check_order

_LARGEST_EXPONENT = 700.0  # e^700 = 1e304


def gaussian_renyi(distance: float, *, sigma: float, order: float) -> float:
    """Rényi divergence of two Gaussians whose means lie `distance` apart.

        D_α(N(m, σ²I) ‖ N(m′, σ²I)) = α ‖m − m′‖² / (2σ²), in exact rational arithmetic

    Args:
        distance: ‖m − m′‖₂, data units; 0 ≤ distance ≤ 1e15.
        sigma: noise standard deviation per coordinate, data units; finite, > 0.
        order: Rényi order α; 1 (KL) ≤ α ≤ 1e15, or infinite (pure ε).

    Returns:
        The divergence in nats, the least float that is not below it; infinite at an infinite order.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Mironov 2017, arXiv:1702.07476, Proposition 7.

    >>> gaussian_renyi(1.0, sigma=2.0, order=8.0)
    1.0
    """
    distance = check_amount("distance", distance)
    check_positive("sigma", sigma)
    order = check_order("order", order, kl=True)
    if distance == 0:
        return 0.0
    if order == math.inf:
        return math.inf
    return ceil_float(Fraction(order) * Fraction(distance) ** 2 / (2 * Fraction(sigma) ** 2))


def laplace_renyi(distance: float, *, scale: float, order: float) -> float:
    """Rényi divergence of two Laplace laws whose centres lie `distance` apart.

        D_α = ln( α/(2α−1) e^((α−1)t) + (α−1)/(2α−1) e^(−αt) ) / (α − 1),   t = |m − m′| / b
        D_1 = t + e^(−t) − 1,   D_∞ = t

    Args:
        distance: |m − m′|, data units; 0 ≤ distance ≤ 1e15.
        scale: b, data units; finite, > 0.
        order: Rényi order α; 1 (KL) ≤ α ≤ 1e15, or infinite (pure ε).

    Returns:
        The divergence in nats, rounded up; infinite where t is.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Mironov 2017, arXiv:1702.07476, Proposition 6.

    >>> round(laplace_renyi(2.0, scale=1.0, order=1.0) - math.exp(-2), 9)
    1.0
    """
    distance = check_amount("distance", distance)
    check_positive("scale", scale)
    order = check_order("order", order, kl=True)
    if distance == 0:
        return 0.0
    t = distance / scale
    if order == math.inf or t == math.inf:
        return up(t)
    beta = order - 1
    if beta == 0:
        return up(curvature(-t))
    if beta * t <= _LARGEST_EXPONENT:
        share = beta / (order + beta)
        excess = (1 - share) * curvature(beta * t) + share * curvature(-order * t)
        return up(math.log1p(excess) / beta)
    return up(t - math.log1p(beta / order) / beta)  # e^(−αt) is no float


def randomized_response_renyi(epsilon: float, *, options: int, order: float) -> float:
    """Rényi divergence of k-ary randomized response between two different values.

        D_α = ln( (e^(αε) + e^(−(α−1)ε) + k − 2) / (e^ε + k − 1) ) / (α − 1)
            = ln( 1 + p (e^((α−1)ε) − 1) (1 − e^(−αε)) ) / (α − 1),   p = e^ε / (e^ε + k − 1)
        D_1 = p ε (1 − e^(−ε)),   D_∞ = ε

    The true value is kept with probability p; each of the others comes out with p e^(−ε).

    Args:
        epsilon: ε of the mechanism in nats; 0 ≤ ε ≤ 1e15.
        options: k, how many values there are; 2 ≤ k ≤ 2^53.
        order: Rényi order α; 1 (KL) ≤ α ≤ 1e15, or infinite (pure ε).

    Returns:
        The divergence in nats, rounded up.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Mironov 2017, arXiv:1702.07476, Proposition 5, for k = 2; the first line is the sum over
    the outputs of P^α Q^(1−α). With e^ε = 3, k = 2 and α = 2 it is ln((9 + 1/3)/4):

    >>> round(math.exp(randomized_response_renyi(math.log(3), options=2, order=2.0)) * 12, 9)
    28.0
    """
    epsilon = check_amount("epsilon", epsilon)
    check_integer("options", options, 2, 1 << 53)
    order = check_order("order", order, kl=True)
    if epsilon == 0 or order == math.inf:
        return epsilon
    others = (options - 1) * math.exp(-epsilon)
    kept = 1 / (1 + others)
    beta = order - 1
    if beta == 0:
        return min(epsilon, up(kept * epsilon * -math.expm1(-epsilon)))
    if beta * epsilon <= _LARGEST_EXPONENT:
        excess = kept * _expm1(beta, epsilon) * -math.expm1(-order * epsilon)
        return min(epsilon, up(math.log1p(excess) / beta))
    return min(epsilon, up(epsilon - math.log1p(others) / beta))  # e^(−(α−1)ε) is no float


def uniform_response_renyi(epsilon: float, *, options: int, order: float) -> float:
    """Rényi divergence of k-ary randomized response from a uniform draw: no reference for a study.

        D_α = max of D_α(P ‖ U) and D_α(U ‖ P),   U = 1/k everywhere,
        P = e^ε / (e^ε + k − 1) once and 1 / (e^ε + k − 1) elsewhere

    It is here to reproduce published curves. A device that answered with a uniform draw once its
    budget is gone would bias every count by the secret number of such devices.

    Args:
        epsilon: ε of the mechanism in nats; 0 ≤ ε ≤ 700.
        options: k, how many values there are; 2 ≤ k ≤ 2^53.
        order: Rényi order α; 1 (KL) ≤ α ≤ 1e15, or infinite (pure ε).

    Returns:
        The divergence in nats, rounded up.

    Raises:
        ParameterError: an argument is outside its range.

    Source: the sums over the outputs. With e^ε = 3 and k = 2, D_∞ = ln(½ / ¼):

    >>> round(math.exp(uniform_response_renyi(math.log(3), options=2, order=math.inf)), 9)
    2.0
    """
    if not check_amount("epsilon", epsilon) <= _LARGEST_EXPONENT:
        raise ParameterError("epsilon", epsilon, "at least 0 and at most 700")
    check_integer("options", options, 2, 1 << 53)
    order = check_order("order", order, kl=True)
    if epsilon == 0:
        return 0.0
    rest = options - 1
    shrunk = rest / options * math.expm1(-epsilon)
    if shrunk > -0.5:
        above = -math.log1p(shrunk)  # ln k p
    else:
        above = -math.log((1 + rest * math.exp(-epsilon)) / options)
    below = math.log1p(math.expm1(epsilon) / options)  # −ln k p e^(−ε)
    levels = (
        Level(mass=1 / options, log_ratio=above),
        Level(mass=rest / options, log_ratio=-below),
    )
    return levels_renyi(levels, order=order)


def _expm1(factor: float, exponent: float) -> float:
    """e^(factor · exponent) − 1 as if the product were exact; it must not be above 700."""
    product = factor * exponent
    if product < 1:
        return math.expm1(product)
    return exp_exact(Fraction(factor) * Fraction(exponent)) - 1
