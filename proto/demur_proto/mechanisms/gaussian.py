"""Linear queries with rounded Gaussian noise, on an integer grid."""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import cast

import numpy as np

from demur_proto.arrays import Flags, Integers, Values, Words
from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import ParameterError
from demur_proto.grid import RADIUS_LIMIT, grid_step, squared_radius
from demur_proto.mechanisms.base import TWO_SIDED_QUANTILE, Estimate
from demur_proto.mechanisms.rounding import on_grid, plain_words, rounded, scaled_within
from demur_proto.noise import Sampler
from demur_proto.round import GaussianQuery
from demur_proto.study import Policy, Study
from demur_proto.words import WordType

FEWEST_NOISE_STEPS = 8  #: σ_i/γ in view aggregate, so that sums of shares are Gaussian enough
WORD_LIMIT_SIGMAS = 40  #: a word further out than the clip plus this is not a report


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianLinear:
    """Round a clipped vector to the grid, then add a share of rounded Gaussian noise.

    Both halves live here, so whoever changes the noise sees the estimate that must undo it.

    Raises:
        ParameterError: the grid is too coarse for the noise of a share, or words would not fit 64
            bits.
    """

    dimension: int  #: d
    clip: float  #: ℓ₂ radius C, data units
    grid_exponent: int  #: grid step γ = 2^this
    sigma: float  #: full noise of the view, data units
    shares: int  #: how many devices split it; 1 in view local
    on_grid: bool  #: every possible value is a multiple of γ, and none is ever shrunk
    shrinks: bool = False  #: policy `clip`: what is left of a budget may shrink a value
    # Worked out once, since these take exact fractions and every report is held against them.
    #: R = ⌊C²/γ²⌋, the largest squared norm of a value in grid steps.
    squared_radius: int = field(init=False, repr=False, compare=False)
    #: σ_i, one device's own noise, data units: never less than σ/√shares.
    share_sigma: float = field(init=False, repr=False, compare=False)
    #: Largest magnitude of a word that the server accepts: ⌊(C + 40σ_i)/γ⌋.
    word_limit: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_integer("dimension", self.dimension, 1, (1 << 31) - 1)
        check_positive("sigma", self.sigma)
        check_integer("shares", self.shares, 1, (1 << 31) - 1)
        radius = squared_radius(self.clip, self.grid_exponent)
        object.__setattr__(self, "squared_radius", radius)
        object.__setattr__(self, "share_sigma", _share_of(self.sigma, self.shares))
        reach = Fraction(self.clip) + WORD_LIMIT_SIGMAS * Fraction(self.share_sigma)
        object.__setattr__(self, "word_limit", int(reach / grid_step(self.grid_exponent)))
        if self.word_limit > WordType.INT64.limit:
            raise ParameterError(
                "grid_exponent", self.grid_exponent, "coarser: words would not fit 64 bits"
            )
        if not self.noise_steps > 0:
            raise ParameterError("sigma", self.sigma, "more: it is nothing in grid steps")
        if self.shares > 1 and not self.noise_steps >= FEWEST_NOISE_STEPS:
            finest = math.frexp(self.share_sigma)[1] - FEWEST_NOISE_STEPS.bit_length()
            raise ParameterError(
                "grid_exponent",
                self.grid_exponent,
                f"at most {finest}: a share of the noise ({self.share_sigma:.3g}) must be "
                f"{FEWEST_NOISE_STEPS} grid steps or more",
            )

    @classmethod
    def of(cls, study: Study, query: GaussianQuery) -> "GaussianLinear":
        """The mechanism that a query of a study uses, if it asks for a sum of vectors."""
        return cls(
            dimension=query.dimension,
            clip=query.clip,
            grid_exponent=query.grid_exponent,
            sigma=query.sigma,
            shares=study.noise_shares,
            on_grid=query.on_grid and study.policy is not Policy.CLIP,
            shrinks=study.policy is Policy.CLIP,
        )

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
        return self.squared_radius

    @property
    def noise_steps(self) -> float:
        """σ_i/γ, one device's own noise in grid steps."""
        return math.ldexp(self.share_sigma, -self.grid_exponent)

    @property
    def report_mu(self) -> float:
        """μ of one report on its own, at the full clip: C/σ_i. In view aggregate that is large."""
        return self.clip / self.share_sigma

    def clipped(self, values: Values) -> Values:
        """Values [n, d] as S_active adds them up, in grid steps: scaled into the clip C, and no more.

        Neither shrunk by a budget nor rounded. A row that is no valid value is zero, as `encode` has it.
        Secret.

        Raises:
            ParameterError: the values are not of shape [n, d].

        >>> mechanism = GaussianLinear(dimension=2, clip=1.0, grid_exponent=-14, sigma=4.0,
        ...                            shares=1, on_grid=False)
        >>> mechanism.clipped(np.array([[0.0, 0.25], [3.0, -4.0]])) / 2**14
        array([[ 0.  ,  0.25],
               [ 0.6 , -0.8 ]])
        """
        valid = self.sound(values)
        kept = values if valid.all() else np.where(valid[:, None], values, 0.0)
        kept = kept.astype(np.float64, copy=False)
        reach = np.full(len(kept), math.ldexp(self.clip, -self.grid_exponent))
        return scaled_within(kept, exponent=self.grid_exponent, reach=reach)

    def sound(self, values: Values) -> Flags:
        """Which rows of values [n, d] are finite, and keep the promise of an on-grid round [n].

        Raises:
            ParameterError: the values are not of shape [n, d].
        """
        self._check_shape(values)
        if self.on_grid:
            exponent, radius = self.grid_exponent, self.squared_radius
            candidates = on_grid(values, exponent=exponent)
            return plain_words(values, candidates, exponent=exponent, radius=radius)[2]
        finite: Flags = np.all(np.isfinite(values), axis=1)
        return finite

    def encode(self, values: Values, sampler: Sampler) -> tuple[Words, Integers]:
        """Device half, before the decision: values [n, d] to the grid.

        A value on the grid and inside the clip is used as it is. Any other is scaled into the
        clip (a little inside it, by the factor 1 − 2⁻¹²), then each coordinate is rounded up or
        down at random, without bias; should the rounded vector leave the clip, it is rounded
        towards zero instead. A value that is not finite, or that breaks the promise of an
        on-grid round, counts as an evaluation error: it becomes the reference, zero.

        What becomes of a row depends on that row and its coins alone, bit for bit, so a device
        gets the words that it gets in a cohort.

        Returns:
            words [n, d] in grid steps, each with Σz² ≤ R, and their squared norms [n].

        Raises:
            ParameterError: the values are not of shape [n, d].
        """
        self._check_shape(values)
        coins = None if self.on_grid else self._coins(sampler, len(values))
        words, squares, _ = self._encoded(values, coins)
        return words, squares

    def encode_within(
        self, values: Values, sampler: Sampler, *, radii: Integers, widen: bool = True
    ) -> tuple[Words, Integers, Flags]:
        """`encode` under policy `clip`: each row to a squared norm that it can still pay for.

        What `encode` says of the clip and of R holds here of each row's own R′. Coins are drawn
        in every round, so that nothing drawn depends on what is left of a budget.

        Args:
            values: [n, d], data units.
            sampler: of the coins.
            radii: R′ of each row [n], grid steps²; 0 to R. Secret.
            widen: see `rounding.rounded`.

        Returns:
            words [n, d] in grid steps, each with Σz² ≤ R′; their squared norms [n]; and whether
            the budget shrunk a row [n], so that with R it would have been another.

        Raises:
            ParameterError: the values are not of shape [n, d].
        """
        self._check_shape(values)
        coins = self._coins(sampler, len(values))
        words, squares, rough = self._encoded(values, None if self.on_grid else coins, widen=widen)
        shrunk: Flags = (radii == 0) & (squares > 0)
        words[shrunk], squares[shrunk] = 0, 0  # what rounding within nothing gives, found sooner
        tight = (radii > 0) & (radii < self.squared_radius) & (rough | (squares > radii))
        if tight.any():
            fitting, fitting_squares = rounded(
                values[tight].astype(np.float64, copy=False),
                coins[tight],
                exponent=self.grid_exponent,
                radii=radii[tight],
            )
            shrunk[tight] = (fitting != words[tight]).any(axis=1)
            words[tight], squares[tight] = fitting, fitting_squares
        return words, squares, shrunk

    def _check_shape(self, values: Values) -> None:
        if values.ndim != 2 or values.shape[1] != self.dimension:
            raise ParameterError("values", values.shape, f"of shape [n, {self.dimension}]")

    def _coins(self, sampler: Sampler, reports: int) -> Values:
        """One for each coordinate [n, d]."""
        return sampler.uniform(reports=reports, dimension=self.dimension)

    def _encoded(
        self, values: Values, coins: Values | None, *, widen: bool = True
    ) -> tuple[Words, Integers, Flags]:
        """Words, squared norms, and which rows had to be rounded: none, without coins."""
        values = values.astype(np.float64, copy=False)
        exponent, radius = self.grid_exponent, self.squared_radius
        candidates = on_grid(values, exponent=exponent)
        if coins is not None and not candidates.any():
            radii = np.full(len(values), radius)
            words, squares = rounded(values, coins, exponent=exponent, radii=radii, widen=widen)
            return words, squares, ~candidates
        words, squares, plain = plain_words(values, candidates, exponent=exponent, radius=radius)
        if coins is None:
            return words, squares, np.zeros_like(plain)
        rough = ~plain
        if rough.any():
            radii = np.full(np.count_nonzero(rough), radius)
            words[rough], squares[rough] = rounded(
                values[rough], coins[rough], exponent=exponent, radii=radii
            )
        return words, squares, rough

    def randomise(self, words: Words, sampler: Sampler) -> Words:
        """Device half, after the decision: words [n, d] plus a share of noise for each report."""
        noisy = self.noise(sampler, reports=len(words))
        if np.can_cast(words.dtype, noisy.dtype):
            noisy += words
            return noisy
        return noisy + words  # as wide as the wider of the two: nothing wraps around

    def noise(self, sampler: Sampler, *, reports: int) -> Words:
        """One share of noise for each report [n, d], grid steps."""
        return sampler.gaussian(self.noise_steps, reports=reports, dimension=self.dimension)

    def valid(self, reports: Words) -> Flags:
        """Server half: which reports [n, d] hold only words up to the limit [n], of any width."""
        limit = self.word_limit
        if not reports.size or (reports.max() <= limit and reports.min() >= -limit):
            return np.ones(len(reports), dtype=np.bool_)  # nearly always, and quickly known
        inside: Flags = np.all((reports >= -limit) & (reports <= limit), axis=1)
        return inside

    def tally(self, reports: Words) -> Integers:
        """Server half: the sum of valid reports [d], whose words may be of any width; exact."""
        # Without widening each word first, which takes longer than adding them up.
        narrow = reports.dtype.itemsize == 4 and len(reports) * self.word_limit < (1 << 31)
        sums = reports.sum(axis=0, dtype=np.int32 if narrow else np.int64)
        return cast(Integers, sums.astype(np.int64, copy=False))

    def charge_gdp(self, squared_norm: int) -> float:
        """μ of releasing a value of this squared norm (grid steps²), against the reference.

            μ = γ‖z‖/σ

        Secret: it depends on a person's data. For the owner's eyes; filters use integers.

        Source: Dong, Roth & Su 2019, arXiv:1905.02383, Theorem 2.7.

        >>> mechanism = GaussianLinear(dimension=1, clip=1.0, grid_exponent=-7, sigma=4.0,
        ...                            shares=1, on_grid=True)
        >>> mechanism.charge_gdp(128**2)
        0.25
        """
        if type(squared_norm) is not int or not 0 <= squared_norm <= RADIUS_LIMIT:
            # Without the value, which is secret.
            raise ParameterError("squared_norm", "another value", "an integer from 0 to 2^61")
        return math.ldexp(math.sqrt(squared_norm), self.grid_exponent) / self.sigma

    def charge_zcdp(self, squared_norm: int) -> float:
        """ρ in nats of releasing a value of this squared norm (grid steps²).

            ρ = γ²‖z‖²/(2σ²)

        Secret, like `charge_gdp`.

        Source: Bun & Steinke 2016, arXiv:1605.02065, Proposition 1.6.

        >>> mechanism = GaussianLinear(dimension=1, clip=1.0, grid_exponent=-7, sigma=4.0,
        ...                            shares=1, on_grid=True)
        >>> mechanism.charge_zcdp(128**2)
        0.03125
        """
        return self.charge_gdp(squared_norm) ** 2 / 2

    def standard_error(self, reports: int) -> float:
        """Standard error of a sum of `reports` reports, data units.

            γ√(n((σ_i/γ)² + 1/12)), plus n/4 under the root where values are rounded at random

        >>> mechanism = GaussianLinear(dimension=1, clip=1.0, grid_exponent=-7, sigma=4.0,
        ...                            shares=1, on_grid=True)
        >>> round(mechanism.standard_error(100), 3)
        40.0
        """
        check_integer("reports", reports, 0, (1 << 53))
        rounding = 1 / 12 if self.on_grid else 1 / 12 + 1 / 4
        return math.ldexp(math.sqrt(reports * (self.noise_steps**2 + rounding)), self.grid_exponent)

    def clipping_bias(self, reports: int) -> float:
        """The most by which clipping may shift a sum of `reports` reports, per coordinate.

            nC(2⁻¹² + 2⁻¹⁴), and 0 where every value lies on the grid

        A value that reaches the clip is scaled to just inside it, by the factor 1 − 2⁻¹², and in
        rare cases rounded towards zero, by less than γ ≤ 2⁻¹⁴C. How many did is secret.

        >>> mechanism = GaussianLinear(dimension=1, clip=1.0, grid_exponent=-14, sigma=4.0,
        ...                            shares=1, on_grid=False)
        >>> mechanism.clipping_bias(16384)
        5.0
        """
        check_integer("reports", reports, 0, (1 << 53))
        return 0.0 if self.on_grid else reports * self.clip * (2.0**-12 + 2.0**-14)

    def estimate(self, sums: Integers, *, reports: int) -> Estimate:
        """Server half: exact sums of words [d] to an estimate with its interval.

        The interval is for the sum of clipped values. The estimate is unbiased for it up to
        `clipping_bias`, by which the interval is wider on both sides. Where budgets may have shrunk
        values it is unbiased, up to as much, for values as shrunk; nobody can tell how many were, and
        so there is no interval. A lifetime cap of an owner shrinks as well, so the study's own
        budget does not tell from when on.

        Raises:
            ParameterError: the sums are not of shape [d], or there is no report.
        """
        if sums.shape != (self.dimension,):
            raise ParameterError("sums", sums.shape, f"of shape [{self.dimension}]")
        check_integer("reports", reports, 1, (1 << 53))
        error = self.standard_error(reports)
        reach = TWO_SIDED_QUANTILE * error + self.clipping_bias(reports)
        return Estimate(
            estimate=np.ldexp(sums.astype(np.float64), self.grid_exponent),
            standard_error=np.array([error]),
            half_width=np.array([] if self.shrinks else [reach]),
        )


def _share_of(sigma: float, shares: int) -> float:
    """σ/√shares, or the next larger float.

    >>> _share_of(3.0, 4)
    1.5
    """
    target = Fraction(sigma) ** 2 / shares
    share = sigma / math.sqrt(shares)
    while Fraction(share) ** 2 < target:
        share = math.nextafter(share, math.inf)
    return share
