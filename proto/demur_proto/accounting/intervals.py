"""Intervals around estimates: as far below as above, or with an end of its own on either side."""

import math

import numpy as np

from demur_proto.accounting.numerics import (
    SLACK,
    check_amount,
    check_delta,
    log_tail,
    newton,
    tails,
    up,
)
from demur_proto.arrays import Vector, fixed_floats
from demur_proto.checks import check_integer


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


# How far the worst of d noisy coordinates strays: the sup-norm radius of a linear query.
#
# All d coordinates carry independent N(0, σ²) noise, as a linear query's does. Everything is in
# units of σ, and rounded up.

_MOST = 10**15  # coordinates


def supremum_radius(dimension: int, *, failure: float) -> float:
    """The radius that all of d noisy coordinates keep but for a given probability; rounded up.

        the r with P(max_i |Z_i| > r) = 1 − (1 − 2Φ(−r))^d = β,  exactly

    Args:
        dimension: d, how many coordinates; 1 ≤ d ≤ 1e15.
        failure: β, the probability that some coordinate strays farther; 1e-300 ≤ β < 1.

    Returns:
        r in units of σ.

    Raises:
        ParameterError: an argument is outside its range.

    Source: the coordinates are independent. One strays by more than σ with probability 0.3173:

    >>> round(supremum_radius(1, failure=0.317310507863), 9)
    1.0
    """
    check_integer("dimension", dimension, 1, _MOST)
    failure = check_delta("failure", failure)
    whole = -math.log1p(-failure)
    share = whole / dimension
    inside = math.exp(-share)  # P(|Z| ≤ r) of one coordinate
    small = inside <= 0.5
    if small:
        target = -share
        start = inside * math.sqrt(2 * math.pi)  # δ ≤ μ/√(2π), so the root is not to the left
    else:
        # ln(1 − e^(−share)), also where that difference, or the share, is no proper float
        target = (
            math.log(whole) - math.log(dimension) - share / 2
            if share < 1e-17
            else math.log(-math.expm1(-share))
        )
        start = 2 * math.sqrt(-2 * target)  # 2Φ(−r) ≤ e^(−r²/2), so the root is not to the right

    def excess(mu: float) -> tuple[float, float]:
        value, _, by_mu = log_tail(mu, 0.0, small=small)  # μ = 2r: P(|Z| ≤ r) is δ at ε = 0
        return value - target, by_mu

    radius = newton(excess, start) / 2
    # A logarithm near −36 is known to so many units in the last place, and so is what comes of it.
    return up(radius * (1 + SLACK * share) if small else radius)


def supremum_radius_bound(dimension: int, *, failure: float) -> float:
    """The closed form that the exact radius never exceeds; rounded up.

        r = √(2 ln(d/β))

    Args:
        dimension: d, how many coordinates; 1 ≤ d ≤ 1e15.
        failure: β, the probability that some coordinate strays farther; 1e-300 ≤ β < 1.

    Returns:
        r in units of σ.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Feldman & Zrnic 2021, arXiv:2008.11193, Corollary "adaptive_queries"; valid on both
    sides, since 2Φ(−r) ≤ e^(−r²/2).

    >>> round(supremum_radius_bound(1, failure=math.exp(-2)), 9)
    2.0
    """
    check_integer("dimension", dimension, 1, _MOST)
    failure = check_delta("failure", failure)
    return up(math.sqrt(2 * (math.log(dimension) - math.log(failure))))


def supremum_failure(radius: float, *, dimension: int, two_sided: bool = True) -> float:
    """The probability that some of d noisy coordinates strays beyond a radius; rounded up.

        β = 1 − (1 − 2Φ(−r))^d, or with Φ(−r) on one side only

    Args:
        radius: r in units of σ; 0 ≤ r ≤ 1e15.
        dimension: d, how many coordinates; 1 ≤ d ≤ 1e15.
        two_sided: count straying in either direction, not upwards only.

    Returns:
        β, a probability.

    Raises:
        ParameterError: an argument is outside its range.

    Source: the coordinates are independent.

    >>> round(supremum_failure(1.0, dimension=1), 9)
    0.317310508
    """
    radius = check_amount("radius", radius)
    check_integer("dimension", dimension, 1, _MOST)
    inside, outside = tails(2 * radius, 0.0) if radius > 0 else (0.0, 1.0)
    if not two_sided:
        inside, outside = 1 - outside / 2, outside / 2
    if inside < 0.5:
        kept = math.log(inside) if inside > 0 else -math.inf
    else:
        kept = math.log1p(-up(outside))
    return min(1.0, up(-math.expm1(dimension * kept)))
