"""What the tests of the scenario states share: it cut to size, and its results."""

from functools import cache
from typing import Any

from demur_proto.running.segments import Factorisation
from demur_sim.results.running import RunningResult
from demur_sim.run import simulate
from demur_sim.scenario import Scenario, load_scenario

DEVICES, ROUNDS = 5000, 96  # two blocks, the last one smaller
MILLION = 1_000_000
KINDS = list(Factorisation)


def small(*overrides: str) -> Scenario:
    """The shipped scenario, cut to size."""
    size = (f"data.devices={DEVICES}", f"data.periods={ROUNDS}")
    return load_scenario("states", overrides=[*size, *overrides])


def counted(scenario: Scenario, **how: Any) -> RunningResult:
    result = simulate(scenario, workers=how.pop("workers", 1), **how)
    assert isinstance(result, RunningResult)
    return result


@cache
def whole() -> RunningResult:
    return counted(small("budget=2"))


@cache
def bought() -> RunningResult:
    """With a count of those who ran out, of whom there are many."""
    return counted(small("budget=1", "halts=0.3", "rounds=48"))
