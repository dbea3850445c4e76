"""Hash functions under which two symbols differ by every amount equally often, exactly."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from demur_proto.accounting.divergences import Level, apart_levels, levels_zcdp
from demur_proto.arrays import Flags, Integers, Words
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.categorical import (
    MOST_CATEGORIES,
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

MOST_SYMBOLS = MOST_CATEGORIES + 1
MOST_RANGE = 1 << 15  #: of g, so that sums of two values fit 16 bits
MOST_CELLS = 1 << 31  #: of pairs of seed and value, so that one family_fits an int32

AT_ONCE = 1 << 18  #: comparisons: their operands and results fit the second-level cache
TABLE = 1 << 22  #: the most hash values in a table

Hashes = np.ndarray[tuple[int, int], np.dtype[np.uint8 | np.uint16]]  # shape [inputs, seeds]


@dataclass(frozen=True, slots=True, kw_only=True)
class HashFamily:
    """Linear maps over the integers mod g, g a prime, of a symbol's digits in base g.

        h_a(x) = Σ a_i x_i mod g,   a = (a_1, …, a_m) the digits of the seed, x_i those of the symbol

    Two different symbols differ in some digit, by what has an inverse mod the prime g. So over all
    seeds h_a(x) − h_a(x′) takes every value mod g equally often: the two collide with probability
    1/g, and whatever a report adds to h_a(x), it hits h_a(x′) with probability 1/g. That is all that
    local hashing's estimates rest on. Two hash values themselves need not be independent, and no
    constant is added: the server sees seed and value, and would take it off again.

    Raises:
        ParameterError: g is no prime, or a seed with a value would not fit 31 bits.

    Source: Carter & Wegman 1979, J. Comput. Syst. Sci. 18, 143-154, universal classes.

    >>> family = HashFamily(size=3, symbols=9)
    >>> family.seeds, family.hash(np.array([5, 5]), np.array([1, 3])).tolist()
    (9, [2, 1])
    """

    size: int  #: g; a prime below 2^15
    symbols: int  #: how many there are; 2 to 2^20 + 1
    digits: int = field(init=False)  #: m of a symbol and of a seed

    def __post_init__(self) -> None:
        check_integer("symbols", self.symbols, 2, MOST_SYMBOLS)
        check_integer("hash_range", self.size, 2, MOST_RANGE)
        if not family_fits(self.size, symbols=self.symbols):
            near = next(ranges_near(self.size, symbols=self.symbols))
            raise ParameterError(
                "hash_range",
                self.size,
                f"a prime that family_fits 31 bits with its seed, as {near} does",
            )
        object.__setattr__(self, "digits", digits_of(self.symbols, base=self.size))

    @property
    def seeds(self) -> int:
        """How many hash functions there are, g^m."""
        return int(self.size**self.digits)

    def hash(self, seeds: Integers, symbols: Integers) -> Integers:
        """The hash values [n] of symbols [n] under seeds [n]."""
        total: Integers = np.zeros(len(symbols), dtype=np.int64)
        for a, x in zip(self._digits(seeds), self._digits(symbols), strict=True):
            total += a * x
        total %= self.size
        return total

    def supports(self, seeds: Integers, values: Integers) -> Integers:
        """How many pairs of seed [n] and value [n] support each symbol [symbols].

            supports[x] = #{j : h_{a_j}(x) = v_j}

        The low digits of a symbol make one part of its hash value and the high ones the other. Both
        parts are tabled, about √symbols values each; x is supported where the low part is what the
        high one leaves of the value. So a symbol takes one comparison of small integers, many of which
        the processor makes at once.
        """
        counts: Integers = np.zeros(self.symbols, dtype=np.int64)
        low = max(1, self.digits // 2)
        # A single digit is taken apart as any number is: x = width · high + low.
        width = self.size**low if self.digits > 1 else math.isqrt(self.symbols)
        height = -(-self.symbols // width)
        rows = max(64, min(AT_ONCE // width, TABLE // height))
        for at in range(0, len(seeds), rows):
            digits = [*self._digits(seeds[at : at + rows])]
            high = digits[low:] if self.digits > 1 else [digits[0] * width % self.size]
            left_of = [self.size - digit for digit in high]
            start = values[at : at + rows]
            parts = self._table(np.zeros_like(start), digits[:low], symbols=width)
            left = self._table(start, left_of, symbols=height)
            tall = max(1, AT_ONCE // parts.size)
            for top in range(0, height, tall):
                hits = left[top : top + tall, None] == parts
                packed = np.bitwise_count(np.packbits(hits, axis=2))
                found = packed.sum(axis=2, dtype=np.int64).ravel()
                place = counts[top * width : top * width + len(found)]
                place += found[: len(place)]
        return counts

    def _digits(self, numbers: Integers) -> Iterator[Integers]:
        """Their m digits in base g, the lowest first."""
        rest = numbers
        for _ in range(self.digits):
            higher = rest // self.size
            yield rest - higher * self.size
            rest = higher

    def _table(self, start: Integers, factors: list[Integers], *, symbols: int) -> Hashes:
        """`start` [n] plus Σ factors_i x_i mod g for every x below `symbols`; all given are <= g."""
        kind: np.dtype[np.uint8 | np.uint16]
        kind = np.dtype(np.uint8 if 2 * self.size < 1 << 8 else np.uint16)

        def reduced(number: Hashes) -> Hashes:  # from 0 to 2g − 1: below g it is the smaller one
            result: Hashes = np.minimum(number, number - kind.type(self.size))
            return result

        table: Hashes = start.astype(kind)[None]
        for factor in factors:
            below = len(table)
            wanted = below * min(self.size, -(-symbols // below))
            times = reduced(factor.astype(kind)[None])
            while len(table) < wanted:  # twice as many multiples of the factor
                more = reduced(table[: wanted - len(table)] + times)
                table = np.concatenate([table, more])
                times = reduced(times + times)
        return table[:symbols]


def best_range(epsilon: float, *, symbols: int) -> int:
    """The prime g that gives local hashing its least variance, among those that fit.

    For a rare category that is (e^ε + g − 1)²/((e^ε − 1)²(g − 1)), least at g = e^ε + 1. The best
    prime has at most 3.1 % more than the best real number, where no limit comes in the way.

    >>> best_range(1.0, symbols=1025), best_range(2.5, symbols=65), best_range(9.0, symbols=1025)
    (3, 13, 8101)
    """
    check_epsilon(epsilon)
    check_integer("symbols", symbols, 2, MOST_SYMBOLS)
    grown = math.exp(min(epsilon, math.log(MOST_RANGE)))
    # The variance falls up to its least and rises from there: one prime on either side will do.
    below = (g for g in range(math.floor(grown) + 1, 1, -1) if family_fits(g, symbols=symbols))
    above = (g for g in range(math.floor(grown) + 2, MOST_RANGE) if family_fits(g, symbols=symbols))
    found = [g for g in (next(below, None), next(above, None)) if g is not None]
    return min(found, key=lambda g: (grown + g - 1) ** 2 / (g - 1))


def ranges_near(size: int, *, symbols: int) -> Iterator[int]:
    """Hash ranges that fit, the nearest first.

    >>> next(ranges_near(9, symbols=65))
    7
    """
    for distance in range(MOST_RANGE):
        for g in (size - distance, size + distance):
            if 2 <= g < MOST_RANGE and family_fits(g, symbols=symbols):
                yield g


def family_fits(size: int, *, symbols: int) -> bool:
    """Whether g is a prime with which seed and value fit 31 bits."""
    return is_prime(size) and int(size ** (digits_of(symbols, base=size) + 1)) <= MOST_CELLS


def digits_of(symbols: int, *, base: int) -> int:
    """How many digits the largest of so many symbols has.

    >>> digits_of(9, base=3), digits_of(10, base=3)
    (2, 3)
    """
    digits = 1
    while base**digits < symbols:
        digits += 1
    return digits


def is_prime(number: int) -> bool:
    """Whether a number has no divisor besides 1 and itself.

    >>> [number for number in range(12) if is_prime(number)]
    [2, 3, 5, 7, 11]
    """
    return number > 1 and all(number % d for d in range(2, math.isqrt(number) + 1))


# Local hashing: randomised response on a public hash of the category.

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
