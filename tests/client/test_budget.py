"""One elementwise decision, for a Python integer and for an int64 array alike."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_client.budget.decide import affordable_radius, charge_units, decide, decide_every
from demur_client.budget.filters import Filter, RenyiFilter
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


@given(cohorts(), st.sampled_from(Policy), st.booleans())
def test_a_device_and_a_cohort_decide_alike_at_every_step(
    cohort: tuple[int, list[tuple[int, list[int]]]], policy: Policy, bounded: bool
) -> None:
    budget, rounds = cohort
    devices = len(rounds[0][1]) if rounds else 0
    filters = [Filter(budget_units=budget, policy=policy) for _ in range(devices)]
    remaining: Integers = np.full(devices, budget, dtype=np.int64)
    refused: Flags = np.zeros(devices, dtype=np.bool_)

    for weight, squares in rounds:
        charge = charge_units(
            np.array(squares, dtype=np.int64),
            weight=weight,
            budget_units=budget,
            largest=max(squares) if bounded else None,
        )
        answered, remaining, refused = decide(
            charge, remaining=remaining, refused=refused, retire=policy is not Policy.SKIP
        )
        alone = [mine.try_spend(z, weight=weight) for mine, z in zip(filters, squares, strict=True)]

        assert answered.tolist() == alone
        assert remaining.dtype == np.int64
        assert remaining.tolist() == [mine.remaining_units for mine in filters]
        assert refused.tolist() == [mine.ever_refused for mine in filters]


@st.composite
def clipped_cohorts(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, list[int]]]]:
    """A budget, then rounds: a weight, the largest squared norm, and everybody's."""
    budget = draw(budgets)
    devices = draw(st.integers(1, 5))
    rounds = []
    for _ in range(draw(st.integers(0, 10))):
        weight = draw(st.integers(1, budget + 1) | st.integers(1, min(budget + 1, 9)))
        largest = draw(st.integers(1, 100) | st.integers(1, (1 << 61) - 1))
        wanted = st.integers(0, largest) | st.sampled_from([0, largest])
        rounds.append((weight, largest, draw(st.lists(wanted, min_size=devices, max_size=devices))))
    return budget, rounds


@given(clipped_cohorts())
def test_a_device_and_a_cohort_shrink_alike_at_every_step(
    cohort: tuple[int, list[tuple[int, int, list[int]]]],
) -> None:
    budget, rounds = cohort
    devices = len(rounds[0][2]) if rounds else 0
    filters = [Filter(budget_units=budget, policy=Policy.CLIP) for _ in range(devices)]
    remaining: Integers = np.full(devices, budget, dtype=np.int64)
    refused: Flags = np.zeros(devices, dtype=np.bool_)

    for weight, largest, squares in rounds:
        wanted = np.array(squares, dtype=np.int64)
        radii = affordable_radius(remaining, weight=weight, largest=largest, refused=refused)
        sent = np.minimum(wanted, radii)
        charge = charge_units(sent, weight=weight, budget_units=budget, largest=largest)
        answered, remaining, refused = decide(
            charge, remaining=remaining, refused=refused, retire=True
        )
        refused |= sent < wanted
        for row, mine in enumerate(filters):
            before = mine.remaining_units
            radius = mine.radius(weight=weight, largest=largest)
            shrunk = min(squares[row], radius)
            assert radius == radii[row]
            if not mine.ever_refused:  # then exactly what the budget holds, or all that is asked
                assert radius == min(largest, before // weight)
            assert mine.try_spend(shrunk, weight=weight, shrunk=shrunk < squares[row])

        assert answered.all()
        assert remaining.tolist() == [mine.remaining_units for mine in filters]
        assert refused.tolist() == [mine.ever_refused for mine in filters]


@st.composite
def order_cohorts(draw: st.DrawFn) -> tuple[int, int, list[list[list[int]]]]:
    """A budget, a number of orders, then rounds: every device's charges [n, k]."""
    budget, devices, orders = draw(budgets), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    near = st.sampled_from([0, budget, budget + 1, budget // 2, budget // 3])
    charges = st.lists(
        st.just(0) | st.integers(0, budget + 1) | near, min_size=orders, max_size=orders
    )
    rounds = st.lists(charges, min_size=devices, max_size=devices)
    return budget, orders, draw(st.lists(rounds, max_size=8))


@given(order_cohorts(), st.sampled_from([Policy.SKIP, Policy.RETIRE]))
def test_a_device_and_a_cohort_decide_alike_at_every_order(
    cohort: tuple[int, int, list[list[list[int]]]], policy: Policy
) -> None:
    budget, orders, rounds = cohort
    devices = len(rounds[0]) if rounds else 0
    filters = [
        RenyiFilter(budget_units=budget, counters=orders, policy=policy) for _ in range(devices)
    ]
    remaining = np.full((devices, orders), budget, dtype=np.int64)
    refused: Flags = np.zeros(devices, dtype=np.bool_)

    for charges in rounds:
        answered, _, refused = decide_every(
            np.array(charges, dtype=np.int64).T,
            remaining=remaining.T,
            refused=refused,
            retire=policy is Policy.RETIRE,
        )
        alone = [mine.try_charge(each) for mine, each in zip(filters, charges, strict=True)]

        assert np.broadcast_to(answered, devices).tolist() == alone
        assert [tuple(row) for row in remaining.tolist()] == [
            mine.remaining_units for mine in filters
        ]
        assert refused.tolist() == [mine.ever_refused for mine in filters]


@given(
    st.integers(0, LARGEST),
    st.integers(0, 1 << 62),
    st.booleans(),
    st.booleans(),
    st.integers(1, 3),
)
def test_several_counters_that_are_charged_alike_decide_like_one(
    remaining: int, charge: int, refused: bool, retire: bool, orders: int
) -> None:
    one = decide(charge, remaining=remaining, refused=refused, retire=retire)
    given_, left, after = decide_every(
        [charge] * orders, remaining=[remaining] * orders, refused=refused, retire=retire
    )

    assert (given_, left, after) == (one[0], [one[1]] * orders, one[2])


@given(budgets, norms, st.data())
def test_a_charge_is_the_product_or_one_more_than_the_budget(
    budget: int, squared_norm: int, data: st.DataObject
) -> None:
    weight = data.draw(st.integers(1, budget + 1))
    largest = data.draw(st.none() | st.integers(squared_norm, (1 << 61) - 1))

    charge = charge_units(squared_norm, weight=weight, budget_units=budget, largest=largest)
    many = charge_units(
        np.array([squared_norm]), weight=weight, budget_units=budget, largest=largest
    )

    assert charge == min(squared_norm * weight, budget + 1)
    assert many.tolist() == [charge]


def test_charges_near_2_to_62_do_not_wrap() -> None:
    squares = np.array([0, 1, 2, (1 << 61) - 1], dtype=np.int64)

    whole = charge_units(squares, weight=LARGEST, budget_units=LARGEST)
    none = charge_units(squares, weight=LARGEST + 1, budget_units=LARGEST)
    bounded = charge_units(squares, weight=LARGEST, budget_units=LARGEST, largest=(1 << 61) - 1)

    assert whole.tolist() == bounded.tolist() == [0, LARGEST, 1 << 62, 1 << 62]
    assert none.tolist() == [0, 1 << 62, 1 << 62, 1 << 62]
    assert all(charge > 0 for charge in whole[1:])


@pytest.mark.parametrize("largest", [1 << 31, (1 << 31) + 1])
def test_the_short_way_is_taken_only_where_no_product_can_overflow(largest: int) -> None:
    budget = 1 << 61
    weight = 1 << 30  # weight times largest is the budget, or one weight more

    charge = charge_units(np.array([largest]), weight=weight, budget_units=budget, largest=largest)

    assert charge.tolist() == [min(largest * weight, budget + 1)]


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
    assert decide_every([0, 0], remaining=[remaining, 0], refused=refused, retire=retire) == (
        True,
        [remaining, 0],
        refused,
    )


@pytest.mark.parametrize(
    ("retire", "expected"), [(False, [True, False, True]), (True, [True, False, False])]
)
def test_skip_forgives_a_refusal_and_retire_does_not(retire: bool, expected: list[bool]) -> None:
    remaining, refused = 10, False
    answers = []

    for charge in (6, 6, 3):  # budget 1, charges .6 .6 .3, in tenths
        answered, remaining, refused = decide(
            charge, remaining=remaining, refused=refused, retire=retire
        )
        answers.append(answered)

    assert answers == expected


def test_the_state_of_a_cohort_is_updated_where_it_is_and_the_charges_are_not() -> None:
    charge, remaining = np.array([3, 7]), np.array([5, 5])
    refused: Flags = np.zeros(2, dtype=np.bool_)

    _, left, after = decide(charge, remaining=remaining, refused=refused, retire=False)

    assert left is remaining
    assert after is refused
    assert (charge.tolist(), remaining.tolist(), refused.tolist()) == (
        [3, 7],
        [2, 5],
        [False, True],
    )


# Planted bugs: what the rule must not be, and a sequence that tells each of them from ours. Each is
# a whole decision, so the properties above are shown to have teeth.

Decision = Callable[..., tuple[bool, int, bool]]


def late(charge: int, *, remaining: int, refused: bool, retire: bool) -> tuple[bool, int, bool]:
    """Goes on while anything is left."""
    given_ = remaining > 0 or charge == 0
    return given_, remaining - charge * given_, refused or not given_


def strict(charge: int, *, remaining: int, refused: bool, retire: bool) -> tuple[bool, int, bool]:
    """Refuses what fits exactly."""
    given_ = (charge < remaining or charge == 0) and not (retire and refused and charge)
    return given_, remaining - charge * given_, refused or not given_


def greedy(charge: int, *, remaining: int, refused: bool, retire: bool) -> tuple[bool, int, bool]:
    """Takes the charge of a refusal too."""
    given_ = charge <= remaining and not (retire and refused and charge)
    return given_, max(0, remaining - charge), refused or not given_


def deaf(charge: int, *, remaining: int, refused: bool, retire: bool) -> tuple[bool, int, bool]:
    """Retires even from what costs nothing."""
    given_ = charge <= remaining and not (retire and refused)
    return given_, remaining - charge * given_, refused or not given_


def tireless(charge: int, *, remaining: int, refused: bool, retire: bool) -> tuple[bool, int, bool]:
    """Never retires."""
    given_ = charge <= remaining
    return given_, remaining - charge * given_, refused or not given_


def forgetful(
    charge: int, *, remaining: int, refused: bool, retire: bool
) -> tuple[bool, int, bool]:
    """Remembers only the last refusal."""
    given_ = charge <= remaining and not (retire and refused and charge)
    return given_, remaining - charge * given_, not given_


def wrapping(charge: int, *, remaining: int, refused: bool, retire: bool) -> tuple[bool, int, bool]:
    """Subtracts in 64 bits."""
    left = (remaining - charge + (1 << 63)) % (1 << 64) - (1 << 63)
    given_ = left >= 0 and not (retire and refused and charge)
    return given_, left if given_ else remaining, refused or not given_


def run(rule: Decision, charges: tuple[int, ...], *, budget: int, retire: bool) -> list[Any]:
    """Every state that a rule goes through."""
    remaining, refused, states = budget, False, []
    for charge in charges:
        answered, remaining, refused = rule(
            charge, remaining=remaining, refused=refused, retire=retire
        )
        states.append((answered, remaining, refused))
    return states


@pytest.mark.parametrize(
    "planted", [late, strict, greedy, deaf, tireless, forgetful, wrapping], ids=lambda f: f.__name__
)
def test_every_planted_rule_is_told_from_ours(planted: Decision) -> None:
    sequences = list(itertools.product((0, 1, 2, 3, 1 << 64), repeat=4))

    differs = [
        charges
        for charges in sequences
        for retire in (False, True)
        if run(planted, charges, budget=3, retire=retire)
        != run(decide, charges, budget=3, retire=retire)
    ]
    agrees = [
        charges
        for charges in sequences
        for retire in (False, True)
        if run(decide, charges, budget=3, retire=retire) == oracle(charges, budget=3, retire=retire)
    ]

    assert differs
    assert len(agrees) == 2 * len(sequences)


def oracle(charges: tuple[int, ...], *, budget: int, retire: bool) -> list[Any]:
    """The rule in the words of its definition: a running sum, and a flag."""
    total, halted, states = 0, False, []
    for charge in charges:
        if charge and (total + charge > budget or (retire and halted)):
            halted = True
            states.append((False, budget - total, halted))
        else:
            total += charge
            states.append((True, budget - total, halted))
    return states
