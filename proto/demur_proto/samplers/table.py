"""Tables of cumulative probabilities: how uniform bits become integers, without rounding.

A table has ascending thresholds T_1 ≤ … ≤ T_n, integers below 2¹⁹². For U uniform on the integers
from 0 to 2¹⁹² − 1 its value is `first` plus the number of thresholds that are ≤ U. So it has
probability (T_(i+1) − T_i)/2¹⁹² of being first + i: an exact law, which a reader can add up.

The leading 64 bits of U decide unless they are those of a threshold; only then are 128 more needed.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Self

import numpy as np

from demur_proto.arrays import Bits, Integers
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.samplers.fixed import PLACES

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
