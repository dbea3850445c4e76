"""The individual filter, against exact rationals and recorded traces."""

import copy
import json
import math
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_client.filters import Filter
from demur_proto.errors import ParameterError
from demur_proto.study import Policy, View, design_study

GOLDEN = Path(__file__).parent.parent / "golden" / "accounting.json"
TRACES: list[dict[str, Any]] = [
    trace
    for trace in json.loads(GOLDEN.read_text(encoding="utf-8"))["filter_traces"]
    if trace["policy"] in {"skip", "retire"}
]
GRAIN = math.lcm(*range(1, 41))


def number(text: str) -> Fraction | float:
    """An exact rational, or what is not finite as a float."""
    if text in {"inf", "-inf", "nan"}:
        return float(text)
    return Fraction(float.fromhex(text)) if "0x" in text else Fraction(text)


def outcome(mine: Filter, charge: Fraction | float, share: Fraction) -> str:
    """Offer a charge in integer units, rounded up; one unit is 1/share."""
    units: Any = charge  # NaN and -inf go in as they are
    if isinstance(charge, Fraction):
        units = math.ceil(charge * share)
    elif charge == math.inf:
        units = 1 << 200
    try:
        return "CONT" if mine.try_spend(units, weight=1) else "HALT"
    except ParameterError:
        return "ERROR"


@pytest.mark.parametrize("trace", TRACES, ids=lambda t: f"{t['id']}-{t['policy']}")
def test_recorded_traces_are_decided_the_same(trace: dict[str, Any]) -> None:
    budget = Fraction(number(trace["budget"]))
    units = GRAIN if budget else 0
    share = GRAIN / budget if budget else Fraction(GRAIN)
    mine = Filter(budget_units=units, policy=Policy(trace["policy"]))

    decisions = [outcome(mine, number(step["charge"]), share) for step in trace["steps"]]

    assert decisions == trace["grain_lcm40_decisions"]


@pytest.mark.parametrize("trace", TRACES, ids=lambda t: f"{t['id']}-{t['policy']}")
def test_recorded_traces_on_a_binary_grain_are_decided_the_same(trace: dict[str, Any]) -> None:
    share = Fraction(2) ** trace["ticks_scale_log2"]
    units = math.floor(Fraction(number(trace["budget"])) * share)
    mine = Filter(budget_units=units, policy=Policy(trace["policy"]))

    decisions = [outcome(mine, number(step["charge"]), share) for step in trace["steps"]]

    assert decisions == trace["ticks_decisions"]


@pytest.mark.parametrize("trace", TRACES, ids=lambda t: f"{t['id']}-{t['policy']}")
def test_recorded_traces_spend_what_exact_rationals_spend(trace: dict[str, Any]) -> None:
    budget, spent, refused = Fraction(number(trace["budget"])), Fraction(0), False
    decisions, after = [], []

    for step in trace["steps"]:
        charge = number(step["charge"])
        if math.isnan(charge) or charge < 0:
            decisions.append("ERROR")
        elif charge == 0 or (
            charge <= budget - spent and not (refused and trace["policy"] == "retire")
        ):
            spent += Fraction(charge)
            decisions.append("CONT")
        else:
            refused = True
            decisions.append("HALT")
        after.append(spent)

    assert decisions == trace["decisions"]
    assert after == [Fraction(step["spent"]) for step in trace["steps"]]
    assert spent <= budget


@given(st.integers(0, 1000), st.lists(st.integers(0, 400)), st.integers(1, 20))
def test_answers_never_cost_more_than_the_budget(
    budget: int, squares: list[int], weight: int
) -> None:
    mine = Filter(budget_units=budget, policy=Policy.SKIP)
    weight = min(weight, budget + 1)

    answered = [z for z in squares if mine.try_spend(z, weight=weight)]

    assert sum(answered) * weight == budget - mine.remaining_units
    assert mine.remaining_units >= 0


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
    ("squared_norm", "weight"),
    [
        (-1, 1),
        (-(1 << 70), 1),
        (1.0, 1),
        (math.nan, 1),
        (True, 1),
        (1, 0),
        (1, -1),
        (1, 12),
        (1, 1.0),
    ],
)
def test_a_call_that_is_refused_as_wrong_changes_nothing(squared_norm: Any, weight: Any) -> None:
    mine = Filter(budget_units=10, policy=Policy.RETIRE)

    with pytest.raises(ParameterError):
        mine.try_spend(squared_norm, weight=weight)

    assert (mine.remaining_units, mine.ever_refused) == (10, False)
    assert mine.try_spend(10, weight=1)


def test_an_error_does_not_repeat_the_squared_norm() -> None:
    mine = Filter(budget_units=10, policy=Policy.SKIP)

    with pytest.raises(ParameterError) as caught:
        mine.try_spend(-123_457, weight=1)

    assert "123457" not in str(caught.value)
    assert caught.value.value != -123_457


@pytest.mark.parametrize("budget", [-1, 1 << 62, 1 << 64, 1.0, True])
def test_budgets_outside_62_bits_are_refused(budget: Any) -> None:
    with pytest.raises(ParameterError):
        Filter(budget_units=budget, policy=Policy.SKIP)


def test_a_policy_that_is_only_its_text_is_refused() -> None:
    text: Any = "retire"

    with pytest.raises(ParameterError):
        Filter(budget_units=1, policy=text)


def test_squared_norms_of_any_size_are_refused_without_wrapping() -> None:
    mine = Filter(budget_units=(1 << 62) - 1, policy=Policy.SKIP)

    assert not mine.try_spend(1 << 64, weight=1)
    assert not mine.try_spend((1 << 62) + 1, weight=1 << 62)
    assert mine.try_spend((1 << 62) - 1, weight=1)
    assert mine.remaining_units == 0


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


def test_threads_never_get_more_than_the_budget_between_them() -> None:
    mine = Filter(budget_units=2_000, policy=Policy.SKIP)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # as many races as there can be
    try:
        with ThreadPoolExecutor(8) as pool:
            counts = pool.map(
                lambda _: sum(mine.try_spend(1, weight=1) for _ in range(500)), range(8)
            )
            total = sum(counts)
    finally:
        sys.setswitchinterval(interval)

    assert total == 2_000  # of 4,000 attempts
    assert mine.remaining_units == 0


def test_what_a_filter_holds_shows_in_no_text_and_leaves_in_no_copy() -> None:
    mine = Filter(budget_units=987_654, policy=Policy.SKIP)
    mine.try_spend(123, weight=1)

    for text in (repr(mine), str(mine), f"{mine}"):
        assert text == "Filter(secret)"
    for leave in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):  # a copy would be a second budget
            leave(mine)
