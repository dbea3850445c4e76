"""Other papers' filters with a state, against the counts recorded for them."""

import copy
import json
import math
import pickle
import threading
import time
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_client.budget.charges import ApproxDpBudget
from demur_client.budget.filters import Filter
from demur_client.budget.odometers import BaselineFilter
from demur_proto.accounting.targets import PureLosses, basic_fits, rogers_fits, whitehouse_fits
from demur_proto.errors import ParameterError
from demur_proto.study import Policy

GOLDEN = Path(__file__).parent.parent / "golden" / "accounting.json"
ROUNDS: list[dict[str, Any]] = json.loads(GOLDEN.read_text(encoding="utf-8"))["dp_filter_rounds"]


def baselines(
    target: float | Fraction, delta: float, policy: Policy = Policy.SKIP
) -> dict[str, BaselineFilter]:
    epsilon = float(target)
    return {
        "basic": BaselineFilter.basic(epsilon=target, policy=policy),
        "rogers_printed": BaselineFilter.rogers(epsilon=epsilon, delta=delta, policy=policy),
        "whitehouse": BaselineFilter.whitehouse(epsilon=epsilon, delta=delta, policy=policy),
    }


@pytest.mark.parametrize("case", ROUNDS, ids=lambda c: f"{c['eps_g']}-{c['eps']}")
def test_so_many_rounds_are_answered_as_recorded(case: dict[str, Any]) -> None:
    one = Fraction(case["eps"])

    for name, mine in baselines(Fraction(case["eps_g"]), float(case["delta"])).items():
        answered = 0
        while mine.try_spend(one):
            answered += 1

        assert answered == case[name], name
        assert mine.ever_refused


def test_whitehouse_is_our_simple_grade_with_the_quadratic_charge() -> None:
    budget = ApproxDpBudget(epsilon=1.0, delta=1e-5, grade="simple", charging="quadratic")
    ours, theirs = Filter.within(budget), BaselineFilter.whitehouse(epsilon=1.0, delta=1e-5)
    rounds = [0.05, 0.1, 0.01, 0.2, 0.02, 0.13, 0.001, 0.05] * 4

    assert [ours.try_charge(budget.charge(each)) for each in rounds] == [
        theirs.try_spend(each) for each in rounds
    ]


@given(st.lists(st.floats(0, 0.5) | st.fractions(0, 1), max_size=40), st.booleans())
def test_what_is_answered_always_fits(rounds: list[Any], retire: bool) -> None:
    policy = Policy.RETIRE if retire else Policy.SKIP
    rules = {
        "basic": partial(basic_fits, epsilon=1.0),
        "rogers_printed": partial(rogers_fits, epsilon=1.0, delta=1e-5),
        "whitehouse": partial(whitehouse_fits, epsilon=1.0, delta=1e-5),
    }

    for name, mine in baselines(1.0, 1e-5, policy).items():
        losses, refused = PureLosses(), False
        for each in rounds:
            expected = each == 0 or (rules[name](losses.plus(each)) and not (retire and refused))

            assert mine.try_spend(each) == expected

            losses = losses.plus(each) if expected else losses
            refused = refused or not expected
            assert mine.ever_refused == refused


def test_skip_forgives_and_retire_does_not() -> None:
    for policy, expected in ((Policy.SKIP, True), (Policy.RETIRE, False)):
        mine = BaselineFilter.basic(epsilon=1.0, policy=policy)

        assert mine.try_spend(0.6)
        assert not mine.try_spend(0.6)
        assert mine.try_spend(0.3) == expected
        assert mine.try_spend(0)


@pytest.mark.parametrize("huge", [math.inf, 701, 1e300, Fraction(10) ** 400])
def test_rounds_that_exceed_any_budget_are_refused(huge: Any) -> None:
    for mine in baselines(1e4, 1e-5).values():
        assert not mine.try_spend(huge)
        assert mine.try_spend(0.01)


@pytest.mark.parametrize("wrong", [math.nan, -math.inf, -1, True, "1", None])
def test_what_is_no_round_is_refused_and_changes_nothing(wrong: Any) -> None:
    for mine in baselines(1.0, 1e-5, Policy.RETIRE).values():
        with pytest.raises(ParameterError) as caught:
            mine.try_spend(wrong)

        assert (caught.value.name, caught.value.value) == ("epsilon", "something else")
        assert not mine.ever_refused
        assert mine.try_spend(0.05)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1, True, "1", None])
def test_a_target_outside_its_range_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(ParameterError, match="epsilon"):
        BaselineFilter.basic(epsilon=wrong)
    for make in (BaselineFilter.rogers, BaselineFilter.whitehouse):
        with pytest.raises(ParameterError, match="epsilon"):
            make(epsilon=wrong, delta=1e-5)
        with pytest.raises(ParameterError, match="delta"):
            make(epsilon=1.0, delta=wrong)


@pytest.mark.parametrize("policy", [Policy.CLIP, "skip", None])
def test_a_policy_that_these_do_not_know_is_refused(policy: Any) -> None:
    with pytest.raises(ParameterError, match="policy"):
        BaselineFilter.basic(epsilon=1.0, policy=policy)


def test_threads_never_get_more_than_the_budget_between_them() -> None:
    def fits(losses: PureLosses) -> bool:
        time.sleep(1e-6)  # others run between the decision and its charge
        return basic_fits(losses, epsilon=50.0)

    mine = BaselineFilter(fits)
    counts = [0] * 6

    def work(thread: int) -> None:
        counts[thread] = sum(mine.try_spend(0.5) for _ in range(30))

    workers = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=30)

    assert sum(counts) == 100  # of 180 attempts


def test_what_it_holds_shows_in_no_text_and_leaves_in_no_copy() -> None:
    mine = BaselineFilter.basic(epsilon=1.0)

    assert repr(mine) == "BaselineFilter(secret)"
    for leave in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            leave(mine)
