"""The scenarios of the CDNOW customers besides `cdnow`: their budgets, and the same at each fidelity."""

import dataclasses
import math
from functools import cache

import numpy as np
import pytest

from demur_proto.accounting.conversions import gdp_mu
from demur_proto.accounting.histograms import epsilon_for_answers
from demur_proto.arrays import Integers
from demur_proto.errors import DataError, ParameterError
from demur_proto.mechanisms.registry import Randomiser
from demur_proto.queries import Feature
from demur_sim.datasets.events import load_cdnow
from demur_sim.engine.simulation import study_of
from demur_sim.people.opening import population_of
from demur_sim.people.populations import EventLog
from demur_sim.results.histograms import HistogramResult
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

    variance = budgets / gdp_mu(scenario.epsilon, delta=scenario.delta) ** 2
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
    there = simulate(scenario, fidelity="processes", workers=1)

    assert there.releases == arrays.releases


# ---- amounts ---------------------------------------------------------------------------------

AMOUNTS = "cdnow-amounts"


def bins_and_missed(most: int) -> tuple[Integers, Integers]:
    """People of each week and bin [78, 5]; of these, those who had b weeks before [78, most, 5]."""
    before = np.zeros(weekly().devices, dtype=np.int64)
    counts, rows = [], []
    for week in range(1, WEEKS + 1):
        now = {"period": week}
        active = weekly().evaluate(Feature(name="active", parameters=now), slice(None))[:, 0] == 1
        spent = weekly().evaluate(Feature(name="amount", parameters=now), slice(None))[:, 0]
        bins = sum((spent[active] >= edge).astype(int) for edge in (15, 30, 60, 120))
        counts.append(np.bincount(bins, minlength=5))
        late = [before[active] >= b for b in range(1, most + 1)]
        rows.append([np.bincount(bins[each], minlength=5) for each in late])
        before += active
    return np.array(counts), np.array(rows)


def test_the_budget_of_amounts_has_the_least_error_of_the_mean_over_all_weeks() -> None:
    scenario = load_scenario(AMOUNTS)
    study = study_of(scenario, devices=weekly().devices, horizon=WEEKS)
    counts, late = bins_and_missed(12)

    def error(budget: int) -> float:
        e = math.exp(
            epsilon_for_answers(
                study, mechanism=Randomiser.OUE, categories=scenario.categories, answers=budget
            )
        )
        told = counts - late[:, budget - 1]
        # Wang et al. 2017, arXiv:1705.04421: of n reports, 4e^ε/(e^ε − 1)² each, and a category's own.
        variance = weekly().devices * 4 * e / (e - 1) ** 2 + told
        bias = late[:, budget - 1].mean(axis=0)
        return math.sqrt((bias**2).mean() + variance.mean() / WEEKS)

    errors = [error(budget) for budget in range(1, 13)]

    assert scenario.budget == 1 + int(np.argmin(errors))
    assert min(errors) == pytest.approx(60, abs=0.5)


def test_whoever_bought_nothing_is_in_no_bin_and_pays_nothing() -> None:
    result = simulate(load_scenario(AMOUNTS, overrides=["rounds=8", "budget=2"]), workers=1)
    counts, late = bins_and_missed(2)

    assert isinstance(result, HistogramResult)
    np.testing.assert_array_equal(result.truth, counts[:8])
    np.testing.assert_array_equal(result.active_truth, counts[:8] - late[:8, 1])
    assert result.beside is not None
    assert result.beside.query.mechanism is Randomiser.KRR


def test_processes_release_the_same_amounts_as_a_cohort() -> None:
    scenario = load_scenario(AMOUNTS, overrides=["rounds=2", "beside="])

    arrays = simulate(scenario, workers=1)
    there = simulate(scenario, fidelity="processes", workers=1)

    assert there.releases == arrays.releases


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("categories=4", "categories must be 5, as many as 4 edges make bins, got 4"),
        (
            "parameters.edge_6=500",
            "parameters of amount_bin must be edge_1, edge_2 and so on, none",
        ),
        ("parameters.edge_2=15", "edges of amount_bin must be ascending, no two alike, got"),
        (
            "parameters.threshold=5",
            "parameters of amount_bin must be exactly period and edge_1 and",
        ),
        ("feature=active", "parameters of active must be exactly period, got"),
        ("data.csv=gone.csv", "gone.csv: cannot be read"),
    ],
)
def test_bins_that_do_not_fit_are_one_line(override: str, message: str) -> None:
    with pytest.raises((ParameterError, DataError)) as caught:
        population_of(load_scenario(AMOUNTS, overrides=[override]))

    assert str(caught.value).startswith(message)


def test_bins_are_no_numbers_to_add_up() -> None:
    edges = {"edge_1": 15.0}
    scenario = Scenario(name="mine", feature="amount_bin", parameters=edges)

    with pytest.raises(ParameterError, match="kind must be histogram where feature is amount_bin"):
        population_of(scenario)
