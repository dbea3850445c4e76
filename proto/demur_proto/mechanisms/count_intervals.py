"""Intervals for how many people hold a category, by the law of its support count.

With c of n reports that support a category, held by n_v people,

    c ~ Bin(n_v, p) + Bin(n − n_v, q),

and c grows with n_v. So the interval holds every n_v under which neither tail of that law at c is α/2
or less. Where the law's variance is small the tails are added up, so that the interval misses with
probability α at most, whatever n_v is. Elsewhere a score test decides: the normal law at the variance
that n_v implies, with a correction for whole numbers and for the law's third and fourth cumulants.
"""

from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist

import numpy as np

from demur_proto.arrays import Flags, Integers, Values, Vector

LARGEST_EXACT = 100.0  #: variance of a support count up to which its tails are added up
REACH = 90
"""Steps on either side of the mean that are added up: what lies beyond has a probability below 1e-13 by
Bernstein's inequality, exp(−h²/(2(V + h/3))) at V = 100."""
AT_ONCE = 1 << 11  #: pairs of c and n_v whose tails are added up in one go
SURE = 1e-300  #: the least chance that is told from none


@dataclass(frozen=True, slots=True, kw_only=True)
class Chance:
    """A probability and what is left of it, each with all its digits."""

    yes: float
    no: float

    @classmethod
    def of(cls, chance: Fraction) -> "Chance":
        """From a probability, 0 to 1."""
        return cls(yes=float(chance), no=float(1 - chance))

    @property
    def other(self) -> "Chance":
        """That it does not happen."""
        return Chance(yes=self.no, no=self.yes)

    @property
    def variance(self) -> float:
        """Of one coin."""
        return self.yes * self.no

    @property
    def third(self) -> float:
        """Third cumulant of one coin."""
        return self.variance * (self.no - self.yes)

    @property
    def fourth(self) -> float:
        """Fourth cumulant of one coin."""
        return self.variance * (1 - 6 * self.variance)


def count_intervals(
    supports: Integers, *, reports: int, own: Fraction, other: Fraction, confidence: float
) -> tuple[Vector, Vector]:
    """The lower and upper ends [k] of the intervals for n_v; whole numbers from 0 to n.

    Args:
        supports: c of each category [k]; 0 to n, not checked.
        reports: n; >= 1, not checked.
        own: p; > q, not checked.
        other: q; >= 0, not checked.
        confidence: with which each interval holds; 0.5 to 1 − 1e-9, not checked.

    Source: Clopper & Pearson 1934, Biometrika 26, for exact tails; Cornish & Fisher 1938, Revue de
    l'Institut International de Statistique 5, for the quantile of a law with given cumulants.

    Ten of ten fair answers support nobody's category with probability 2⁻¹⁰ only; with every answer kept
    by three in four, the fewest people who make that likelier than 1/40 are four: (3/4)⁴/2⁶ is .0049,
    so there must be more.

    >>> low, high = count_intervals(np.array([10]), reports=10, own=Fraction(3, 4),
    ...                             other=Fraction(1, 2), confidence=0.95)
    >>> int(low[0]), int(high[0])  # (3/4)⁸/2² is .0250282, and .0167 with seven
    (8, 10)
    """
    different, where = np.unique(supports, return_inverse=True)
    mine, others = Chance.of(own), Chance.of(other)
    tail = (1 - confidence) / 2
    low = _least(different, reports=reports, own=mine, other=others, tail=tail)
    # Reports that do not support it: each of those without the category is one, with 1 − q > 1 − p.
    fewest = _least(
        reports - different, reports=reports, own=others.other, other=mine.other, tail=tail
    )
    return low[where].astype(np.float64), (reports - fewest)[where].astype(np.float64)


def _least(
    supports: Integers, *, reports: int, own: Chance, other: Chance, tail: float
) -> Integers:
    """The smallest n_v with P(C ≥ c) > `tail` for each c [u]; n where there is none."""
    most = np.full(len(supports), reports, dtype=np.int64)
    below = np.full(len(supports), -1, dtype=np.int64)
    while (left := most - below > 1).any():
        middle = (most[left] + below[left]) >> 1
        fits = _upper_exceeds(supports[left], middle, reports, own, other, tail)
        most[left] = np.where(fits, middle, most[left])
        below[left] = np.where(fits, below[left], middle)
    return most


def _upper_exceeds(
    supports: Integers, held: Integers, reports: int, own: Chance, other: Chance, tail: float
) -> Flags:
    """Whether P(C ≥ c) > `tail` where n_v people hold the category, for each pair [u]."""
    rest = reports - held
    variance = held * own.variance + rest * other.variance
    exact = variance <= LARGEST_EXACT
    large = np.maximum(variance, LARGEST_EXACT)
    z = -NormalDist().inv_cdf(tail)
    skew = (held * own.third + rest * other.third) / large**1.5
    excess = (held * own.fourth + rest * other.fourth) / large**2
    reach = (
        z + skew * (z**2 - 1) / 6 + excess * (z**3 - 3 * z) / 24 - skew**2 * (2 * z**3 - 5 * z) / 36
    )
    above = supports - (held * own.yes + rest * other.yes) - 0.5
    fits: Flags = above < reach * np.sqrt(large)
    places = np.flatnonzero(exact)
    for start in range(0, len(places), AT_ONCE):
        some = places[start : start + AT_ONCE]
        fits[some] = _upper_tails(supports[some], held[some], rest[some], own, other) > tail
    return fits


def _upper_tails(
    supports: Integers, held: Integers, rest: Integers, own: Chance, other: Chance
) -> Vector:
    """P(Bin(held, p) + Bin(rest, q) ≥ c) of each [u], added up; for variances up to `LARGEST_EXACT`."""
    first, law = _coins(held, own)
    start, others = _coins(rest, other)
    # How likely the others make up at least i of what is missing, counted from their first place.
    upper = np.cumsum(others[:, ::-1], axis=1)[:, ::-1]
    missing = (supports - first - start)[:, None] - np.arange(law.shape[1])
    within = np.clip(missing, 0, upper.shape[1] - 1)
    chances = np.take_along_axis(upper, within, axis=1)
    chances[missing >= upper.shape[1]] = 0.0
    tails: Vector = np.einsum("uj,uj->u", law, chances)
    return tails


def _coins(count: Integers, chance: Chance) -> tuple[Integers, Values]:
    """The laws of so many coins each [u], from a place on: the places [u], and the chances [u, w]."""
    first = (count * chance.yes).astype(np.int64) - REACH
    places = first[:, None] + np.arange(2 * REACH + 1)
    possible = (places >= 0) & (places <= count[:, None])
    odds = max(chance.yes, SURE) / max(chance.no, SURE)
    ratios = np.maximum(count[:, None] - places + 1, 1) / np.maximum(places, 1) * odds
    steps = np.where(possible & (places > 0), np.log(ratios), 0.0)
    logs = np.cumsum(steps, axis=1)
    logs[~possible] = -np.inf
    law = np.exp(logs - logs.max(axis=1, keepdims=True))
    return first, law / law.sum(axis=1, keepdims=True)
