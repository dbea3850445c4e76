"""Piecewise mechanism for the mean: a window around the value is likely, all else is not."""

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from demur_proto.accounting.divergences import Level, apart_levels, levels_renyi, levels_zcdp
from demur_proto.arrays import Flags, Integers, Values, Words
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.base import TWO_SIDED_QUANTILE, Estimate
from demur_proto.mechanisms.categorical import check_reports, fits
from demur_proto.mechanisms.for_study.numeric import (
    FULL_CHARGE,
    GradedCharges,
    check_squares,
    check_steps,
    to_steps,
)
from demur_proto.mechanisms.thresholds import (
    Threshold,
    check_epsilon,
    keep_threshold,
    uniform_below,
)
from demur_proto.samplers.base import BitSource, Sampler

CELLS = 1 << 16  #: M, possible reports
MOST_REPORTS = 1 << 29  #: whose squares add up within 63 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class PiecewiseMean:
    """Report one of M cells: with probability p one of the L in a window that the value places.

    A value x in [−1, 1] shifts the window from the middle by w = x (M − L)/2 cells, rounded at random
    without bias. The cell is uniform in the window with probability p, and else uniform outside:

        L ≈ M/(e^(ε/2) + 1),   p = e^ε L/(e^ε L + M − L) as an integer threshold

    so that no likelihood ratio exceeds e^ε, exactly, between any two values. The cell's distance from
    the middle is in the mean p′w, p′ = p − (1 − p) L/(M − L): the estimate divides by p′.

    Neighbour: zero-out, the value replaced by 0. Accounting is graded: a value near 0 places its
    window over most of 0's and costs little; 0 itself costs 0, exactly. Charging the rounded shift
    is sound: given its coin it is just another value.

    Raises:
        ParameterError: the field is outside its range.

    Source: Wang et al. 2019, arXiv:1907.00782, Algorithm 2, here on cells.

    >>> mechanism = PiecewiseMean(epsilon=2 * math.log(3))
    >>> mechanism.width, round(float(mechanism.inside.probability), 6)
    (16384, 0.75)
    """

    epsilon: float  #: ε of a report, nats; 1e-9 to 50
    width: int = field(init=False)  #: L, an even number of cells
    inside: Threshold = field(init=False, repr=False)  #: p
    charges: GradedCharges = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        width = max(2, 2 * round(CELLS / (math.exp(self.epsilon / 2) + 1) / 2))
        others = Fraction(CELLS - width, width)
        object.__setattr__(self, "width", width)
        object.__setattr__(self, "inside", keep_threshold(self.epsilon, others=others))
        charges = GradedCharges(self.reach, self.charge_zcdp)
        object.__setattr__(self, "charges", charges)

    @property
    def report_length(self) -> int:
        """Words in one report: the cell."""
        return 1

    @property
    def sums_length(self) -> int:
        """Numbers that the server keeps: the sum of distances from the middle, and of their squares."""
        return 2

    @property
    def largest(self) -> int:
        """The largest charge that `encode` gives, in round weights."""
        return FULL_CHARGE

    @property
    def reach(self) -> int:
        """The shift of the value 1, cells."""
        return (CELLS - self.width) // 2

    @property
    def slope(self) -> Fraction:
        """p′: how far a report lies from the middle in the mean, for each cell of shift."""
        inside = self.inside.probability
        return inside - (1 - inside) * self.width / (CELLS - self.width)

    def encode(self, values: Values, sampler: Sampler) -> tuple[Words, Integers]:
        """Device half, before the decision: values [n, 1] to shifts [n, 1], and their charges [n].

        Whatever is no number in [−1, 1] counts as an evaluation error and becomes the reference.

        Raises:
            ParameterError: the values are not of shape [n, 1].
        """
        with np.errstate(invalid="ignore"):
            cells = np.where(np.abs(values) <= 1, values, np.nan) * self.reach
        shifts = to_steps(cells, sampler, exponent=0, reach=self.reach)
        return shifts, self.charges.of_steps(shifts[:, 0])

    def randomise(self, words: Words, sampler: BitSource) -> Words:
        """Device half, after the decision: shifts [n, 1] to cells [n, 1].

        Raises:
            ParameterError: the words are no shifts. Without the values, which are secret.
        """
        start = check_steps(words, reach=self.reach) + self.reach
        count = len(start)
        inside = self.inside.draw(sampler, count)
        near = start + uniform_below(self.width, sampler, count)
        far = uniform_below(CELLS - self.width, sampler, count)
        far += np.where(far >= start, self.width, 0)
        return np.where(inside, near, far)[:, None]

    def valid(self, reports: Words) -> Flags:
        """Server half: which reports [n, 1] are cells [n]."""
        if not fits(reports, length=1):
            return np.zeros(len(reports), dtype=np.bool_)
        inside: Flags = (reports[:, 0] >= 0) & (reports[:, 0] < CELLS)
        return inside

    def tally(self, reports: Words) -> Integers:
        """Server half: twice the distances from the middle, summed, and their squares [2]; exact.

        Raises:
            ParameterError: they are not cells.
        """
        check_reports(reports, length=1)
        if not self.valid(reports).all():
            raise ParameterError("reports", "another number", f"cells from 0 to {CELLS - 1}")
        twice = 2 * reports[:, 0] - (CELLS - 1)
        sums: Integers = np.array([twice.sum(), (twice * twice).sum()], dtype=np.int64)
        return sums

    def estimate(self, sums: Integers, *, reports: int) -> Estimate:
        """Server half: the sums [2] of n reports to the sum of all values, with its interval.

        The squares tell how large the values are on the whole, which the variance depends on.

        Raises:
            ParameterError: the sums are not two integers, or there is no report.
        """
        check_integer("reports", reports, 1, MOST_REPORTS)
        if sums.shape != (2,) or sums.dtype.kind not in "iu":
            raise ParameterError("sums", f"{sums.dtype} {sums.shape}", "integers of shape [2]")
        scale = 1 / (float(self.slope) * self.reach)
        spread = (float(sums[1]) / 4 - reports * self._spread(0)) / float(self.slope)
        squares = min(max(spread / self.reach**2, 0.0), float(reports))
        error = math.sqrt(self.variance(squares, reports=reports))
        return Estimate(
            estimate=np.array([float(sums[0]) / 2 * scale]),
            standard_error=np.array([error]),
            half_width=np.array([TWO_SIDED_QUANTILE * error]),
        )

    def variance(self, squares: float, *, reports: int) -> float:
        """Variance of the estimate of a sum whose n values have this sum of squares.

            ( n V_0 + p′(1 − p′) Σw² )/(p′ (M − L)/2)²,  V_0 of the cell's distance at x = 0

        plus at most n/4 cells² of rounding, which counts in full. As cells become many this is the
        paper's n (e^(ε/2) + 3)/(3 (e^(ε/2) − 1)²) + Σx²/(e^(ε/2) − 1).

        >>> mechanism = PiecewiseMean(epsilon=2 * math.log(3))
        >>> [round(mechanism.variance(squares, reports=1), 3) for squares in (0.0, 1.0)]
        [0.5, 1.0]
        """
        check_integer("reports", reports, 1, MOST_REPORTS)
        check_squares(squares, reports=reports)
        slope, reach = float(self.slope), self.reach
        shifts = squares * reach**2
        rounding = reports / 4 * slope
        total = reports * self._spread(0) + slope * (1 - slope) * shifts + rounding
        return total / (slope * reach) ** 2

    def _spread(self, shift: int) -> float:
        """Mean square of a report's distance from the middle, cells²."""
        inside = self.inside.probability
        near = shift**2 + Fraction(self.width**2 - 1, 12)
        every = Fraction(CELLS * (CELLS**2 - 1), 12)
        far = (every - self.width * near) / (CELLS - self.width)
        return float(inside * near + (1 - inside) * far)

    def charge_renyi(self, shift: int, *, order: float) -> float:
        """D_α of releasing a value of this shift against 0, nats, rounded up. Secret.

        Args:
            shift: w, cells.
            order: α; 1 (KL) or more, or infinite.

        Raises:
            ParameterError: an argument is outside its range.

        >>> PiecewiseMean(epsilon=1.0).charge_renyi(0, order=8.0)
        0.0
        """
        self._check_shift(shift)
        return levels_renyi(self._levels(shift), order=order) if shift else 0.0

    def charge_zcdp(self, shift: int) -> float:
        """ρ of releasing a value of this shift against 0, nats, rounded up. Secret."""
        self._check_shift(shift)
        return levels_zcdp(self._levels(shift)) if shift else 0.0

    def charge_pure(self, shift: int) -> float:
        """ε of releasing a value of this shift against 0, nats, rounded up. Secret."""
        return self.charge_renyi(shift, order=math.inf)

    def _check_shift(self, shift: int) -> None:
        if type(shift) is not int or not -self.reach <= shift <= self.reach:
            raise ParameterError(
                "shift", "another value", f"an integer from {-self.reach} to {self.reach}"
            )

    def _levels(self, shift: int) -> tuple[Level, ...]:
        cells = min(abs(shift), self.width)
        rare = 1 / (math.exp(self.epsilon) * self.width + CELLS - self.width)
        return apart_levels(self.epsilon, apart=cells * rare)


def piecewise_renyi(distance: float, *, epsilon: float, order: float) -> float:
    """Rényi divergence of the piecewise mechanism without cells, at two values so far apart.

    Args:
        distance: between the two values; 0 to 2.
        epsilon: ε, nats; 1e-9 to 50.
        order: α; 1 (KL) or more, or infinite.

    Returns:
        The divergence in nats, rounded up.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Wang et al. 2019, arXiv:1907.00782, Algorithm 2.

    >>> round(piecewise_renyi(2.0, epsilon=1.0, order=math.inf), 12)
    1.0
    """
    check_epsilon(epsilon)
    number = isinstance(distance, float | int) and not isinstance(distance, bool)
    if not (number and 0 <= distance <= 2):
        raise ParameterError("distance", distance, "between 0 and 2")
    if distance == 0:
        return 0.0
    half = math.exp(epsilon / 2)
    window = 1 / (half + 1)  # of the whole range
    shift = distance * half / (2 * (half + 1))
    return levels_renyi(apart_levels(epsilon, apart=min(shift, window) / half), order=order)
