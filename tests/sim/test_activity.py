"""Histograms of how often people act: how they are read, and who is made up from them."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demur_proto.errors import DataError, ParameterError
from demur_proto.queries import Feature
from demur_sim.datasets.activity import Activity, Counted, read_activity
from demur_sim.people.opening import population_of
from demur_sim.people.states import spread
from demur_sim.scenario import load_scenario

SIGMAS = 5.0


def histogram(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "activity.csv"
    path.write_text(text)
    return path


def totals(people: Any, feature: str) -> list[int]:
    """How many have the value 1, period by period."""
    return [
        int(people.evaluate(Feature(name=feature, parameters={"period": t}), slice(None)).sum())
        for t in range(1, people.periods + 1)
    ]


def test_lines_may_be_in_any_order_and_empty(tmp_path: Path) -> None:
    found = read_activity(histogram(tmp_path, "active_rounds,people\n7,2\n\n0,5\n3,0\n"))

    assert found.counted is Counted.ACTIVE
    assert (found.rounds.tolist(), found.people.tolist()) == ([0, 3, 7], [5, 0, 2])
    assert (found.devices, found.most) == (7, 7)


def test_no_repr_shows_a_count(tmp_path: Path) -> None:
    found = read_activity(histogram(tmp_path, "changes,people\n7,1234\n"))

    assert repr(found) == "Activity(counted=<Counted.CHANGES: 'changes'>)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "activity.csv:1: expected the header active_rounds,people or the header changes,"),
        ("rounds,people\n1,2\n", "activity.csv:1: .*found the columns 'rounds', 'people'"),
        ("active_rounds,people\n", "activity.csv:2: expected 1 to .* people in all, found 0"),
        ("active_rounds,people\n1,0\n", "activity.csv:2: expected 1 to .* people in all, found 0"),
        ("active_rounds,people\n1,-2\n", "activity.csv:2: .*>= 0 in column 'people', got '-2'"),
        ("active_rounds,people\n-1,2\n", "activity.csv:2: .* in column 'active_rounds', got '-1'"),
        ("changes,people\n1,2\n1.5,2\n", "activity.csv:3: .* in column 'changes', got '1.5'"),
        (
            "changes,people\n1,2\n1,2\n",
            "activity.csv:3: expected each number of changes once, got 1",
        ),
        ("changes,people\n1\n", "activity.csv:2: expected 2 fields as in the header, got 1"),
        ("changes,people\n1,4000000000\n", "people in all, found 4,000,000,000"),
    ],
)
def test_what_is_no_histogram_is_refused_with_its_place(
    tmp_path: Path, text: str, expected: str
) -> None:
    with pytest.raises(DataError) as caught:
        read_activity(histogram(tmp_path, text))

    assert re.search(expected, str(caught.value))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"counted": "active_rounds"}, "counted"),
        ({"rounds": np.array([1.5])}, "rounds must be a sequence of integers"),
        ({"rounds": np.array([-1])}, "rounds must be integers >= 0, got -1"),
        ({"people": np.array([-3])}, "people must be integers >= 0, got -3"),
        ({"people": np.array([0])}, "people must be from 1 to"),
        ({"people": np.array([1, 2])}, "rounds must be ascending, one for each of people"),
        ({"rounds": np.array([3, 3]), "people": np.array([1, 2])}, "rounds must be ascending"),
    ],
)
def test_a_histogram_is_valid_from_birth(wrong: dict[str, Any], message: str) -> None:
    right = {"counted": Counted.ACTIVE, "rounds": np.array([2]), "people": np.array([5])}

    with pytest.raises(ParameterError, match=message):
        Activity(**{**right, **wrong})


@pytest.mark.parametrize(("often", "few"), [(1, None), (2, None), (3, None), (3, 4), (4, None)])
def test_every_set_of_periods_is_equally_likely(often: int, few: int | None) -> None:
    people, periods = 20_000, 4

    keys = spread(np.full(people, often), periods=periods, rng=np.random.default_rng(1), few=few)

    sets = np.bincount(keys // periods, weights=2 ** (keys % periods)).astype(int)
    found = np.bincount(sets)
    expected = people / len(np.unique(sets))
    assert len(np.unique(sets)) == [4, 6, 4, 1][often - 1]
    assert (np.diff(keys) > 0).all()
    assert (np.abs(found[found > 0] - expected) <= SIGMAS * np.sqrt(expected)).all()


def test_people_from_a_histogram_act_as_often_as_it_says(tmp_path: Path) -> None:
    path = histogram(tmp_path, "active_rounds,people\n0,50\n1,30\n10,20\n")

    people = read_activity(path).made_up(devices=20_000, periods=10, seed=3)

    active = totals(people, "active")
    expected = 20_000 * (0.3 / 10 + 0.2)
    assert (people.devices, people.periods) == (20_000, 10)
    assert np.abs(np.array(active) - expected).max() <= SIGMAS * np.sqrt(expected)


def test_a_scenario_has_people_from_a_histogram_beside_its_file(tmp_path: Path) -> None:
    histogram(tmp_path, "changes,people\n0,5\n2,3\n")
    scenario = tmp_path / "own.toml"
    scenario.write_text(
        'name = "own"\nfeature = "state"\n[data]\nhistogram = "activity.csv"\nperiods = 6\n'
    )

    people = population_of(load_scenario(scenario))
    more = population_of(load_scenario(scenario, overrides=["data.devices=50"]))

    assert (people.devices, people.periods, people.features) == (8, 6, ("state",))
    assert more.devices == 50
    assert totals(more, "state") == totals(
        population_of(load_scenario(scenario, overrides=["data.devices=50"])), "state"
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.periods=1", "periods must be at least 2, the most changes of anybody, got 1"),
        ("data.periods=0", "data.periods in --set must be an integer >= 1"),
        ("data.csv=x.csv", "data.histogram in .* must be left out where there is a data.csv"),
        ("feature=active", "feature must be one of state, got 'active'"),
        ("clip=0.5", "on_grid must be false unless clip >= 1"),
    ],
)
def test_what_such_people_cannot_be_asked_is_refused(
    tmp_path: Path, override: str, message: str
) -> None:
    path = histogram(tmp_path, "changes,people\n0,5\n2,3\n")
    scenario = tmp_path / "own.toml"
    scenario.write_text(
        f'name = "own"\nfeature = "state"\n[data]\nhistogram = "{path}"\nperiods = 6\n'
    )

    with pytest.raises(ParameterError, match=message):
        population_of(load_scenario(scenario, overrides=[override]))
