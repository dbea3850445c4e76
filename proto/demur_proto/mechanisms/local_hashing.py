"""Local hashing: randomised response on a public hash of the category."""

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from demur_proto.arrays import Flags, Integers, Words
from demur_proto.bits import BitSource
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.finite_pairs import Level, apart_levels, levels_zcdp
from demur_proto.mechanisms.categorical import Categorical
from demur_proto.mechanisms.frequencies import (
    Frequencies,
    check_categories,
    check_reports,
    fits,
)
from demur_proto.mechanisms.hash_family import HashFamily, best_range
from demur_proto.mechanisms.symbols import check_symbols
from demur_proto.mechanisms.thresholds import (
    Threshold,
    check_epsilon,
    keep_threshold,
    uniform_below,
)

ROWS = 1 << 14  #: drawn at a time, so that all passes over them stay in the processor's cache


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalHashing(Categorical):
    """Hash one's category to a small range by a random public seed, and answer by randomised response.

        value = h_seed(category) with probability p = e^ε/(e^ε + g − 1) as an integer threshold, or
        else any other one of the g, all equally likely; of null any of the g, all equally likely

    A report supports the categories that its seed hashes to its value: one's own with probability p,
    and every other one with q = 1/g exactly, as two categories collide with just that probability (see
    `HashFamily`). A report of null supports each with 1/g as well, so cover reports debias to 0.

    Neighbour: zero-out, the category replaced by null. Between two categories no likelihood ratio
    exceeds e^ε, for every seed, exactly; against null one value is gp times as likely and the others
    g/(e^ε + g − 1) times, so the farther of these from 1 is what a category costs as pure DP: with
    g = e^ε + 1 that is (e^ε + 1)/2, as in OUE. It is the same for every seed. Accounting is all or
    nothing: a category costs what every other one costs, null costs 0.

    A report is one word: seed · g + value. The server adds up how many support each category.

    Raises:
        ParameterError: a field is outside its range.

    Source: Wang et al. 2017, USENIX Security, section 4.4 (g = 2: BLH; g near e^ε + 1: OLH); the
    hash functions are demur's.

    >>> mechanism = LocalHashing(categories=4, epsilon=math.log(4))
    >>> mechanism.hash_range, round(float(mechanism.frequencies.own), 12)
    (5, 0.5)
    >>> round(math.exp(mechanism.charge_renyi(1, order=math.inf)), 9)  # gp
    2.5
    """

    hash_range: int = 0  #: g, a prime; 0 takes the one with the least variance
    keep: Threshold = field(init=False, repr=False)  #: p

    def __post_init__(self) -> None:
        check_categories(self.categories)
        check_epsilon(self.epsilon)
        check_integer("hash_range", self.hash_range, 0)
        if self.hash_range == 0:
            chosen = best_range(self.epsilon, symbols=self.categories + 1)
            object.__setattr__(self, "hash_range", chosen)
        family = self.family  # refuses what is no prime, or too large
        object.__setattr__(self, "keep", keep_threshold(self.epsilon, others=family.size - 1))

    @property
    def family(self) -> HashFamily:
        """The hash functions of the symbols; null has a hash value too, which nobody uses."""
        return HashFamily(size=self.hash_range, symbols=self.categories + 1)

    @property
    def report_length(self) -> int:
        """Words in one report: seed and value in one."""
        return 1

    @property
    def sums_length(self) -> int:
        """Numbers that the server keeps: how many reports support each category."""
        return self.categories

    @property
    def frequencies(self) -> Frequencies:
        """How reports support categories: p and 1/g, exactly."""
        return Frequencies(own=self.keep.probability, other=Fraction(1, self.hash_range))

    def randomise(self, words: Words, sampler: BitSource) -> Words:
        """Device half, after the decision: symbols [n, 1] to reports [n, 1].

        Raises:
            ParameterError: the words are no symbols.
        """
        symbols = check_symbols(words, categories=self.categories)
        reports: Words = np.empty((len(symbols), 1), dtype=np.int64)
        for at in range(0, len(symbols), ROWS):
            own = symbols[at : at + ROWS].astype(np.int64, copy=False)
            reports[at : at + ROWS, 0] = self._draw(own, sampler)
        return reports

    def _draw(self, symbols: Integers, source: BitSource) -> Integers:
        family, count = self.family, len(symbols)
        seeds = uniform_below(family.seeds, source, count)
        hashed = family.hash(seeds, symbols)
        kept = self.keep.draw(source, count)
        values = uniform_below(self.hash_range - 1, source, count)
        # Randomised response to a uniform value is uniform. Null draws as much as a category does.
        anyone = uniform_below(self.hash_range, source, count)
        np.copyto(hashed, anyone, where=symbols == 0)
        values += values >= hashed  # the others, without the true one
        np.copyto(values, hashed, where=kept)
        values += seeds * self.hash_range
        return values

    def valid(self, reports: Words) -> Flags:
        """Server half: which reports [n, 1] are a seed with a value [n]."""
        if not fits(reports, length=self.report_length):
            return np.zeros(len(reports), dtype=np.bool_)
        inside: Flags = (reports[:, 0] >= 0) & (reports[:, 0] < self.family.seeds * self.hash_range)
        return inside

    def tally(self, reports: Words) -> Integers:
        """Server half: how many of valid reports [n, 1] support each category [k]; exact.

        Raises:
            ParameterError: the reports are not integers [n, 1], or hold no seed with a value.
        """
        check_reports(reports, length=self.report_length)
        if not self.valid(reports).all():
            most = self.family.seeds * self.hash_range - 1
            raise ParameterError("reports", "another number", f"seeds with values, 0 to {most}")
        seeds = reports[:, 0] // self.hash_range
        values = reports[:, 0] - seeds * self.hash_range
        return self.family.supports(seeds, values)[1:]

    @property
    def largest_charge(self) -> float:
        """What a round may ask for a category: earlier ones hashed null, and paid for it."""
        return max(
            self.charge_zcdp(1), levels_zcdp(joint_levels(self.epsilon, hash_range=self.hash_range))
        )

    @property
    def _levels(self) -> tuple[Level, ...]:
        return uniform_levels(self.epsilon, hash_range=self.hash_range)


def uniform_levels(epsilon: float, *, hash_range: int) -> tuple[Level, ...]:
    """Randomised response to one of g values, against a uniform one of them.

    Args:
        epsilon: ε, nats; 1e-9 to 50.
        hash_range: g, not only a prime here; 2 to 2^53.

    Raises:
        ParameterError: an argument is outside its range.

    >>> [round(math.exp(level.log_ratio), 9) for level in uniform_levels(math.log(4), hash_range=5)]
    [2.5, 0.625]
    """
    check_epsilon(epsilon)
    check_integer("hash_range", hash_range, 2, 1 << 53)
    g, grown = hash_range, math.expm1(epsilon)
    return (
        Level(mass=1 / g, log_ratio=math.log1p((g - 1) * (grown / (grown + g)))),
        Level(mass=(g - 1) / g, log_ratio=-math.log1p(grown / g)),
    )


def joint_levels(epsilon: float, *, hash_range: int) -> tuple[Level, ...]:
    """Seed and value of one symbol against those of another, which collide with probability 1/g.

    Args:
        epsilon: ε, nats; 1e-9 to 50.
        hash_range: g, not only a prime here; 2 to 2^53.

    Raises:
        ParameterError: an argument is outside its range.

    >>> [round(level.mass, 3) for level in joint_levels(math.log(3), hash_range=2)]
    [0.125, 0.375, 0.5]
    """
    check_epsilon(epsilon)
    check_integer("hash_range", hash_range, 2, 1 << 53)
    apart = (1 - 1 / hash_range) / (math.exp(epsilon) + hash_range - 1)
    return apart_levels(epsilon, apart=apart)
