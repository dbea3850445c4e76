"""Scenarios of histograms: what they may say, in a file and by overrides."""

import pickle
from typing import Any

import pytest

from demur_proto.errors import ParameterError
from demur_proto.mechanisms.registry import Randomiser
from demur_sim.scenario import Kind, Scenario, load_scenario
from scenario_kit import HISTOGRAM, SEVEN, flat


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "median"}, "kind must be linear or histogram or prefix, got 'median'"),
        ({"categories": 0}, "categories must be an integer >= 1 and <= 262144, got 0"),
        ({"categories": 8.0}, "categories must be an integer >= 1"),
        ({"categories": 1 << 19}, "categories must be an integer >= 1 and <= 262144"),
        ({"categories": 1}, "mechanism must be krr where there is one category, got 'oue'"),
        ({"mechanism": "gaussian"}, f"mechanism must be {SEVEN}, got 'gaussian'"),
        ({"mechanism": 5}, f"mechanism must be {SEVEN}, got 5"),
        ({"beside": "rappor"}, f"beside must be {SEVEN.replace('oue or ', '')}, got 'rappor'"),
        ({"beside": "oue"}, f"beside must be {SEVEN.replace('oue or ', '')}, got 'oue'"),
        ({"view": "aggregate"}, "view must be local where kind is histogram, got 'aggregate'"),
        (
            {"measure": "gdp"},
            "measure must be pure or zcdp or answers where kind is histogram, got 'gdp'",
        ),
        ({"policy": "clip"}, "policy must be skip or retire where kind is histogram, got 'clip'"),
        ({"clip": 2.0}, "clip must be left out where kind is histogram, got 2.0"),
        ({"grid_exponent": -8}, "grid_exponent must be left out where kind is histogram, got -8"),
        (
            {"on_grid": False, "grid_exponent": -14},
            "grid_exponent must be left out where kind is histogram, got -14",
        ),
        ({"kind": "linear"}, "categories must be left out where kind is linear, got 8"),
        (
            {"kind": "linear", "categories": 0},
            "mechanism must be left out where kind is linear, got 'oue'",
        ),
        (
            {"kind": "linear", "categories": 0, "mechanism": "gaussian", "beside": "krr"},
            "beside must be names with commas between them, of repeated_response, kept_change,",
        ),
    ],
)
def test_a_histogram_is_valid_from_birth(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        Scenario(**{"name": "mine", **HISTOGRAM, **wrong})

    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("mechanism", [*Randomiser])
def test_a_histogram_may_have_any_of_the_mechanisms(mechanism: Randomiser) -> None:
    scenario = Scenario(**{"name": "mine", **HISTOGRAM, "mechanism": str(mechanism)})

    assert Randomiser(scenario.mechanism) is mechanism
    assert scenario.kind is Kind.HISTOGRAM
    assert pickle.loads(pickle.dumps(scenario)) == scenario


def test_a_histogram_is_cut_to_size_and_given_another_mechanism_by_overrides() -> None:
    before, after = (
        flat(load_scenario("telemetry", overrides=overrides))
        for overrides in ([], ["data.devices=20_000", "mechanism=subset", "data.seed=3"])
    )

    changed = {"data.devices": 20_000, "mechanism": "subset", "data.seed": 3}
    assert after == {**before, **changed}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("mechanism=rappor", f"mechanism in --set must be {SEVEN}, got 'rappor'"),
        ("beside=oue", "beside in --set must be krr or sue or blh"),
        ("categories=0", "categories in --set must be an integer >= 1"),
        ("view=aggregate", "view in --set must be local where kind is histogram, got 'aggregate'"),
        (
            "measure=gdp",
            "measure in --set must be pure or zcdp or answers where kind is histogram, got 'gdp'",
        ),
        ("policy=clip", "policy in --set must be skip or retire where kind is histogram"),
        ("clip=2.0", "clip in --set must be left out where kind is histogram, got 2.0"),
        ("on_grid=false", "on_grid in --set must be left out where kind is histogram, got False"),
        ("kind=linear", "categories in telemetry must be left out where kind is linear, got 64"),
        ("data.devices=many", "data.devices in --set must be an integer >= 0"),
        ("data.devices=0", "data.periods in telemetry must be left out where there is no"),
        ("data.csv=x.csv", "data.devices in telemetry must be left out where there is a data.csv"),
    ],
)
def test_a_wrong_override_of_a_histogram_is_one_line_that_names_it(
    override: str, message: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        load_scenario("telemetry", overrides=[override])

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
