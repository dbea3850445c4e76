"""Pure differential privacy in the other currencies, and back.

Every pair of laws that is ε-DP comes from binary randomized response by post-processing, so what
holds for that one mechanism holds for all. Rounded to the safe side: ε and δ that are promised and
charges up, budgets down.
"""

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Literal

from demur_proto.accounting.numerics import (
    LARGEST,
    SLACK,
    ceil_float,
    check_amount,
    check_delta,
    down,
    newton,
    up,
)
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError

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


# Exact composition: what n answers of at most ε₀ each are worth together, whatever they are.
#
# The worst n answers are n binary randomised responses with ε₀. Their likelihood ratio is e^((2k − n)ε₀) where k
# of them tell the truth, so one sum over k gives the whole privacy curve. δ and ε that are promised are
# rounded up, ε₀ and numbers of answers down.
#
# Source: Kairouz, Oh & Viswanath 2015, arXiv:1311.0776, Theorem 3.3. It holds under full adaptivity, and where the
# data decide which questions are answered: docs/privacy.md has the proof.

MOST_ANSWERS = 1 << 20  #: that one budget may be for
LARGEST_ANSWER = 50.0  #: ε₀, nats; above, an answer would promise nothing

_STEP = 2.0**-50  # what one step of a product may lose, relative: five roundings
_LEAST = 2.0**-1020  # where terms end: what any later one may be, and what this one may have lost


def composition_delta(answers: int, *, each: float, epsilon: float) -> float:
    """The δ at which n answers, each ε₀-DP, are together (ε, δ)-DP, exactly; rounded up.

        δ = Σ_k C(n, k) p^k (1 − p)^(n−k) · max(0, 1 − e^(ε − (2k − n)ε₀)),  p = e^ε₀/(1 + e^ε₀)

    Args:
        answers: n; 0 to 2^20.
        each: ε₀ in nats; 0 ≤ ε₀ ≤ 50.
        epsilon: ε in nats; 0 ≤ ε ≤ 1e15.

    Returns:
        δ, a probability; above the truth by at most 1e-9, relative, where it is 1e-290 or more, and
        by 2⁻⁴⁹ nε₀ where no more than that lies between ε and nε₀.

    Raises:
        ParameterError: an argument is outside its range.

    Source: as at the top of this file. Two responses of e^ε₀ = 3 at ε = 0: ratios of 9, 1 and 1/9, so
    δ is 9/16 − 1/16.

    >>> round(composition_delta(2, each=math.log(3), epsilon=0.0), 9)
    0.5
    """
    check_integer("answers", answers, 0, MOST_ANSWERS)
    _check_each(each)
    epsilon = check_amount("epsilon", epsilon)
    if answers * Fraction(each) <= Fraction(epsilon):
        return 0.0
    mode = min(answers, math.floor((answers + 1) / (1 + math.exp(-each))))
    whole, worst, lost = [], [], 0.0
    for truths, term in _terms(answers, each, mode):
        doubt = _STEP * (abs(truths - mode) + 4)
        whole.append(term * max(0.0, 1 - doubt))
        loss = (2 * truths - answers) * each
        gap = loss - epsilon + 2.0**-51 * (abs(loss) + epsilon)
        if gap > 0:
            worst.append(term * (1 + doubt) * -math.expm1(-gap) * (1 + _STEP))
        if term < _LEAST:
            lost = answers * _LEAST
    return min(1.0, math.fsum(worst) / math.fsum(whole) * (1 + _STEP) + lost)


def composition_epsilon(answers: int, *, each: float, delta: float) -> float:
    """The smallest ε at which n answers, each ε₀-DP, are together (ε, δ)-DP; rounded up.

    Args:
        answers: n; 0 to 2^20.
        each: ε₀ in nats; 0 ≤ ε₀ ≤ 50.
        delta: δ, a probability; 1e-300 ≤ δ < 1.

    Returns:
        ε in nats; at most nε₀, rounded up.

    Raises:
        ParameterError: an argument is outside its range.

    Source: as `composition_delta`, and the same point.

    >>> round(composition_epsilon(2, each=math.log(3), delta=0.5), 9)
    0.0
    """
    check_integer("answers", answers, 0, MOST_ANSWERS)
    _check_each(each)
    check_delta("delta", delta)
    high = math.nextafter(answers * each, math.inf) if answers and each else 0.0
    low = 0.0
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        if composition_delta(answers, each=each, epsilon=middle) <= delta:
            high = middle
        else:
            low = middle
        if high < 1e-15:  # what is left of nothing
            break
    return high


def composition_each(answers: int, *, epsilon: float, delta: float) -> float:
    """The largest ε₀ of which n answers are together (ε, δ)-DP; rounded down.

    Args:
        answers: n; 1 to 2^20.
        epsilon: ε in nats; 0 < ε ≤ 1e15.
        delta: δ, a probability; 1e-300 ≤ δ < 1.

    Returns:
        ε₀ in nats; at least ε/n, rounded down, and at most 50.

    Raises:
        ParameterError: an argument is outside its range.

    Source: as `composition_delta`. One answer is `pure_budget`; many are far more than ε/n:

    >>> round(composition_each(1, epsilon=1.0, delta=1e-6), 5)
    1.0
    >>> round(composition_each(100, epsilon=1.0, delta=1e-6), 5)
    0.02401
    """
    check_integer("answers", answers, 1, MOST_ANSWERS)
    epsilon = check_amount("epsilon", epsilon)
    check_delta("delta", delta)
    if not epsilon > 0:
        raise ParameterError("epsilon", epsilon, "above 0")
    low = min(LARGEST_ANSWER, down(epsilon / answers))
    high = min(LARGEST_ANSWER, pure_budget(epsilon, delta=delta))
    while high - low > 2.0**-50 * high:
        middle = (low + high) / 2
        if composition_delta(answers, each=middle, epsilon=epsilon) <= delta:
            low = middle
        else:
            high = middle
    return low


def composition_answers(each: float, *, epsilon: float, delta: float) -> int:
    """How many answers, each ε₀-DP, are together (ε, δ)-DP; never too many.

    Args:
        each: ε₀ in nats; 0 < ε₀ ≤ 50.
        epsilon: ε in nats; 0 ≤ ε ≤ 1e15.
        delta: δ, a probability; 1e-300 ≤ δ < 1.

    Returns:
        n, at most 2^20; 0 where not even one fits.

    Raises:
        ParameterError: an argument is outside its range.

    Source: as `composition_delta`.

    >>> composition_answers(0.05, epsilon=1.0, delta=1e-6)
    26
    """
    _check_each(each)
    if not each > 0:
        raise ParameterError("each", each, "above 0")
    check_amount("epsilon", epsilon)
    check_delta("delta", delta)

    def fits(answers: int) -> bool:
        return composition_delta(answers, each=each, epsilon=epsilon) <= delta

    low, high = 0, 1
    while high <= MOST_ANSWERS and fits(high):
        low, high = high, 2 * high
    high = min(high, MOST_ANSWERS + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _terms(answers: int, each: float, mode: int) -> Iterator[tuple[int, float]]:
    """Every k with C(n, k) e^(kε₀), as a multiple of the one at the mode, the largest.

    Away from it they fall faster and faster; on either side the first one below 2⁻¹⁰²⁰ is the last.
    """
    grown = math.exp(each)
    yield mode, 1.0
    term = 1.0
    for k in range(mode, answers):
        term *= (answers - k) / (k + 1) * grown
        yield k + 1, term
        if term < _LEAST:
            break
    term = 1.0
    for k in range(mode, 0, -1):
        term *= k / (answers - k + 1) / grown
        yield k - 1, term
        if term < _LEAST:
            break


def _check_each(each: float) -> None:
    if not check_amount("each", each) <= LARGEST_ANSWER:
        raise ParameterError("each", each, f"at most {LARGEST_ANSWER:g}")
