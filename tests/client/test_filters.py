"""The individual filter, against exact rationals and recorded traces."""

import copy
import json
import math
import pickle
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_client.budget.charges import (
    AnswersBudget,
    ApproxDpBudget,
    GdpBudget,
    RenyiBudget,
    ZcdpBudget,
)
from demur_client.budget.filters import Filter, RenyiFilter, spend_all
from demur_conformance.vectors.filters import (
    check_filter_traces,
    exact_decisions,
    integer_decisions,
    ticks_budget,
)
from demur_proto.accounting.pure import pure_rho
from demur_proto.errors import ParameterError
from demur_proto.study import Policy, View, design_study

GOLDEN = Path(__file__).parent.parent / "golden" / "accounting.json"
TRACES: list[dict[str, Any]] = json.loads(GOLDEN.read_text(encoding="utf-8"))["filter_traces"]
LARGEST = (1 << 62) - 1
LASTING = [Policy.RETIRE, Policy.CLIP]  #: policies under which a refusal is final


def name_of(trace: dict[str, Any]) -> str:
    return f"{trace['id']}-{trace['policy']}"


def number(text: str) -> Fraction | float:
    """An exact rational, or what is not finite as a float."""
    if text in {"inf", "-inf", "nan"}:
        return float(text)
    return Fraction(float.fromhex(text)) if "0x" in text else Fraction(text)


# Recorded traces.


@pytest.mark.parametrize("trace", TRACES, ids=name_of)
def test_recorded_traces_are_decided_the_same(trace: dict[str, Any]) -> None:
    budget, policy = Fraction(number(trace["budget"])), Policy(trace["policy"])
    charges = [number(step["charge"]) for step in trace["steps"]]
    whole = ZcdpBudget(rho=budget)
    ticks = ticks_budget(budget, scale_log2=trace["ticks_scale_log2"])

    oracle, spent = exact_decisions(charges, budget=budget, policy=policy)

    assert whole.budget_units == 5342931457063200
    assert oracle == trace["decisions"]
    assert spent == [Fraction(step["spent"]) for step in trace["steps"]]
    assert (
        integer_decisions(charges, budget=whole, policy=policy) == (trace["grain_lcm40_decisions"])
    )
    assert integer_decisions(charges, budget=ticks, policy=policy) == trace["ticks_decisions"]


@pytest.mark.parametrize("trace", [t for t in TRACES if "0x" in t["budget"]], ids=name_of)
def test_charges_as_floats_are_the_rationals_that_they_hold(trace: dict[str, Any]) -> None:
    budget = ZcdpBudget(rho=float.fromhex(trace["budget"]))
    charges = [float.fromhex(step["charge"]) for step in trace["steps"]]

    decisions = integer_decisions(charges, budget=budget, policy=Policy(trace["policy"]))

    assert decisions == trace["grain_lcm40_decisions"]


def test_the_checker_of_vectors_finds_a_wrong_word_in_any_column() -> None:
    assert check_filter_traces(TRACES).holds
    for column in ("decisions", "grain_lcm40_decisions", "ticks_decisions"):
        planted = copy.deepcopy(TRACES[:1])
        planted[0][column][-1] = "CONT"

        verdict = check_filter_traces(planted)

        assert not verdict.holds
        assert column in verdict.failures[0]


# What changes nothing.


@given(st.sampled_from(Policy), st.integers(0, 50), st.lists(st.integers(0, 30)), st.data())
def test_zero_charges_never_matter(
    policy: Policy, budget: int, charges: list[int], data: st.DataObject
) -> None:
    plain = Filter(budget_units=budget, policy=policy)
    dotted = Filter(budget_units=budget, policy=policy)

    for charge in charges:
        for _ in range(data.draw(st.integers(0, 2))):
            assert dotted.try_charge(0)
            assert dotted.try_spend(0, weight=1)
        assert dotted.try_charge(charge) == plain.try_charge(charge)
        assert dotted.remaining_units == plain.remaining_units
        assert dotted.ever_refused == plain.ever_refused


@given(st.integers(0, 50), st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30))))
def test_a_refusal_changes_nothing_that_remains(
    budget: int, charges: list[tuple[int, int]]
) -> None:
    one = Filter(budget_units=budget, policy=Policy.SKIP)
    several = RenyiFilter(budget_units=budget, counters=2, policy=Policy.SKIP)

    for pair in charges:
        before, before_all = one.remaining_units, several.remaining_units
        if not one.try_charge(pair[0]):
            assert one.remaining_units == before
            assert pair[0] > before
        if not several.try_charge(pair):
            assert several.remaining_units == before_all
            assert any(charge > left for charge, left in zip(pair, before_all, strict=True))


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("budget", [0, 10])
def test_zero_charges_are_given_even_after_the_budget_is_gone(policy: Policy, budget: int) -> None:
    mine = Filter(budget_units=budget, policy=policy)

    assert mine.try_spend(0, weight=1)
    assert mine.try_spend(budget, weight=1)
    assert not mine.try_spend(1, weight=1)
    assert mine.try_spend(0, weight=1)
    assert mine.try_spend(0, weight=budget + 1)
    assert mine.remaining_units == 0


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(Policy.SKIP, [True, False, True]), *[(policy, [True, False, False]) for policy in LASTING]],
)
def test_budget_1_and_charges_6_6_3_tenths(policy: Policy, expected: list[bool]) -> None:
    budget = ZcdpBudget(rho=1)
    mine = Filter.within(budget, policy=policy)

    answers = [mine.try_charge(budget.charge(Fraction(tenths, 10))) for tenths in (6, 6, 3)]

    assert answers == expected


WRONG_INTEGERS = [-1, -(1 << 70), 1.0, 0.5, math.nan, math.inf, True, None, "1", np.int64(1)]


@pytest.mark.parametrize("wrong", WRONG_INTEGERS)
def test_what_is_no_charge_is_refused_as_wrong_and_changes_nothing(wrong: Any) -> None:
    mine = Filter(budget_units=10, policy=Policy.RETIRE)
    several = RenyiFilter(budget_units=10, counters=2, policy=Policy.RETIRE)

    calls: list[Callable[[], object]] = [
        lambda: mine.try_charge(wrong),
        lambda: mine.try_spend(wrong, weight=1),
        lambda: mine.radius(weight=1, largest=wrong),
        lambda: several.try_charge((1, wrong)),
        lambda: several.try_charge(wrong),
        lambda: spend_all((mine, 1), (several, (1, wrong))),
        lambda: spend_all((several, (1, 1)), (mine, wrong)),
    ]
    for call in calls:
        with pytest.raises(ParameterError):
            call()

    assert (mine.remaining_units, mine.ever_refused) == (10, False)
    assert (several.remaining_units, several.ever_refused) == ((10, 10), False)


@pytest.mark.parametrize("weight", [0, -1, 12, 1.0, True, None])
def test_a_weight_outside_its_range_is_refused(weight: Any) -> None:
    mine = Filter(budget_units=10, policy=Policy.RETIRE)

    with pytest.raises(ParameterError, match="weight"):
        mine.try_spend(1, weight=weight)
    with pytest.raises(ParameterError, match="weight"):
        mine.radius(weight=weight, largest=1)

    assert mine.try_spend(10, weight=1)


@pytest.mark.parametrize("charges", [(), (1,), (1, 1, 1), "ab", {1, 2}, 3])
def test_a_filter_of_orders_wants_a_charge_for_each(charges: Any) -> None:
    mine = RenyiFilter(budget_units=10, counters=2, policy=Policy.RETIRE)

    with pytest.raises(ParameterError, match="charges must be 2 integers >= 0"):
        mine.try_charge(charges)

    assert (mine.remaining_units, mine.ever_refused) == ((10, 10), False)


def test_errors_do_not_repeat_what_is_secret() -> None:
    mine = Filter(budget_units=10, policy=Policy.SKIP)
    several = RenyiFilter(budget_units=10, counters=1, policy=Policy.SKIP)

    calls: list[Callable[[], object]] = [
        lambda: mine.try_spend(-123_457, weight=1),
        lambda: mine.try_charge(-123_457),
        lambda: several.try_charge([-123_457]),
        lambda: spend_all((mine, -123_457)),
    ]
    for call in calls:
        with pytest.raises(ParameterError) as caught:
            call()

        assert "123457" not in str(caught.value)
        assert caught.value.value != -123_457


@pytest.mark.parametrize("budget", [-1, 1 << 62, 1 << 64, 1.0, True, math.nan])
def test_budgets_outside_62_bits_are_refused(budget: Any) -> None:
    with pytest.raises(ParameterError, match="budget_units"):
        Filter(budget_units=budget, policy=Policy.SKIP)
    with pytest.raises(ParameterError, match="budget_units"):
        RenyiFilter(budget_units=budget, counters=1, policy=Policy.SKIP)


def test_a_policy_that_is_only_its_text_is_refused() -> None:
    text: Any = "retire"

    with pytest.raises(ParameterError, match="policy"):
        Filter(budget_units=1, policy=text)
    with pytest.raises(ParameterError, match="policy"):
        RenyiFilter(budget_units=1, counters=1, policy=text)


def test_a_filter_of_orders_does_not_shrink() -> None:
    with pytest.raises(ParameterError, match="policy must be skip or retire"):
        RenyiFilter(budget_units=1, counters=1, policy=Policy.CLIP)


@pytest.mark.parametrize("counters", [0, -1, 1.0, True])
def test_a_filter_of_orders_has_one_at_least(counters: Any) -> None:
    with pytest.raises(ParameterError, match="counters"):
        RenyiFilter(budget_units=1, counters=counters, policy=Policy.SKIP)


def test_a_budget_of_orders_needs_a_filter_of_orders() -> None:
    with pytest.raises(ParameterError, match="RenyiFilter"):
        Filter.within(RenyiBudget(bounds={2: 1}))


# Near and above 2^62.


@pytest.mark.parametrize("units", [LARGEST, LARGEST - 1, 1 << 61])
def test_charges_of_any_size_are_refused_without_wrapping(units: int) -> None:
    mine = Filter(budget_units=units, policy=Policy.SKIP)
    several = RenyiFilter(budget_units=units, counters=2, policy=Policy.SKIP)

    for charge in (units + 1, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 64, (1 << 64) + 1, 1 << 4000):
        assert not mine.try_charge(charge)
        assert not mine.try_spend(charge, weight=1)
        assert not mine.try_spend(charge, weight=units + 1)
        assert not several.try_charge((0, charge))
    assert mine.remaining_units == units
    assert several.remaining_units == (units, units)
    assert mine.try_charge(units)
    assert several.try_charge((units, units))
    assert mine.remaining_units == 0
    assert not mine.try_charge(1)


def test_squared_norms_of_any_size_are_refused_without_wrapping() -> None:
    mine = Filter(budget_units=LARGEST, policy=Policy.SKIP)

    assert not mine.try_spend(1 << 64, weight=1)
    assert not mine.try_spend((1 << 62) + 1, weight=1 << 62)
    assert mine.try_spend(LARGEST, weight=1)
    assert mine.remaining_units == 0


@pytest.mark.parametrize("amount", [math.inf, 1e308, 10**400, Fraction(10) ** 400])
def test_losses_that_exceed_any_budget_are_refused_and_later_ones_go_on(amount: Any) -> None:
    single = ZcdpBudget(rho=1)
    orders = RenyiBudget(bounds={2: 1, math.inf: 5})
    pure = ApproxDpBudget(epsilon=1.0, delta=1e-5)
    gaussian = GdpBudget(mu=1)

    assert not Filter.within(single).try_charge(single.charge(amount))
    assert not Filter.within(pure).try_charge(pure.charge(amount))
    assert not Filter.within(gaussian).try_charge(gaussian.charge(amount))
    mine = RenyiFilter.within(orders)
    assert not mine.try_charge(orders.charge([0.5, amount]))
    assert mine.try_charge(orders.charge([0.5, 0.75]))


# Studies, and budgets of like answers.


def test_a_study_gives_its_budget_and_policy() -> None:
    study = design_study(
        name="x",
        epsilon=1.0,
        delta=1e-6,
        answers=2,
        minimum_cohort=1,
        view=View.LOCAL,
        policy=Policy.RETIRE,
    )
    mine = Filter.of(study)
    full = 1 << 28

    answers = [mine.try_spend(full, weight=study.base_weight) for _ in range(3)]

    assert answers == [True, True, False]
    assert not mine.try_spend(1, weight=1)  # it fits, but this study retires


@pytest.mark.parametrize("answers", [1, 2, 3, 7, 112, 420, 997, (1 << 20) + 1])
def test_exactly_so_many_like_answers_fit(answers: int) -> None:
    budget = AnswersBudget(answers=answers)
    mine = Filter.within(budget)
    batch = budget.charge(answers - min(answers, 1000))

    assert mine.try_charge(batch)
    given_ = sum(mine.try_charge(budget.charge()) for _ in range(1200))

    assert given_ == min(answers, 1000)
    assert mine.remaining_units == 0


@pytest.mark.parametrize("answers", range(1, 41))
def test_up_to_forty_equal_parts_of_any_budget_fit_exactly(answers: int) -> None:
    budget = ZcdpBudget(rho=Fraction(22, 7))
    mine = Filter.within(budget)

    given_ = [mine.try_charge(budget.charge(Fraction(22, 7) / answers)) for _ in range(answers + 1)]

    assert given_ == [True] * answers + [False]


@pytest.mark.parametrize(
    ("epsilon", "delta", "each", "expected"),
    [
        (1.0, 1e-5, 0.01, {"simple": 416, "improved": 611}),
        (4.0, 1e-6, 0.1, {"simple": 50, "improved": 62}),
        (0.3, 1e-5, 0.01, {"simple": 38, "improved": 66}),
    ],
)
@pytest.mark.parametrize("grade", ["simple", "improved"])
def test_so_many_rounds_of_pure_privacy_fit(
    epsilon: float, delta: float, each: float, expected: dict[str, int], grade: Any
) -> None:
    budget = ApproxDpBudget(epsilon=epsilon, delta=delta, grade=grade, charging="quadratic")
    mine = Filter.within(budget)

    given_ = sum(mine.try_charge(budget.charge(each)) for _ in range(700))

    assert given_ == expected[grade]
    assert given_ == int(Fraction(budget.rho) / Fraction(pure_rho(each, charge="quadratic")))


# What leaves a filter: nothing.


@pytest.mark.parametrize(
    "mine",
    [
        Filter(budget_units=987_654, policy=Policy.SKIP),
        RenyiFilter(budget_units=987_654, counters=2, policy=Policy.SKIP),
    ],
    ids=["one", "orders"],
)
def test_what_a_filter_holds_shows_in_no_text_and_leaves_in_no_copy(mine: Any) -> None:
    mine.try_charge(123 if isinstance(mine, Filter) else (123, 456))

    for text in (repr(mine), str(mine), f"{mine}"):
        assert text == f"{type(mine).__name__}(secret)"
    for leave in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):  # a copy would be a second budget
            leave(mine)
    assert not hasattr(mine, "__dict__")
