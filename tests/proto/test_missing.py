"""Scaled up to those whose reports are missing, an estimate stays unbiased and knows its error."""

from itertools import combinations

import numpy as np
import pytest

from demur_proto.errors import ParameterError
from demur_proto.everyone import sampling_factors, scaled_up
from demur_proto.mechanisms.base import TWO_SIDED_QUANTILE, Estimate


def found(estimate: float, error: float = 0.0, bias: float = 0.0) -> Estimate:
    return Estimate(
        estimate=np.array([estimate]),
        standard_error=np.array([error]),
        half_width=np.array([TWO_SIDED_QUANTILE * error + bias]),
    )


VALUES = ([0, 0, 0, 2, 2, 2], [0, 1, 2, 2, 0, 1], [-2, 2, -2, 2, -2, 2], [2, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("reports", [1, 2, 5, 6])
def test_over_all_ways_to_miss_people_it_is_unbiased_and_varies_no_more_than_stated(
    values: list[int], reports: int
) -> None:
    signed = min(values) < 0
    estimates, stated = [], 0.0
    for some in combinations(values, reports):
        scaled = scaled_up(found(sum(some)), reports=reports, cohort=6, largest=2.0, signed=signed)
        estimates.append(scaled.estimate[0])
        stated = scaled.standard_error[0]

    assert np.mean(estimates) == pytest.approx(sum(values))
    assert np.std(estimates) <= stated * (1 + 1e-12)
    if values in (VALUES[0], VALUES[2]):  # half at either end: no values vary more
        assert np.std(estimates) == pytest.approx(stated)


def test_noise_and_bias_are_scaled_up_and_the_sampling_adds_to_the_variance() -> None:
    scaled = scaled_up(found(30.0, 3.0, 0.5), reports=60, cohort=121, largest=1.0, signed=True)
    factor = sampling_factors(np.array([60.0]), cohort=121)[0]

    scale, error = 121 / 60, np.hypot(3.0 * 121 / 60, factor)
    assert scaled.estimate[0] == pytest.approx(30.0 * scale)
    assert scaled.standard_error[0] == pytest.approx(error)
    assert scaled.half_width[0] == pytest.approx(TWO_SIDED_QUANTILE * error + 0.5 * scale)


@pytest.mark.parametrize("cohort", [1, 60])
def test_where_nothing_is_missing_it_is_what_it_was(cohort: int) -> None:
    whole = found(3.0, 2.0, 0.25)

    scaled = scaled_up(whole, reports=cohort, cohort=cohort, largest=1.0, signed=False)

    for name in ("estimate", "standard_error", "half_width"):
        assert getattr(scaled, name) == pytest.approx(getattr(whole, name))


def test_more_reports_than_the_cohort_and_estimates_without_interval_are_refused() -> None:
    with pytest.raises(ParameterError, match=r"^reports must be an integer >= 1 and <= 5, got 6$"):
        scaled_up(found(1.0), reports=6, cohort=5, largest=1.0, signed=False)
    bare = Estimate(
        estimate=np.array([1.0]), standard_error=np.array([1.0]), half_width=np.array([])
    )
    with pytest.raises(ParameterError, match=r"^found must be an estimate that has one"):
        scaled_up(bare, reports=5, cohort=5, largest=1.0, signed=False)
