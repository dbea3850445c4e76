"""Linear queries with discrete Gaussian noise: zCDP with no rounding of the noise, and no GDP."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from demur_proto.arrays import Flags, Integers, Values, Words
from demur_proto.bits import BitSource
from demur_proto.checks import check_integer
from demur_proto.discrete_gaussian_law import (
    discrete_gaussian_renyi,
    discrete_gaussian_variance,
    discrete_gaussian_zcdp,
)
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.base import TWO_SIDED_QUANTILE, Estimate
from demur_proto.mechanisms.frequencies import check_reports
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.noise import Sampler
from demur_proto.outward import up
from demur_proto.samplers.discrete_gaussian import DiscreteGaussianSampler


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteGaussianLinear:
    """Round a clipped vector to the grid, and add P(z) ∝ e^(−z²γ²/(2σ²)) to every coordinate.

    Neighbour: zero-out, the vector replaced by zero. Accounting is graded: words z cost γ²‖z‖²/(2σ²) as
    zCDP, in the integers of `GaussianLinear`; zero costs 0, exactly.

    What it is not: the charge is *not* a GDP charge, so it belongs to no study of the measure `gdp`; and
    the noise is *not* for shares, since sums of discrete Gaussians are no discrete Gaussians. It is
    full in every view.

    Charges are those of the law. What is drawn is within total variation 2⁻¹²³ of it for each coordinate
    (docs/samplers.md), which costs (1 + e^ε) d 2⁻¹²³ in the δ of a report.

    Raises:
        ParameterError: a field is outside its range, or words would not fit 64 bits.

    Source: Canonne, Kamath & Steinke 2020, arXiv:2004.00010, Theorem 4.

    >>> mechanism = DiscreteGaussianLinear(dimension=2, clip=1.0, grid_exponent=-7, sigma=4.0)
    >>> mechanism.charge_zcdp(128**2), mechanism.charge_renyi([128, 0], order=8.0)
    (0.03125, 0.25)
    """

    dimension: int  #: d
    clip: float  #: ℓ₂ radius C, data units
    grid_exponent: int  #: grid step γ = 2^this
    sigma: float  #: σ, data units
    on_grid: bool = False  #: every possible value is a multiple of γ
    grid: GaussianLinear = field(init=False, repr=False, compare=False)
    """How values become words; its noise is not used."""
    noise: DiscreteGaussianSampler = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        grid = GaussianLinear(
            dimension=self.dimension,
            clip=self.clip,
            grid_exponent=self.grid_exponent,
            sigma=self.sigma,
            shares=1,
            on_grid=self.on_grid,
        )
        object.__setattr__(self, "grid", grid)
        object.__setattr__(self, "noise", DiscreteGaussianSampler(grid.noise_steps))

    @property
    def report_length(self) -> int:
        """Words in one report: one for each coordinate."""
        return self.dimension

    @property
    def sums_length(self) -> int:
        """Numbers that the server keeps for a round: one for each coordinate."""
        return self.dimension

    @property
    def largest(self) -> int:
        """The largest squared norm that `encode` gives, R."""
        return self.grid.squared_radius

    def encode(self, values: Values, sampler: Sampler) -> tuple[Words, Integers]:
        """Device half, before the decision: values [n, d] to words and squared norms.

        As `GaussianLinear.encode`.

        Raises:
            ParameterError: the values are not of shape [n, d].
        """
        return self.grid.encode(values, sampler)

    def randomise(self, words: Words, sampler: BitSource) -> Words:
        """Device half, after the decision: words [n, d] plus noise [n, d].

        Raises:
            ParameterError: the words are not of shape [n, d].
        """
        check_reports(words, length=self.dimension)
        return words + self.noise.draw(words.size, sampler).reshape(words.shape)

    def valid(self, reports: Words) -> Flags:
        """Server half: which reports [n, d] hold only words up to the limit [n]."""
        return self.grid.valid(reports)

    def tally(self, reports: Words) -> Integers:
        """Server half: the sum of valid reports [d]; exact.

        Raises:
            ParameterError: they are not reports of this mechanism.
        """
        check_reports(reports, length=self.dimension)
        if not self.valid(reports).all():
            raise ParameterError("reports", "another number", f"within ±{self.grid.word_limit}")
        return self.grid.tally(reports)

    def estimate(self, sums: Integers, *, reports: int) -> Estimate:
        """Server half: sums of n reports [d] to the sum of the clipped values, with intervals.

        Unbiased but for `GaussianLinear.clipping_bias`, by which intervals are wider.

        Raises:
            ParameterError: the sums are not of shape [d], or there is no report.
        """
        plain = self.grid.estimate(sums, reports=reports)
        error = math.sqrt(self.variance(reports=reports))
        width = TWO_SIDED_QUANTILE * error + self.grid.clipping_bias(reports)
        return Estimate(
            estimate=plain.estimate,
            standard_error=np.array([error]),
            half_width=np.array([width]),
        )

    def variance(self, *, reports: int) -> float:
        """Variance of each coordinate of the estimate, data units².

            n γ² Var(Z), plus at most n γ²/4 where values are rounded at random

        >>> mechanism = DiscreteGaussianLinear(
        ...     dimension=1, clip=1.0, grid_exponent=-7, sigma=4.0, on_grid=True)
        >>> mechanism.variance(reports=100)
        1600.0
        """
        check_integer("reports", reports, 1, 1 << 53)
        rounding = 0.0 if self.on_grid else 0.25
        noise = discrete_gaussian_variance(self.grid.noise_steps)
        return math.ldexp(reports * (noise + rounding), 2 * self.grid_exponent)

    def charge_renyi(self, steps: Sequence[int], *, order: float) -> float:
        """D_α of releasing these words against zero, nats, rounded up. Secret.

            Σ over the coordinates of `discrete_gaussian_renyi`: at most αγ²‖z‖²/(2σ²)

        Args:
            steps: z [d], grid steps, with ‖z‖² ≤ R.
            order: α; 1 (KL) or more, or infinite.

        Raises:
            ParameterError: an argument is outside its range.
        """
        integers = all(type(step) is int for step in steps)
        if len(steps) != self.dimension or not integers:
            raise ParameterError("steps", "others", f"{self.dimension} integers")
        self._check_norm("steps", sum(step * step for step in steps))
        sigma = self.grid.noise_steps
        parts = [discrete_gaussian_renyi(abs(step), sigma=sigma, order=order) for step in steps]
        largest = math.fsum(parts)
        exact = len([part for part in parts if part]) <= 1
        return largest if exact else up(largest)

    def charge_zcdp(self, squared_norm: int) -> float:
        """ρ of releasing words of this squared norm, nats, rounded up. Secret.

        ρ = γ²‖z‖²/(2σ²)
        """
        self._check_norm("squared_norm", squared_norm)
        return discrete_gaussian_zcdp(squared_norm, sigma=self.grid.noise_steps)

    def charge_pure(self, squared_norm: int) -> float:
        """ε of releasing words of this squared norm: infinite, unless they are zero. Secret."""
        self._check_norm("squared_norm", squared_norm)
        return math.inf if squared_norm else 0.0

    def _check_norm(self, name: str, squared_norm: int) -> None:
        if type(squared_norm) is not int or not 0 <= squared_norm <= self.largest:
            # Without the value, which is secret.
            expected = f"of a squared norm up to {self.largest}, an integer"
            raise ParameterError(name, "another value", expected)
