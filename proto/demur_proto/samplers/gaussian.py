"""Wide Gaussians from small tables.

With X normal of variance v and W discrete Gaussian of variance w, X + kW has nearly the density of
a normal variable of variance v + k²w: it differs by a factor of 1 ± ε, times a constant, where

    ε ≤ 2.001 exp(−2π²τ²),    1/τ² = 1/w + k²/v.

So do X and X + kW rounded, and so do discrete Gaussians. Here 1/τ² ≤ 0.2201 always, and ε < 2⁻¹²⁸.
`docs/samplers.md` has the proof.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from math import isqrt
from typing import Self, final

from demur_proto.arrays import Integers, Words
from demur_proto.checks import check_positive
from demur_proto.errors import ParameterError
from demur_proto.samplers.base import BitSource
from demur_proto.samplers.table import PLACES, Table, draw, gaussian_weights, normal_tail

FARTHEST = 180  #: x²/σ² beyond which a table ends; less than 2⁻¹²⁸ lies there
LARGEST = 1 << 58  #: of σ: values are below 20σ, which fits 63 bits
ROUNDED_WIDTH = 64  #: σ of the widest table of a rounded Gaussian
DISCRETE_WIDTH = 256  #: σ of a table of the discrete Gaussian; the innermost may be twice as wide


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianLevels:
    """X_0 + k_1(X_1 + k_2(X_2 + …)), each X from a table."""

    tables: tuple[Table, ...]  #: of X_0, X_1, …
    factors: tuple[int, ...]  #: k_1, k_2, …

    @classmethod
    def rounded(cls, variance: Fraction) -> Self:
        """A normal variable rounded to the nearest integer.

        >>> levels = GaussianLevels.rounded(Fraction(2) ** 40)
        >>> [table.last for table in levels.tables], levels.factors
        ([859, 3434, 3907], (30, 120))
        """
        if variance <= ROUNDED_WIDTH**2:
            return cls(tables=(rounded_table(variance),), factors=())
        outer = min(Fraction(ROUNDED_WIDTH**2), variance / 4)
        factor = _factor(variance, outer)
        inner = cls.discrete((variance - outer) / factor**2)
        return cls(tables=(rounded_table(outer), *inner.tables), factors=(factor, *inner.factors))

    @classmethod
    def discrete(cls, variance: Fraction) -> Self:
        """The discrete Gaussian, P(z) ∝ exp(−z²/(2·variance))."""
        middle = Fraction(DISCRETE_WIDTH**2)
        factors: list[int] = []
        while variance > 4 * middle:
            factors.append(_factor(variance, middle))
            variance = (variance - middle) / factors[-1] ** 2
        same = [discrete_table(middle)] * len(factors) if factors else []
        return cls(tables=(*same, discrete_table(variance)), factors=tuple(factors))

    def draw(self, count: int, source: BitSource) -> Integers:
        """`count` independent values [count]."""
        return draw(self.tables, count, source, combine=self._combine)

    def _combine(self, rows: Words) -> Integers:
        total: Integers = rows[-1]
        for factor, row in zip(reversed(self.factors), rows[-2::-1], strict=True):
            total *= factor
            total += row
        return total


def check_width(name: str, value: float) -> None:
    """Refuse what is no standard deviation in the range that is covered."""
    check_positive(name, value)
    if value > LARGEST:
        raise ParameterError(name, value, "at most 2^58")


def rounded_table(variance: Fraction) -> Table:
    """A normal variable rounded to the nearest integer, as one table."""
    # Boundaries lie at k + ½; those up to FARTHEST are kept.
    kept = (isqrt(int(4 * FARTHEST * variance)) + 1) // 2
    squares = ((2 * k + 1) ** 2 / (4 * variance) for k in range(kept))
    weights = gaussian_weights(variance, start=Fraction(1, 2))
    tails = [normal_tail(square, weight) for square, weight in zip(squares, weights)]  # noqa: B905
    return Table.from_tails(below=tails, above=tails)


def discrete_table(variance: Fraction) -> Table:
    """The discrete Gaussian as one table."""
    kept = isqrt(int(FARTHEST * variance))
    weights = list(islice(gaussian_weights(variance, start=Fraction(0)), kept + 1))
    total = 2 * sum(weights) - weights[0]
    tails: list[int] = []
    above = 0
    for weight in reversed(weights[1:]):
        above += weight
        tails.append((above << PLACES) // total)
    tails.reverse()
    return Table.from_tails(below=tails, above=tails)


def _factor(variance: Fraction, outer: Fraction) -> int:
    """k: as large as the inner table needs, and no larger than makes ε too large."""
    wanted = isqrt(int(variance / DISCRETE_WIDTH**2)) + 1
    allowed = isqrt(int(outer * 225 / 1024))  # 15/32 of the outer σ
    return min(wanted, allowed)


# Rounded Gaussian: a normal variable rounded to the nearest integer.


@final
@dataclass(frozen=True, slots=True)
class RoundedGaussianSampler:
    """round(N(0, steps²)), within total variation 2⁻¹²³ given uniform bits.

        P(z) = Φ((z + ½)/steps) − Φ((z − ½)/steps)

    The law is symmetric exactly. What is drawn depends on the source's words alone, not on how
    many values are drawn at a time. Made once for each parameter, in about a tenth of a second;
    threads may share it.

    Args:
        steps: standard deviation before rounding, in grid steps, the exact value of the float;
            > 0 and at most 2⁵⁸.

    Raises:
        ParameterError: the number of steps is out of range.

    Source: docs/samplers.md.

    >>> from demur_proto.samplers.base import SystemBits
    >>> RoundedGaussianSampler(1e-3).draw(3, SystemBits()).tolist()  # ½ is 500 σ away
    [0, 0, 0]
    """

    steps: float
    levels: GaussianLevels = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_width("steps", self.steps)
        levels = GaussianLevels.rounded(Fraction(self.steps) ** 2)
        object.__setattr__(self, "levels", levels)

    def draw(self, count: int, source: BitSource) -> Integers:
        """`count` independent values [count]."""
        return self.levels.draw(count, source)


# Discrete Gaussian: the Gaussian shape on the integers.


@final
@dataclass(frozen=True, slots=True)
class DiscreteGaussianSampler:
    """P(z) ∝ exp(−z²/(2σ²)) on all integers, within total variation 2⁻¹²³ given uniform bits.

    The law is symmetric exactly. What is drawn depends on the source's words alone, not on how
    many values are drawn at a time. Made once for each parameter, in hundredths of a second;
    threads may share it.

    Args:
        sigma: σ, in grid steps, the exact value of the float; > 0 and at most 2⁵⁸.

    Raises:
        ParameterError: σ is out of range.

    Source: docs/samplers.md. The law: Canonne, Kamath & Steinke 2020, arXiv:2004.00010,
    Definition 1.

    >>> from demur_proto.samplers.base import SystemBits
    >>> DiscreteGaussianSampler(0.05).draw(3, SystemBits()).tolist()  # P(±1) < 1e-86
    [0, 0, 0]
    """

    sigma: float
    levels: GaussianLevels = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_width("sigma", self.sigma)
        levels = GaussianLevels.discrete(Fraction(self.sigma) ** 2)
        object.__setattr__(self, "levels", levels)

    def draw(self, count: int, source: BitSource) -> Integers:
        """`count` independent values [count]."""
        return self.levels.draw(count, source)
