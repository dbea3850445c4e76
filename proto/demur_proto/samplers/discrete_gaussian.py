"""Discrete Gaussian: the Gaussian shape on the integers."""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import final

from demur_proto.arrays import Integers
from demur_proto.bits import BitSource
from demur_proto.samplers.gaussian_levels import GaussianLevels, check_width


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

    >>> from demur_proto.bits import SystemBits
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
