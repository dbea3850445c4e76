"""Where reports are missing, intervals hold for those who reported, and scaled up for everybody."""

import math
from typing import Any

import numpy as np
import pytest

from demur_proto.arrays import Values
from demur_proto.study import Measure, View
from demur_sim.people.populations import ArrayPopulation
from demur_sim.people.presence import Presence
from demur_sim.results.running import RunningResult
from demur_sim.run import simulate
from demur_sim.scenario import Kind, Scenario


def people(rounds: int, *, share: float) -> ArrayPopulation:
    """500 of them, of whom so many are in the state 1 in each round."""
    draws = np.random.default_rng(1).random((500, rounds))
    return ArrayPopulation((draws < share).astype(float))


def covered(ends: Values, truth: Values) -> float:
    return float(np.mean((ends[:, 0] <= truth) & (truth <= ends[:, 1])))


@pytest.mark.parametrize("kind", [Kind.LINEAR, Kind.HISTOGRAM])
def test_intervals_hold_for_those_who_reported_and_scaled_up_for_all_who_are_enrolled(
    kind: Kind,
) -> None:
    """400 rounds with noise and absences of their own, and budgets that hold all of them."""
    runs = 400
    scenario = Scenario(
        name="lively",
        feature="value",
        on_grid=False,
        grid_exponent=-14,
        presence=Presence(enrolled=0.8, drop_out=0.3, late=0.1),
        minimum_cohort=100,
        budget=runs,
        epsilon=20.0,
    )
    if kind is Kind.HISTOGRAM:
        scenario = Scenario(
            name="symbols",
            kind=kind,
            feature="value",
            categories=2,
            mechanism="krr",
            view=View.LOCAL,
            measure=Measure.ZCDP,
            epsilon=200.0,
            budget=runs,
            minimum_cohort=100,
            presence=scenario.presence,
        )
    population = people(runs, share=0.5)

    result = simulate(scenario, seed=5, workers=1, population=population)

    assert result.exhausted_fraction == 0.0
    error = math.sqrt(0.95 * 0.05 / runs)
    active = result.coverage
    assert abs(active - 0.95) <= 3 * error
    scaled = [each for each in result.scaled if each is not None]
    assert len(scaled) == runs
    whole = np.array([each.estimate[0] for each in scaled])
    ends = np.array([each.interval_at(0) for each in scaled])
    assert covered(ends, result.truth[:, 0]) >= 0.95 - 3 * error
    # The bound on what sampling adds is tight for half of the people in a category. For values that
    # might be of either sign it is twice as large as for these, which are not.
    errors = np.array([each.standard_error[0] for each in scaled])
    least = 1.0 if kind is Kind.HISTOGRAM else 0.5
    assert np.std((whole - result.truth[:, 0]) / errors) > least * (1 - 4 / math.sqrt(2 * runs))
    # The interval for those who reported is not one for everyone: that would be found.
    of_reports = np.stack([result.lows[:, 0], result.highs[:, 0]], axis=1)
    assert covered(of_reports, result.truth[:, 0]) < 0.5


def test_intervals_of_a_running_count_hold_for_what_was_told_however_many_words_are_late() -> None:
    horizon = 40
    scenario = Scenario(
        name="late",
        kind=Kind.PREFIX,
        feature="value",
        view=View.LOCAL,
        epsilon=20.0,
        budget=40,
        grid_exponent=-14,
        minimum_cohort=100,
        presence=Presence(late=0.15),
    )
    held = []
    for seed in range(10):
        run: dict[str, Any] = {
            "seed": seed,
            "workers": 1,
            "population": people(horizon, share=0.4),
        }
        result = simulate(scenario, **run)
        assert isinstance(result, RunningResult)
        held.append(result.coverage)

    # Rounds of a run go together, so only runs count as independent; each has at most this variance.
    assert np.mean(held) >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / len(held))
