"""Fixed-point numbers with proven errors, on Python's integers: what the tables are made from.

A number x is held as an integer near x·2^PLACES. One unit is 2^−PLACES. Every function says by how
many units it may be wrong; `docs/samplers.md` has the proofs.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Self

import numpy as np

from demur_proto.arrays import Bits, Integers, Words
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.samplers.base import BitSource

PLACES = 448  #: 192 are kept, 174 may be lost on the way, the rest is slack
ONE = 1 << PLACES


def exp_minus(x: Fraction) -> int:
    """e^(−x) for x ≥ 0, within 2²⁴ units.

    The series of e^(−x/2^h), with x/2^h < 2⁻⁸, squared h times. Each squaring may double the error.

    >>> exp_minus(Fraction(0)) == ONE, exp_minus(Fraction(10**9))
    (True, 0)
    >>> exp_minus(Fraction(1, 3)) / ONE == math.exp(-1 / 3)
    True
    """
    if x >= PLACES:
        return 0  # e^(−PLACES) is less than one unit
    halvings = max(0, (x.numerator // x.denominator).bit_length() + 8)
    part = (x.numerator << PLACES) // (x.denominator << halvings)
    term, total, number = ONE, ONE, 0
    while term:
        number += 1
        term = (term * part >> PLACES) // number
        total += -term if number & 1 else term
    for _ in range(halvings):
        total = total * total >> PLACES
    return total


def gaussian_weights(variance: Fraction, *, start: Fraction) -> Iterator[int]:
    """e^(−x²/(2·variance)) at x = start, start + 1, …, the n-th within 2²⁵(n + 1)² units.

    By the ratio of neighbours, and the constant ratio of neighbouring ratios.

    >>> weights = gaussian_weights(Fraction(2), start=Fraction(0))
    >>> [round(next(weights) / ONE, 6) for _ in range(3)]  # 1, e^(-1/4), e^-1
    [1.0, 0.778801, 0.367879]
    """
    weight = exp_minus(start**2 / (2 * variance))
    ratio = exp_minus((2 * start + 1) / (2 * variance))
    bend = exp_minus(1 / variance)
    while True:
        yield weight
        weight = weight * ratio >> PLACES
        ratio = ratio * bend >> PLACES


def normal_tail(square: Fraction, weight: int) -> int:
    """1 − Φ(x) for x > 0 with x² = `square` ≤ 180.

        ½ − x φ(x) (1 + x²/3 + x⁴/(3·5) + x⁶/(3·5·7) + …)

    Within 2¹²⁸ units, and 2¹²⁹ times the error of the weight.

    Args:
        square: x².
        weight: e^(−x²/2) in units.

    Source: Abramowitz & Stegun 1964, 26.2.11.

    >>> normal_tail(Fraction(1), exp_minus(Fraction(1, 2))) / ONE  # 1 - Φ(1)
    0.15865525393145705
    """
    step = (square.numerator << PLACES) // square.denominator
    term = total = ONE
    odd = 1
    while term:
        odd += 2
        term = (term * step >> PLACES) // odd
        total += term
    # x/√(2π), from its square.
    slope = math.isqrt((square.numerator << 3 * PLACES) // (square.denominator * 2 * PI))
    return (ONE >> 1) - ((total * weight >> PLACES) * slope >> PLACES)


def _arc_tangent_of_inverse(n: int) -> int:
    """arctan(1/n), n ≥ 5, within 2⁹ units."""
    term, total, odd = ONE // n, ONE // n, 1
    while term:
        odd += 2
        term //= -n * n
        total += term // odd
    return total


PI = 16 * _arc_tangent_of_inverse(5) - 4 * _arc_tangent_of_inverse(239)
"""π, within 2¹⁴ units: Machin's formula."""


# Tables of cumulative probabilities: how uniform bits become integers, without rounding.
#
# A table has ascending thresholds T_1 ≤ … ≤ T_n, integers below 2¹⁹². For U uniform on the integers
# from 0 to 2¹⁹² − 1 its value is `first` plus the number of thresholds that are ≤ U. So it has
# probability (T_(i+1) − T_i)/2¹⁹² of being first + i: an exact law, which a reader can add up.
#
# The leading 64 bits of U decide unless they are those of a threshold; only then are 128 more needed.

DIGITS = 192  #: binary digits of a threshold
LEADING = 64  #: of them, drawn at once
WIDEST = 1 << 16  #: thresholds of a table, and cells of its guide

_OPEN = np.iinfo(np.int64).min  # stands in a cell of the guide that does not decide


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A law on neighbouring integers, by its cumulative probabilities.

    Raises:
        ParameterError: the thresholds are not ascending, or not of 192 digits, or too many.

    >>> coin = Table(thresholds=(1 << 191,), first=0)
    >>> coin.decide(1 << 191), coin.decide((1 << 191) - 1)
    (1, 0)
    """

    thresholds: tuple[int, ...] = field(repr=False)
    first: int  #: the smallest value
    _leads: Bits = field(init=False, repr=False, compare=False)
    _guide: Integers = field(init=False, repr=False, compare=False)
    _shift: np.uint64 = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_integer("first", self.first, -WIDEST, WIDEST)
        ends = (0, *self.thresholds, (1 << DIGITS) - 1)
        whole = all(type(each) is int for each in ends) and len(self.thresholds) <= WIDEST
        if not (whole and all(low <= high for low, high in pairwise(ends))):
            expected = f"at most {WIDEST} ascending integers of {DIGITS} digits"
            raise ParameterError("thresholds", "others", expected)
        leads = np.array([each >> DIGITS - LEADING for each in self.thresholds], dtype=np.uint64)
        # Sixteen cells or more for each threshold, so that few cells do not decide.
        bits = min((WIDEST - 1).bit_length(), len(leads).bit_length() + 4)
        shift = np.uint64(LEADING - bits)
        starts = np.arange(1 << bits, dtype=np.uint64) << shift
        guide = self.first + np.searchsorted(leads, starts, side="right")
        guide[leads >> shift] = _OPEN
        for array in (leads, guide):
            array.setflags(write=False)
        object.__setattr__(self, "_leads", leads)
        object.__setattr__(self, "_guide", guide)
        object.__setattr__(self, "_shift", shift)

    @classmethod
    def from_tails(cls, *, below: Sequence[int], above: Sequence[int]) -> Self:
        """The table of a law from its tails, each rounded down to 192 digits.

        Args:
            below: P(value < 0), P(value < −1), …, in units of `fixed`.
            above: P(value > 0), P(value > 1), …, likewise.
        """
        spare = PLACES - DIGITS
        low = [each >> spare for each in reversed(below)]
        high = [(1 << DIGITS) - (each >> spare) for each in above]
        return cls(thresholds=(*low, *high), first=-len(low))

    @property
    def last(self) -> int:
        """The largest value."""
        return self.first + len(self.thresholds)

    def decide(self, bits: int) -> int:
        """The value for U = `bits`, 0 to 2¹⁹² − 1."""
        check_integer("bits", bits, 0, (1 << DIGITS) - 1)
        return self.first + bisect_right(self.thresholds, bits)

    def look_up(self, leading: Bits, values: Integers) -> int:
        """The values for the leading words of U, as far as these decide.

        Args:
            leading: [n].
            values: where to put the values, contiguous [n].

        Returns:
            How many words come before the first that does not decide: n if all do. What `values`
            holds from there on is no value.
        """
        cells = leading >> self._shift
        np.take(self._guide, cells.view(np.int64), out=values, mode="clip")
        left = np.flatnonzero(values == _OPEN)
        if not left.size:
            return len(values)
        keys = leading[left]
        below = np.searchsorted(self._leads, keys, side="right")
        values[left] = below + self.first
        # Where nothing is below, −1 is the last threshold, which such a key cannot equal.
        tied = left[self._leads[below - 1] == keys]
        return int(tied[0]) if tied.size else len(values)


# Draws from several tables at once, as if one value after the other.
#
# Each sample takes one word for each table. Where a word does not decide, the two words after it
# complete its 192 digits. So what a source yields depends on its words alone: splitting a draw in
# parts changes nothing.

AT_ONCE = 8192  #: samples, so that their words stay in the second-level cache


def draw(
    tables: Sequence[Table],
    count: int,
    source: BitSource,
    *,
    combine: Callable[[Words], Integers],
) -> Integers:
    """`count` independent values [count], each made from one value of each table.

    Args:
        tables: which ones.
        count: how many; >= 0.
        source: of the bits.
        combine: rows [tables, n], which it may write, to values [n].
    """
    check_integer("count", count, 0)
    values = np.empty(count, dtype=np.int64)
    for start in range(0, count, AT_ONCE):
        part = values[start : start + AT_ONCE]
        part[:] = combine(draw_rows(tables, len(part), source))
    return values


def draw_rows(tables: Sequence[Table], count: int, source: BitSource) -> Words:
    """Independent values of each table [tables, count]."""
    rows = np.empty((len(tables), count), dtype=np.int64)
    words = source.words(count * len(tables))
    done = 0
    while done < count:
        done += min(
            table.look_up(words[place :: len(tables)], row[done:])
            for place, (table, row) in enumerate(zip(tables, rows, strict=True))
        )
        if done < count:  # less than once in 2⁴⁶ samples, so never mind the time
            words = words[len(words) - (count - done) * len(tables) :]
            for table, row in zip(tables, rows, strict=True):
                row[done], words = _draw_one(table, words, source)
            done += 1
    return rows


def _draw_one(table: Table, words: Bits, source: BitSource) -> tuple[int, Bits]:
    """One value from the words already drawn, and the words that remain."""
    value = np.empty(1, dtype=np.int64)
    if table.look_up(words[:1], value):
        return int(value[0]), words[1:]
    words = np.concatenate([words, source.words(DIGITS // LEADING - 1)])
    first, second, third = (int(word) for word in words[:3])
    return table.decide(first << 128 | second << 64 | third), words[3:]
