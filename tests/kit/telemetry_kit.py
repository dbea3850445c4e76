"""What the tests of the scenario telemetry share: it cut to size, and its results."""

from functools import cache
from typing import Any

import numpy as np

from demur_proto.arrays import Integers
from demur_proto.queries import Feature
from demur_sim.people.opening import population_of
from demur_sim.results.base import Result
from demur_sim.results.histograms import HistogramResult
from demur_sim.run import simulate
from demur_sim.scenario import Scenario, load_scenario

PNG = b"\x89PNG\r\n\x1a\n"
DEVICES, PERIODS = 10_000, 12  # three blocks, the last one smaller


def small(*overrides: str) -> Scenario:
    """The shipped scenario, cut to size."""
    size = (f"data.devices={DEVICES}", f"data.periods={PERIODS}")
    return load_scenario("telemetry", overrides=[*size, *overrides])


def of_an_array(**fields: Any) -> Scenario:
    """A histogram of one's own people."""
    needed: dict[str, Any] = {"kind": "histogram", "view": "local", "measure": "zcdp"}
    return Scenario(name="mine", feature="value", **needed, **fields)


def counts(result: Result) -> HistogramResult:
    assert isinstance(result, HistogramResult)
    return result


@cache
def run(*overrides: str, **options: Any) -> HistogramResult:
    return counts(simulate(small(*overrides), **options))


@cache
def whole() -> HistogramResult:
    """Both mechanisms over all of a hundred days: 6,400 estimates each."""
    return run("data.periods=100")


def everything(scenario: Scenario) -> Integers:
    """Each person's symbol on each day [n, periods]: 0 for none, a category plus 1 otherwise."""
    people = population_of(scenario)
    days = [
        people.evaluate(Feature(name="event", parameters={"period": day}), slice(None))
        for day in range(1, people.periods + 1)
    ]
    symbols: Integers = np.nan_to_num(np.concatenate(days, axis=1) + 1).astype(np.int64)
    return symbols


def by_category(symbols: Integers, categories: int) -> Integers:
    """How many people have each category on each day [periods, k]."""
    each = [np.bincount(day, minlength=categories + 1)[1:] for day in symbols.T]
    return np.array(each)
