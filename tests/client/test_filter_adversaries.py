"""No filter ever spends more than its budget, whatever charges an adversary picks."""

import math
from collections.abc import Callable, Generator, Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur_client.budget.charges import (
    Amount,
    ApproxDpBudget,
    CompositionBudget,
    GdpBudget,
    PureBudget,
    RenyiBudget,
    ZcdpBudget,
)
from demur_client.budget.filters import Filter, RenyiFilter
from demur_proto.accounting.calibration import GRAIN
from demur_proto.study import Policy

LARGEST = (1 << 62) - 1


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


def pure(units: int, policy: Policy) -> Spender:
    budget = PureBudget(epsilon=Fraction(3, 7), budget_units=units)
    mine = Filter.within(budget, policy=policy)
    return lambda x: mine.try_charge(budget.charge(x)), lambda x: [(Fraction(x), Fraction(3, 7))]


def answers(units: int, policy: Policy) -> Spender:
    """Two bounds: on the number of answers that lose anything, and on what each of them loses."""
    budget = CompositionBudget(answers=min(units, 1 << 12), each=Fraction(1, 3))
    mine = Filter.within(budget, policy=policy)

    def losses(x: Any) -> list[tuple[Fraction, Fraction]]:
        largest = Fraction(x) if Fraction(x) > budget.each else Fraction(0)
        return [(Fraction(x != 0), Fraction(budget.answers)), (largest, Fraction(0))]

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
    "pure": pure,
    "answers": answers,
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


@pytest.mark.parametrize("measure", ["zcdp", "gdp", "renyi", "approx_dp", "pure"])
def test_the_property_notices_charges_that_are_rounded_the_wrong_way(
    measure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def floored(loss: Any, bound: Amount, budget_units: int) -> int:
        return math.floor(budget_units * Fraction(loss) / Fraction(bound))

    monkeypatch.setattr("demur_client.budget.charges._units", floored)

    assert overspent(MEASURES[measure](1000, Policy.SKIP), searching(1), steps=5_000)[0]


def test_the_property_notices_a_filter_that_lets_one_unit_too_much_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def loose(charge: int, *, remaining: int, refused: bool, retire: bool) -> Any:
        given_ = charge <= remaining + 1
        return given_, remaining - charge * given_, refused or not given_

    monkeypatch.setattr("demur_client.budget.filters.decide", loose)

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
