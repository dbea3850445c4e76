"""Exact composition: what n answers of at most ε₀ each are worth together, whatever they are.

The worst n answers are n binary randomised responses with ε₀. Their likelihood ratio is e^((2k − n)ε₀) where k
of them tell the truth, so one sum over k gives the whole privacy curve. δ and ε that are promised are
rounded up, ε₀ and numbers of answers down.

Source: Kairouz, Oh & Viswanath 2015, arXiv:1311.0776, Theorem 3.3. It holds under full adaptivity, and where the
data decide which questions are answered: docs/privacy.md has the proof.
"""

import math
from collections.abc import Iterator
from fractions import Fraction

from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.outward import down
from demur_proto.pure import pure_budget
from demur_proto.ranges import check_amount, check_delta

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
