"""Pure differential privacy in the other currencies, and back.

Every pair of laws that is ε-DP comes from binary randomized response by post-processing, so what
holds for that one mechanism holds for all. Rounded to the safe side: ε and δ that are promised and
charges up, budgets down.
"""

import math
from fractions import Fraction
from typing import Literal

from demur_proto.errors import ParameterError
from demur_proto.outward import SLACK, ceil_float, down, newton, up
from demur_proto.ranges import LARGEST, check_amount, check_delta

PureCharge = Literal["quadratic", "tight"]
"""What an ε-DP round costs as zCDP: ½ε², or the least that holds for every such round."""


def pure_rho(pure: float, *, charge: PureCharge = "tight") -> float:
    """What an ε-DP round costs as zCDP; rounded up.

        quadratic  ρ = ½ε², in exact rational arithmetic
        tight      ρ = ε tanh(ε/2)

    Args:
        pure: ε of the round in nats; 0 ≤ ε ≤ 1e15.
        charge: which of the two.

    Returns:
        ρ in nats.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Bun & Steinke 2016, arXiv:1605.02065, Proposition 1.4. Tight: by Kairouz, Oh &
    Viswanath 2015, arXiv:1311.0776, binary randomized response is the worst case; its D_α/α falls
    with α, and ε tanh(ε/2) is its KL divergence. See also Harrison & Manurangsi 2025,
    arXiv:2510.25746. With e^ε = 3, tanh(ε/2) is ½:

    >>> pure_rho(2.0, charge="quadratic"), round(pure_rho(math.log(3)) / math.log(3), 9)
    (2.0, 0.5)
    """
    pure = check_amount("pure", pure)
    quadratic = ceil_float(Fraction(pure) ** 2 / 2)
    if _is_quadratic(charge) or pure == 0:
        return quadratic
    return min(quadratic, up(pure * math.tanh(pure / 2)))


def pure_of_rho(rho: float, *, charge: PureCharge = "tight") -> float:
    """The largest ε of a round that costs at most ρ; rounded down.

    Not what ρ-zCDP guarantees: that is never pure.

    Args:
        rho: what the round may cost, in nats; 0 ≤ ρ ≤ 1e15.
        charge: how it is charged, as in `pure_rho`.

    Returns:
        ε in nats, for which `pure_rho` is at most ρ.

    Raises:
        ParameterError: an argument is outside its range.

    Source: as `pure_rho`, and the same points.

    >>> round(pure_of_rho(2.0, charge="quadratic"), 9), round(pure_of_rho(math.log(3) / 2), 9)
    (2.0, 1.098612289)
    """
    rho = check_amount("rho", rho)
    root = math.sqrt(2 * rho)
    quadratic = _is_quadratic(charge)
    if rho == 0:
        return 0.0

    def excess(x: float) -> tuple[float, float]:
        t = math.tanh(x / 2)
        return x * t - rho, t + x * (1 - t) * (1 + t) / 2

    pure = min(LARGEST, root if quadratic else newton(excess, max(rho, root)))
    step = SLACK
    while pure_rho(pure, charge=charge) > rho:  # once or twice
        pure = max(0.0, pure * (1 - step))
        step *= 2
    return pure


def pure_delta(pure: float, *, epsilon: float) -> float:
    """The δ at which ε₀-DP gives (ε, δ)-DP for a smaller ε, exactly; rounded up.

        δ = (e^ε₀ − e^ε) / (1 + e^ε₀), or 0 where ε ≥ ε₀

    Args:
        pure: ε₀ in nats; 0 ≤ ε₀ ≤ 1e15.
        epsilon: ε in nats; 0 ≤ ε ≤ 1e15.

    Returns:
        δ, a probability.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Kairouz, Oh & Viswanath 2015, arXiv:1311.0776: the worst case is randomized response,
    which keeps the truth with probability e^ε₀/(1 + e^ε₀). With e^ε₀ = 3 that is ¾ against ¼:

    >>> round(pure_delta(math.log(3), epsilon=0.0), 9)
    0.5
    """
    pure = check_amount("pure", pure)
    epsilon = check_amount("epsilon", epsilon)
    if epsilon >= pure:
        return 0.0
    return min(1.0, up(-math.expm1(epsilon - pure) / (1 + math.exp(-pure))))


def pure_epsilon(pure: float, *, delta: float) -> float:
    """The smallest ε at which ε₀-DP gives (ε, δ)-DP, exactly; rounded up.

        ε = ln(e^ε₀ − δ (1 + e^ε₀)), or 0 where that is negative

    Args:
        pure: ε₀ in nats; 0 ≤ ε₀ ≤ 1e15.
        delta: δ, a probability; 1e-300 ≤ δ < 1.

    Returns:
        ε in nats, at most ε₀.

    Raises:
        ParameterError: an argument is outside its range.

    Source: as `pure_delta`, and the same point.

    >>> round(pure_epsilon(math.log(3), delta=0.25), 9) == round(math.log(2), 9)
    True
    """
    pure = check_amount("pure", pure)
    delta = check_delta("delta", delta)
    lost = math.exp(-pure)
    if delta < 0.25:
        saved, doubt = math.log1p(-delta * (1 + lost)), 0.0
    else:  # 1 − δ is exact from δ = ½ on
        kept = (1 - delta) - delta * lost
        if kept <= 0:
            return 0.0
        saved, doubt = math.log(kept), (lost if delta >= 0.5 else 1.0) / kept
    return min(pure, max(0.0, pure + saved + SLACK * (pure - saved + doubt)))


def pure_budget(epsilon: float, *, delta: float) -> float:
    """The largest ε₀ whose ε₀-DP gives (ε, δ)-DP, exactly; rounded down.

        ε₀ = ln((e^ε + δ) / (1 − δ))

    Args:
        epsilon: ε in nats; 0 ≤ ε ≤ 1e15.
        delta: δ, a probability; 1e-300 ≤ δ < 1.

    Returns:
        ε₀ in nats, at least ε.

    Raises:
        ParameterError: an argument is outside its range.

    Source: as `pure_delta`. With e^ε = 2 and δ = ¼ it is ln(9/4 · 4/3):

    >>> round(math.exp(pure_budget(math.log(2), delta=0.25)), 9)
    3.0
    """
    epsilon = check_amount("epsilon", epsilon)
    delta = check_delta("delta", delta)
    more = math.log1p(delta * math.exp(-epsilon)) - math.log1p(-delta)
    return max(epsilon, down(epsilon + down(more)))


def _is_quadratic(charge: PureCharge) -> bool:
    if charge not in ("quadratic", "tight"):
        raise ParameterError("charge", charge, '"quadratic" or "tight"')
    return charge == "quadratic"
