"""The interval for everyone holds as often as it says, and is no wider than it has to be."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.errors import ParameterError
from demur_proto.everyone import Measured, everyone_interval

RUNS = 20_000


def exact(value: float) -> Measured:
    return Measured(estimate=value, standard_error=0.0)


@pytest.mark.parametrize("signed", [False, True])
def test_it_is_the_interval_of_those_who_answered_widened_by_what_the_halted_may_be_worth(
    signed: bool,
) -> None:
    found = everyone_interval(
        Measured(estimate=1000.0, standard_error=10.0, bias=3.0),
        Measured(estimate=50.0, standard_error=4.0),
        largest=2.0,
        signed=signed,
        missing=7.0,
        confidence=0.9,
        share=0.25,
    )

    # From a table of the normal law: its upper tails of 0.075, and of 0.0125.
    most = 50 + 7 + 1.4395314709384563 * 4
    reach = 3 + 2.2414027276049473 * 10
    assert found.most_halted == pytest.approx(most, rel=1e-12)
    assert found.high == pytest.approx(1000 + reach + 2 * most, rel=1e-12)
    assert found.low == pytest.approx(1000 - reach - (2 * most if signed else 0), rel=1e-12)


def test_a_count_far_below_zero_says_that_nobody_halted() -> None:
    found = everyone_interval(
        exact(5.0), Measured(estimate=-90.0, standard_error=1.0), largest=1.0, signed=True
    )

    assert (found.low, found.high, found.most_halted) == (5.0, 5.0, 0.0)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_it_misses_no_more_often_than_promised_where_all_who_halted_count_in_full(
    share: float,
) -> None:
    """The worst case: S_all is at its far end, and both errors go the same way."""
    rng = np.random.default_rng(1)
    noise = rng.standard_normal(RUNS)
    misses = 0
    for error in noise:
        found = everyone_interval(
            Measured(estimate=1000 + 20 * error, standard_error=20.0),
            Measured(estimate=300 + 20 * error, standard_error=20.0),
            largest=1.0,
            signed=False,
            share=share,
        )
        misses += not found.low <= 1300 <= found.high

    assert misses / RUNS <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / RUNS)


@given(
    halted=st.floats(-1e6, 1e6),
    error=st.floats(0, 1e6),
    more=st.floats(0, 1e6),
    signed=st.booleans(),
)
def test_more_people_who_halted_never_make_it_narrower(
    halted: float, error: float, more: float, signed: bool
) -> None:
    few = everyone_interval(
        exact(0.0), Measured(estimate=halted, standard_error=error), largest=3.0, signed=signed
    )
    many = everyone_interval(
        exact(0.0),
        Measured(estimate=halted + more, standard_error=error),
        largest=3.0,
        signed=signed,
    )

    assert many.low <= few.low <= 0 <= few.high <= many.high


def test_what_is_no_measured_number_is_refused() -> None:
    with pytest.raises(ParameterError, match="active"):
        everyone_interval(3.0, exact(1.0), largest=1.0, signed=True)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="signed"):
        everyone_interval(exact(1.0), exact(1.0), largest=1.0, signed=1)  # type: ignore[arg-type]
