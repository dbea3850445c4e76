"""What a guarantee against the reference is worth between two arbitrary people.

The chain goes through the reference: from one person to nothing, from nothing to the other. Every
result is rounded up.
"""

import math
from fractions import Fraction

from demur_proto.errors import ParameterError
from demur_proto.outward import ceil_float, up
from demur_proto.ranges import check_amount, check_order


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
