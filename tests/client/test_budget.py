"""One elementwise decision, for a Python integer and for an int64 array alike."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_client.budget import charge_units, decide
from demur_client.filters import Filter
from demur_proto.arrays import Flags, Integers
from demur_proto.study import Policy

LARGEST = (1 << 62) - 1  # of all budgets

budgets = st.one_of(st.integers(0, 1000), st.integers(0, LARGEST), st.just(LARGEST))
norms = st.one_of(st.integers(0, 40), st.integers(0, (1 << 61) - 1), st.just((1 << 61) - 1))


@st.composite
def cohorts(draw: st.DrawFn) -> tuple[int, list[tuple[int, list[int]]]]:
    """A budget, then rounds: a weight, and every device's squared norm."""
    budget = draw(budgets)
    devices = draw(st.integers(1, 5))
    around = st.integers(max(1, budget // 3 - 2), budget // 3 + 2).filter(lambda w: w <= budget + 1)
    weights = st.one_of(st.integers(1, budget + 1), around, st.just(1), st.just(budget + 1))
    rounds = st.tuples(weights, st.lists(norms, min_size=devices, max_size=devices))
    return budget, draw(st.lists(rounds, max_size=12))


@given(cohorts(), st.sampled_from(Policy))
def test_a_device_and_a_cohort_decide_alike_at_every_step(
    cohort: tuple[int, list[tuple[int, list[int]]]], policy: Policy
) -> None:
    budget, rounds = cohort
    devices = len(rounds[0][1]) if rounds else 0
    filters = [Filter(budget_units=budget, policy=policy) for _ in range(devices)]
    remaining: Integers = np.full(devices, budget, dtype=np.int64)
    refused: Flags = np.zeros(devices, dtype=np.bool_)

    for weight, squares in rounds:
        charge = charge_units(np.array(squares, dtype=np.int64), weight=weight, budget_units=budget)
        answered, remaining, refused = decide(
            charge, remaining=remaining, refused=refused, retire=policy is Policy.RETIRE
        )
        alone = [mine.try_spend(z, weight=weight) for mine, z in zip(filters, squares, strict=True)]

        assert np.asarray(answered).tolist() == alone
        assert remaining.dtype == np.int64
        assert remaining.tolist() == [mine.remaining_units for mine in filters]
        assert np.asarray(refused).tolist() == [mine.ever_refused for mine in filters]


@given(budgets, norms, st.data())
def test_a_charge_is_the_product_or_one_more_than_the_budget(
    budget: int, squared_norm: int, data: st.DataObject
) -> None:
    weight = data.draw(st.integers(1, budget + 1))

    charge = charge_units(squared_norm, weight=weight, budget_units=budget)

    assert charge == min(squared_norm * weight, budget + 1)


def test_charges_near_2_to_62_do_not_wrap() -> None:
    squares = np.array([0, 1, 2, (1 << 61) - 1], dtype=np.int64)

    whole = charge_units(squares, weight=LARGEST, budget_units=LARGEST)
    none = charge_units(squares, weight=LARGEST + 1, budget_units=LARGEST)

    assert whole.tolist() == [0, LARGEST, 1 << 62, 1 << 62]
    assert none.tolist() == [0, 1 << 62, 1 << 62, 1 << 62]


@given(st.integers(0, LARGEST), st.integers(0, 1 << 62), st.booleans(), st.booleans())
def test_a_refusal_takes_nothing_and_an_answer_takes_its_charge(
    remaining: int, charge: int, refused: bool, retire: bool
) -> None:
    given_, after, refused_after = decide(
        charge, remaining=remaining, refused=refused, retire=retire
    )

    assert after == (remaining - charge if given_ else remaining)
    assert after >= 0
    assert refused_after == (refused or not given_)


@given(st.integers(0, LARGEST), st.booleans(), st.booleans())
def test_what_costs_nothing_is_always_given(remaining: int, refused: bool, retire: bool) -> None:
    assert decide(0, remaining=remaining, refused=refused, retire=retire) == (
        True,
        remaining,
        refused,
    )


@pytest.mark.parametrize(
    ("retire", "expected"), [(False, [True, False, True]), (True, [True, False, False])]
)
def test_skip_forgives_a_refusal_and_retire_does_not(retire: bool, expected: list[bool]) -> None:
    remaining, refused = 10, False
    answers = []

    for charge in (6, 6, 3):  # budget 1, charges .6 .6 .3, in tenths
        answered, remaining, after = decide(
            charge, remaining=remaining, refused=refused, retire=retire
        )
        refused = bool(after)
        answers.append(answered)

    assert answers == expected
