"""The rounded Gaussian: one law, several samplers.

round(N(0, s²)) per coordinate, s in grid steps. A value z is an integer, so z + round(Z) is
round(z + Z): post-processing of the plain Gaussian mechanism, which is why zCDP and GDP charges
hold for it exactly.

A sum of n such shares, each N(0, σ_i²) rounded on its own, is the sum of n Gaussians rounded likewise
and n − 1 independent uniforms on ±½, up to total variation of order e^(−π²(σ_i/γ)²). At the required
σ_i/γ ≥ 8 that is below 1e-274, far inside what the printed δ keeps for the exact sampler.
"""

from typing import Protocol

from demur_proto.arrays import Values, Words
from demur_proto.bits import BitSource


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
