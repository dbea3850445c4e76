"""Rényi divergences of two laws on finitely many levels, and their zCDP.

A mechanism's reports against the reference's often take only a few likelihood ratios. Outputs of one
ratio are one level. With q the second law's mass of a level, p = q e^l the first law's, β = α − 1 and
g(x) = e^x − 1 − x,

    q [ (p/q)^α − 1 − α (p/q − 1) ] = p [ g(βl) + β g(−l) ]

is never negative, and what it leaves out of Σ q (p/q)^α sums to zero over both laws. So

    D_α(P ‖ Q) = ln( 1 + αβ M(α) ) / β,   αβ M(α) = Σ p [ g(βl) + β g(−l) ],   D_1 = M(1) = Σ p g(−l)

has nothing that cancels. Every term is enlarged by what its exponents may have lost.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from demur_proto.errors import ParameterError
from demur_proto.outward import up
from demur_proto.ranges import check_order
from demur_proto.zcdp_supremum import zcdp_supremum

LARGEST_RATIO = 700.0  #: of |l|, nats
LEAST_MASS = 1e-100

_LARGEST_EXPONENT = 640.0  # of βl; beyond, even p ≥ 1e-100 leaves Σ p e^(βl) no use for its 1
_UNIT = 2.0**-50
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
