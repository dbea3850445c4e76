"""From the reports that came to everybody who could have sent one: scaling up, and what that adds to the error."""

import numpy as np

from demur_proto.arrays import Vector
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.base import TWO_SIDED_QUANTILE, Estimate
from demur_proto.ranges import check_amount
from demur_proto.segments import MOST_DEVICES


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
