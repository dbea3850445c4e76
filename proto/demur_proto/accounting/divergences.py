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
from fractions import Fraction

from demur_proto.accounting.numerics import ceil_float, check_amount, check_order, exp_exact, up
from demur_proto.accounting.pure import pure_rho
from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import ParameterError

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


# Rényi divergences of two laws on finitely many levels, and their zCDP.
#
# A mechanism's reports against the reference's often take only a few likelihood ratios. Outputs of one
# ratio are one level. With q the second law's mass of a level, p = q e^l the first law's, β = α − 1 and
# g(x) = e^x − 1 − x,
#
#     q [ (p/q)^α − 1 − α (p/q − 1) ] = p [ g(βl) + β g(−l) ]
#
# is never negative, and what it leaves out of Σ q (p/q)^α sums to zero over both laws. So
#
#     D_α(P ‖ Q) = ln( 1 + αβ M(α) ) / β,   αβ M(α) = Σ p [ g(βl) + β g(−l) ],   D_1 = M(1) = Σ p g(−l)
#
# has nothing that cancels. Every term is enlarged by what its exponents may have lost.

LARGEST_RATIO = 700.0  #: of |l|, nats
LEAST_MASS = 1e-100

_LARGEST_EXPONENT = 640.0  # of βl; beyond, even p ≥ 1e-100 leaves Σ p e^(βl) no use for its 1
_UNBALANCED = 1e-6  # more than rounding explains: the levels are not those of two laws


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The outputs of one likelihood ratio, together.

    Both numbers are to be within 2⁻⁵⁰ of the truth, relative: results are rounded up by as much.

    Raises:
        ParameterError: the mass is not in [1e-100, 1], or the ratio not in [−700, 700].
    """

    mass: float  #: q, their probability under the second law
    log_ratio: (
        float  #: l = ln(p/q), nats; by log1p or expm1, so that a small one has its own digits
    )

    def __post_init__(self) -> None:
        if not (_is_number(self.mass) and LEAST_MASS <= self.mass <= 1):
            raise ParameterError("mass", self.mass, "at least 1e-100 and at most 1")
        if not (_is_number(self.log_ratio) and abs(self.log_ratio) <= LARGEST_RATIO):
            raise ParameterError("log_ratio", self.log_ratio, "between -700 and 700 nats")


def levels_renyi(levels: Sequence[Level], *, order: float) -> float:
    """Rényi divergence of two laws given by their levels, the larger of both directions.

        max of D_α(P ‖ Q) and D_α(Q ‖ P), as at the top of this file; D_∞ = max |l|

    Args:
        levels: at least one; over all of them Σ q = 1 and Σ q e^l = 1.
        order: Rényi order α; 1 (KL) ≤ α ≤ 1e15, or infinite (pure ε).

    Returns:
        The divergence in nats, rounded up by less than 1e-12, relative; 0.0 if every l is 0.

    Raises:
        ParameterError: an argument is outside its range, or a law does not sum to 1.

    Source: the sum over the outputs. Binary randomised response with e^ε = 3 at α = 2:
    Σ p²/q = (9/16)·4 + (1/16)·(4/3) = 7/3.

    >>> pair = [Level(mass=0.25, log_ratio=math.log(3)), Level(mass=0.75, log_ratio=-math.log(3))]
    >>> round(math.exp(levels_renyi(pair, order=2.0)) * 3, 9)
    7.0
    """
    _check_levels(levels)
    order = check_order("order", order, kl=True)
    pure = _pure(levels)
    if pure == 0 or order == math.inf:
        return pure
    return min(pure, max(way.divergence(order) for way in _both_ways(levels)))


def levels_zcdp(levels: Sequence[Level]) -> float:
    """The least ρ for which two laws are ρ-zCDP, given by their levels; certified from above.

        ρ = sup over α ≥ 1 of D_α/α, the larger of both directions: see `zcdp_supremum`

    Args:
        levels: as in `levels_renyi`.

    Returns:
        ρ in nats, rounded up by at most 1e-9, relative, and never above the ε tanh(ε/2) of
        `pure_rho`, which it is where max |l| < 1e-11; 0.0 if every l is 0.

    Raises:
        ParameterError: as in `levels_renyi`.

    Source: Bun & Steinke 2016, arXiv:1605.02065, Definition 1.1. For binary randomised response
    the supremum is at α = 1, and is ε tanh(ε/2): with e^ε = 3 half of ln 3.

    >>> pair = [Level(mass=0.25, log_ratio=math.log(3)), Level(mass=0.75, log_ratio=-math.log(3))]
    >>> round(levels_zcdp(pair) / math.log(3), 8)
    0.5
    """
    _check_levels(levels)
    pure = _pure(levels)
    if pure == 0:
        return 0.0
    return zcdp_supremum([way.divergence for way in _both_ways(levels)], pure=pure)


def apart_levels(epsilon: float, *, apart: float) -> tuple[Level, ...]:
    """Two laws that are each e^ε times as likely on outputs of their own as the other one there.

    Args:
        epsilon: ε, nats; not checked.
        apart: the mass of one's own outputs under the other law; not checked.

    >>> [round(level.mass, 3) for level in apart_levels(math.log(3), apart=0.25)]
    [0.25, 0.75]
    """
    often = apart * math.exp(epsilon)
    own = (Level(mass=apart, log_ratio=epsilon), Level(mass=often, log_ratio=-epsilon))
    rest = 1 - apart - often
    # What rounding leaves of nothing has ratio 1 and adds nothing to any divergence.
    return (*own, Level(mass=rest, log_ratio=0.0)) if rest > 1e-15 else own


def curvature(x: float) -> float:
    """g(x) = e^x − 1 − x, which is positive and near x²/2 for small x, to the last digits.

    >>> round(curvature(1e-9) * 1e18, 6), round(curvature(1.0) - math.e, 9)
    (0.5, -2.0)
    """
    if abs(x) > 0.7:
        return math.expm1(x) - x
    term = total = x * x / 2
    n = 3
    while abs(term) > 1e-18 * total:
        term *= x / n
        total += term
        n += 1
    return total


def blur(exponent: float) -> float:
    """How far off e^exponent may be, relative, its exponent within 2⁻⁵⁰ and the rest of it too."""
    return _UNIT * (4 + 1.5 * exponent)


@dataclass(frozen=True, slots=True)
class _Way:
    """One direction of a pair: P's mass, Q's mass and l = ln(P/Q) of every level."""

    outputs: tuple[tuple[float, float, float], ...]

    def divergence(self, order: float) -> float:
        """D_α, rounded up."""
        if order == 1:
            return up(self._information())
        scale, excess = self._excess(order - 1)
        log_sum = scale + math.log(excess) if scale else math.log1p(excess)
        return up(log_sum / (order - 1))

    def _information(self) -> float:
        """M(1) = Σ p g(−l), rounded up."""
        return math.fsum(_bent(p, q, l) * (1 + blur(abs(l))) for p, q, l in self.outputs)

    def _excess(self, beta: float) -> tuple[float, float]:
        """αβ M(α), rounded up, as e^scale times a float; 1 + it, where the scale is not 0."""
        scale = beta * max(ratio for _, _, ratio in self.outputs)
        if scale <= _LARGEST_EXPONENT:
            return 0.0, math.fsum(
                (p * curvature(beta * ratio) + beta * _bent(p, q, ratio))
                * (1 + blur((1 + beta) * abs(ratio)))
                for p, q, ratio in self.outputs
            )
        whole = math.fsum(p * math.exp(beta * ratio - scale) for p, _, ratio in self.outputs)
        return scale + blur(scale), whole


def _bent(p: float, q: float, ratio: float) -> float:
    """One output's p g(−l), also where p is no float."""
    if ratio >= 0:
        return p * curvature(-ratio)
    return q * (math.exp(ratio) * curvature(-ratio))


def _both_ways(levels: Sequence[Level]) -> tuple[_Way, _Way]:
    """D(P ‖ Q) and D(Q ‖ P)."""
    forward = [(each.mass * math.exp(each.log_ratio), each.mass, each.log_ratio) for each in levels]
    return _Way(tuple(forward)), _Way(tuple((q, p, -ratio) for p, q, ratio in forward))


def _pure(levels: Sequence[Level]) -> float:
    """Max |l|, rounded up; 0 if every l is 0."""
    largest = max(abs(each.log_ratio) for each in levels)
    return up(largest) if largest else 0.0


def _check_levels(levels: Sequence[Level]) -> None:
    if not levels:
        raise ParameterError("levels", levels, "at least one")
    first = math.fsum(each.mass * math.exp(each.log_ratio) for each in levels)
    second = math.fsum(each.mass for each in levels)
    if not (abs(first - 1) <= _UNBALANCED and abs(second - 1) <= _UNBALANCED):
        raise ParameterError("levels", f"sums of {first!r} and {second!r}", "two laws, sums of 1")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# Rényi divergences of mechanisms, as curves over the order α, and rounded up.
#
#     D_α(P ‖ Q) = ln E_Q[(P/Q)^α] / (α − 1)
#
# Order 1 is the Kullback-Leibler divergence and an infinite order the pure-DP ε: the limits on both
# sides. Each formula is arranged as ln(1 + y) with y a sum or product of positive terms, so that
# neither a small ε nor an order near 1 costs digits; where e^((α−1)ε) is no float it is taken out.

_LARGEST_CURVE_EXPONENT = 700.0  # e^700 = 1e304


def gaussian_renyi(distance: float, *, sigma: float, order: float) -> float:
    """Rényi divergence of two Gaussians whose means lie `distance` apart.

        D_α(N(m, σ²I) ‖ N(m′, σ²I)) = α ‖m − m′‖² / (2σ²), in exact rational arithmetic

    Args:
        distance: ‖m − m′‖₂, data units; 0 ≤ distance ≤ 1e15.
        sigma: noise standard deviation per coordinate, data units; finite, > 0.
        order: Rényi order α; 1 (KL) ≤ α ≤ 1e15, or infinite (pure ε).

    Returns:
        The divergence in nats, the least float that is not below it; infinite at an infinite order.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Mironov 2017, arXiv:1702.07476, Proposition 7.

    >>> gaussian_renyi(1.0, sigma=2.0, order=8.0)
    1.0
    """
    distance = check_amount("distance", distance)
    check_positive("sigma", sigma)
    order = check_order("order", order, kl=True)
    if distance == 0:
        return 0.0
    if order == math.inf:
        return math.inf
    return ceil_float(Fraction(order) * Fraction(distance) ** 2 / (2 * Fraction(sigma) ** 2))


def laplace_renyi(distance: float, *, scale: float, order: float) -> float:
    """Rényi divergence of two Laplace laws whose centres lie `distance` apart.

        D_α = ln( α/(2α−1) e^((α−1)t) + (α−1)/(2α−1) e^(−αt) ) / (α − 1),   t = |m − m′| / b
        D_1 = t + e^(−t) − 1,   D_∞ = t

    Args:
        distance: |m − m′|, data units; 0 ≤ distance ≤ 1e15.
        scale: b, data units; finite, > 0.
        order: Rényi order α; 1 (KL) ≤ α ≤ 1e15, or infinite (pure ε).

    Returns:
        The divergence in nats, rounded up; infinite where t is.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Mironov 2017, arXiv:1702.07476, Proposition 6.

    >>> round(laplace_renyi(2.0, scale=1.0, order=1.0) - math.exp(-2), 9)
    1.0
    """
    distance = check_amount("distance", distance)
    check_positive("scale", scale)
    order = check_order("order", order, kl=True)
    if distance == 0:
        return 0.0
    t = distance / scale
    if order == math.inf or t == math.inf:
        return up(t)
    beta = order - 1
    if beta == 0:
        return up(curvature(-t))
    if beta * t <= _LARGEST_CURVE_EXPONENT:
        share = beta / (order + beta)
        excess = (1 - share) * curvature(beta * t) + share * curvature(-order * t)
        return up(math.log1p(excess) / beta)
    return up(t - math.log1p(beta / order) / beta)  # e^(−αt) is no float


def randomized_response_renyi(epsilon: float, *, options: int, order: float) -> float:
    """Rényi divergence of k-ary randomized response between two different values.

        D_α = ln( (e^(αε) + e^(−(α−1)ε) + k − 2) / (e^ε + k − 1) ) / (α − 1)
            = ln( 1 + p (e^((α−1)ε) − 1) (1 − e^(−αε)) ) / (α − 1),   p = e^ε / (e^ε + k − 1)
        D_1 = p ε (1 − e^(−ε)),   D_∞ = ε

    The true value is kept with probability p; each of the others comes out with p e^(−ε).

    Args:
        epsilon: ε of the mechanism in nats; 0 ≤ ε ≤ 1e15.
        options: k, how many values there are; 2 ≤ k ≤ 2^53.
        order: Rényi order α; 1 (KL) ≤ α ≤ 1e15, or infinite (pure ε).

    Returns:
        The divergence in nats, rounded up.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Mironov 2017, arXiv:1702.07476, Proposition 5, for k = 2; the first line is the sum over
    the outputs of P^α Q^(1−α). With e^ε = 3, k = 2 and α = 2 it is ln((9 + 1/3)/4):

    >>> round(math.exp(randomized_response_renyi(math.log(3), options=2, order=2.0)) * 12, 9)
    28.0
    """
    epsilon = check_amount("epsilon", epsilon)
    check_integer("options", options, 2, 1 << 53)
    order = check_order("order", order, kl=True)
    if epsilon == 0 or order == math.inf:
        return epsilon
    others = (options - 1) * math.exp(-epsilon)
    kept = 1 / (1 + others)
    beta = order - 1
    if beta == 0:
        return min(epsilon, up(kept * epsilon * -math.expm1(-epsilon)))
    if beta * epsilon <= _LARGEST_CURVE_EXPONENT:
        excess = kept * _expm1(beta, epsilon) * -math.expm1(-order * epsilon)
        return min(epsilon, up(math.log1p(excess) / beta))
    return min(epsilon, up(epsilon - math.log1p(others) / beta))  # e^(−(α−1)ε) is no float


def uniform_response_renyi(epsilon: float, *, options: int, order: float) -> float:
    """Rényi divergence of k-ary randomized response from a uniform draw: no reference for a study.

        D_α = max of D_α(P ‖ U) and D_α(U ‖ P),   U = 1/k everywhere,
        P = e^ε / (e^ε + k − 1) once and 1 / (e^ε + k − 1) elsewhere

    It is here to reproduce published curves. A device that answered with a uniform draw once its
    budget is gone would bias every count by the secret number of such devices.

    Args:
        epsilon: ε of the mechanism in nats; 0 ≤ ε ≤ 700.
        options: k, how many values there are; 2 ≤ k ≤ 2^53.
        order: Rényi order α; 1 (KL) ≤ α ≤ 1e15, or infinite (pure ε).

    Returns:
        The divergence in nats, rounded up.

    Raises:
        ParameterError: an argument is outside its range.

    Source: the sums over the outputs. With e^ε = 3 and k = 2, D_∞ = ln(½ / ¼):

    >>> round(math.exp(uniform_response_renyi(math.log(3), options=2, order=math.inf)), 9)
    2.0
    """
    if not check_amount("epsilon", epsilon) <= _LARGEST_CURVE_EXPONENT:
        raise ParameterError("epsilon", epsilon, "at least 0 and at most 700")
    check_integer("options", options, 2, 1 << 53)
    order = check_order("order", order, kl=True)
    if epsilon == 0:
        return 0.0
    rest = options - 1
    shrunk = rest / options * math.expm1(-epsilon)
    if shrunk > -0.5:
        above = -math.log1p(shrunk)  # ln k p
    else:
        above = -math.log((1 + rest * math.exp(-epsilon)) / options)
    below = math.log1p(math.expm1(epsilon) / options)  # −ln k p e^(−ε)
    levels = (
        Level(mass=1 / options, log_ratio=above),
        Level(mass=rest / options, log_ratio=-below),
    )
    return levels_renyi(levels, order=order)


def _expm1(factor: float, exponent: float) -> float:
    """e^(factor · exponent) − 1 as if the product were exact; it must not be above 700."""
    product = factor * exponent
    if product < 1:
        return math.expm1(product)
    return exp_exact(Fraction(factor) * Fraction(exponent)) - 1
