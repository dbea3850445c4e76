"""A plan's figures are those of runs and of results, and no other budget is better."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from demur_proto.accounting.pure import composition_each
from demur_proto.errors import ParameterError
from demur_proto.running.factorisations import factors_of
from demur_proto.running.segments import Factorisation
from demur_proto.study import View
from demur_sim.people.populations import ArrayPopulation
from demur_sim.people.presence import Presence
from demur_sim.planning.model import model_of
from demur_sim.planning.plan import Plan, plan, ways_to_ask
from demur_sim.planning.ways import ResponseWay, Way
from demur_sim.results.running import RunningResult
from demur_sim.run import simulate
from demur_sim.scenario import Kind, Scenario, load_scenario

PEOPLE, ROUNDS, SEEDS = 600, 24, 6
MINE = Scenario(name="mine", feature="value", epsilon=4.0)


@cache
def people() -> ArrayPopulation:
    """Some are active nearly always, most hardly ever, and always a while on end."""
    rng = np.random.default_rng(8)
    often = rng.random(PEOPLE)[:, None] ** 3
    values = (rng.random((PEOPLE, ROUNDS // 3)) < often).repeat(3, axis=1)
    return ArrayPopulation(values.astype(float))


@cache
def mine() -> Plan:
    return plan(MINE, population=people())


def squared_errors(scenario: Scenario) -> tuple[float, Any]:
    """The mean squared error over rounds and seeds of runs, and one of their results."""
    results = [
        simulate(scenario, seed=seed, population=people(), workers=1) for seed in range(SEEDS)
    ]
    return float(np.mean([result.rmse**2 for result in results])), results[0]


@pytest.mark.parametrize("budget", [2, 9])
def test_runs_of_sums_are_as_wrong_as_predicted(budget: int) -> None:
    (way, *_) = ways_to_ask(MINE, model_of(MINE, people()), people=PEOPLE)
    noise = way.variance(budget)
    predicted = noise + way.truncation(budget).mean_squared_bias(PEOPLE)

    found, result = squared_errors(way.asked(budget))

    # With bias b_t and noise of variance s², a round's squared error has variance 4b_t²s² + 2s⁴.
    bias = (result.active_truth - result.truth)[:, 0]
    spread = math.sqrt(np.sum(4 * bias**2 * noise + 2 * noise**2) / SEEDS) / ROUNDS
    assert result.sigma**2 == pytest.approx(noise)
    assert abs(found - predicted) <= 3 * spread


def bits(scenario: Scenario) -> Scenario:
    """The same, asked by randomised response."""
    return replace(scenario, kind=Kind.HISTOGRAM, categories=1, mechanism="krr", measure=None)


@pytest.mark.parametrize("budget", [2, 9])
def test_runs_of_randomised_response_are_as_wrong_as_predicted(budget: int) -> None:
    local = replace(MINE, view=View.LOCAL)
    (way,) = (
        way
        for way in ways_to_ask(local, model_of(local, people()), people=PEOPLE)
        if isinstance(way, ResponseWay)
    )
    noise = way.variance(budget)
    predicted = noise + way.truncation(budget).mean_squared_bias(PEOPLE)

    found, result = squared_errors(way.asked(budget))

    bias = (result.active_truth - result.truth)[:, 0]
    spread = math.sqrt(np.sum(4 * bias**2 * noise + 2 * noise**2) / SEEDS) / ROUNDS
    assert result.sigma**2 == pytest.approx(noise)
    assert abs(found - predicted) <= 3 * spread


@pytest.mark.parametrize("factorisation", Factorisation)
def test_runs_of_running_counts_are_as_wrong_as_predicted(factorisation: Factorisation) -> None:
    (way,) = (
        way
        for way in ways_to_ask(MINE, model_of(MINE, people()), people=PEOPLE)
        if way.correlation == factorisation
    )
    predicted = way.variance(2) + way.truncation(2).mean_squared_bias(PEOPLE)

    found, result = squared_errors(way.asked(2))

    assert isinstance(result, RunningResult)
    assert result.sigma**2 == pytest.approx(way.variance(2))
    # Errors are b + sBz, z standard normal; |b + sBz|² has variance 4s²|Bᵀb|² + 2s⁴‖BᵀB‖².
    steps = factors_of(factorisation, horizon=ROUNDS, exponent=result.mechanism.grid_exponent)
    solution = np.zeros((ROUNDS, ROUNDS))
    for position in range(1, ROUNDS + 1):
        solution[position - 1, :position] = steps.solution(position)
    solution *= math.sqrt(PEOPLE * (result.mechanism.noise_steps**2 + 1 / 12))
    bias = (result.active_truth - result.truth)[:, 0]
    variance = 4 * np.sum((solution.T @ bias) ** 2) + 2 * np.sum((solution.T @ solution) ** 2)
    assert abs(found - predicted) <= 3 * math.sqrt(variance / SEEDS) / ROUNDS


def test_no_budget_of_any_way_is_better_than_its_best() -> None:
    for curve in mine().curves:
        errors = {
            budget: curve.way.variance(budget)
            + curve.way.truncation(budget).mean_squared_bias(PEOPLE)
            for budget in range(1, curve.way.most + 1)
        }

        assert curve.best.error**2 <= min(errors.values()) * (1 + 1e-9)
        assert curve.best.budget == min(errors, key=errors.__getitem__)


def test_the_least_error_comes_first_and_is_made_of_its_parts() -> None:
    found = mine()

    errors = [curve.best.error for curve in found.curves]
    assert errors == sorted(errors)
    assert len(errors) == 4
    assert found.best.error == math.hypot(found.best.noise, found.best.truncation)
    assert found.scenario.budget == found.best.budget
    assert found.chosen.way.sigma(found.best.budget) == found.best.sigma
    assert found.guarantee.epsilon == MINE.epsilon


def test_the_budget_of_cdnow_is_next_to_the_best_of_all() -> None:
    scenario = load_scenario("cdnow")
    (way, *_) = ways_to_ask(scenario, model_of(scenario), people=23_570)

    errors = {
        budget: math.hypot(math.sqrt(way.variance(budget)), missing(way, budget))
        for budget in range(1, 41)
    }

    assert min(errors, key=errors.__getitem__) == 14
    assert math.sqrt(way.variance(15)) == pytest.approx(16.37, abs=0.01)  # as its runs have it
    assert errors[15] == pytest.approx(18.40, abs=0.01)
    assert errors[15] / errors[14] < 1.003


def missing(way: Way, budget: int) -> float:
    return math.sqrt(way.truncation(budget).mean_squared_bias(way.people))


def test_worst_cases_are_those_of_results_and_of_other_designs() -> None:
    local = replace(MINE, view=View.LOCAL)

    found = plan(local, population=people())

    result = simulate(local, population=people(), workers=1)
    everyone, other = found.worst_cases
    assert everyone.error == result.worst_case_sigma
    each = composition_each(ROUNDS, epsilon=4.0, delta=1e-6)  # better than zcdp for so few
    assert other.error == pytest.approx(math.sqrt(PEOPLE) / (2 * math.sinh(each / 2)), rel=1e-6)
    alone = simulate(replace(bits(local), budget=ROUNDS), population=people(), workers=1)
    assert alone.sigma == pytest.approx(other.error)


def test_states_have_the_error_that_their_runs_have() -> None:
    scenario = load_scenario("states")
    way = ways_to_ask(scenario, model_of(scenario), people=10**6)[1]

    truncation = way.truncation(4).mean_squared_bias(10**6)
    error = math.sqrt(way.variance(4) + truncation) / 10**6

    assert way.name == "prefix square_root"
    assert math.sqrt(truncation) / 10**6 == pytest.approx(0.006, abs=0.0006)
    assert error == pytest.approx(0.0270, abs=0.0002)


def test_more_people_are_worth_a_larger_budget() -> None:
    few = plan(MINE, population=people(), people=200)
    many = plan(MINE, population=people(), people=50_000)

    assert few.best.budget < mine().best.budget < many.best.budget
    assert many.best.error / 50_000 < mine().best.error / PEOPLE < few.best.error / 200


def test_whoever_is_looked_at_is_named_without_their_values() -> None:
    shown = repr(mine())

    assert "values" not in shown
    assert "points" not in shown
    assert repr(model_of(MINE, people())) == "Model(people=600, drawn=False, law=None)"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"policy": "clip"}, "policy must be skip or retire, to be planned, got 'clip'"),
        ({"refusal": "silent"}, "refusal must be cover, to be planned"),
        ({"rounds": 25}, "rounds must be an integer >= 0 and <= 24, got 25"),
        ({"minimum_cohort": 601}, "minimum_cohort must be <= the number of devices, 600"),
        (
            {"kind": Kind.PREFIX, "grid_exponent": -14, "halts": 0.1},
            "halts must be 0, to be planned, got 0.1",
        ),
        (
            {"kind": Kind.PREFIX, "grid_exponent": -14, "admission": "halt"},
            "admission must be commit, to be planned",
        ),
        (
            {"kind": Kind.PREFIX, "grid_exponent": -14, "first_segment": 2},
            "first_segment must be 0, to be planned, got 2",
        ),
        ({"window": 12}, "window must be 0, to be planned, got 12"),
        (
            {"presence": Presence(drop_out=0.1), "minimum_cohort": 100},
            "presence must be left out, to be planned: everybody answers in every round",
        ),
        (
            {
                "kind": Kind.PREFIX,
                "grid_exponent": -14,
                "view": View.LOCAL,
                "beside": "l_grr",
            },
            "beside must be left out, to be planned, got 'l_grr'",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        plan(replace(MINE, **changed), population=people())


@pytest.mark.parametrize("wrong", [0, -1, 2.5, True, 1 << 31])
def test_a_number_of_people_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(ParameterError, match="people must be an integer >= 1"):
        plan(MINE, population=people(), people=wrong)


@pytest.mark.parametrize("value", [0.5, 2.0, -1.0])
def test_values_that_are_neither_zero_nor_one_are_refused(value: float) -> None:
    odd = ArrayPopulation(np.full((3, 2), value))

    with pytest.raises(ParameterError, match="feature must be one whose values are 0 or 1"):
        plan(MINE, population=odd)


def test_categories_cannot_be_planned() -> None:
    with pytest.raises(ParameterError, match="kind must be linear or prefix, to be planned"):
        plan(load_scenario("telemetry"))
