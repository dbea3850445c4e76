"""Filters of other papers for rounds of pure differential privacy, to compare with.

Each answers one question: do these rounds together still fit (ε, δ)? Whoever keeps the state adds
a round with `plus`, asks, and takes the new losses only if they fit. Sums are exact; what is not
rational is rounded up, so a filter never says yes too often.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.outward import ceil_float, up
from demur_proto.ranges import check_amount, check_delta

MOST_ROUNDS = 1 << 40  #: where counting stops


@dataclass(frozen=True, slots=True, kw_only=True)
class PureLosses:
    """What the filters here need to know of the rounds so far.

    Raises:
        ParameterError: a sum is no Fraction, or negative.

    >>> PureLosses().plus(0.5).plus(0.25, rounds=2).squares
    Fraction(3, 8)
    """

    total: Fraction = Fraction(0)  #: Σ ε_t, nats
    squares: Fraction = Fraction(0)  #: Σ ε_t², nats²
    drift: Fraction = Fraction(0)  #: Σ ε_t (e^ε_t − 1)/2, each term rounded up; nats

    def __post_init__(self) -> None:
        for name in ("total", "squares", "drift"):
            if not (type(value := getattr(self, name)) is Fraction and value >= 0):
                raise ParameterError(name, value, "a Fraction >= 0")

    def plus(self, epsilon: float | Fraction, *, rounds: int = 1) -> "PureLosses":
        """The losses after some more rounds, each of them ε-DP.

        Args:
            epsilon: ε in nats, a Fraction where that is exact; 0 ≤ ε ≤ 700.
            rounds: how many; ≥ 0.

        Raises:
            ParameterError: an argument is outside its range.
        """
        if not check_amount("epsilon", epsilon) <= 700:
            raise ParameterError("epsilon", epsilon, "at least 0 and at most 700")
        check_integer("rounds", rounds, 0)
        exact = Fraction(epsilon)
        # The float nearest to an exact ε may be below it by a little less than `up` adds.
        drift = up(float(exact) * math.expm1(float(exact)) / 2) if exact else 0.0
        return PureLosses(
            total=self.total + rounds * exact,
            squares=self.squares + rounds * exact**2,
            drift=self.drift + rounds * Fraction(drift),
        )


def basic_fits(losses: PureLosses, *, epsilon: float | Fraction) -> bool:
    """Whether these rounds are together ε-DP: Σ ε_t ≤ ε, exactly.

    Source: Rogers, Roth, Ullman & Vadhan 2016, arXiv:1605.08294, the filter of basic composition.

    >>> losses = PureLosses().plus(0.25, rounds=4)
    >>> basic_fits(losses, epsilon=1.0), basic_fits(losses.plus(0.25), epsilon=1.0)
    (True, False)
    """
    check_amount("epsilon", epsilon)
    return losses.total <= Fraction(epsilon)


def rogers_fits(
    losses: PureLosses, *, epsilon: float, delta: float, halve_delta: bool = False
) -> bool:
    """Whether these rounds fit (ε, δ) by the first adaptive filter.

        Σ ε_t(e^ε_t − 1)/2 + √( (Σ ε_t² + H) (2 + ln(1 + Σ ε_t²/H)) ln(1/δ) ) ≤ ε,
        H = ε² / (28.04 ln(1/δ))

    Args:
        losses: the rounds.
        epsilon: ε in nats; 0 ≤ ε ≤ 1e15.
        delta: δ, a probability; 1e-300 ≤ δ ≤ 1/e.
        halve_delta: write ln(2/δ) under the root, as where half of δ is kept for rounds that are
            not purely private.

    Returns:
        Whether they fit; rounds that cost nothing always do.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Rogers, Roth, Ullman & Vadhan 2016, arXiv:1605.08294, the filter of advanced
    composition; the concentration bound that it rests on needs ln(1/δ) ≥ 1.

    >>> losses = PureLosses().plus(0.01, rounds=185)
    >>> rogers_fits(losses, epsilon=1.0, delta=1e-5)
    True
    >>> rogers_fits(losses.plus(0.01), epsilon=1.0, delta=1e-5)
    False
    """
    epsilon = check_amount("epsilon", epsilon)
    level = -math.log(check_delta("delta", delta))
    if not level >= 1:
        raise ParameterError("delta", delta, "at most 1/e")
    if losses.squares == 0:
        return True
    least = epsilon**2 / (28.04 * level)
    if least == 0:
        return False
    squares = up(ceil_float(losses.squares))
    width = (squares + least) * (2 + math.log1p(squares / least))
    level += math.log(2) if halve_delta else 0.0
    return up(up(ceil_float(losses.drift)) + math.sqrt(width * level)) <= epsilon


def whitehouse_fits(losses: PureLosses, *, epsilon: float, delta: float) -> bool:
    """Whether these rounds fit (ε, δ) by the filter that matches advanced composition.

        √(2 ln(1/δ) Σ ε_t²) + ½ Σ ε_t² ≤ ε

    Args:
        losses: the rounds.
        epsilon: ε in nats; 0 ≤ ε ≤ 1e15.
        delta: δ, a probability; 1e-300 ≤ δ < 1.

    Returns:
        Whether they fit; rounds that cost nothing always do.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Whitehouse, Ramdas, Rogers & Wu 2023, arXiv:2203.05481, the filter for (ε, δ). It is
    the simple zCDP budget with charges ½ε².

    >>> losses = PureLosses().plus(0.01, rounds=416)
    >>> whitehouse_fits(losses, epsilon=1.0, delta=1e-5)
    True
    >>> whitehouse_fits(losses.plus(0.01), epsilon=1.0, delta=1e-5)
    False
    """
    epsilon = check_amount("epsilon", epsilon)
    level = -math.log(check_delta("delta", delta))
    if losses.squares == 0:
        return True
    squares = up(ceil_float(losses.squares))
    return up(math.sqrt(2 * level * squares) + squares / 2) <= epsilon


def rounds_that_fit(round_epsilon: float | Fraction, fits: Callable[[PureLosses], bool]) -> int:
    """The largest number of equal rounds that a filter accepts, at most 2^40.

    Args:
        round_epsilon: ε of each round in nats, as in `PureLosses.plus`.
        fits: one of the filters here, its target filled in.

    >>> rounds_that_fit(0.25, lambda losses: basic_fits(losses, epsilon=1.0))
    4
    """

    def accepted(rounds: int) -> bool:
        return fits(PureLosses().plus(round_epsilon, rounds=rounds))

    low, high = 0, 1
    while accepted(high):
        low, high = high, 2 * high
        if high > MOST_ROUNDS:
            return low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accepted(middle) else (low, middle)
    return low
