"""Categories as symbols: 0 is null, outside the domain; category c is symbol c + 1."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist
from typing import Any

import numpy as np

from demur_proto.accounting.divergences import Level, levels_renyi, levels_zcdp
from demur_proto.arrays import Flags, Integers, Values, Vector, Words
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.base import CONFIDENCE, Estimate
from demur_proto.samplers.base import BitSource, Sampler


def encode_categories(values: Values, *, categories: int) -> tuple[Words, Integers]:
    """Values [n, 1] to symbols [n, 1], and what each costs in round weights [n]: 1, or 0 for null.

    Whatever is no integer from 0 to categories − 1 has no category: it becomes null.

    Raises:
        ParameterError: the values are not of shape [n, 1].

    >>> symbols, charges = encode_categories(np.array([[0.0], [2.0], [np.nan]]), categories=2)
    >>> symbols.ravel().tolist(), charges.tolist()
    ([1, 0, 0], [1, 0, 0])
    """
    check_one_column(values)
    with np.errstate(invalid="ignore"):
        inside = (values >= 0) & (values < categories) & (np.rint(values) == values)
    symbols: Words = np.where(inside, values, -1.0).astype(np.int64) + 1
    charges: Integers = (symbols[:, 0] > 0).astype(np.int64)
    return symbols, charges


def categories_of(values: Values, *, categories: int) -> Values:
    """The categories that values name [any shape]: these themselves, but with one category 1, which is yes.

    >>> categories_of(np.array([1.0, 0.0]), categories=1), categories_of(np.array([1.0]), categories=2)
    (array([ 0., -1.]), array([1.]))
    """
    return values - 1 if categories == 1 else values


def check_one_column(values: Values) -> None:
    """Refuse values that are not one number each.

    Raises:
        ParameterError: the values are not of shape [n, 1].
    """
    if values.ndim != 2 or values.shape[1] != 1:
        raise ParameterError("values", values.shape, "of shape [n, 1]")


def check_symbols(words: Words, *, categories: int) -> Integers:
    """The symbols [n] of words [n, 1].

    Raises:
        ParameterError: the words are not of that shape or hold no symbols. Without the values,
            which are secret.
    """
    if words.ndim != 2 or words.shape[1] != 1 or words.dtype.kind not in "iu":
        raise ParameterError("words", f"{words.dtype} {words.shape}", "integers of shape [n, 1]")
    symbols: Integers = words[:, 0]
    check_range("words", symbols, categories=categories)
    return symbols


def check_range(name: str, symbols: np.ndarray[tuple[int], Any], *, categories: int) -> None:
    """Refuse integers [n] that are not all symbols; the error does not repeat them."""
    if symbols.size and not (symbols.min() >= 0 and symbols.max() <= categories):
        raise ParameterError(name, "another value", f"symbols from 0 to {categories}")


# Intervals for how many people hold a category, by the law of its support count.
#
# With c of n reports that support a category, held by n_v people,
#
#     c ~ Bin(n_v, p) + Bin(n − n_v, q),
#
# and c grows with n_v. So the interval holds every n_v under which neither tail of that law at c is α/2
# or less. Where the law's variance is small the tails are added up, so that the interval misses with
# probability α at most, whatever n_v is. Elsewhere a score test decides: the normal law at the variance
# that n_v implies, with a correction for whole numbers and for the law's third and fourth cumulants.

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


# How many people hold each category: the server half that all categorical mechanisms share.

MOST_REPORTS = 1 << 53  #: of one round, so that counts are floats
MOST_CATEGORIES = 1 << 20
LEAST_CONFIDENCE, MOST_CONFIDENCE = 0.5, 1 - 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Frequencies:
    """Unbiased counts from support counts.

    A report supports some categories. It supports its person's own with probability p, and each other
    one with probability q < p, whatever the person's category is, and also where there is none. So with
    c_v reports that support v out of n,

        n̂_v = (c_v − nq)/(p − q)

    is unbiased for the number of people who gave category v; a cover report, of the null symbol,
    adds nothing to any estimate in the mean.

    Raises:
        ParameterError: not 0 ≤ q < p ≤ 1.

    Source: Wang et al. 2017, USENIX Security, "pure" protocols, equations (1) and (2).

    >>> honest = Frequencies(own=Fraction(3, 4), other=Fraction(1, 4))
    >>> honest.estimate(np.array([60, 40]), reports=100).estimate
    array([70., 30.])
    """

    own: Fraction  #: p
    other: Fraction  #: q

    def __post_init__(self) -> None:
        if not (type(self.own) is Fraction and 0 < self.own <= 1):
            raise ParameterError("own", self.own, "a Fraction > 0 and <= 1")
        if not (type(self.other) is Fraction and 0 <= self.other < self.own):
            raise ParameterError("other", self.other, "a Fraction >= 0 and below own")

    def variance(self, count: float, *, reports: int) -> float:
        """Variance of n̂_v where `count` of the people behind `reports` reports gave v.

            ( n_v p(1 − p) + (n − n_v) q(1 − q) ) / (p − q)²

        >>> Frequencies(own=Fraction(3, 4), other=Fraction(1, 4)).variance(0.0, reports=100)
        75.0
        """
        check_integer("reports", reports, 1, MOST_REPORTS)
        number = isinstance(count, float | int) and not isinstance(count, bool)
        if not (number and 0 <= count <= reports):
            raise ParameterError("count", count, f"between 0 and {reports}")
        own, other = self._variances
        return count * own + (reports - count) * other

    def estimate(
        self, supports: Integers, *, reports: int, confidence: float = CONFIDENCE
    ) -> Estimate:
        """Support counts [k] to estimates; their errors have the estimate itself plugged in.

        The intervals are those of `count_intervals`: from 0 to n, with whole numbers as ends, and not
        symmetric around the estimate, which may be below 0. Each holds with the confidence. All k of
        them hold at once with a confidence of 1 − k(1 − confidence) at least.

        Args:
            supports: c_v [k], integers from 0 to `reports`.
            reports: n; >= 1.
            confidence: of each interval; 0.5 to 1 − 1e-9.

        Raises:
            ParameterError: an argument is outside its range, or there is no report.
        """
        check_integer("reports", reports, 1, MOST_REPORTS)
        if supports.ndim != 1 or supports.dtype.kind not in "iu":
            raise ParameterError("supports", f"{supports.dtype} {supports.shape}", "integers [k]")
        if supports.size and not (supports.min() >= 0 and supports.max() <= reports):
            raise ParameterError("supports", "a larger or negative count", f"within 0..{reports}")
        if not isinstance(confidence, float) or not (
            LEAST_CONFIDENCE <= confidence <= MOST_CONFIDENCE
        ):
            raise ParameterError("confidence", confidence, "a float from 0.5 to 1 - 1e-9")
        # nq and p − q are correctly rounded once each: an error of n/2^53 beside a standard error of
        # √(nq(1 − q)) or more.
        shift, gap = float(reports * self.other), float(self.own - self.other)
        counts: Vector = (supports.astype(np.float64) - shift) / gap
        own, other = self._variances
        held = np.clip(counts, 0.0, float(reports))
        errors = np.sqrt(held * own + (reports - held) * other)
        low, high = count_intervals(
            supports.astype(np.int64, copy=False),
            reports=reports,
            own=self.own,
            other=self.other,
            confidence=confidence,
        )
        return Estimate(estimate=counts, standard_error=errors, low_end=low, high_end=high)

    @property
    def _variances(self) -> tuple[float, float]:
        """What a person with the category, and one without, adds to the variance."""
        squared = (self.own - self.other) ** 2
        return (
            float(self.own * (1 - self.own) / squared),
            float(self.other * (1 - self.other) / squared),
        )


def check_categories(categories: int) -> None:
    """Refuse what is not a number of categories from 2 to 2²⁰."""
    check_integer("categories", categories, 2, MOST_CATEGORIES)


def fits(reports: Words, *, length: int) -> bool:
    """Whether these are integers of shape [n, length], as reports of so many words are."""
    return reports.ndim == 2 and reports.shape[1] == length and reports.dtype.kind in "iu"


def check_reports(reports: Words, *, length: int) -> None:
    """Refuse what are not reports of so many words."""
    if not fits(reports, length=length):
        found = f"{reports.dtype} {reports.shape}"
        raise ParameterError("reports", found, f"integers of shape [n, {length}]")


def check_sums(sums: Integers, *, length: int) -> None:
    """Refuse what are not so many counts."""
    if sums.shape != (length,) or sums.dtype.kind not in "iu":
        raise ParameterError("sums", f"{sums.dtype} {sums.shape}", f"integers of shape [{length}]")
    if sums.min() < 0:
        raise ParameterError("sums", "a negative count", ">= 0")


def tally_indices(reports: Words, *, size: int) -> Integers:
    """How often each index below `size` came among reports [n, 1] of one index each [size].

    Raises:
        ParameterError: the reports are not of that shape, or hold another number.

    >>> tally_indices(np.array([[2], [0], [2]]), size=4)
    array([1, 0, 2, 0])
    """
    check_reports(reports, length=1)
    if reports.size and not (reports.min() >= 0 and reports.max() < size):
        raise ParameterError("reports", "another number", f"indices from 0 to {size - 1}")
    counts: Integers = np.bincount(reports[:, 0], minlength=size)
    return counts


def check_symbol(symbol: int, categories: int) -> None:
    """Refuse what is not a symbol: 0 for null, or a category plus 1.

    The error does not repeat the symbol, which is secret.
    """
    if type(symbol) is not int or not 0 <= symbol <= categories:
        raise ParameterError("symbol", "another value", f"an integer from 0 to {categories}")


# What mechanisms for one of k categories share: symbols, an all-or-nothing charge, estimates.


@dataclass(frozen=True, slots=True, kw_only=True)
class Categorical(ABC):
    """A mechanism for one of k categories, each of which costs the same; nothing costs nothing.

    Its words are symbols [n, 1]: 0 is null, category c is c + 1. A symbol is secret, and so is what
    it costs.
    """

    categories: int  #: k; 2 to 2^20
    epsilon: float  #: ε of a report between two categories, nats; 1e-9 to 50

    @property
    @abstractmethod
    def report_length(self) -> int:
        """Words in one report."""

    @property
    @abstractmethod
    def sums_length(self) -> int:
        """Numbers that the server keeps for a round."""

    @property
    @abstractmethod
    def frequencies(self) -> Frequencies:
        """How reports support categories, and so how far estimates are off."""

    @property
    @abstractmethod
    def _levels(self) -> tuple[Level, ...]:
        """Reports about a category against those about null."""

    @property
    def largest(self) -> int:
        """The largest charge that `encode` gives, in round weights."""
        return 1

    @property
    def largest_charge(self) -> float:
        """The largest ρ that a round may ask for a category, nats: what it costs, unless overridden."""
        return self.charge_zcdp(1)

    def sound(self, values: Values) -> Flags:
        """Every row [n]: whoever gives what is no category has none, and that is a value as well.

        Raises:
            ParameterError: the values are not of shape [n, 1].
        """
        check_one_column(values)
        return np.ones(len(values), dtype=np.bool_)

    def encode(self, values: Values, sampler: Sampler) -> tuple[Words, Integers]:
        """Device half, before the decision: categories [n, 1] to symbols [n, 1]; see `symbols`."""
        return encode_categories(values, categories=self.categories)

    @abstractmethod
    def randomise(self, words: Words, sampler: BitSource) -> Words:
        """Device half, after the decision: symbols [n, 1] to reports [n, w].

        Raises:
            ParameterError: the words are no symbols.
        """

    @abstractmethod
    def valid(self, reports: Words) -> Flags:
        """Server half: which reports [n, w] this mechanism could have made [n]."""

    @abstractmethod
    def tally(self, reports: Words) -> Integers:
        """Server half: what valid reports [n, w] add to the round's sums; exact.

        Raises:
            ParameterError: the reports are not of that shape.
        """

    def estimate(self, sums: Integers, *, reports: int, confidence: float = CONFIDENCE) -> Estimate:
        """Server half: support counts [k] of n reports to people with each; see `Frequencies`.

        Raises:
            ParameterError: the sums are not k counts, or there is no report.
        """
        check_sums(sums, length=self.sums_length)
        return self.frequencies.estimate(sums, reports=reports, confidence=confidence)

    def charge_renyi(self, symbol: int, *, order: float) -> float:
        """D_α of releasing this symbol against null, nats, rounded up. Secret.

        Args:
            symbol: 0 for null, or a category plus 1.
            order: α; 1 (KL) or more, or infinite.

        Raises:
            ParameterError: an argument is outside its range.
        """
        check_symbol(symbol, self.categories)
        charge = levels_renyi(self._levels, order=order)
        return charge if symbol else 0.0

    def charge_zcdp(self, symbol: int) -> float:
        """ρ of releasing this symbol against null, nats, rounded up. Secret."""
        check_symbol(symbol, self.categories)
        return levels_zcdp(self._levels) if symbol else 0.0

    def charge_pure(self, symbol: int) -> float:
        """ε of releasing this symbol against null, nats, rounded up. Secret."""
        return self.charge_renyi(symbol, order=math.inf)


# What mechanisms share whose report is one index, drawn many at a time on narrow integers.

ROWS = 1 << 14  #: drawn at a time, so that all passes over them stay in the processor's cache

Symbols = np.ndarray[tuple[int], np.dtype[np.int32]]  # shape [n]


@dataclass(frozen=True, slots=True, kw_only=True)
class OneIndex(Categorical):
    """A categorical mechanism that reports an index from 0 on."""

    @property
    @abstractmethod
    def indices(self) -> int:
        """How many there are."""

    @property
    def report_length(self) -> int:
        """Words in one report: the index."""
        return 1

    def randomise(self, words: Words, sampler: BitSource) -> Words:
        """Device half, after the decision: symbols [n, 1] to indices [n, 1].

        Raises:
            ParameterError: the words are no symbols.
        """
        symbols = check_symbols(words, categories=self.categories)
        reports: Integers = np.empty(len(symbols), dtype=np.int64)
        self._draw(symbols, sampler, out=reports)
        return reports[:, None]

    def draw(self, symbols: Symbols, source: BitSource) -> Symbols:
        """`randomise` on narrow integers: symbols [n], each from 0 to k, to indices [n].

        Raises:
            ParameterError: a symbol is none.
        """
        check_range("symbols", symbols, categories=self.categories)
        indices: Symbols = np.empty(len(symbols), dtype=np.int32)
        self._draw(symbols, source, out=indices)
        return indices

    def _draw(
        self, symbols: Symbols | Integers, source: BitSource, *, out: Symbols | Integers
    ) -> None:
        """Indices for symbols [n] into `out` [n]."""
        for at in range(0, len(symbols), ROWS):
            own = symbols[at : at + ROWS].astype(np.int32, copy=False)
            out[at : at + ROWS] = self._drawn(own, source)

    @abstractmethod
    def _drawn(self, own: Symbols, source: BitSource) -> Symbols:
        """Indices for a few symbols [n]."""

    def valid(self, reports: Words) -> Flags:
        """Server half: which reports [n, 1] are indices [n]."""
        if not fits(reports, length=self.report_length):
            return np.zeros(len(reports), dtype=np.bool_)
        inside: Flags = (reports[:, 0] >= 0) & (reports[:, 0] < self.indices)
        return inside
