"""A scenario that was written down is the scenario that is read."""

from dataclasses import replace
from pathlib import Path

import pytest

from demur_sim.scenario import Data, Scenario, list_scenarios, load_scenario, scenario_text


def read_again(scenario: Scenario, folder: Path) -> Scenario:
    path = folder / "again.toml"
    path.write_text(scenario_text(scenario, about=["a comment"]), encoding="utf-8")
    return load_scenario(path)


@pytest.mark.parametrize("name", [name for name, _ in list_scenarios()])
def test_every_shipped_scenario_comes_back(name: str, tmp_path: Path) -> None:
    scenario = load_scenario(name)

    assert read_again(scenario, tmp_path) == scenario


def test_texts_numbers_and_paths_come_back(tmp_path: Path) -> None:
    scenario = Scenario(
        name='a "quoted" \\ name, ε',
        feature="amount_at_least",
        parameters={"threshold": 1e-30, "an odd name": 2.0},
        epsilon=1e-9,
        delta=5e-300,
        shuffle=False,
        data=Data(csv=str(tmp_path / "x.csv"), start="2026-01-01", person="who"),
    )

    again = read_again(scenario, tmp_path)

    assert again == scenario
    assert dict(again.parameters) == dict(scenario.parameters)


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deeper").mkdir()
    scenario = Scenario(name="own", data=Data(csv="x.csv"))

    again = read_again(scenario, tmp_path / "deeper")

    assert again == replace(scenario, data=Data(csv=str(tmp_path / "x.csv")))
