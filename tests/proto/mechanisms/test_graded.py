import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.errors import ParameterError
from demur_proto.mechanisms.for_study.numeric import FULL_CHARGE, PARTS, GradedCharges


@given(
    reach=st.integers(1, 1 << 53),
    shares=st.lists(st.integers(0, 1 << 53), min_size=1, max_size=20),
)
def test_no_value_is_charged_less_than_its_share_nor_much_more(
    reach: int, shares: list[int]
) -> None:
    steps = np.array([share % (reach + 1) for share in shares])
    charges = GradedCharges(reach, lambda step: (step / reach) ** 2).of_steps(-steps)

    for step, charge in zip(steps.tolist(), charges.tolist(), strict=True):
        exact = Fraction(step, reach) ** 2
        further = (Fraction(step, reach) + Fraction(1, min(PARTS, reach))) ** 2
        assert (
            exact * FULL_CHARGE * (1 - Fraction(1, 10**14)) <= charge <= further * FULL_CHARGE + 1
        )
        assert (charge == 0) == (step == 0)
        assert charge <= FULL_CHARGE


def test_only_what_is_asked_for_is_worked_out_and_only_once() -> None:
    asked: list[int] = []

    def charge(step: int) -> float:
        asked.append(step)
        return float(step)

    charges = GradedCharges(1 << 20, charge)
    assert asked == [1 << 20]

    first = charges.of_steps(np.array([0, 1, 4096, 4097, -4096]))
    again = charges.of_steps(np.array([0, 1, 4096, 4097, -4096]))

    assert asked == [1 << 20, 4096, 8192]
    assert first.tolist() == again.tolist() == [0, 1 << 22, 1 << 22, 1 << 23, 1 << 22]


def test_a_charge_that_its_rounding_put_above_the_largest_is_the_largest() -> None:
    charges = GradedCharges(2, lambda step: 1.0 if step == 2 else 1.0 + 1e-10)

    assert charges.of_steps(np.array([1, 2])).tolist() == [FULL_CHARGE] * 2


@pytest.mark.parametrize("reach", [0, -1, (1 << 53) + 1, 1.0, True, None])
def test_what_is_no_reach_is_refused(reach: Any) -> None:
    with pytest.raises(ParameterError, match=r"^reach [^\n]*$"):
        GradedCharges(reach, float)


@pytest.mark.parametrize("whole", [0.0, -1.0, math.inf, math.nan])
def test_what_is_no_charge_is_refused(whole: float) -> None:
    with pytest.raises(ParameterError, match=r"^charge [^\n]*$"):
        GradedCharges(1, lambda step: whole)
