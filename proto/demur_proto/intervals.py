"""Intervals around estimates: as far below as above, or with an end of its own on either side."""

import math

import numpy as np

from demur_proto.arrays import Vector, fixed_floats


class Intervals:
    """Reads what estimates say of their intervals; the fields belong to what is derived from this."""

    __slots__ = ()

    estimate: Vector  #: [k]
    half_width: Vector  #: [k], or one that all share: the interval is estimate ± this; or empty
    low_end: Vector  #: [k], lower ends of other intervals; or empty
    high_end: Vector  #: likewise, upper ends

    @property
    def has_interval(self) -> bool:
        """Whether there are intervals."""
        return bool(self.half_width.size or self.low_end.size)

    @property
    def low(self) -> Vector:
        """Lower ends of the intervals [k], in the units of the estimates; empty where there are none."""
        if self.half_width.size:
            return self.estimate - self.half_width
        return self.low_end

    @property
    def high(self) -> Vector:
        """Upper ends of the intervals [k], likewise."""
        if self.half_width.size:
            return self.estimate + self.half_width
        return self.high_end

    def interval_at(self, coordinate: int) -> tuple[float, float]:
        """The two ends of one estimate's interval; both NaN where there is none."""
        if self.half_width.size:
            half = self.half_width[coordinate if self.half_width.size > 1 else 0]
            value = self.estimate[coordinate]
            return float(value - half), float(value + half)
        if self.low_end.size:
            return float(self.low_end[coordinate]), float(self.high_end[coordinate])
        return math.nan, math.nan

    @property
    def intervals_fit(self) -> bool:
        """Whether there is one interval for each estimate, of one kind, with its ends in order; or none."""
        halves, lows, highs = self.half_width.size, self.low_end.size, self.high_end.size
        if halves:
            return halves in {1, self.estimate.size} and not lows and not highs
        return (
            lows == highs
            and lows in {0, self.estimate.size}
            and bool(np.all(self.low_end <= self.high_end))
        )


def no_numbers() -> Vector:
    """None at all [0]; nobody can change it."""
    return fixed_floats([])
