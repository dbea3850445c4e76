"""From the reports that came to everybody who could have sent one: scaling up, and what that adds to the error."""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from demur_proto.accounting.numerics import check_amount, check_delta
from demur_proto.arrays import Vector
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.base import CONFIDENCE, TWO_SIDED_QUANTILE, Estimate
from demur_proto.release import Release
from demur_proto.running.segments import MOST_DEVICES


def sampling_factors(reports: Vector, *, cohort: int) -> Vector:
    """By what the standard deviation of values becomes that of a scaled-up sum of some of them.

        a = n √((1 − f) / (f (n − 1))),  f = n_t/n

    for n_t of n values, drawn without replacement; 0 where nothing is missing.

    Args:
        reports: n_t of each round; >= 1.
        cohort: n; >= 1.

    Source: Cochran 1977, "Sampling Techniques", Theorem 2.2.

    >>> sampling_factors(np.array([50.0, 101.0]), cohort=101).round(3).tolist()
    [10.2, 0.0]
    """
    if cohort < 2:
        return np.zeros(len(reports))
    present = np.minimum(1.0, reports / cohort)
    factors: Vector = cohort * np.sqrt((1 - present) / (present * (cohort - 1)))
    return factors


def scaled_up(
    found: Estimate, *, reports: int, cohort: int, largest: float, signed: bool
) -> Estimate:
    """The sum over all of a cohort, from an estimate of the sum over those whose reports were counted.

        Ŝ n/n_t,  with the variance  (n/n_t)² se² + a² v

    a is that of `sampling_factors`, and v a bound on the variance of one value: C²/4 for values from 0
    to C, C² for values of either sign. Where no report is missing, the estimate is as it was. It is
    for what everybody in the cohort would have given in this round: somebody whose budget holds no
    answer gives nothing, here or not.

    It rests on who is missing having nothing to do with what they would have given: as where each
    misses a round, or is late, with the same probability. Nobody can see from the reports whether
    that is so.

    Args:
        found: of a sum, with an interval, or of counts; of a single round.
        reports: n_t, how many were counted; 1 to n.
        cohort: n, how many could have been; public; 1 to 2^53.
        largest: C, the most that one value may be, data units; 1 for counts; > 0, at most 1e15.
        signed: values may be of either sign.

    Raises:
        ParameterError: an argument is outside its range, or the estimate has no interval.

    Source: Cochran 1977, "Sampling Techniques", Theorem 2.2; Popoviciu's inequality for v.

    >>> half = Estimate(estimate=np.array([40.0]), standard_error=np.array([0.0]),
    ...                 half_width=np.array([0.0]))
    >>> whole = scaled_up(half, reports=50, cohort=101, largest=1.0, signed=False)
    >>> whole.estimate.tolist(), whole.standard_error.round(2).tolist()
    ([80.8], [5.1])
    """
    if not isinstance(found, Estimate):
        raise ParameterError("found", type(found).__name__, "an Estimate")
    if not found.has_interval:
        raise ParameterError("found", "no interval", "an estimate that has one")
    check_integer("cohort", cohort, 1, MOST_DEVICES)
    check_integer("reports", reports, 1, cohort)
    if not check_amount("largest", largest):
        raise ParameterError("largest", largest, "above 0")
    if not isinstance(signed, bool):
        raise ParameterError("signed", signed, "true or false")
    scale = cohort / reports
    deviation = largest if signed else largest / 2
    sampling = float(sampling_factors(np.array([float(reports)]), cohort=cohort)[0]) * deviation
    error = np.hypot(scale * found.standard_error, sampling)
    estimate, reach = scale * found.estimate, TWO_SIDED_QUANTILE * error

    def beyond(distance: Vector) -> Vector:
        """As far as scaled noise and sampling reach, and by what the interval reached beyond noise."""
        usual = TWO_SIDED_QUANTILE * found.standard_error
        further: Vector = reach + scale * np.maximum(0.0, distance - usual)
        return further

    if found.half_width.size:
        return Estimate(
            estimate=estimate, standard_error=error, half_width=beyond(found.half_width)
        )
    if scale == 1:
        return found
    return Estimate(
        estimate=estimate,
        standard_error=error,
        low_end=estimate - beyond(found.estimate - found.low_end),
        high_end=estimate + beyond(found.high_end - found.estimate),
    )


# From the sum over those who answered to the sum over everyone: what those who ran out may be worth.

CLOSEST = 1e-9  #: to 0 and to 1, of probabilities that are asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A noisy number as a release has it.

    Raises:
        ParameterError: a field is outside its range.
    """

    estimate: float  #: units of what is added up, or people; within ±1e15
    standard_error: float  #: in the same units; 0 to 1e15
    bias: float = 0.0
    """The most by which it may be off besides, such as `GaussianLinear.clipping_bias`; 0 to 1e15."""

    def __post_init__(self) -> None:
        size = self.estimate
        if isinstance(size, int | float) and not isinstance(size, bool) and size < 0:
            size = -size
        check_amount("estimate", size)
        check_amount("standard_error", self.standard_error)
        check_amount("bias", self.bias)

    @classmethod
    def of(cls, release: Release, *, index: int = 0, bias: float | None = None) -> "Measured":
        """One estimate of a release, with all by which its interval is wider than its noise.

        Of a halt count that is what everybody may be worth who was missing from it
        (`continual.estimates.running_estimate`): H⁺ covers them, whatever the reason.

        Args:
            release: of a sum or a running count; published, with intervals unless there is a `bias`.
            index: of the coordinate.
            bias: of a sum of values as shrunk by budgets, which has no interval:
                `GaussianLinear.clipping_bias` of its reports; 0 to 1e15.

        Raises:
            ParameterError: it has no such estimate, or no interval ± something, and there is no bias.
        """
        check_integer("index", index, 0, max(0, release.estimate.size - 1))
        has_reach = bool(release.half_width.size)
        if not release.estimate.size or not (has_reach or bias is not None):
            raise ParameterError("release", "no interval", "one that has an interval ± something")

        def at(numbers: Vector) -> float:
            return float(numbers[index if numbers.size > 1 else 0])

        error = at(release.standard_error)
        if bias is None:
            bias = max(0.0, at(release.half_width) - TWO_SIDED_QUANTILE * error)
        return cls(estimate=float(release.estimate[index]), standard_error=error, bias=bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class EveryoneInterval:
    """An interval for S_all, the sum over everyone of their clipped values."""

    low: float
    high: float
    most_halted: float  #: H⁺: no more people than this ever answered with less than their value


def everyone_interval(
    active: Measured,
    halted: Measured,
    *,
    largest: float,
    signed: bool,
    missing: float = 0.0,
    confidence: float = CONFIDENCE,
    share: float = 0.5,
) -> EveryoneInterval:
    """The interval for S_active, widened by what those who halted may be worth.

        S_active interval + [0, C·H⁺] for values from 0 to C,  ± C·H⁺ for values of either sign

    It misses with probability α = 1 − confidence at most, whatever the two numbers have to do with each
    other: `share` of α is for S_active, on both sides, and the rest for H⁺, on one.

    In a running count somebody who halted counts with the state they told last, which may be more or
    less than it is by up to the bound: that is signed.

    Args:
        active: the sum over those who answered.
        halted: how many people ever answered with less than their value; counted with or after the
            sum, as a person who halted stays so. `Measured.of` its release covers those who were missing
            from the count, up to its cohort, which must be everybody whom the sum is for.
        largest: C, the most that one value may be; of a running count, its bound; > 0, at most 1e15.
        signed: values, or what is missing of them, may be of either sign.
        missing: devices beyond the cohort of the count of those who halted; 0 to 1e15.
        confidence: with which the interval holds; 1e-9 to 1 − 1e-9.
        share: of α that is for S_active; 1e-9 to 1 − 1e-9.

    Raises:
        ParameterError: an argument is outside its range.

    Source: the union bound over two normal intervals; |q| ≤ C for each of at most H⁺ people.

    >>> exact = Measured(estimate=100.0, standard_error=0.0)
    >>> ten = Measured(estimate=10.0, standard_error=0.0)
    >>> found = everyone_interval(exact, ten, largest=2.0, signed=False)
    >>> found.low, found.high
    (100.0, 120.0)
    >>> round(everyone_interval(exact, ten, largest=2.0, signed=True).low, 1)
    80.0
    """
    for name, value in (("active", active), ("halted", halted)):
        if not isinstance(value, Measured):
            raise ParameterError(name, type(value).__name__, "a Measured")
    if not isinstance(signed, bool):
        raise ParameterError("signed", signed, "true or false")
    if not check_amount("largest", largest):
        raise ParameterError("largest", largest, "above 0")
    inside, part = _between("confidence", confidence), _between("share", share)
    alpha = 1 - inside
    reach = _quantile(alpha * part / 2) * active.standard_error + active.bias
    above = _quantile(alpha * (1 - part)) * halted.standard_error + halted.bias
    most = max(0.0, halted.estimate + above) + check_amount("missing", missing)
    worth = largest * most
    return EveryoneInterval(
        low=active.estimate - reach - (worth if signed else 0.0),
        high=active.estimate + reach + worth,
        most_halted=most,
    )


def _quantile(tail: float) -> float:
    """The z with P(Z > z) = tail.

    >>> round(_quantile(0.025), 9)
    1.959963985
    """
    return -NormalDist().inv_cdf(tail)


def _between(name: str, value: float) -> float:
    """Neither so close to 0 nor to 1 that a tail would be lost in rounding."""
    if not CLOSEST <= check_delta(name, value) <= 1 - CLOSEST:
        raise ParameterError(name, value, f"from {CLOSEST:g} to 1 - {CLOSEST:g}")
    return float(value)
