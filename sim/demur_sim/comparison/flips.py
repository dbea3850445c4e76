"""Exchangeable laws of k signs, by how many of them are −1: noise that is drawn before the data come.

A law gives every sequence of d flips the weight w_d. Whoever multiplies k signs of their own by such a
sequence has, whatever the signs were and whenever they came, one of 2^k results, of likelihoods w_d/W
with W = Σ C(k, d) w_d; against k fair coins the ratios are 2^k w_d/W. Using fewer of the signs than k
averages ratios, and never widens their range. Weights are integers, so all of this is exact.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol, TypeVar

import numpy as np

from demur_proto.accounting.numerics import up
from demur_proto.arrays import Flags, Vector
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.thresholds import check_epsilon
from demur_sim.comparison.design import check_horizon, checked_rounds, odds_of

MOST_CHANGES = 32
_DIGITS = 61  # of W, with room for rounding in 63

SignRows = np.ndarray[tuple[int, int], np.dtype[np.int8]]  # shape [n, k], −1 or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Flips:
    """A law of k signs.

    Raises:
        ParameterError: there are not from 2 to 33 weights, all positive integers, of W < 2^63.

    >>> flips = Flips(weights=(3, 1))  # the truth with probability 3/4
    >>> flips.lean, round(math.exp(flips.epsilon), 9), round(math.exp(flips.pair_epsilon), 9)
    (Fraction(1, 2), 2.0, 3.0)
    """

    weights: tuple[int, ...]  #: w_0 to w_k
    whole: int = field(init=False)  #: W

    def __post_init__(self) -> None:
        good = type(self.weights) is tuple and 2 <= len(self.weights) <= MOST_CHANGES + 1
        if not (good and all(type(weight) is int and weight > 0 for weight in self.weights)):
            raise ParameterError("weights", self.weights, "2 to 33 positive integers")
        whole = sum(self.masses)
        if not whole < 1 << 63:
            raise ParameterError("weights", self.weights, "of a sum W below 2^63")
        object.__setattr__(self, "whole", whole)

    @property
    def changes(self) -> int:
        """How many signs, k."""
        return len(self.weights) - 1

    @property
    def masses(self) -> tuple[int, ...]:
        """C(k, d) w_d for d = 0 to k."""
        k = self.changes
        return tuple(math.comb(k, d) * weight for d, weight in enumerate(self.weights))

    @property
    def ratios(self) -> tuple[Fraction, Fraction]:
        """The smallest and the largest likelihood ratio against fair coins, exactly."""
        coin = Fraction(1 << self.changes, self.whole)
        return min(self.weights) * coin, max(self.weights) * coin

    @property
    def epsilon(self) -> float:
        """ε against fair coins in nats, rounded up."""
        low, high = self.ratios
        return up(_log(max(1 / low, high)))

    @property
    def pair_epsilon(self) -> float:
        """ε between two sequences of signs in nats, rounded up."""
        low, high = self.ratios
        return up(_log(high / low))

    @property
    def lean(self) -> Fraction:
        """c, the mean of each sign: Σ C(k, d) w_d (1 − 2d/k)/W."""
        k = self.changes
        parts = (mass * (k - 2 * d) for d, mass in enumerate(self.masses))
        return Fraction(sum(parts), k * self.whole)

    def draw(self, people: int, rng: np.random.Generator) -> SignRows:
        """Signs of so many people [n, k]."""
        below = rng.integers(self.whole, size=people, dtype=np.int64)
        edges = np.cumsum(np.array(self.masses, dtype=np.int64))
        flipped = np.searchsorted(edges, below, side="right")
        order = rng.random((people, self.changes)).argsort(axis=1).argsort(axis=1)
        return np.where(order < flipped[:, None], -1, 1).astype(np.int8)


def threshold_flips(*, changes: int, epsilon: float, pair: bool = False) -> Flips:
    """The law of the largest c: few flips have one weight, many another, as far apart as ε allows.

    Against coins (`pair` not set): 2^k w/W is e^ε for d < m, e^(−ε) for d > m and between them at m.
    Between two people: w is e^ε for d ≤ m and 1 for d > m, by the best m. c is linear in w, so it is
    largest where all w but one are at a bound, and rising where fewer flips weigh more.

    Args:
        changes: k; from 1 to 32.
        epsilon: ε, nats; from 1e-9 to 50.
        pair: whether ε is to hold between two sequences of signs, rather than against coins.

    Raises:
        ParameterError: an argument is outside its range, or ε too small for 2^k weights.

    Source: derived above. One sign, e^ε = 3: it is the truth with probability 5/6 or 3/4.

    >>> float(round(threshold_flips(changes=1, epsilon=math.log(3)).lean, 6))
    0.666667
    >>> float(round(threshold_flips(changes=1, epsilon=math.log(3), pair=True).lean, 6))
    0.5
    """
    check_integer("changes", changes, 1, MOST_CHANGES)
    check_epsilon(epsilon)
    most = odds_of(epsilon)
    if pair:
        laws = [_step(most, top=top, changes=changes) for top in range(changes)]
        return max(laws, key=lambda law: law.lean)
    scale = 1 << (_DIGITS - changes)
    low = math.ceil(scale / most) + 1
    high = math.floor(scale * most)
    left = (scale << changes) - (low << changes)  # what is to be spread over weights above low
    if left <= 0:
        raise ParameterError("epsilon", epsilon, f"larger: 2^{changes} weights leave it no digits")
    weights = []
    for d in range(changes + 1):
        more = min(high - low, left // math.comb(changes, d))
        left -= more * math.comb(changes, d)
        weights.append(low + more)
    return Flips(weights=tuple(weights))


def annulus_flips(*, changes: int, epsilon: float) -> Flips:
    """The law of FutureRand: k independent flips, unless their number is unusual.

        p^d (1 − p)^(k−d) for kp − 2√k ≤ d ≤ (k/ε′) ln(2e^ε′/(e^ε′ + 1)),  p = 1/(e^ε′ + 1),
        ε′ = ε/(5√k)

    and what is left is spread evenly over all other sequences. What it guarantees is worked out from
    the law as it is (`Flips.epsilon`, `Flips.pair_epsilon`) and takes no proof of theirs.

    Args:
        changes: k; from 1 to 32.
        epsilon: ε between two people as the paper has it, nats; from 1e-9 to 50.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Ohrimenko, Wirth & Wu 2022, arXiv:2112.12279. One sign: it is kept with odds e^(ε/5).

    >>> law = annulus_flips(changes=1, epsilon=5 * math.log(3))
    >>> float(round(law.lean, 9)), round(law.pair_epsilon / math.log(3), 9)
    (0.5, 1.0)
    """
    check_integer("changes", changes, 1, MOST_CHANGES)
    check_epsilon(epsilon)
    k = changes
    own = epsilon / (5 * math.sqrt(k))
    flip = 1 / (math.exp(own) + 1)
    least = k * flip - 2 * math.sqrt(k)
    most = k / own * (own + math.log(2) - math.log1p(math.exp(own)))
    inside = [least <= d <= most for d in range(k + 1)]
    plain = [flip**d * (1 - flip) ** (k - d) for d in range(k + 1)]
    rest = math.fsum(math.comb(k, d) * plain[d] for d in range(k + 1) if not inside[d])
    room = sum(math.comb(k, d) for d in range(k + 1) if not inside[d])
    law = [plain[d] if inside[d] else rest / room for d in range(k + 1)]
    return Flips(weights=tuple(max(1, round(share * (1 << _DIGITS))) for share in law))


def _step(odds: Fraction, *, top: int, changes: int) -> Flips:
    """Weight e^ε for up to `top` flips, 1 for more."""
    heavy = sum(math.comb(changes, d) for d in range(top + 1))
    unit = (1 << _DIGITS) / (heavy * odds + (1 << changes) - heavy)
    light = math.ceil(unit)
    weight = max(light, math.floor(light * odds))
    return Flips(weights=tuple(weight if d <= top else light for d in range(changes + 1)))


def _log(ratio: Fraction) -> float:
    """The logarithm of a ratio of at least 1; by log1p, as it may be close to that."""
    return math.log1p(float(ratio - 1))


# What it costs to follow only so many changes of everybody, and the best number of them.


class Follows(Protocol):
    """A design that follows the first k changes."""

    @property
    def changes(self) -> int:
        """How many, k."""

    @property
    def deviation(self) -> float:
        """The error by noise for one person, root mean square over rounds."""


Design = TypeVar("Design", bound=Follows)


def truncation_errors(states: Iterable[Flags], *, horizon: int, most: int) -> Vector:
    """How far the fraction is off if everybody's state stays after their k-th change, k = 1 to `most`.

    After c changes a state that began at no is yes where c is odd, so it is followed as min(c, k) is.

    Args:
        states: as in `Baseline.estimates`: of a public model, or of an experiment.
        horizon: T; from 1 to 2^20.
        most: from 1 to 32.

    Returns:
        The error of the fraction [most], root mean square over rounds.

    Raises:
        ParameterError: an argument is outside its range.

    One person, who turns yes, no: followed for one change only, they are wrong in the second round.

    >>> truncation_errors(np.array([[True], [False]]), horizon=2, most=2).round(6).tolist()
    [0.707107, 0.0]
    """
    sums, people = truncation_sums(states, horizon=horizon, most=most)
    errors: Vector = np.sqrt(np.mean((sums / people) ** 2, axis=0))
    return errors


def truncation_sums(
    states: Iterable[Flags], *, horizon: int, most: int
) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.int64]], int]:
    """How many people too many, or too few, are counted in each round for that reason.

    Sums of some people add up to those of all, for whom `truncation_errors` is the root mean square.

    Args:
        states: as in `Baseline.estimates`.
        horizon: T; from 1 to 2^20.
        most: from 1 to 32.

    Returns:
        The sums [T, most], and how many people there are.

    Raises:
        ParameterError: an argument is outside its range.

    >>> truncation_sums(np.array([[True], [False]]), horizon=2, most=2)[0].tolist()
    [[0, 0], [1, 0]]
    """
    check_horizon(horizon)
    check_integer("most", most, 1, MOST_CHANGES)
    limits = np.arange(1, most + 1)[:, None]
    sums = np.zeros((horizon, most), dtype=np.int64)
    last: Flags = np.zeros(1, dtype=np.bool_)
    changes = np.zeros(1, dtype=np.int64)
    for row, state in zip(sums, checked_rounds(states, horizon=horizon), strict=True):
        changes = changes + (state != last)
        last = state
        people = np.bincount(changes)  # by how often they have changed
        counts = np.arange(len(people))
        row[:] = (np.minimum(counts, limits) % 2 - counts % 2) @ people
    return sums, len(last)


def best_changes(
    designs: Sequence[Design], truncation: Vector, *, people: int
) -> tuple[Design, float]:
    """The design with the least error of the fraction, noise and truncation together.

    Args:
        designs: with different k, each at most the length of `truncation`.
        truncation: of `truncation_errors`.
        people: how many answer, n.

    Returns:
        The design, and its error √(truncation² + noise²/n), root mean square over rounds.

    Raises:
        ParameterError: there is no design, or one follows more changes than `truncation` tells of.
    """
    check_integer("people", people, 1)
    if not designs or any(design.changes > len(truncation) for design in designs):
        found = [design.changes for design in designs]
        raise ParameterError(
            "designs", found, f"at least one, of at most {len(truncation)} changes"
        )

    def error(design: Design) -> float:
        return math.hypot(truncation[design.changes - 1], design.deviation / math.sqrt(people))

    best = min(designs, key=error)
    return best, error(best)
