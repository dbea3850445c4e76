"""Shipped scenarios release what they always did: the same seed gives the same sums, bit for bit.

`tests/golden/releases.json` has, for each of them cut short, the hash of its releases for the seeds 0, 1 and 2. It
was written before the kinds of questions moved into one place. A change of it is a change of what a seed means.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from demur_sim.run import simulate
from demur_sim.scenario import list_scenarios, load_scenario

FILE = Path(__file__).parents[1] / "golden" / "releases.json"
KEPT: dict[str, dict[str, Any]] = json.loads(FILE.read_text())


def test_every_shipped_scenario_is_in_the_file() -> None:
    assert set(KEPT) == {name for name, _ in list_scenarios()}


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", KEPT)
def test_a_shipped_scenario_releases_what_it_always_did(name: str, seed: int) -> None:
    scenario = load_scenario(name, overrides=KEPT[name]["overrides"])

    result = simulate(scenario, seed=seed, workers=1)

    assert result.releases_sha256 == KEPT[name]["sha256"][seed]


@pytest.mark.parametrize("name", KEPT)
def test_processes_release_the_same(name: str) -> None:
    scenario = load_scenario(name, overrides=KEPT[name]["overrides"])

    result = simulate(scenario, seed=0, fidelity="processes", workers=1)

    assert result.releases_sha256 == KEPT[name]["sha256"][0]
