"""The individual filter, against exact rationals, recorded traces and threads."""

import copy
import json
import math
import pickle
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur_client.budget import decide, decide_every
from demur_client.charges import (
    Amount,
    AnswersBudget,
    ApproxDpBudget,
    GdpBudget,
    RenyiBudget,
    ZcdpBudget,
)
from demur_client.filters import Filter, RenyiFilter, spend_all
from demur_client.vectors.filters import (
    check_filter_traces,
    exact_decisions,
    integer_decisions,
    ticks_budget,
)
from demur_proto.errors import ParameterError
from demur_proto.grid import GRAIN
from demur_proto.pure import pure_rho
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


# No filter ever spends more than its budget. What it lets through is added up in exact rationals,
# while an adversary who sees every decision picks the next charge.

Spender = tuple[Callable[[Any], bool], Callable[[Any], list[tuple[Fraction, Fraction]]]]


def zcdp(units: int, policy: Policy) -> Spender:
    budget = ZcdpBudget(rho=Fraction(3, 7), budget_units=units)
    mine = Filter.within(budget, policy=policy)
    return lambda x: mine.try_charge(budget.charge(x)), lambda x: [(Fraction(x), Fraction(3, 7))]


def gdp(units: int, policy: Policy) -> Spender:
    budget = GdpBudget(mu=0.65, budget_units=units)
    mine = Filter.within(budget, policy=policy)
    square = Fraction(0.65) ** 2
    return lambda x: mine.try_charge(budget.charge(x)), lambda x: [(Fraction(x) ** 2, square)]


def renyi(units: int, policy: Policy) -> Spender:
    budget = RenyiBudget(bounds={1.5: 0.3, 4: 1.25, 32: Fraction(17, 3)}, budget_units=units)
    mine = RenyiFilter.within(budget, policy=policy)

    def losses(x: Any) -> list[Fraction]:  # a curve that bends: no order is always the tightest
        return [Fraction(order) * Fraction(x) / (1 + Fraction(x)) for order in budget.orders]

    bounds = [Fraction(bound) for bound in budget.bounds.values()]
    return (
        lambda x: mine.try_charge(budget.charge(losses(x))),
        lambda x: list(zip(losses(x), bounds, strict=True)),
    )


def approx_dp(units: int, policy: Policy) -> Spender:
    budget = ApproxDpBudget(epsilon=3.0, delta=1e-5, budget_units=units)
    mine = Filter.within(budget, policy=policy)

    def losses(x: Any) -> list[tuple[Fraction, Fraction]]:
        # Not the tight charge itself, which is irrational, but a float that is not above it.
        below = float(x) * math.tanh(float(x) / 2) * (1 - 2.0**-50)
        return [(Fraction(max(0.0, math.nextafter(below, 0))), Fraction(budget.rho))]

    return lambda x: mine.try_charge(budget.charge(x)), losses


def squares(units: int, policy: Policy) -> Spender:
    mine = Filter(budget_units=units, policy=policy)

    def spend(x: Any) -> bool:  # the adversary's amounts as squared norms of rounds of any weight
        weight = 1 + math.floor(x * 1e6) % 7
        return mine.try_spend(cost(x) // weight, weight=min(weight, units + 1))

    def cost(x: Any) -> int:
        return math.floor(Fraction(x) * units)

    return spend, lambda x: [
        (Fraction(cost(x) // (w := 1 + math.floor(x * 1e6) % 7) * w), Fraction(units))
    ]


MEASURES = {
    "zcdp": zcdp,
    "gdp": gdp,
    "renyi": renyi,
    "approx_dp": approx_dp,
    "squares": squares,
}


Adversary = Generator[Amount, bool, None]  # asks for an amount, and is told whether it was given


def overspent(spender: Spender, adversary: Adversary, *, steps: int) -> tuple[bool, int]:
    """Whether exact sums ever exceed a bound, and how many answers were given.

    Every fifty answers the sums are rounded down to 200 bits, so that they stay short; whatever
    exceeds a bound by more than that still shows.
    """
    spend, losses = spender
    sums: list[Fraction] | None = None
    answers, given_ = 0, True
    for step in range(steps):
        try:
            amount = adversary.send(given_) if step else next(adversary)
        except StopIteration:
            break
        given_ = spend(amount)
        if not given_:
            continue
        answers += 1
        terms = losses(amount)
        before = sums or [Fraction(0)] * len(terms)
        sums = [total + loss for total, (loss, _) in zip(before, terms, strict=True)]
        if any(total > bound for total, (_, bound) in zip(sums, terms, strict=True)):
            return True, answers
        if answers % 50 == 0:
            sums = [Fraction(math.floor(total * 2**200), 2**200) for total in sums]
    return False, answers


def searching(seed: int) -> Adversary:
    """Feels for what is left: asks for less after a refusal, for more after an answer."""
    rng = np.random.default_rng(seed)
    scale = 1.0
    while True:
        kind = int(rng.integers(0, 8))
        amount: Amount = scale
        if kind == 0:
            amount = 0
        elif kind == 1:
            amount = Fraction(int(rng.integers(1, 40)), int(rng.integers(40, 4000)))
        elif kind == 2:
            amount = math.nextafter(scale, 1)
        given_ = yield amount
        if kind > 2:
            scale *= float(rng.uniform(1, 1.5) if given_ else rng.uniform(0.3, 1))
            scale = scale if 1e-12 < scale < 1 else 10.0 ** -float(rng.uniform(0, 6))


def listed(amounts: Iterable[Amount]) -> Adversary:
    """Asks for what is on its list."""
    queue = list(amounts)
    while queue:
        yield queue.pop()


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("policy", [Policy.SKIP, Policy.RETIRE])
def test_no_filter_ever_spends_more_than_its_budget(measure: str, policy: Policy) -> None:
    steps = 10_000 // 2  # for each of two grains
    for units in (GRAIN, (1 << 62) - 1):
        exceeded, answers = overspent(
            MEASURES[measure](units, policy), searching(units % 97), steps=steps
        )

        assert not exceeded
        assert answers > 10


@pytest.mark.long
@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("policy", [Policy.SKIP, Policy.RETIRE])
def test_core_no_filter_spends_more_than_its_budget_in_a_million_steps(
    measure: str, policy: Policy
) -> None:
    for seed in range(10):
        exceeded, answers = overspent(
            MEASURES[measure](GRAIN + seed, policy), searching(seed), steps=100_000
        )

        assert not exceeded
        assert answers > 10


@given(
    st.sampled_from(sorted(MEASURES)),
    st.sampled_from([Policy.SKIP, Policy.RETIRE]),
    st.sampled_from([1, 7, 1000, GRAIN, LARGEST]),
    st.data(),
)
@settings(max_examples=200)
def test_an_adaptive_adversary_gets_no_more_than_the_budget(
    measure: str, policy: Policy, units: int, data: st.DataObject
) -> None:
    amounts = st.one_of(
        st.floats(0, 1), st.floats(0, 1e-3), st.fractions(0, 1), st.sampled_from([0, 1, 0.5])
    )
    chosen = data.draw(st.lists(amounts, max_size=40))

    assert not overspent(MEASURES[measure](units, policy), listed(chosen), steps=40)[0]


@pytest.mark.parametrize("measure", ["zcdp", "gdp", "renyi", "approx_dp"])
def test_the_property_notices_charges_that_are_rounded_the_wrong_way(
    measure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def floored(loss: Any, bound: Amount, budget_units: int) -> int:
        return math.floor(budget_units * Fraction(loss) / Fraction(bound))

    monkeypatch.setattr("demur_client.charges._units", floored)

    assert overspent(MEASURES[measure](1000, Policy.SKIP), searching(1), steps=5_000)[0]


def test_the_property_notices_a_filter_that_lets_one_unit_too_much_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def loose(charge: int, *, remaining: int, refused: bool, retire: bool) -> Any:
        given_ = charge <= remaining + 1
        return given_, remaining - charge * given_, refused or not given_

    monkeypatch.setattr("demur_client.filters.decide", loose)

    assert overspent(squares(1000, Policy.SKIP), searching(1), steps=5_000)[0]


@given(st.integers(0, 1000), st.lists(st.integers(0, 400)), st.integers(1, 20))
def test_answers_never_cost_more_than_the_budget(
    budget: int, squared_norms: list[int], weight: int
) -> None:
    mine = Filter(budget_units=budget, policy=Policy.SKIP)
    weight = min(weight, budget + 1)

    answered = [z for z in squared_norms if mine.try_spend(z, weight=weight)]

    assert sum(answered) * weight == budget - mine.remaining_units
    assert mine.remaining_units >= 0


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


# Several filters in one step.


@st.composite
def joint_steps(draw: st.DrawFn) -> tuple[list[tuple[int, Policy]], list[list[int]]]:
    """Budgets and policies of some filters, then each one's charges step by step."""
    filters = draw(
        st.lists(
            st.tuples(st.integers(0, 30), st.sampled_from([Policy.SKIP, Policy.RETIRE])),
            min_size=1,
            max_size=4,
        )
    )
    row = st.lists(st.integers(0, 20), min_size=len(filters), max_size=len(filters))
    return filters, draw(st.lists(row, max_size=10))


@given(joint_steps())
def test_several_filters_spend_together_or_not_at_all(
    joint: tuple[list[tuple[int, Policy]], list[list[int]]],
) -> None:
    kinds, steps = joint
    filters = [Filter(budget_units=units, policy=policy) for units, policy in kinds]
    refused = [False] * len(filters)

    for charges in steps:
        before = [mine.remaining_units for mine in filters]
        fits = [
            charge == 0 or (charge <= left and not (policy is Policy.RETIRE and gone))
            for charge, left, (_, policy), gone in zip(charges, before, kinds, refused, strict=True)
        ]

        given_ = spend_all(*zip(filters, charges, strict=True))

        taken = charges if given_ else [0] * len(filters)
        assert given_ == all(fits)
        assert [mine.remaining_units for mine in filters] == [
            left - charge for left, charge in zip(before, taken, strict=True)
        ]
        refused = [gone or not fit for gone, fit in zip(refused, fits, strict=True)]
        assert [mine.ever_refused for mine in filters] == refused


def test_filters_of_different_measures_spend_in_one_step() -> None:
    study, cap = ZcdpBudget(rho=0.5), RenyiBudget(bounds={2: 2, 8: 6})
    mine, lifetime = Filter.within(study), RenyiFilter.within(cap)
    rho = 0.25

    given_ = [
        spend_all((mine, study.charge(rho)), (lifetime, cap.charge_zcdp(rho))) for _ in range(3)
    ]

    assert given_ == [True, True, False]
    assert mine.remaining_units == 0
    assert lifetime.remaining_units == (GRAIN // 2, GRAIN // 3)
    assert (mine.ever_refused, lifetime.ever_refused) == (True, False)


def test_a_cap_that_agreed_does_not_retire_with_the_study_that_refused() -> None:
    study = Filter(budget_units=1, policy=Policy.RETIRE)
    other = Filter(budget_units=9, policy=Policy.RETIRE)
    cap = Filter(budget_units=9, policy=Policy.RETIRE)

    assert not spend_all((study, 2), (cap, 2))
    assert spend_all((other, 2), (cap, 2))
    assert not spend_all((study, 1), (cap, 1))  # it would fit, but this study has retired
    assert spend_all((study, 0), (cap, 1))
    assert (study.remaining_units, other.remaining_units, cap.remaining_units) == (1, 7, 6)


def test_a_shrunk_answer_retires_the_filters_that_shrink() -> None:
    study = Filter(budget_units=5, policy=Policy.CLIP)
    cap = Filter(budget_units=9, policy=Policy.SKIP)

    assert spend_all((study, 5), (cap, 5), shrunk=True)

    assert (study.ever_refused, cap.ever_refused) == (True, False)
    assert study.radius(weight=1, largest=3) == 0
    assert cap.radius(weight=1, largest=3) == 3


def test_a_shrunk_answer_that_another_filter_refused_retires_nobody() -> None:
    study = Filter(budget_units=5, policy=Policy.CLIP)
    cap = Filter(budget_units=1, policy=Policy.SKIP)

    assert not spend_all((study, 5), (cap, 5), shrunk=True)

    assert (study.ever_refused, cap.ever_refused) == (False, True)


def test_steps_that_are_no_step_are_refused_as_wrong() -> None:
    mine = Filter(budget_units=10, policy=Policy.SKIP)

    with pytest.raises(ParameterError, match="at least one filter"):
        spend_all()
    with pytest.raises(ParameterError, match="none of them twice"):
        spend_all((mine, 1), (mine, 1))
    with pytest.raises(ParameterError, match="shrunk"):
        spend_all((mine, 1), shrunk=True)
    with pytest.raises(ParameterError, match="shrunk"):
        mine.try_spend(1, weight=1, shrunk=True)

    assert mine.remaining_units == 10


# Threads.


@contextmanager
def racing() -> Iterator[None]:
    """Switch threads as often as there can be a race."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def count_in_threads(attempt: Callable[[int], bool], *, threads: int, times: int) -> list[int]:
    """How many attempts succeeded in each thread, all of them started together."""
    start, counts = threading.Barrier(threads), [0] * threads

    def work(thread: int) -> None:
        start.wait(timeout=30)
        counts[thread] = sum(attempt(thread) for _ in range(times))

    workers = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(threads)]
    deadline = time.monotonic() + 20
    with racing():
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(timeout=max(0.0, deadline - time.monotonic()))
    assert not any(worker.is_alive() for worker in workers), "they wait for each other"
    return counts


@pytest.fixture
def dawdling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let other threads run between a decision and the moment it is kept."""

    def slowly(rule: Callable[..., Any]) -> Callable[..., Any]:
        def decided(*charge: Any, **state: Any) -> Any:
            outcome = rule(*charge, **state)
            time.sleep(1e-6)
            return outcome

        return decided

    monkeypatch.setattr("demur_client.filters.decide", slowly(decide))
    monkeypatch.setattr("demur_client.filters.decide_every", slowly(decide_every))


@pytest.mark.usefixtures("dawdling")
def test_threads_that_come_between_a_decision_and_its_charge_get_no_more() -> None:
    one = Filter(budget_units=100, policy=Policy.SKIP)
    norms = Filter(budget_units=100, policy=Policy.SKIP)
    every = RenyiFilter(budget_units=100, counters=2, policy=Policy.SKIP)
    study = Filter(budget_units=100, policy=Policy.SKIP)
    cap = RenyiFilter(budget_units=300, counters=2, policy=Policy.SKIP)

    granted = [
        count_in_threads(lambda _: one.try_charge(1), threads=6, times=30),
        count_in_threads(lambda _: norms.try_spend(1, weight=1), threads=6, times=30),
        count_in_threads(lambda _: every.try_charge((1, 0)), threads=6, times=30),
        count_in_threads(lambda _: spend_all((study, 1), (cap, (1, 3))), threads=6, times=30),
    ]

    assert [sum(counts) for counts in granted] == [100] * 4  # of 180 attempts each
    assert (one.remaining_units, norms.remaining_units, study.remaining_units) == (0, 0, 0)
    assert (every.remaining_units, cap.remaining_units) == ((0, 100), (200, 0))


def test_threads_never_get_more_than_the_budget_between_them() -> None:
    mine = Filter(budget_units=1_000, policy=Policy.SKIP)
    several = RenyiFilter(budget_units=1_000, counters=3, policy=Policy.SKIP)

    one = count_in_threads(lambda _: mine.try_charge(1), threads=8, times=250)
    norms = count_in_threads(lambda _: mine.try_spend(1, weight=1), threads=2, times=10)
    every = count_in_threads(lambda _: several.try_charge((1, 0, 1)), threads=8, times=250)

    assert sum(one) == 1_000  # of 2,000 attempts
    assert sum(norms) == 0
    assert sum(every) == 1_000
    assert (mine.remaining_units, several.remaining_units) == (0, (0, 1_000, 0))


def test_the_race_would_show_without_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    class Open:
        """A lock that lets everybody in."""

        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> None: ...

    def granted() -> int:
        mine = Filter(budget_units=1_000, policy=Policy.SKIP)
        monkeypatch.setattr(mine, "_lock", Open())
        return sum(count_in_threads(lambda _: mine.try_charge(1), threads=8, times=250))

    if all(granted() == 1_000 for _ in range(50)):
        pytest.skip("this interpreter never switches threads inside a decision")


def test_threads_that_name_filters_in_any_order_neither_wait_for_ever_nor_overspend() -> None:
    study = Filter(budget_units=600, policy=Policy.SKIP)
    cap = RenyiFilter(budget_units=900, counters=2, policy=Policy.SKIP)
    third = Filter(budget_units=10_000, policy=Policy.SKIP)

    def attempt(thread: int) -> bool:
        if thread % 3 == 0:
            return spend_all((study, 1), (cap, (1, 2)), (third, 1))
        if thread % 3 == 1:
            return spend_all((third, 1), (cap, (1, 2)), (study, 1))
        return spend_all((cap, (1, 2)), (third, 1), (study, 1))

    granted = count_in_threads(attempt, threads=6, times=200)

    assert sum(granted) == 450  # the cap's second order allows no more
    assert study.remaining_units == 150
    assert cap.remaining_units == (450, 0)
    assert third.remaining_units == 10_000 - 450


def test_nobody_sees_half_a_step() -> None:
    one = Filter(budget_units=5_000, policy=Policy.SKIP)
    two = Filter(budget_units=5_000, policy=Policy.SKIP)

    def attempt(thread: int) -> bool:
        if thread:
            return spend_all((one, 1), (two, 1))
        # Whoever holds the first lock of a step sees both filters before it or after it.
        first, second = sorted((one, two), key=id)
        with first._lock, second._lock:
            return one.remaining_units != two.remaining_units

    torn, *_ = count_in_threads(attempt, threads=4, times=500)

    assert torn == 0


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
