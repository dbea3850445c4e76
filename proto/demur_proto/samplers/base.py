"""Random bits: where every exact sampler starts.

A mechanism whose law is exact given uniform bits takes a `BitSource`. On a device that is
`SystemBits`; a simulation has a seeded one of its own, which nothing below it can import.
"""

import os
from typing import Protocol, final

import numpy as np

from demur_proto.arrays import Bits, Values, Words
from demur_proto.checks import check_integer


class BitSource(Protocol):
    """Independent uniform bits, 64 at a time."""

    def words(self, count: int) -> Bits:
        """The next `count` words [count], each uniform on 0 to 2⁶⁴ − 1. The caller may write it."""


@final
class SystemBits:
    """The operating system's cryptographic source. It cannot be seeded.

    >>> SystemBits().words(3).shape
    (3,)
    """

    def words(self, count: int) -> Bits:
        """The next `count` words [count]."""
        check_integer("count", count, 0)
        return np.frombuffer(bytearray(os.urandom(8 * count)), dtype="<u8")


# The rounded Gaussian: one law, several samplers.
#
# round(N(0, s²)) per coordinate, s in grid steps. A value z is an integer, so z + round(Z) is
# round(z + Z): post-processing of the plain Gaussian mechanism, which is why zCDP and GDP charges
# hold for it exactly.
#
# A sum of n such shares, each N(0, σ_i²) rounded on its own, is the sum of n Gaussians rounded likewise
# and n − 1 independent uniforms on ±½, up to total variation of order e^(−π²(σ_i/γ)²). At the required
# σ_i/γ ≥ 8 that is below 1e-274, far inside what the printed δ keeps for the exact sampler.


class Sampler(BitSource, Protocol):
    """A source of noise, of rounding coins, and of the bits that exact mechanisms start from.

    Whoever asks owns what comes, and may write it.
    """

    @property
    def name(self) -> str:
        """What results call it."""

    def gaussian(self, steps: float, *, reports: int, dimension: int) -> Words:
        """Rounded Gaussian noise [reports, dimension] of standard deviation `steps` grid steps."""

    def uniform(self, *, reports: int, dimension: int) -> Values:
        """Coins [reports, dimension], uniform on [0, 1), for unbiased rounding."""
