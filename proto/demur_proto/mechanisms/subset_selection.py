"""Subset selection: a few symbols, among which one's own is likely."""

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from demur_proto.accounting.divergences import Level, apart_levels
from demur_proto.arrays import Flags, Integers, Words
from demur_proto.checks import check_integer
from demur_proto.mechanisms.categorical import (
    Categorical,
    Frequencies,
    check_categories,
    check_reports,
    check_symbols,
    fits,
)
from demur_proto.mechanisms.thresholds import (
    Threshold,
    check_epsilon,
    keep_threshold,
    uniform_below,
)
from demur_proto.samplers.base import BitSource

ROWS = 1 << 12  #: drawn at a time, so that all passes over them stay in the processor's cache
FLAGS = 1 << 22  #: likewise, at most, where there are many categories


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsetSelection(Categorical):
    """Report w of the k + 1 symbols: one's own is among them with probability p, the rest are random.

        p = w e^ε/(w e^ε + k + 1 − w) as an integer threshold

    Null is a symbol like the others. Neighbour: zero-out, the category replaced by null. Between any
    two symbols no likelihood ratio exceeds e^ε, exactly. Accounting is all or nothing: a category
    costs what every other one costs, null costs 0. The least variance of all for middling ε.

    A report is k words, 1 for the categories in the subset, else 0; whether null is in it
    follows from their number.

    Raises:
        ParameterError: a field is outside its range.

    Source: Ye & Barg 2018, arXiv:1702.00610; Wang et al. 2016, arXiv:1607.08025.

    >>> mechanism = SubsetSelection(categories=7, epsilon=math.log(3))
    >>> mechanism.size, round(float(mechanism.frequencies.own), 12)
    (2, 0.5)
    >>> round(mechanism.charge_renyi(1, order=math.inf) - math.log(3), 12)
    0.0
    """

    size: int = 0  #: w, 1 to k; 0 takes the one with the least variance
    own: Threshold = field(init=False, repr=False)  #: p

    def __post_init__(self) -> None:
        check_categories(self.categories)
        check_epsilon(self.epsilon)
        check_integer("size", self.size, 0, self.categories)
        options = self.categories + 1
        if self.size == 0:
            object.__setattr__(self, "size", best_size(self.epsilon, options=options))
        others = Fraction(options - self.size, self.size)
        object.__setattr__(self, "own", keep_threshold(self.epsilon, others=others))

    @property
    def report_length(self) -> int:
        """Words in one report: one for each category."""
        return self.categories

    @property
    def sums_length(self) -> int:
        """Numbers that the server keeps: how often each category was in the subset."""
        return self.categories

    @property
    def frequencies(self) -> Frequencies:
        """How reports support categories, exactly: p, and (w − p)/k."""
        own = self.own.probability
        return Frequencies(own=own, other=(self.size - own) / self.categories)

    def randomise(self, words: Words, sampler: BitSource) -> Words:
        """Device half, after the decision: symbols [n, 1] to subsets [n, k].

        Raises:
            ParameterError: the words are no symbols.
        """
        symbols = check_symbols(words, categories=self.categories)
        reports: Words = np.empty((len(symbols), self.categories), dtype=np.int64)
        rows = max(1, min(ROWS, FLAGS // self.categories))
        for at in range(0, len(symbols), rows):
            own = symbols[at : at + rows].astype(np.int64, copy=False)
            reports[at : at + rows] = self._draw(own, sampler)
        return reports

    def _draw(self, symbols: Integers, source: BitSource) -> Flags:
        """The subsets as flags [n, k], by Floyd's method.

        The k symbols that are not one's own have a column each, in which they stand in their order,
        but for the last one: that takes the place of one's own, whose column is the last. What is
        drawn, and in what order, does not depend on any symbol.
        """
        count, others = len(symbols), self.categories
        row = np.arange(count) * (others + 1)
        flags = np.zeros(count * (others + 1), dtype=np.bool_)
        own = self.own.draw(source, count)
        # A uniform subset of the others: w of them, or one less where own is in it.
        for last in range(others - self.size, others):
            place = uniform_below(last + 1, source, count)
            place += row
            np.copyto(place, row + last, where=flags[place])
            flags[place] = ~own if last == others - self.size else True
        flags[row + others] = flags[row + symbols]
        flags[row + symbols] = own
        return flags.reshape(count, others + 1)[:, 1:]  # symbol 0 is null

    def valid(self, reports: Words) -> Flags:
        """Server half: which reports [n, k] are w of the symbols [n]."""
        if not fits(reports, length=self.report_length):
            return np.zeros(len(reports), dtype=np.bool_)
        inside: Flags = ((reports == 0) | (reports == 1)).all(axis=1)
        held = reports.sum(axis=1)  # of a row that is not inside, whatever it may be
        inside &= (held == self.size) | (held == self.size - 1)
        return inside

    def tally(self, reports: Words) -> Integers:
        """Server half: how often each category was in the subset [k]; exact.

        Raises:
            ParameterError: the reports are not integers [n, k].
        """
        check_reports(reports, length=self.report_length)
        sums: Integers = reports.sum(axis=0, dtype=np.int64)
        return sums

    @property
    def _levels(self) -> tuple[Level, ...]:
        return subset_levels(self.epsilon, options=self.categories + 1, size=self.size)


def best_size(epsilon: float, *, options: int) -> int:
    """The subset size that gives the least variance for a rare category: near options/(e^ε + 1).

    >>> best_size(math.log(3), options=8)
    2
    """
    check_epsilon(epsilon)
    check_integer("options", options, 2, 1 << 53)
    grown = math.exp(epsilon)

    def variance(size: int) -> float:
        own = size * grown / (size * grown + options - size)
        other = (size - own) / (options - 1)
        return other * (1 - other) / (own - other) ** 2

    near = math.floor(options / (grown + 1))
    return min((size for size in (near, near + 1) if 1 <= size < options), key=variance)


def subset_levels(epsilon: float, *, options: int, size: int) -> tuple[Level, ...]:
    """Subsets of one symbol against those of another: with the first only, the second only, or not.

    Args:
        epsilon: ε, nats; 1e-9 to 50.
        options: how many symbols there are; 2 to 2^53.
        size: w; 1 to options − 1.

    Raises:
        ParameterError: an argument is outside its range.

    >>> [round(level.mass, 3) for level in subset_levels(math.log(3), options=8, size=2)]
    [0.143, 0.429, 0.429]
    """
    check_epsilon(epsilon)
    check_integer("options", options, 2, 1 << 53)
    check_integer("size", size, 1, options - 1)
    whole = size * math.exp(epsilon) + options - size
    apart = size * (options - size) / (options - 1) / whole
    return apart_levels(epsilon, apart=apart)
