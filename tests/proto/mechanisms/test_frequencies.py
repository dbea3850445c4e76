"""Support counts to estimates, by hand; whether they miss as they say is in `test_estimators`."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from demur_proto.errors import ParameterError
from demur_proto.mechanisms.categorical import (
    Frequencies,
    check_sums,
    tally_indices,
)

QUARTERS = Frequencies(own=Fraction(3, 4), other=Fraction(1, 4))


def test_an_estimate_and_its_error_are_those_of_the_formulas() -> None:
    # n = 100, c = 60: (60 − 25)/(1/2) = 70, and (70·3/16 + 30·3/16)/(1/4) = 75.
    answer = QUARTERS.estimate(np.array([60]), reports=100)

    assert answer.estimate.tolist() == [70.0]
    assert answer.standard_error.tolist() == [math.sqrt(75)]
    assert not answer.half_width.size


def test_an_estimate_outside_the_possible_stays_and_its_error_is_that_of_the_nearest() -> None:
    chances = Frequencies(own=Fraction(1, 2), other=Fraction(1, 10))

    low, high = (chances.estimate(np.array([c]), reports=100) for c in (0, 100))

    assert low.estimate[0] == pytest.approx(-25, rel=1e-12)
    assert low.standard_error[0] == pytest.approx(math.sqrt(100 * 0.09) / 0.4, rel=1e-12)
    assert high.estimate[0] == pytest.approx(225, rel=1e-12)
    assert high.standard_error[0] == pytest.approx(math.sqrt(100 * 0.25) / 0.4, rel=1e-12)


def test_a_report_adds_nothing_in_the_mean_to_a_category_that_is_not_its_own() -> None:
    # A support of probability q, which is what covers and other categories give: nq of n.
    assert QUARTERS.estimate(np.array([25]), reports=100).estimate.tolist() == [0.0]


def test_the_variance_of_a_count_has_it_plugged_in() -> None:
    chances = Frequencies(own=Fraction(1, 2), other=Fraction(1, 10))

    assert chances.variance(0, reports=10) == pytest.approx(10 * 0.09 / 0.16, rel=1e-12)
    assert chances.variance(10, reports=10) == pytest.approx(10 * 0.25 / 0.16, rel=1e-12)
    assert chances.variance(4, reports=10) == pytest.approx((1 + 0.54) / 0.16, rel=1e-12)


def test_a_chance_of_one_that_tells_everything_has_no_error() -> None:
    answer = Frequencies(own=Fraction(1), other=Fraction(0)).estimate(np.array([3]), reports=7)

    assert (answer.estimate.tolist(), answer.standard_error.tolist()) == ([3.0], [0.0])


def test_chances_that_are_almost_alike_still_give_what_their_rationals_say() -> None:
    gap = Fraction(1, 10**20)  # as floats they would be the same
    chances = Frequencies(own=Fraction(1, 2) + gap, other=Fraction(1, 2))

    assert chances.estimate(np.array([51]), reports=100).estimate[0] == pytest.approx(1e20)


@pytest.mark.parametrize(
    ("own", "other", "named"),
    [
        (Fraction(1, 2), Fraction(1, 2), "other"),
        (Fraction(1, 4), Fraction(1, 2), "other"),
        (Fraction(1, 2), Fraction(-1, 9), "other"),
        (Fraction(9, 8), Fraction(1, 2), "own"),
        (0.5, Fraction(1, 4), "own"),
        (math.nan, Fraction(1, 4), "own"),
        (Fraction(1, 2), 0.25, "other"),
    ],
)
def test_chances_that_are_none_or_tell_nothing_are_refused(
    own: Any, other: Any, named: str
) -> None:
    with pytest.raises(ParameterError, match=rf"^{named} "):
        Frequencies(own=own, other=other)


@pytest.mark.parametrize("reports", [0, -1, 1.0, True, math.nan, 1 << 54])
def test_no_reports_are_no_estimate(reports: Any) -> None:
    with pytest.raises(ParameterError, match=r"^reports "):
        QUARTERS.estimate(np.array([0]), reports=reports)


@pytest.mark.parametrize(
    "supports",
    [
        np.array([0.0]),
        np.array([math.nan]),
        np.array([[1]]),
        np.array([-1]),
        np.array([8]),
        np.array([True]),
    ],
    ids=["floats", "nan", "a matrix", "negative", "more than reports", "flags"],
)
def test_supports_that_are_no_counts_are_refused(supports: Any) -> None:
    with pytest.raises(ParameterError, match=r"^supports "):
        QUARTERS.estimate(supports, reports=7)


@pytest.mark.parametrize("sums", [np.zeros(3), np.array([1, 2]), np.array([1, -1, 2])])
def test_sums_that_are_no_counts_are_refused(sums: Any) -> None:
    with pytest.raises(ParameterError, match=r"^sums "):
        check_sums(sums, length=3)


@pytest.mark.parametrize(
    "reports",
    [
        np.array([1, 2]),
        np.array([[1, 2]]),
        np.array([[1.0]]),
        np.array([[-1]]),
        np.array([[4]]),
    ],
    ids=["a row", "two words", "floats", "below zero", "above the last"],
)
def test_reports_that_are_no_indices_are_not_counted(reports: Any) -> None:
    with pytest.raises(ParameterError, match=r"^reports "):
        tally_indices(reports, size=4)
