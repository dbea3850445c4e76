"""The people of a scenario, and what they cannot be asked."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demur_proto.errors import DataError, ParameterError
from demur_proto.queries import Feature
from demur_sim.people.opening import population_of
from demur_sim.people.populations import EventLog
from demur_sim.scenario import Data, Scenario, load_scenario
from scenario_kit import EVENTS, HISTOGRAM, totals


def test_a_scenario_without_a_file_is_about_the_cdnow_customers_in_the_order_of_their_ids() -> None:
    people = population_of(load_scenario("cdnow"))

    assert (people.devices, people.periods) == (23_570, 546)
    first = people.evaluate(Feature(name="active", parameters={"period": 1}), slice(0, 2))
    np.testing.assert_array_equal(first, [[1], [0]])  # customer 1 bought on the first day


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["feature=activ"],
            "feature must be one of active, events, amount, amount_at_least, amount_bin, got",
        ),
        (["parameters.x=1"], "parameters of active must be exactly period, got ['period', 'x']"),
        (["feature=amount_at_least"], "must be exactly period and threshold, got ['period']"),
        (["feature=events"], "on_grid must be false for 'events', which has values of any size"),
        (["feature=amount"], "on_grid must be false for 'amount', which has values of any size"),
        (["clip=0.5"], "on_grid must be false unless clip >= 1 and grid_exponent <= 0: 'active'"),
        (
            ["clip=4.0", "grid_exponent=1"],
            "on_grid must be false unless clip >= 1 and grid_exponent <= 0: 'active' may be 1",
        ),
    ],
)
def test_what_the_people_cannot_be_asked_is_refused(overrides: list[str], message: str) -> None:
    scenario = load_scenario("cdnow", overrides=overrides)

    with pytest.raises(ParameterError) as caught:
        population_of(scenario)

    assert message in str(caught.value)


@pytest.mark.parametrize("feature", ["events", "amount"])
def test_values_of_any_size_may_be_asked_off_the_grid(feature: str) -> None:
    off_grid = ["on_grid=false", "grid_exponent=-14"]
    scenario = load_scenario("cdnow", overrides=[f"feature={feature}", *off_grid])

    assert population_of(scenario).devices == 23_570


def test_made_up_people_are_as_many_as_the_scenario_says() -> None:
    people = population_of(load_scenario("telemetry", overrides=["data.devices=1000"]))

    assert (people.devices, people.periods, people.features) == (1000, 100, ("event",))
    assert repr(people) == "Telemetry(devices=1000, periods=100)"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"feature": "active"}, "feature must be one of event, got 'active'"),
        ({"parameters": {"x": 1.0}}, "parameters of event must be exactly period"),
        (
            {"kind": "linear", "categories": 0, "mechanism": "gaussian", "beside": ""},
            "kind must be histogram or prefix where there is data.devices",
        ),
    ],
)
def test_what_made_up_people_cannot_be_asked_is_refused(
    changed: dict[str, Any], message: str
) -> None:
    scenario = dataclasses.replace(load_scenario("telemetry"), **changed)

    with pytest.raises(ParameterError, match=message):
        population_of(scenario)


def test_events_of_a_file_can_be_counted_by_category_too(folder: Path) -> None:
    columns = Data(csv=str(folder / "visits.csv"), person="visitor", date="day")
    scenario = Scenario(**{"name": "mine", "feature": "events", **HISTOGRAM}, data=columns)

    assert totals(population_of(scenario), "events") == [2, 0, 1]


def test_amounts_need_a_column(folder: Path) -> None:
    columns: dict[str, Any] = {
        "csv": str(folder / "visits.csv"),
        "person": "visitor",
        "date": "day",
    }
    feature = {"feature": "amount_at_least", "parameters": {"threshold": 12.5}}

    without = Scenario(name="mine", data=Data(**columns), **feature)  # type: ignore[arg-type]
    people = population_of(dataclasses.replace(without, data=Data(**columns, amount="minutes")))

    assert isinstance(people, EventLog)
    assert totals(people, "amount_at_least", threshold=12.5) == [1, 0, 1]
    with pytest.raises(
        ParameterError, match=r"data\.amount must be the column that 'amount_at_least'"
    ):
        population_of(without)


def test_a_malformed_csv_is_reported_with_its_line(folder: Path) -> None:
    (folder / "visits.csv").write_text(EVENTS + "x,2026-01-01,1\n")
    columns = Data(csv=str(folder / "visits.csv"), person="visitor", date="day")

    with pytest.raises(DataError, match=r"visits\.csv:5: expected an integer"):
        population_of(Scenario(name="mine", data=columns))
