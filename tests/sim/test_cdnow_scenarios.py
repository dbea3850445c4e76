"""The scenarios of the CDNOW customers besides `cdnow`: their budgets, and the same at each fidelity."""

import dataclasses
import math
from functools import cache

import numpy as np
import pytest

from demur_proto.arrays import Integers
from demur_proto.conversions import gdp_delta
from demur_proto.round import Feature
from demur_sim.datasets.cdnow import load_cdnow
from demur_sim.populations import EventLog
from demur_sim.run import simulate
from demur_sim.scenario import Scenario, load_scenario

WEEKS = 78


@cache
def weekly() -> EventLog:
    return load_cdnow(period_days=7)


def test_the_weekly_scenario_differs_from_the_daily_one_in_its_budget_and_days() -> None:
    daily, scenario = load_scenario("cdnow"), load_scenario("cdnow-weekly")

    same = {"name", "title", "question", "budget", "data"}
    for item in dataclasses.fields(Scenario):
        alike = getattr(scenario, item.name) == getattr(daily, item.name)
        assert alike is (item.name not in same), item.name
    assert scenario.data == dataclasses.replace(daily.data, period_days=7)


def mu_of(epsilon: float, delta: float) -> float:
    """The largest μ of which μ-GDP is (ε, δ), by bisection."""
    low, high = 0.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if gdp_delta(middle, epsilon=epsilon) <= delta else (low, middle)
    return low


def missed(most: int) -> Integers:
    """How many people of each week were active in b or more weeks before, b = 1 to `most` [78, most]."""
    before = np.zeros(weekly().devices, dtype=np.int64)
    rows = []
    for week in range(1, WEEKS + 1):
        now = Feature(name="active", parameters={"period": week})
        active = weekly().evaluate(now, slice(None))[:, 0] == 1
        rows.append([np.count_nonzero(before[active] >= b) for b in range(1, most + 1)])
        before += active
    return np.array(rows)


def test_the_weekly_budget_is_the_one_of_the_least_error() -> None:
    scenario = load_scenario("cdnow-weekly")
    budgets = np.arange(1, 61)

    variance = budgets / mu_of(scenario.epsilon, scenario.delta) ** 2
    errors = np.sqrt((missed(60) ** 2).mean(axis=0) + variance)

    assert scenario.budget == budgets[errors.argmin()]
    assert errors.min() == pytest.approx(23.8, abs=0.05)


def test_a_run_of_the_weekly_scenario_is_off_by_what_its_budget_was_chosen_for() -> None:
    result = simulate(load_scenario("cdnow-weekly", overrides=["rounds=30"]), workers=1)

    lost = result.truth - result.active_truth
    noise = result.estimates - result.active_truth

    np.testing.assert_array_equal(lost[:, 0], missed(result.scenario.budget)[:30, -1])
    # A sum of 30 squares of normals, over σ²: of mean 30 and standard deviation √60.
    assert abs(np.sum(noise**2) / result.sigma**2 - 30) < 5 * math.sqrt(60)


def test_processes_release_the_same_weeks_as_a_cohort() -> None:
    scenario = load_scenario("cdnow-weekly", overrides=["rounds=2"])

    arrays = simulate(scenario, workers=1)
    there = simulate(scenario, fidelity="processes", workers=2)

    assert there.releases == arrays.releases
