"""Overrides of a scenario: one value is replaced, and what is wrong is one line."""

from pathlib import Path
from typing import Any

import pytest

from demur_proto.errors import ParameterError
from demur_proto.study import View
from demur_sim.scenario import Data, load_scenario
from scenario_kit import flat, write


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("epsilon=0.5", "epsilon", 0.5),
        (" epsilon = 2 ", "epsilon", 2.0),
        ("delta=1e-9", "delta", 1e-9),
        ("budget=1_000", "budget", 1000),
        ("view=local", "view", View.LOCAL),
        ('view="local"', "view", View.LOCAL),
        ("shuffle=false", "shuffle", False),
        ("title=", "title", ""),
        ("title=2026", "title", "2026"),
        ("title=true", "title", "true"),
        ("title=1, 2 = 3?", "title", "1, 2 = 3?"),
        ("title='# one'", "title", "# one"),
        ("name=2026-01-01", "name", "2026-01-01"),
        ("parameters.threshold=5", "parameters", {"threshold": 5.0}),
        ("parameters={threshold = 5}", "parameters", {"threshold": 5.0}),
        ("data.csv=x.csv", "data.csv", "x.csv"),
        ("data.csv='x y.csv'", "data.csv", "x y.csv"),
        ("data={csv = 'x.csv'}", "data.csv", "x.csv"),
    ],
)
def test_an_override_replaces_one_value_and_no_other(override: str, key: str, value: Any) -> None:
    before, after = flat(load_scenario("cdnow")), flat(load_scenario("cdnow", overrides=[override]))

    assert after == {**before, key: value}


def test_overrides_reach_inside_tables_and_the_last_one_counts(folder: Path) -> None:
    file = write(folder, "name = 'mine'\n[data]\ncsv = 'x.csv'\nperson = 'p'\n[parameters]\na = 1")

    scenario = load_scenario(
        file,
        overrides=["data.csv=y.csv", "data.start=2026-01-01", "parameters.b=2", "data.csv=z.csv"],
    )

    assert scenario.data == Data(csv="z.csv", person="p", start="2026-01-01")
    assert scenario.parameters == {"a": 1.0, "b": 2.0}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("epsilon", "--set must be key=value, got 'epsilon'"),
        ("", "--set must be key=value, got ''"),
        ("=1", "key in --set must be one of the "),
        ("epsilom=1", "(did you mean epsilon?), got 'epsilom'"),
        ("epsilon.x=1", "key in --set must be one of the "),
        ("data.csv.x=1", "key in --set must be one of the "),
        ("data=x", "data in --set must be a table, got 'x'"),
        ("epsilon=big", "epsilon in --set must be a finite number > 0, got 'big'"),
        ("epsilon=-1", "epsilon in --set must be a finite number > 0, got -1"),
        ("epsilon=", "epsilon in --set must be a finite number > 0, got ''"),
        ("epsilon=1\ndelta=0.5", r"epsilon in --set must be a finite number > 0, got '1\ndelta"),
        ("epsilon=" + "[" * 5000, "epsilon in --set must be a finite number > 0, got '[["),
        ("rounds=" + "9" * 5000, "rounds in --set must be an integer >= 0"),
        ("view=5", "view in --set must be local or aggregate, got '5'"),
        ("parameters.threshold=x", "parameters.threshold in --set must be a finite number, got"),
        ("data.amount=usd", "data.amount in --set must be left out where there is no data.csv"),
    ],
    ids=lambda value: f"{value[:7]}..." if len(value) > 1000 else None,
)
def test_a_wrong_override_is_one_line_that_names_it(override: str, message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        load_scenario("cdnow", overrides=[override])

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
