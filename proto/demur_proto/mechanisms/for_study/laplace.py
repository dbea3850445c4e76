"""Sums of one number with Laplace noise on an integer grid, continuous or discrete."""

import math
from dataclasses import dataclass, field
from enum import StrEnum, unique
from fractions import Fraction

import numpy as np

from demur_proto.accounting.calibration import grid_step
from demur_proto.accounting.divergences import laplace_renyi
from demur_proto.accounting.laws import discrete_laplace_renyi, discrete_laplace_zcdp, laplace_zcdp
from demur_proto.arrays import Flags, Integers, Values, Words
from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.base import TWO_SIDED_QUANTILE, Estimate
from demur_proto.mechanisms.categorical import MOST_REPORTS, check_reports, fits
from demur_proto.mechanisms.for_study.numeric import (
    FULL_CHARGE,
    GradedCharges,
    check_steps,
    to_steps,
)
from demur_proto.samplers.base import BitSource, Sampler
from demur_proto.samplers.laplace import LARGEST, DiscreteLaplaceSampler, RoundedLaplaceSampler

FARTHEST = 92  #: the samplers give no noise of this many scales
MOST_STEPS = 1 << 49  #: of the clip
MOST_PURE = 50.0  #: ε of the largest value, nats; above, it would promise nothing


@unique
class LaplaceLaw(StrEnum):
    """Which noise is added."""

    ROUNDED = "rounded"
    """A Laplace variable, rounded: less charge. z + round(X) is round(z + X) for an integer z, so
    every report is post-processing of the continuous mechanism, whose divergences hold."""

    DISCRETE = "discrete"
    """P(z) ∝ e^(−|z|γ/b) on the integers: less variance by γ²/4, a little more charge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceSum:
    """Clip a number, round it to the grid at random, and add Laplace noise.

    A value x becomes z steps of γ with |z| ≤ ⌊C/γ⌋, without bias up to 2⁻⁵³γ; a report is z + noise.

    Neighbour: zero-out, the value replaced by 0. Accounting is graded: z costs γ|z|/b as pure DP, and
    about its square at finite orders; 0 costs 0, exactly. What is charged is the rounded z: given its
    coin it is just another value. The noise is full in every view: it is not for shares.

    Charges are those of the law. What is drawn is within total variation 2⁻¹²⁶ of it (docs/samplers.md)
    and ends at 92 scales, so pure DP holds up to a δ of (1 + e^ε) 2⁻¹²⁶ for each report.

    Raises:
        ParameterError: a field is outside its range, or does not fit the others.

    Source: Dwork, McSherry, Nissim & Smith 2006; the discrete law: Ghosh, Roughgarden &
    Sundararajan 2009, arXiv:0811.2841.

    >>> mechanism = LaplaceSum(clip=1.0, grid_exponent=-14, scale=2.0)
    >>> mechanism.reach, round(mechanism.charge_pure(1 << 13), 9)
    (16384, 0.25)
    """

    clip: float  #: C, data units; > 0
    grid_exponent: int  #: grid step γ = 2^this
    scale: float  #: b, data units; at least C/50
    law: LaplaceLaw = LaplaceLaw.ROUNDED
    noise: RoundedLaplaceSampler | DiscreteLaplaceSampler = field(
        init=False, repr=False, compare=False
    )
    charges: GradedCharges = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_positive("clip", self.clip)
        check_positive("scale", self.scale)
        if not isinstance(self.law, LaplaceLaw):
            raise ParameterError("law", self.law, "a LaplaceLaw")
        steps = Fraction(self.clip) / grid_step(self.grid_exponent)
        if not 1 <= steps <= MOST_STEPS:
            raise ParameterError(
                "grid_exponent",
                self.grid_exponent,
                f"such that 1 <= clip / 2^exponent <= 2^49 (clip {self.clip})",
            )
        noise = Fraction(self.scale) / grid_step(self.grid_exponent)
        if not (steps <= Fraction(MOST_PURE) * noise and noise <= LARGEST):
            least, most = self.clip / MOST_PURE, grid_step(self.grid_exponent) * LARGEST
            expected = f"from {least:.3g} to {float(most):.3g}"
            raise ParameterError("scale", self.scale, expected)
        sampler = (
            RoundedLaplaceSampler if self.law is LaplaceLaw.ROUNDED else DiscreteLaplaceSampler
        )
        object.__setattr__(self, "noise", sampler(self.scale_steps))
        charges = GradedCharges(self.reach, self.charge_zcdp)
        object.__setattr__(self, "charges", charges)

    @property
    def reach(self) -> int:
        """⌊C/γ⌋, the largest magnitude of a value, steps."""
        return int(Fraction(self.clip) / grid_step(self.grid_exponent))

    @property
    def scale_steps(self) -> float:
        """b/γ, the scale of the noise in grid steps."""
        return math.ldexp(self.scale, -self.grid_exponent)

    @property
    def report_length(self) -> int:
        """Words in one report: the noisy number."""
        return 1

    @property
    def sums_length(self) -> int:
        """Numbers that the server keeps: their sum."""
        return 1

    @property
    def largest(self) -> int:
        """The largest charge that `encode` gives, in round weights."""
        return FULL_CHARGE

    @property
    def word_limit(self) -> int:
        """Largest magnitude of a word that the server accepts: nothing further out is ever sent."""
        return self.reach + math.ceil(FARTHEST * Fraction(self.scale_steps)) + 1

    def encode(self, values: Values, sampler: Sampler) -> tuple[Words, Integers]:
        """Device half, before the decision: values [n, 1] to steps [n, 1], and their charges [n].

        A value beyond the clip counts as the nearest end. One that is not finite counts as an
        evaluation error and becomes the reference, 0.

        Raises:
            ParameterError: the values are not of shape [n, 1].
        """
        words = to_steps(
            values, sampler, exponent=self.grid_exponent, reach=self.reach, clipped=True
        )
        return words, self.charges.of_steps(words[:, 0])

    def randomise(self, words: Words, sampler: BitSource) -> Words:
        """Device half, after the decision: steps [n, 1] plus noise [n, 1].

        Raises:
            ParameterError: the words are no steps.
        """
        steps = check_steps(words, reach=self.reach)
        return (steps + self.noise.draw(len(steps), sampler))[:, None]

    def valid(self, reports: Words) -> Flags:
        """Server half: which reports [n, 1] hold a word up to the limit [n]."""
        limit = self.word_limit
        if not fits(reports, length=1):
            return np.zeros(len(reports), dtype=np.bool_)
        inside: Flags = (reports[:, 0] >= -limit) & (reports[:, 0] <= limit)
        return inside

    def tally(self, reports: Words) -> Integers:
        """Server half: the sum of valid reports [1]; exact.

        Raises:
            ParameterError: they are not reports of this mechanism.
        """
        check_reports(reports, length=1)
        if not self.valid(reports).all():
            raise ParameterError("reports", "another number", f"within ±{self.word_limit}")
        sums: Integers = reports.sum(axis=0)
        return sums

    def estimate(self, sums: Integers, *, reports: int) -> Estimate:
        """Server half: the sum of n reports to the sum of the clipped values of those who answered.

        Raises:
            ParameterError: the sums are not of shape [1], or there is no report.
        """
        check_integer("reports", reports, 1, min(MOST_REPORTS, ((1 << 63) - 1) // self.word_limit))
        if sums.shape != (1,) or sums.dtype.kind not in "iu":
            raise ParameterError("sums", f"{sums.dtype} {sums.shape}", "an integer of shape [1]")
        error = math.sqrt(self.variance(reports=reports))
        return Estimate(
            estimate=np.array([math.ldexp(int(sums[0]), self.grid_exponent)]),
            standard_error=np.array([error]),
            half_width=np.array([TWO_SIDED_QUANTILE * error]),
        )

    def variance(self, *, reports: int) -> float:
        """Variance of the estimate for n reports, data units²; at most, where values are off the grid.

            rounded   n γ² ( q^½ (1 + q)/(1 − q)² + ¼ ),   q = e^(−γ/b)
            discrete  n γ² ( 2q/(1 − q)² + ¼ )

        ¼ is the most that rounding the value adds; the first parts are near 2b²/γ² + 1/12 and − 1/6.

        >>> mechanism = LaplaceSum(clip=1.0, grid_exponent=-14, scale=2.0)
        >>> round(mechanism.variance(reports=100), 3)
        800.0
        """
        check_integer("reports", reports, 1, MOST_REPORTS)
        step = 1 / self.scale_steps
        power, left = math.exp(-step), -math.expm1(-step)
        if self.law is LaplaceLaw.ROUNDED:
            noise = math.exp(-step / 2) * (1 + power) / left**2
        else:
            noise = 2 * power / left**2
        return math.ldexp(reports * (noise + 0.25), 2 * self.grid_exponent)

    def charge_renyi(self, steps: int, *, order: float) -> float:
        """D_α of releasing a value of so many steps against 0, nats, rounded up. Secret.

        Args:
            steps: z, grid steps; within ±⌊C/γ⌋.
            order: α; 1 (KL) or more, or infinite.

        Raises:
            ParameterError: an argument is outside its range.

        >>> LaplaceSum(clip=1.0, grid_exponent=-14, scale=2.0).charge_renyi(0, order=8.0)
        0.0
        """
        distance, scale = self._distance(steps), self.scale_steps
        if self.law is LaplaceLaw.ROUNDED:
            return laplace_renyi(distance, scale=scale, order=order)
        return discrete_laplace_renyi(distance, scale=scale, order=order)

    def charge_zcdp(self, steps: int) -> float:
        """ρ of releasing a value of so many steps against 0, nats, rounded up. Secret."""
        distance, scale = self._distance(steps), self.scale_steps
        if self.law is LaplaceLaw.ROUNDED:
            return laplace_zcdp(distance, scale=scale)
        return discrete_laplace_zcdp(distance, scale=scale)

    def charge_pure(self, steps: int) -> float:
        """ε of releasing a value of so many steps against 0: γ|z|/b, nats, rounded up. Secret."""
        return self.charge_renyi(steps, order=math.inf)

    def _distance(self, steps: int) -> int:
        if type(steps) is not int or abs(steps) > self.reach:
            # Without the value, which is secret.
            expected = f"an integer from {-self.reach} to {self.reach}"
            raise ParameterError("steps", "another value", expected)
        return abs(steps)
