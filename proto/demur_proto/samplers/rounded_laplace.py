"""Rounded Laplace: a Laplace variable rounded to the nearest integer."""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import final

import numpy as np

from demur_proto.arrays import Integers
from demur_proto.bits import BitSource
from demur_proto.checks import check_integer
from demur_proto.mechanisms.thresholds import BITS, Threshold
from demur_proto.samplers.discrete_laplace import DiscreteLaplaceSampler
from demur_proto.samplers.fixed import PLACES, exp_minus


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

    >>> from demur_proto.bits import SystemBits
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
