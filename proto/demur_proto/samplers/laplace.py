"""Discrete Laplace: a two-sided geometric law."""

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate, repeat
from math import frexp
from typing import final

import numpy as np

from demur_proto.arrays import Integers, Words
from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.thresholds import BITS, Threshold
from demur_proto.samplers.base import BitSource
from demur_proto.samplers.table import ONE, PLACES, Table, draw, exp_minus

FARTHEST = 90  #: |z|/scale beyond which the tables end; less than 2⁻¹²⁸ lies there
LARGEST = 1 << 56  #: of scales: values are below 92 of them, which fits 63 bits
WIDTH_BITS = 5  #: the leading table has a scale of up to 2 to this
DIGIT_BITS = 10  #: of the tables of what comes after it, at most


@final
@dataclass(frozen=True, slots=True)
class DiscreteLaplaceSampler:
    """P(z) ∝ exp(−|z|/scale) on all integers, within total variation 2⁻¹²⁸ given uniform bits.

    With q = exp(−1/scale), z is either w, with probability 1/(1 + q), or −1 − w, where w is
    geometric: P(w) ∝ qʷ. The binary digits of w are independent, so groups of them, and the sign
    with the leading ones, come from one table each.

    What is drawn depends on the source's words alone, not on how many values are drawn at a time.
    Made once for each parameter, in hundredths of a second; threads may share it.

    Args:
        scale: in grid steps, the exact value of the float; > 0 and at most 2⁵⁶.

    Raises:
        ParameterError: the scale is out of range.

    Source: docs/samplers.md. The law: Ghosh, Roughgarden & Sundararajan 2009, arXiv:0811.2841.

    >>> from demur_proto.samplers.base import SystemBits
    >>> DiscreteLaplaceSampler(1e-3).draw(3, SystemBits()).tolist()  # P(±1) is about e^-1000
    [0, 0, 0]
    """

    scale: float
    tables: tuple[Table, ...] = field(init=False, repr=False, compare=False)
    """Of the sign with the leading digits, as w or −1 − w; then of each group of digits."""
    digits: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """How many binary digits each group has, in the same order."""

    def __post_init__(self) -> None:
        check_positive("scale", self.scale)
        if self.scale > LARGEST:
            raise ParameterError("scale", self.scale, "at most 2^56")
        scale = Fraction(self.scale)
        below = max(0, frexp(self.scale)[1] - WIDTH_BITS)
        digits = _shared_out(below)
        tables = [_leading_table(scale, 1 << below)]
        for group in digits:
            below -= group
            tables.append(_digit_table(scale, 1 << below, values=1 << group))
        object.__setattr__(self, "tables", tuple(tables))
        object.__setattr__(self, "digits", digits)

    def draw(self, count: int, source: BitSource) -> Integers:
        """`count` independent values [count]."""
        return draw(self.tables, count, source, combine=self._combine)

    def _combine(self, rows: Words) -> Integers:
        total: Integers = rows[0]
        signs = total >> 63  # −1 where negative: x ^ −1 is −1 − x
        total ^= signs
        for group, row in zip(self.digits, rows[1:], strict=True):
            total <<= group
            total += row
        total ^= signs
        return total


def _shared_out(bits: int) -> tuple[int, ...]:
    """A number of bits in groups of nearly the same size."""
    groups = -(-bits // DIGIT_BITS)
    return tuple((bits + place) // groups for place in range(groups))


def _leading_table(scale: Fraction, unit: int) -> Table:
    """The leading digits, w // unit, or −1 less them: a geometric law again, of ratio q^unit."""
    kept = int(FARTHEST * scale / unit)
    q = exp_minus(1 / scale)
    powers = _powers(scale, unit, count=kept + 1)
    above = [(power << PLACES) // (ONE + q) for power in powers]  # leading digits this or more
    below = [each * q >> PLACES for each in above]
    return Table.from_tails(below=below, above=above[1:])


def _digit_table(scale: Fraction, unit: int, *, values: int) -> Table:
    """A group of digits, w // unit modulo `values`: a geometric law cut off."""
    powers = _powers(scale, unit, count=values + 1)
    whole = ONE - powers[-1]
    tails = [((power - powers[-1]) << PLACES) // whole for power in powers[1:-1]]
    return Table.from_tails(below=[], above=tails)


def _powers(scale: Fraction, unit: int, *, count: int) -> list[int]:
    """q^(unit·n) for n = 0, 1, … [count]."""
    ratio = exp_minus(unit / scale)
    return list(accumulate(repeat(ratio, count - 1), lambda x, y: x * y >> PLACES, initial=ONE))


# Rounded Laplace: a Laplace variable rounded to the nearest integer.


@final
@dataclass(frozen=True, slots=True)
class RoundedLaplaceSampler:
    """round(X), X with density e^(−|x|/scale)/(2·scale), within total variation 2⁻¹²⁶ given uniform bits.

        P(0) = 1 − e^(−1/(2·scale)),   P(±z) = e^(−(z − ½)/scale) (1 − e^(−1/scale))/2

    A size is above 0 with probability e^(−1/(2·scale)), by a threshold that is below it by less than
    2⁻¹²⁷; past 1 it is geometric with ratio e^(−1/scale), and so is w where the discrete Laplace is
    either w or −1 − w, whichever it is. The sign is a fair bit. The law is symmetric exactly.

    Args:
        scale: in grid steps, the exact value of the float; > 0 and at most 2⁵⁶.

    Raises:
        ParameterError: the scale is out of range.

    Source: integrals of the density from z − ½ to z + ½.

    >>> from demur_proto.samplers.base import SystemBits
    >>> RoundedLaplaceSampler(1e-3).draw(3, SystemBits()).tolist()  # P(±1) is about e^-500
    [0, 0, 0]
    """

    scale: float
    above: Threshold = field(init=False, repr=False, compare=False)
    geometric: DiscreteLaplaceSampler = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "geometric", DiscreteLaplaceSampler(self.scale))
        power = exp_minus(1 / (2 * Fraction(self.scale)))
        numerator = max(0, power - (1 << 24)) >> (PLACES - BITS)
        object.__setattr__(self, "above", Threshold(numerator=numerator))

    def draw(self, count: int, source: BitSource) -> Integers:
        """`count` independent values [count]."""
        check_integer("count", count, 0)
        above = self.above.draw(source, count)
        size = self.geometric.draw(count, source)
        size ^= size >> 63  # w or −1 − w to w
        size += 1
        size *= above
        minus = (source.words(count) >> np.uint64(63)).astype(np.bool_)
        np.negative(size, out=size, where=minus)
        return size
