"""The least ρ for which a pair of laws is ρ-zCDP, certified from above.

    ρ = sup over α ≥ 1 of D_α/α,   D_α = ln( 1 + α(α−1) M(α) ) / (α − 1),   D_1 = M(1)

M is a mixture of exponentials in α: with l = ln(p/q), an output adds p ∫₀ˡ (1 − e^(s−l)) e^((α−1)s) ds.
So ln M is convex, and below its chords. With a chord m in its place, ln(D_α/α) is at most m + ψ(x),

    x = ln(α(α−1)) + m,   ψ(x) = ln(ln(1 + e^x)) − x.

ψ is concave and falling, so below its tangents, and along a tangent the bound is convex in α: the larger
of its values at the two ends of an interval of orders bounds all between. Intervals are halved
until the largest bound is near the largest value seen. Past the last interval, D_α/α ≤ D_∞/α.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from demur_proto.outward import up
from demur_proto.pure import pure_rho

GAP = 1e-9  #: the result is above the true supremum by no more than this, relative
LEAST_PURE = 1e-11  #: nats; what is within less costs what its ε alone says
MOST_PURE = 1e3  #: nats; and so does what is not within this
MOST_SPLITS = 100_000  #: then the bound so far is good enough; fifty to a hundred are usual

_UNIT = 2.0**-50

Curve = Callable[[float], float]
"""From a finite order α ≥ 1 to D_α in nats, rounded up by 1e-12, relative, at the most."""


def zcdp_supremum(directions: Sequence[Curve], *, pure: float) -> float:
    """The supremum of D_α/α over all orders and directions.

    Args:
        directions: D(P ‖ Q), and D(Q ‖ P) if that is another curve.
        pure: D_∞ of both directions in nats, rounded up; finite.

    Returns:
        ρ in nats, rounded up by at most 1e-9, relative, and never above the ε tanh(ε/2) of
        `pure_rho`. Where `pure` is not from 1e-11 to 1e3 it is that bound.

    Source: Bun & Steinke 2016, arXiv:1605.02065, Definition 1.1; the bound is derived above. For
    M = ½ at every order, D_α/α is largest at α = 1:

    >>> half = lambda order: math.log1p(order * (order - 1) / 2) / (order - 1) if order > 1 else 0.5
    >>> round(zcdp_supremum([half], pure=3.0), 8)
    0.5
    """
    bound = pure_rho(pure)
    if not LEAST_PURE <= pure <= MOST_PURE:
        return bound
    best = -math.inf
    cells: list[_Cell] = []
    for curve in directions:
        low = _Point.at(1.0, curve)
        best = max(best, low.value)
        while low.order < 2 or math.log(pure / low.order) >= best:
            high = _Point.at(2 * low.order, curve)
            best = max(best, high.value)
            cells.append(_Cell.between(low, high, curve))
            low = high
    heapq.heapify(cells)
    for _ in range(MOST_SPLITS):
        if -cells[0].key <= best + GAP / 2:
            break
        cell = heapq.heappop(cells)
        middle = _Point.at(_middle(cell.low.order, cell.high.order), cell.curve)
        best = max(best, middle.value)
        heapq.heappush(cells, _Cell.between(cell.low, middle, cell.curve))
        heapq.heappush(cells, _Cell.between(middle, cell.high, cell.curve))
    return min(up(math.exp(max(best, -cells[0].key))), bound)


@dataclass(frozen=True, slots=True)
class _Point:
    """One direction at one order."""

    order: float
    value: float  # ln(D_α/α)
    log_moment: float  # ln M(α)
    position: float  # x, ln(α(α−1) M(α))

    @classmethod
    def at(cls, order: float, curve: Curve) -> "_Point":
        divergence = curve(order)
        value = math.log(divergence / order)
        if order == 1:
            return cls(order, value, value, -math.inf)
        exponent = (order - 1) * divergence
        position = exponent + math.log(-math.expm1(-exponent))  # ln(e^exponent − 1)
        return cls(order, value, position - math.log(order) - math.log(order - 1), position)


@dataclass(frozen=True, slots=True, order=True)
class _Cell:
    """An interval of orders with a bound on ln(D_α/α) over it; the least is the most promising."""

    key: float  # minus the bound
    low: _Point = field(compare=False)
    high: _Point = field(compare=False)
    curve: Curve = field(compare=False)

    @classmethod
    def between(cls, low: _Point, high: _Point, curve: Curve) -> "_Cell":
        """Its bound. In an interval from 1 on, that D_α/α is at most M, which is convex."""
        if low.order == 1:
            bound = max(low.log_moment, high.log_moment)
            return cls(-bound - _UNIT * abs(bound), low, high, curve)
        touch = (low.position + high.position) / 2
        slope = _log_ratio_slope(touch)
        bound = max(
            point.log_moment + _log_ratio(touch) + slope * (point.position - touch)
            for point in (low, high)
        )
        # What these sums may have lost.
        sizes = (abs(n) for point in (low, high) for n in (point.log_moment, point.position))
        return cls(-bound - 8 * _UNIT * max(1.0, *sizes), low, high, curve)


def _log_ratio(x: float) -> float:
    """ψ(x) = ln(ln(1 + e^x)) − x: 0 far below 0, falling, concave."""
    if x > 0:
        return math.log(x + math.log1p(math.exp(-x))) - x
    return math.log1p(-_shortfall(math.exp(x)))


def _log_ratio_slope(x: float) -> float:
    """ψ'(x) = u/((1 + u) ln(1 + u)) − 1 with u = e^x; from 0 down to −1."""
    if x > 0:
        return 1 / ((1 + math.exp(-x)) * (x + math.log1p(math.exp(-x)))) - 1
    u = math.exp(x)
    return 1 / ((1 + u) * (1 - _shortfall(u))) - 1


def _shortfall(u: float) -> float:
    """1 − ln(1 + u)/u, u ≥ 0."""
    return 1 - math.log1p(u) / u if u else 0.0


def _middle(low: float, high: float) -> float:
    """Where to split an interval of orders: in the middle of ln(α − 1)."""
    if low == 1:
        return 1 + (high - 1) / 32
    return 1 + math.sqrt((low - 1) * (high - 1))
