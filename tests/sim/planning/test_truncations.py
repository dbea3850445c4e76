"""What a plan says is missing is what is missing in a run, and what an enumeration finds."""

import math
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from demur_proto.errors import ParameterError
from demur_proto.running.factorisations import factors_of
from demur_proto.running.segments import Factorisation
from demur_sim.datasets.activity import Activity, Counted
from demur_sim.people.populations import ArrayPopulation
from demur_sim.planning.model import (
    Weights,
    answer_truncations,
    change_truncation,
    spread_truncations,
)
from demur_sim.results.base import Result
from demur_sim.run import simulate
from demur_sim.scenario import Kind, Scenario

PEOPLE, ROUNDS = 150, 20
tables = arrays(np.bool_, st.tuples(st.integers(1, 8), st.integers(1, 6)))


def busy_people() -> Any:
    """Flags [rounds, people]: some are active nearly always, some hardly ever; all keep changing."""
    rng = np.random.default_rng(5)
    return rng.random((ROUNDS, PEOPLE)) < rng.random(PEOPLE) ** 2


def simulated(values: Any, **changes: Any) -> Result:
    scenario = Scenario(name="busy", feature="value", **changes)
    return simulate(scenario, population=ArrayPopulation(values.T.astype(float)), workers=1)


def missing_in(result: Result) -> float:
    """Of a run, the mean over rounds of the square of what is missing."""
    return float(np.mean((result.active_truth - result.truth) ** 2))


@given(values=tables, budget=st.integers(1, 9))
def test_answers_beyond_the_budget_are_missing_and_no_others(values: Any, budget: int) -> None:
    answered = values & (values.cumsum(axis=0) <= budget)
    off = (values & ~answered).sum(axis=1)

    found = answer_truncations(values).of(budget)

    people = values.shape[1]
    assert found.mean_squared_bias(people) == pytest.approx(np.mean(off**2.0))
    assert found.wrong * values.size == pytest.approx(off.sum())


@pytest.mark.parametrize("budget", [1, 4])
def test_a_sum_misses_what_a_run_misses(budget: int) -> None:
    values = busy_people()

    result = simulated(values, budget=budget)

    found = answer_truncations(values).of(budget)
    assert missing_in(result) > 0
    assert found.mean_squared_bias(PEOPLE) == pytest.approx(missing_in(result), rel=1e-12)


@pytest.mark.parametrize("factorisation", Factorisation)
@pytest.mark.parametrize("policy", ["skip", "retire"])
def test_a_running_count_misses_what_a_run_misses(factorisation: Any, policy: str) -> None:
    values = busy_people()
    weights = Weights.of(factors_of(factorisation, horizon=ROUNDS, exponent=-14), horizon=ROUNDS)

    result = simulated(
        values,
        kind=Kind.PREFIX,
        budget=2,
        policy=policy,
        factorisation=factorisation,
        grid_exponent=-14,
    )

    found = change_truncation(values, weights, result.study.value)
    assert missing_in(result) > 0
    assert found.mean_squared_bias(PEOPLE) == pytest.approx(missing_in(result), rel=1e-12)


@pytest.mark.parametrize("rounds", [1, 4, 6])
def test_spread_rounds_are_missing_as_often_as_in_an_enumeration(rounds: int) -> None:
    counts = np.arange(rounds + 1)
    law = Activity(counted=Counted.ACTIVE, rounds=counts, people=counts + 1)
    expected = np.zeros((rounds, rounds))  # of round t, with room for n answers
    for often, weight in zip(counts.tolist(), (counts + 1).tolist(), strict=True):
        sets = list(combinations(range(rounds), often))
        for times in sets:
            share = Fraction(weight, law.devices * len(sets))
            for before, at in enumerate(times):  # so many active rounds came before this one
                for budget in range(1, before + 1):
                    expected[at, budget - 1] += share

    found = spread_truncations(law, rounds=rounds)

    assert found.most == max(1, rounds)
    for budget in range(1, rounds + 2):
        column = expected[:, budget - 1] if budget <= rounds else np.zeros(rounds)
        truncation = found.of(budget)
        assert truncation.wrong == pytest.approx(column.mean(), abs=1e-12)
        assert truncation.mean_square == pytest.approx(np.mean(column**2), abs=1e-12)


def test_the_law_of_a_histogram_is_that_of_the_people_made_up_from_it() -> None:
    law = Activity(counted=Counted.ACTIVE, rounds=np.array([0, 2, 9]), people=np.array([3, 4, 3]))
    made_up = law.made_up(devices=20_000, periods=12, seed=1)
    values = np.zeros((12, 20_000), dtype=np.bool_)
    values[np.repeat(np.arange(12), np.diff(made_up.start)), made_up.device] = True  # type: ignore[union-attr]

    exact, drawn = spread_truncations(law, rounds=12), answer_truncations(values)

    for budget in (1, 2, 5):
        expected = exact.of(budget).wrong
        error = math.sqrt(expected / values.size * 9)  # of one person, up to 9 rounds go together
        assert abs(drawn.of(budget).wrong - expected) <= 5 * error


@pytest.mark.parametrize("people", [1, 2, 5])
def test_fewer_people_miss_what_all_samples_of_so_many_miss_on_average(people: int) -> None:
    values = np.random.default_rng(3).random((4, 6)) < 0.7
    samples = [values[:, list(some)] for some in combinations(range(6), people)]
    missed = [answer_truncations(each).of(1).mean_squared_bias(people) for each in samples]

    found = answer_truncations(values).of(1).mean_squared_bias(people)

    assert found == pytest.approx(np.mean(missed))


def test_twice_as_many_people_miss_twice_as_much() -> None:
    once = answer_truncations(busy_people()).of(3)
    twice = answer_truncations(np.tile(busy_people(), 2)).of(3)

    expected = twice.mean_squared_bias(2 * PEOPLE)

    assert once.mean_squared_bias(2 * PEOPLE) == pytest.approx(expected)
    assert expected == pytest.approx(4 * once.mean_squared_bias(PEOPLE))


def test_nothing_is_missing_where_everybody_can_pay() -> None:
    values = busy_people()

    found = answer_truncations(values)

    assert found.most == values.sum(axis=0).max()
    assert found.of(found.most).mean_squared_bias(10**6) == 0
    assert found.of(found.most - 1).wrong > 0


def test_more_rounds_than_there_are_is_refused() -> None:
    law = Activity(counted=Counted.ACTIVE, rounds=np.array([9]), people=np.array([1]))

    with pytest.raises(ParameterError, match="periods must be at least 9, the most active_rounds"):
        spread_truncations(law, rounds=8)
