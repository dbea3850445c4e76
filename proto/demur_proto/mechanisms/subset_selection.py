"""Subset selection: a few symbols, among which one's own is likely."""

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from demur_proto.arrays import Flags, Integers, Values, Words
from demur_proto.bits import BitSource
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.finite_pairs import Level, levels_renyi, levels_zcdp
from demur_proto.mechanisms.base import Estimate
from demur_proto.mechanisms.frequencies import Frequencies, check_categories, check_symbol
from demur_proto.mechanisms.symbols import check_symbols, encode_categories
from demur_proto.mechanisms.thresholds import (
    WHOLE,
    Threshold,
    check_epsilon,
    exp_below,
    uniform_below,
)
from demur_proto.noise import Sampler

ROWS = 1 << 12  #: drawn at a time, so that all passes over them stay in the processor's cache


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsetSelection:
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
    """

    categories: int  #: k; 2 to 2^20
    epsilon: float  #: ε of a report, nats; 1e-9 to 50
    size: int = 0  #: w, 1 to k; 0 takes the one with the least variance
    own: Threshold = field(init=False, repr=False)  #: p

    def __post_init__(self) -> None:
        check_categories(self.categories)
        check_epsilon(self.epsilon)
        check_integer("size", self.size, 0, self.categories)
        options = self.categories + 1
        if self.size == 0:
            object.__setattr__(self, "size", best_size(self.epsilon, options=options))
        weight = self.size * exp_below(self.epsilon)
        share = math.floor(WHOLE * weight / (weight + options - self.size))
        object.__setattr__(self, "own", Threshold(numerator=share))

    @property
    def report_length(self) -> int:
        """Words in one report: one for each category."""
        return self.categories

    @property
    def sums_length(self) -> int:
        """Numbers that the server keeps: how often each category was in the subset."""
        return self.categories

    @property
    def largest(self) -> int:
        """The largest charge that `encode` gives, in round weights."""
        return 1

    @property
    def frequencies(self) -> Frequencies:
        """How reports support categories, exactly: p, and (w − p)/k."""
        own = self.own.probability
        return Frequencies(own=own, other=(self.size - own) / self.categories)

    def encode(self, values: Values, sampler: Sampler) -> tuple[Words, Integers]:
        """Device half, before the decision: categories [n, 1] to symbols [n, 1]; see `symbols`."""
        return encode_categories(values, categories=self.categories)

    def randomise(self, words: Words, sampler: BitSource) -> Words:
        """Device half, after the decision: symbols [n, 1] to subsets [n, k].

        Raises:
            ParameterError: the words are no symbols.
        """
        symbols = check_symbols(words, categories=self.categories)
        reports: Words = np.empty((len(symbols), self.categories), dtype=np.int64)
        for at in range(0, len(symbols), ROWS):
            reports[at : at + ROWS] = self._draw(symbols[at : at + ROWS], sampler)
        return reports

    def _draw(self, symbols: Integers, source: BitSource) -> Flags:
        count, others = len(symbols), self.categories
        rows = np.arange(count)
        # The last column stands for one's own symbol, the others for the rest.
        chosen = np.zeros((count, others + 1), dtype=np.bool_)
        own = self.own.draw(source, count)
        chosen[:, others] = own
        # Floyd's method: a uniform subset of the rest, one element more where own is not in it.
        for last in range(others - self.size, others):
            picked = uniform_below(last + 1, source, count)
            picked[chosen[rows, picked]] = last
            if last == others - self.size:
                chosen[rows[~own], picked[~own]] = True
            else:
                chosen[rows, picked] = True
        # One's own symbol changes places with the last one.
        swapped = chosen[rows, symbols]
        chosen[rows, symbols] = chosen[:, others]
        elsewhere = symbols != others
        chosen[elsewhere, others] = swapped[elsewhere]
        return chosen[:, 1:]  # symbol 0 is null

    def valid(self, reports: Words) -> Flags:
        """Server half: which reports [n, k] are w of the symbols [n]."""
        bits = ((reports == 0) | (reports == 1)).all(axis=1)
        held = np.where(bits[:, None], reports, 0).sum(axis=1)
        inside: Flags = bits & ((held == self.size) | (held == self.size - 1))
        return inside

    def tally(self, reports: Words) -> Integers:
        """Server half: how often each category was in the subset [k]; exact."""
        sums: Integers = reports.sum(axis=0)
        return sums

    def estimate(self, sums: Integers, *, reports: int) -> Estimate:
        """Server half: counts [k] of n subsets to people with each category; see `Frequencies`.

        Raises:
            ParameterError: the sums are not k counts, or there is no report.
        """
        if sums.shape != (self.categories,):
            raise ParameterError("sums", sums.shape, f"of shape [{self.categories}]")
        return self.frequencies.estimate(sums, reports=reports)

    def charge_renyi(self, symbol: int, *, order: float) -> float:
        """D_α of releasing this symbol against null, nats, rounded up. Secret.

        Args:
            symbol: 0 for null, or a category plus 1.
            order: α; 1 (KL) or more, or infinite.

        Raises:
            ParameterError: an argument is outside its range.

        >>> mechanism = SubsetSelection(categories=4, epsilon=1.0)
        >>> round(mechanism.charge_renyi(1, order=math.inf), 12)
        1.0
        """
        check_symbol(symbol, self.categories)
        return levels_renyi(self._levels, order=order) if symbol else 0.0

    def charge_zcdp(self, symbol: int) -> float:
        """ρ of releasing this symbol against null, nats, rounded up. Secret."""
        check_symbol(symbol, self.categories)
        return levels_zcdp(self._levels) if symbol else 0.0

    def charge_pure(self, symbol: int) -> float:
        """ε of releasing this symbol against null, nats, rounded up. Secret."""
        return self.charge_renyi(symbol, order=math.inf)

    @property
    def _levels(self) -> tuple[Level, ...]:
        return subset_levels(self.epsilon, options=self.categories + 1, size=self.size)


def best_size(epsilon: float, *, options: int) -> int:
    """The subset size that gives the least variance for a rare category: near options/(e^ε + 1).

    >>> best_size(math.log(3), options=8)
    2
    """
    check_epsilon(epsilon)
    check_integer("options", options, 2)
    grown = math.exp(epsilon)

    def variance(size: int) -> float:
        own = size * grown / (size * grown + options - size)
        other = (size - own) / (options - 1)
        return other * (1 - other) / (own - other) ** 2

    near = math.floor(options / (grown + 1))
    return min((size for size in (near, near + 1) if 1 <= size < options), key=variance)


def subset_levels(epsilon: float, *, options: int, size: int) -> tuple[Level, ...]:
    """Subsets of one symbol against those of another: with the first only, the second only, or both.

    >>> [round(level.mass, 3) for level in subset_levels(math.log(3), options=8, size=2)]
    [0.143, 0.429, 0.429]
    """
    grown = math.exp(epsilon)
    whole = size * grown + options - size
    first = size * (options - size) / ((options - 1) * whole)
    both = Fraction((size - 1) * size, options - 1)
    neither = Fraction((options - size) * (options - size - 1), options - 1)
    same = (float(both) * grown + float(neither)) / whole
    pair = (
        Level(mass=first, log_ratio=epsilon),
        Level(mass=first * grown, log_ratio=-epsilon),
    )
    return (*pair, Level(mass=same, log_ratio=0.0)) if same else pair
