"""Rules that look at noisy counts, and at nothing else."""

import math
from typing import Any

import pytest

from demur_proto.errors import ParameterError
from demur_server.training.optimisers import Count, HaltThreshold, Plateau


def counts(*values: float, error: float = 0.0) -> list[Count]:
    return [
        Count(step=5 * number, value=value, standard_error=error)
        for number, value in enumerate(values, start=1)
    ]


def test_errors_that_become_fewer_go_on() -> None:
    assert not Plateau(patience=1).has_come(counts(90, 80, 70, 69))


def test_as_many_errors_as_before_are_a_plateau() -> None:
    assert Plateau(patience=1).has_come(counts(90, 80, 80))
    assert Plateau(patience=1).has_come(counts(90, 80, 85))


def test_patience_forgives_a_count_that_is_worse() -> None:
    rule = Plateau(patience=2)

    assert not rule.has_come(counts(90, 80, 85))
    assert rule.has_come(counts(90, 80, 85, 81))
    assert not rule.has_come(counts(90, 80, 85, 79))


def test_an_improvement_within_the_noise_is_none() -> None:
    # A difference of two counts with error 10 has the error 14.1.
    rule = Plateau(patience=1, margin=1.0)

    assert rule.has_come(counts(90, 76, error=10.0))
    assert not rule.has_come(counts(90, 75, error=10.0))


@pytest.mark.parametrize("patience", [1, 2, 3])
def test_nothing_stops_before_there_is_something_to_compare(patience: int) -> None:
    assert not Plateau(patience=patience).has_come([])
    assert not Plateau(patience=patience).has_come(counts(*[5.0] * patience))


def test_enough_people_who_ran_out_stop_it() -> None:
    rule = HaltThreshold(share=0.25)

    assert not rule.has_come([], cohort=100)
    assert not rule.has_come(counts(24.9), cohort=100)
    assert rule.has_come(counts(10.0, 25.0), cohort=100)


@pytest.mark.parametrize("bad", [math.nan, -0.5, math.inf, "1", None, True])
def test_bad_numbers_are_refused(bad: Any) -> None:
    with pytest.raises(ParameterError, match="margin"):
        Plateau(patience=1, margin=bad)
    with pytest.raises(ParameterError, match="share"):
        HaltThreshold(share=bad)
