"""Duchi's one-bit mean: a coin whose bias is the value."""

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from demur_proto.accounting.divergences import Level, levels_renyi, levels_zcdp
from demur_proto.arrays import Bits, Flags, Integers, Values, Words
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.base import TWO_SIDED_QUANTILE, Estimate
from demur_proto.mechanisms.categorical import MOST_REPORTS, check_reports, check_sums, fits
from demur_proto.mechanisms.for_study.numeric import (
    FULL_CHARGE,
    GradedCharges,
    check_squares,
    check_steps,
    check_value,
    to_steps,
)
from demur_proto.mechanisms.thresholds import BITS, check_epsilon, exp_below
from demur_proto.samplers.base import BitSource, Sampler

EXPONENT = -14  #: values are rounded to multiples of 2 to this
REACH = 1 << -EXPONENT  #: steps of the value 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DuchiMean:
    """Report one bit, which is 1 with probability ½ + x tanh(ε/2)/2, for a value x in [−1, 1].

    x becomes z steps of 2⁻¹⁴, rounded at random. The bit is 1 if a uniform integer below 2¹²⁸ is below

        t(z) = 2¹²⁷ + z s,   s the largest integer with t(2¹⁴)/t(−2¹⁴) ≤ e^ε, or one below it.

    The threshold is linear in z, so dividing by 2¹⁴s gives the sum of all z without bias, exactly; and no
    likelihood ratio between any two values exceeds e^ε, exactly. Rounding x changes nothing in the
    report's law, which depends on the mean of z alone; that is off by 2⁻⁶⁷ at most.

    Neighbour: zero-out, the value replaced by 0, a fair coin: x = ±1 costs ln((e^ε + 1)/2) as pure DP.
    Accounting is graded: x costs about x² of what 1 costs, and 0 costs 0, exactly. What is charged is
    the rounded z: given its coin it is just another value.

    Raises:
        ParameterError: the field is outside its range.

    Source: Duchi, Jordan & Wainwright 2018, arXiv:1604.02390, section 3.2, in one dimension.

    >>> mechanism = DuchiMean(epsilon=math.log(3))
    >>> round(mechanism.scale, 12)  # reports stand for ±1/tanh(ε/2)
    2.0
    """

    epsilon: float  #: ε between the values −1 and 1, nats; 1e-9 to 50
    slope: int = field(init=False, repr=False)  #: s
    charges: GradedCharges = field(init=False, repr=False, compare=False)
    high: Bits = field(init=False, repr=False, compare=False)  #: upper words of t(z), from −2¹⁴ on
    low: Bits = field(init=False, repr=False, compare=False)  #: lower words

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        grown = exp_below(self.epsilon)
        half = 1 << (BITS - 1)
        slope = math.floor(half * (grown - 1) / (grown + 1) / REACH)
        thresholds = [half + step * slope for step in range(-REACH, REACH + 1)]
        high = [threshold >> 64 for threshold in thresholds]
        low = [threshold & ((1 << 64) - 1) for threshold in thresholds]
        object.__setattr__(self, "slope", slope)
        object.__setattr__(self, "high", np.array(high, dtype=np.uint64))
        object.__setattr__(self, "low", np.array(low, dtype=np.uint64))
        charges = GradedCharges(REACH, lambda step: self.charge_zcdp(step / REACH))
        object.__setattr__(self, "charges", charges)

    @property
    def report_length(self) -> int:
        """Words in one report: the bit."""
        return 1

    @property
    def sums_length(self) -> int:
        """Numbers that the server keeps: how many bits were 1."""
        return 1

    @property
    def largest(self) -> int:
        """The largest charge that `encode` gives, in round weights: that of ±1."""
        return FULL_CHARGE

    @property
    def scale(self) -> float:
        """B: a report stands for ±B, near 1/tanh(ε/2)."""
        return float(self._scale)

    def probability(self, step: int) -> Fraction:
        """t(z)/2¹²⁸, exactly, for z from −2¹⁴ to 2¹⁴.

        >>> DuchiMean(epsilon=1.0).probability(0)
        Fraction(1, 2)
        """
        check_integer("step", step, -REACH, REACH)
        return Fraction(1, 2) + Fraction(step * self.slope, 1 << BITS)

    def encode(self, values: Values, sampler: Sampler) -> tuple[Words, Integers]:
        """Device half, before the decision: values [n, 1] to steps [n, 1], and their charges [n].

        What is no number from −1 to 1 counts as an evaluation error and becomes the reference, 0.

        Raises:
            ParameterError: the values are not of shape [n, 1].
        """
        words = to_steps(values, sampler, exponent=EXPONENT, reach=REACH)
        return words, self.charges.of_steps(words[:, 0])

    def randomise(self, words: Words, sampler: BitSource) -> Words:
        """Device half, after the decision: steps [n, 1] to bits [n, 1].

        Raises:
            ParameterError: the words are no steps.
        """
        places = check_steps(words, reach=REACH) + REACH
        digits = sampler.words(len(places))
        ones: Flags = digits < self.high[places]
        tied = np.flatnonzero(digits == self.high[places])
        if tied.size:
            ones[tied] = sampler.words(tied.size) < self.low[places[tied]]
        return ones.astype(np.int64)[:, None]

    def valid(self, reports: Words) -> Flags:
        """Server half: which reports [n, 1] are bits [n]."""
        inside: Flags = np.zeros(len(reports), dtype=np.bool_)
        if fits(reports, length=1):
            inside = (reports[:, 0] == 0) | (reports[:, 0] == 1)
        return inside

    def tally(self, reports: Words) -> Integers:
        """Server half: how many of the bits [n, 1] are 1 [1]; exact.

        Raises:
            ParameterError: they are no bits.
        """
        check_reports(reports, length=1)
        if not self.valid(reports).all():
            raise ParameterError("reports", "another number", "bits")
        sums: Integers = reports.sum(axis=0)
        return sums

    def estimate(self, sums: Integers, *, reports: int) -> Estimate:
        """Server half: how many of n bits are 1, to the sum of all values.

        The standard error is exact for people who all have one value; otherwise it is too large, by
        the spread of their values, which bits do not show. As an estimate of n times the mean of the
        people whom these are a sample of, it is exact.

        Raises:
            ParameterError: the sums are not one count of at most n, or there is no report.
        """
        check_integer("reports", reports, 1, MOST_REPORTS)
        check_sums(sums, length=1)
        ones = int(sums[0])
        if ones > reports:
            raise ParameterError("sums", ones, f"at most {reports}, one for each report")
        total = float((2 * ones - reports) * self._scale)
        within = max(-reports, min(total, reports))
        error = math.sqrt(self.variance(within**2 / reports, reports=reports))
        return Estimate(
            estimate=np.array([total]),
            standard_error=np.array([error]),
            half_width=np.array([TWO_SIDED_QUANTILE * error]),
        )

    def variance(self, squares: float, *, reports: int) -> float:
        """Variance of the estimate where n values have this sum of squares: nB² − Σx².

        >>> round(DuchiMean(epsilon=math.log(3)).variance(1.0, reports=1), 12)
        3.0
        """
        check_integer("reports", reports, 1, MOST_REPORTS)
        check_squares(squares, reports=reports)
        return float(reports * self._scale**2 - Fraction(squares))

    def charge_renyi(self, value: float, *, order: float) -> float:
        """D_α of releasing this value against 0, nats, rounded up. Secret.

            D_α of a coin of ½ + x tanh(ε/2)/2 against a fair one

        Args:
            value: x; −1 to 1. Off the grid it is the charge of its rounding and its bit together.
            order: α; 1 (KL) or more, or infinite.

        Raises:
            ParameterError: an argument is outside its range.

        >>> round(DuchiMean(epsilon=1.0).charge_renyi(1.0, order=math.inf), 9)  # ln((e + 1)/2)
        0.620114507
        """
        return levels_renyi(coin_levels(check_value(value), 0.0, epsilon=self.epsilon), order=order)

    def charge_zcdp(self, value: float) -> float:
        """ρ of releasing this value against 0, nats, rounded up. Secret."""
        return levels_zcdp(coin_levels(check_value(value), 0.0, epsilon=self.epsilon))

    def charge_pure(self, value: float) -> float:
        """ε of releasing this value against 0, nats, rounded up. Secret."""
        return self.charge_renyi(value, order=math.inf)

    @property
    def _scale(self) -> Fraction:
        return Fraction(1 << (BITS - 1), self.slope * REACH)


def coin_levels(first: float, second: float, *, epsilon: float) -> tuple[Level, Level]:
    """Coins that show heads with ½ + x tanh(ε/2)/2, that of one value against that of another.

    ±1 against 0 is also what answering ±1 by binary randomised response and 0 by a fair coin costs,
    as devices do in Erlingsson et al. 2019, arXiv:1811.12469, for twice this ε.

    Args:
        first: x of the first coin; −1 to 1, not checked.
        second: x of the second; likewise.
        epsilon: ε, nats; not checked.

    >>> [round(math.exp(level.log_ratio), 9) for level in coin_levels(1.0, 0.0, epsilon=math.log(3))]
    [1.5, 0.5]
    """
    gap = (first - second) * math.tanh(epsilon / 2)
    sides = ((first, second, gap), (-first, -second, -gap))
    heads, tails = (
        Level(
            mass=_side(theirs, epsilon) / 2,
            log_ratio=_log_ratio(_side(mine, epsilon), _side(theirs, epsilon), rise),
        )
        for mine, theirs, rise in sides
    )
    return heads, tails


def _side(value: float, epsilon: float) -> float:
    """1 + x tanh(ε/2), with its own digits where it is small."""
    if value >= 0:
        return 1 + value * math.tanh(epsilon / 2)
    return (1 + value) - 2 * value / (math.exp(epsilon) + 1)


def _log_ratio(mine: float, theirs: float, rise: float) -> float:
    """ln(mine/theirs), `rise` being the difference with its own digits."""
    change = rise / theirs
    return math.log1p(change) if abs(change) < 0.5 else math.log(mine / theirs)
