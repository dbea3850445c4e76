"""Rounded Gaussian: a normal variable rounded to the nearest integer."""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import final

from demur_proto.arrays import Integers
from demur_proto.bits import BitSource
from demur_proto.samplers.gaussian_levels import GaussianLevels, check_width


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

    >>> from demur_proto.bits import SystemBits
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
