"""Linear queries with discrete Gaussian noise: zCDP with no rounding of the noise, and no GDP."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from demur_proto.accounting.laws import (
    discrete_gaussian_renyi,
    discrete_gaussian_variance,
    discrete_gaussian_zcdp,
)
from demur_proto.accounting.numerics import check_amount, up
from demur_proto.arrays import Flags, Integers, Values, Words
from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.base import TWO_SIDED_QUANTILE, Estimate
from demur_proto.mechanisms.categorical import check_reports
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.samplers.base import BitSource, Sampler
from demur_proto.samplers.gaussian import DiscreteGaussianSampler


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


# Lipschitz post-maps: Gaussian noise around g of a query, charged by how far g really moved.

LARGEST_STEP = 1 << 52  #: of the reference: it and what is added to it stay exact as floats

MOST = 1e300  #: of a query's coordinate

PostMap = Callable[[Values], Values]
"""g: queries [n, e] to values [n, d], row by row, the same for everybody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LipschitzGaussian:
    """Release g(q(X)) + N(0, σ²), where the data itself enters only through a query q.

    Words are z − z_ref: z is g's value, rounded to the grid, and z_ref that of the reference record,
    which everybody knows. So the reference's words are zero, and a cover report is noise around z_ref.
    The clip C bounds ‖g − g_ref‖, and not ‖g‖.

    Neighbour: zero-out, the record replaced by the reference. Accounting is graded: γ²‖z − z_ref‖²/(2σ²) as
    zCDP, γ‖z − z_ref‖/σ as GDP, in the integers of `GaussianLinear`; the reference costs 0, exactly, and so
    does a record that g does not tell from it. Nothing that is charged relies on what g promises:
    the distance is the one that was released. If g is L-Lipschitz the charge is at most that of
    `charge_bound`, but for rounding.

    Raises:
        ParameterError: the reference is not d integers of at most 2^52.

    Source: Feldman & Zrnic 2021, arXiv:2008.11193, on Lipschitz analyses; z_ref is demur's.

    >>> linear = GaussianLinear(
    ...     dimension=1, clip=1.0, grid_exponent=-7, sigma=4.0, shares=1, on_grid=False)
    >>> mechanism = LipschitzGaussian.around([0.0], post_map=np.cos, linear=linear)
    >>> mechanism.reference  # cos(0) in steps of 1/128
    (128,)
    """

    linear: GaussianLinear  #: clip, grid and noise
    post_map: PostMap = field(repr=False, compare=False)  #: g
    reference: tuple[int, ...]  #: z_ref [d], grid steps; public

    def __post_init__(self) -> None:
        if not isinstance(self.linear, GaussianLinear):
            raise ParameterError("linear", self.linear, "a GaussianLinear")
        fits = all(type(step) is int and abs(step) <= LARGEST_STEP for step in self.reference)
        if len(self.reference) != self.linear.dimension or not fits:
            expected = f"{self.linear.dimension} integers within ±2^52"
            raise ParameterError("reference", self.reference, expected)
        if self.linear.word_limit + LARGEST_STEP >= 1 << 63:
            raise ParameterError("linear", self.linear, "of a coarser grid: words would overflow")

    @classmethod
    def around(
        cls, query: Sequence[float], *, post_map: PostMap, linear: GaussianLinear
    ) -> "LipschitzGaussian":
        """The mechanism whose reference is g of this query, rounded to the nearest grid point.

        Two machines may disagree on the last digit of g, so whoever writes the study does this once
        and states the integers.

        Args:
            query: q of the reference record [e], data units.
            post_map: g.
            linear: clip, grid and noise.

        Raises:
            ParameterError: g of the query is not d finite numbers within 2^52 steps.
        """
        for part in query:
            if isinstance(part, bool) or not isinstance(part, int | float) or abs(part) > MOST:
                raise ParameterError("query", list(query), "numbers within ±1e300")
        with np.errstate(all="ignore"):
            mapped = post_map(np.array([query], dtype=np.float64))
        if mapped.shape != (1, linear.dimension):
            raise ParameterError("post_map", mapped.shape, f"to shape [n, {linear.dimension}]")
        steps = np.rint(np.ldexp(mapped[0], -linear.grid_exponent))
        if not (np.abs(steps) <= LARGEST_STEP).all():
            raise ParameterError("query", list(query), "one that g maps within 2^52 grid steps")
        reference = tuple(int(step) for step in steps)
        return cls(linear=linear, post_map=post_map, reference=reference)

    @property
    def report_length(self) -> int:
        """Words in one report: one for each coordinate."""
        return self.linear.dimension

    @property
    def sums_length(self) -> int:
        """Numbers that the server keeps for a round: one for each coordinate."""
        return self.linear.dimension

    @property
    def largest(self) -> int:
        """The largest squared norm that `encode` gives, R."""
        return self.linear.squared_radius

    def encode(self, values: Values, sampler: Sampler) -> tuple[Words, Integers]:
        """Device half, before the decision: queries [n, e] to z − z_ref [n, d] and squared norms [n].

        A row that g does not map to finite numbers counts as an evaluation error and becomes the
        reference. What happens to g − g_ref is what `GaussianLinear.encode` does to a value.

        Raises:
            ParameterError: the queries are not of shape [n, e], or g does not give [n, d].
        """
        if values.ndim != 2:
            raise ParameterError("values", values.shape, "of shape [n, e]")
        with np.errstate(all="ignore"):
            mapped = self.post_map(values)
        if mapped.shape != (len(values), self.linear.dimension):
            expected = f"to shape [{len(values)}, {self.linear.dimension}]"
            raise ParameterError("post_map", mapped.shape, expected)
        steps = np.array(self.reference, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            moved = mapped - np.ldexp(steps, self.linear.grid_exponent)
        return self.linear.encode(moved, sampler)

    def randomise(self, words: Words, sampler: Sampler) -> Words:
        """Device half, after the decision: z − z_ref [n, d] to z plus a share of noise [n, d]."""
        return self.linear.randomise(words, sampler) + self._reference

    def valid(self, reports: Words) -> Flags:
        """Server half: which reports [n, d] are near enough to z_ref [n]."""
        return self.linear.valid(reports - self._reference)

    def tally(self, reports: Words) -> Integers:
        """Server half: the sum of valid reports, less z_ref for each [d]; exact."""
        return self.linear.tally(reports - self._reference)

    def estimate(self, sums: Integers, *, reports: int) -> Estimate:
        """Server half: the sums [d] to Σ(g − g_ref) over all who answered, with intervals.

        Who covers adds nothing to it. Adding n g_ref gives the sum of what all of them released.

        Raises:
            ParameterError: the sums are not of shape [d], or there is no report.
        """
        return self.linear.estimate(sums, reports=reports)

    def charge_gdp(self, squared_norm: int) -> float:
        """μ of releasing a value at this squared distance ‖z − z_ref‖² from the reference. Secret."""
        return self.linear.charge_gdp(squared_norm)

    def charge_zcdp(self, squared_norm: int) -> float:
        """ρ of releasing a value at this squared distance ‖z − z_ref‖² from the reference. Secret."""
        return self.linear.charge_zcdp(squared_norm)

    def charge_bound(self, distance: float, *, lipschitz: float) -> float:
        """The most that a query so far from the reference's can cost as zCDP, before rounding.

            ρ ≤ L²‖q − q_ref‖²/(2σ²), and no more than at the clip

        For planning; nothing is charged by it.

        Args:
            distance: ‖q − q_ref‖₂, data units; 0 ≤ distance ≤ 1e15.
            lipschitz: L, which g promises; > 0.

        Raises:
            ParameterError: an argument is outside its range.

        >>> linear = GaussianLinear(
        ...     dimension=1, clip=1.0, grid_exponent=-7, sigma=4.0, shares=1, on_grid=False)
        >>> mechanism = LipschitzGaussian(linear=linear, post_map=np.tanh, reference=(0,))
        >>> mechanism.charge_bound(0.5, lipschitz=1.0), mechanism.charge_bound(9.0, lipschitz=1.0)
        (0.0078125, 0.03125)
        """
        distance = check_amount("distance", distance)
        check_positive("lipschitz", lipschitz)
        moved = min(lipschitz * distance, self.linear.clip)
        return (moved / self.linear.sigma) ** 2 / 2

    @property
    def _reference(self) -> Integers:
        return np.array(self.reference, dtype=np.int64)
