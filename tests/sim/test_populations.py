import math
import pickle
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_client.sources.base import DataSource
from demur_proto.arrays import Values
from demur_proto.errors import ParameterError
from demur_proto.queries import Feature
from demur_sim.people.populations import FLAGS, ArrayPopulation, EventLog, PersonSource, Population

Event = tuple[int, int, float]  # device, period, amount

# Quarters: their sums are exact, so an oracle may add them in any order.
quarters = st.integers(min_value=-400, max_value=400).map(lambda n: n / 4)


@st.composite
def logs(draw: st.DrawFn) -> tuple[EventLog, list[Event]]:
    """A log and its events."""
    devices = draw(st.integers(min_value=1, max_value=9))
    periods = draw(st.integers(min_value=1, max_value=5))
    event = st.tuples(
        st.integers(min_value=0, max_value=devices - 1),
        st.integers(min_value=1, max_value=periods),
        quarters,
    )
    events = draw(st.lists(event, max_size=30))
    return log_of(events, devices=devices, periods=periods), events


bounds = st.none() | st.integers(min_value=-12, max_value=12)
slices = st.builds(slice, bounds, bounds)


def log_of(events: list[Event], *, devices: int, periods: int) -> EventLog:
    return EventLog.of(
        devices=devices,
        periods=periods,
        device=[device for device, _, _ in events],
        period=[period for _, period, _ in events],
        amount=[amount for _, _, amount in events],
    )


def asked(name: str, period: float, **parameters: float) -> Feature:
    return Feature(name=name, parameters={"period": period, **parameters})


def every_question(population: Population, threshold: float = 10.0) -> list[Feature]:
    more = {
        "amount_at_least": {"threshold": threshold},
        "amount_bin": {"edge_1": threshold, "edge_2": threshold + 0.5, "edge_3": threshold + 30},
    }
    return [
        asked(name, period, **more.get(name, {}))
        for name in population.features
        for period in range(1, population.periods + 1)
    ]


def naively(events: list[Event], feature: Feature, devices: int) -> list[float]:
    """What a feature is, computed with dictionaries."""
    amounts: dict[int, list[float]] = defaultdict(list)
    for device, period, amount in events:
        if period == feature.parameters["period"]:
            amounts[device].append(amount)
    meaning: dict[str, Callable[[list[float]], float]] = {
        "active": lambda mine: float(bool(mine)),
        "events": lambda mine: float(len(mine)),
        "amount": lambda mine: sum(mine, 0.0),
        "amount_at_least": lambda mine: float(
            bool(mine) and sum(mine) >= feature.parameters["threshold"]
        ),
        "amount_bin": lambda mine: (
            sum(sum(mine) >= feature.parameters[f"edge_{number}"] for number in (1, 2, 3))
            if mine
            else math.nan
        ),
    }
    return [meaning[feature.name](amounts[device]) for device in range(devices)]


def everything(population: Population) -> Values:
    """All features of all devices and periods [n, ...]."""
    questions = every_question(population)
    return np.concatenate([population.evaluate(q, slice(None)) for q in questions], axis=1)


@given(made=logs(), threshold=quarters)
def test_every_feature_is_what_dictionaries_say(
    made: tuple[EventLog, list[Event]], threshold: float
) -> None:
    log, events = made

    for feature in every_question(log, threshold):
        values = log.evaluate(feature, slice(None))

        assert values.dtype == np.float64
        assert values.shape == (log.devices, 1)
        np.testing.assert_array_equal(values[:, 0], naively(events, feature, log.devices))


@given(made=logs(), block=slices)
def test_a_block_and_a_part_say_what_the_whole_says(
    made: tuple[EventLog, list[Event]], block: slice
) -> None:
    log, _ = made
    part = pickle.loads(pickle.dumps(log.part(block)))

    for feature in every_question(log):
        whole = log.evaluate(feature, slice(None))

        np.testing.assert_array_equal(log.evaluate(feature, block), whole[block])
        np.testing.assert_array_equal(part.evaluate(feature, slice(None)), whole[block])
    assert (part.devices, part.periods) == (len(range(log.devices)[block]), log.periods)


@given(made=logs(), outer=slices, inner=slices)
def test_a_part_of_a_part_is_a_part(
    made: tuple[EventLog, list[Event]], outer: slice, inner: slice
) -> None:
    log, _ = made

    twice = log.part(outer).part(inner)

    np.testing.assert_array_equal(everything(twice), everything(log)[outer][inner])


@given(made=logs(), seed=st.integers(min_value=0, max_value=100))
def test_shuffling_deals_whole_people_to_other_devices(
    made: tuple[EventLog, list[Event]], seed: int
) -> None:
    log, _ = made

    shuffled = log.shuffled(np.random.default_rng(seed))

    dealt = np.random.default_rng(seed).permutation(log.devices)
    np.testing.assert_array_equal(everything(shuffled)[dealt], everything(log))


@given(
    seed=st.integers(min_value=0, max_value=100),
    amounts=st.lists(st.floats(min_value=-1e9, max_value=1e9), max_size=10),
)
def test_the_order_of_events_never_changes_a_sum(seed: int, amounts: list[float]) -> None:
    events = [(0, 1, amount) for amount in amounts]
    mixed = [events[i] for i in np.random.default_rng(seed).permutation(len(events))]

    one, other = (log_of(each, devices=1, periods=1) for each in (events, mixed))

    np.testing.assert_array_equal(everything(one), everything(other))


def test_a_log_without_amounts_offers_no_feature_that_needs_them() -> None:
    log = EventLog.of(devices=2, periods=1, device=[1], period=[1])

    assert log.features == ("active", "events")
    assert log.part(slice(1, 2)).features == log.features
    assert log.shuffled(np.random.default_rng(0)).features == log.features
    with pytest.raises(ParameterError, match="feature must be one of active, events, got 'amount'"):
        log.evaluate(asked("amount", 1), slice(None))


def test_flags_are_the_features_that_are_always_0_or_1() -> None:
    log = log_of([(0, 1, 2.5), (0, 1, 30.0), (1, 1, 1.0)], devices=3, periods=1)

    flags = {
        feature.name
        for feature in every_question(log)
        if {*log.evaluate(feature, slice(None)).flat} <= {0.0, 1.0}
    }

    assert flags == {*FLAGS}


def test_an_amount_below_zero_can_be_at_least_a_threshold_only_with_an_event() -> None:
    log = log_of([(1, 1, -5.0)], devices=2, periods=1)

    values = log.evaluate(asked("amount_at_least", 1, threshold=-6.0), slice(None))

    assert values.tolist() == [[0.0], [1.0]]


@pytest.fixture
def populations() -> list[Population]:
    values = np.arange(24.0).reshape(4, 3, 2)
    return [log_of([(0, 1, 2.0)], devices=4, periods=3), ArrayPopulation(values)]


def test_an_unknown_feature_is_refused_and_the_known_ones_are_named(
    populations: list[Population],
) -> None:
    for population in populations:
        with pytest.raises(ParameterError) as caught:
            population.evaluate(asked("activ", 1), slice(None))

        known = ", ".join(population.features)
        assert str(caught.value) == f"feature must be one of {known}, got 'activ'"


@pytest.mark.parametrize("parameters", [{}, {"day": 1.0}, {"period": 1.0, "threshold": 2.0}])
def test_parameters_are_exactly_those_of_the_feature(
    populations: list[Population], parameters: dict[str, float]
) -> None:
    for population in populations:
        feature = Feature(name=population.features[0], parameters=parameters)
        with pytest.raises(ParameterError, match=r"^parameters of \w+ must be exactly period, got"):
            population.evaluate(feature, slice(None))


def test_a_threshold_is_needed_where_it_means_something(populations: list[Population]) -> None:
    log, _ = populations

    with pytest.raises(ParameterError, match="must be exactly period and threshold, got"):
        log.evaluate(asked("amount_at_least", 1), slice(None))


@pytest.mark.parametrize("period", [0.0, -1.0, 4.0, 1.5, 1e300])
def test_periods_outside_the_data_are_refused(populations: list[Population], period: float) -> None:
    for population in populations:
        with pytest.raises(ParameterError, match="period must be an integer from 1 to 3, got"):
            population.evaluate(asked(population.features[0], period), slice(None))


def test_blocks_with_gaps_are_refused(populations: list[Population]) -> None:
    for population in populations:
        with pytest.raises(ParameterError, match="a slice with step 1"):
            population.part(slice(0, 4, 2))


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"devices": 0}, "devices must be an integer >= 1"),
        ({"devices": 2.0}, "devices must be an integer >= 1"),
        ({"periods": True}, "periods must be an integer >= 1"),
        ({"device": [0, 2]}, "device must be from 0 to 1, got 2"),
        ({"device": [-1, 0]}, "device must be from 0 to 1, got -1"),
        ({"device": [0.0, 1.0]}, "device must be a sequence of integers"),
        ({"device": [True, False]}, "device must be a sequence of integers"),
        ({"device": [[0, 1]]}, "device must be a sequence of integers"),
        ({"device": np.array([2**64 - 1, 0], dtype=np.uint64)}, "device must be from 0 to 1"),
        ({"period": [1, 0]}, "period must be from 1 to 3, got 0"),
        ({"period": [1, 4]}, "period must be from 1 to 3, got 4"),
        ({"period": [1]}, r"must be equally long, got \[2, 1, 2\]"),
        ({"amount": [1.0]}, r"must be equally long, got \[2, 2, 1\]"),
        ({"amount": [1.0, float("nan")]}, "amount must be finite and within ±1e100, got nan"),
        ({"amount": [1.0, float("-inf")]}, "amount must be finite and within ±1e100, got -inf"),
        ({"amount": [1.0, 1e101]}, "amount must be finite and within ±1e100, got"),
        ({"amount": ["1", "2"]}, "amount must be a sequence of numbers"),
    ],
)
def test_a_log_is_valid_from_birth(wrong: dict[str, Any], expected: str) -> None:
    right = {"devices": 2, "periods": 3, "device": [0, 1], "period": [1, 2], "amount": [1.0, 2.0]}

    with pytest.raises(ParameterError, match=expected):
        EventLog.of(**{**right, **wrong})


def test_a_log_may_be_empty() -> None:
    log = EventLog.of(devices=2, periods=1, device=[], period=[], amount=[])

    *numbers, bins = everything(log).T
    assert not np.any(numbers)
    assert np.isnan(bins).all()


@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 1), (5, 3, 2)])
def test_an_array_is_read_by_period(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    values = rng.normal(size=shape)
    population = ArrayPopulation(values)
    full = values.reshape(5, 3, -1)

    for period in (1, 2, 3):
        feature = asked("value", period)
        np.testing.assert_array_equal(
            population.evaluate(feature, slice(1, 4)), full[1:4, period - 1]
        )
        for part in (population.part(slice(1, 4)), population.part(slice(3, 1))):
            again = pickle.loads(pickle.dumps(part))
            np.testing.assert_array_equal(
                again.evaluate(feature, slice(None)), full[1 : 1 + part.devices, period - 1]
            )
    dealt = np.random.default_rng(7).permutation(5)
    shuffled = population.shuffled(np.random.default_rng(7))
    np.testing.assert_array_equal(everything(shuffled)[dealt], everything(population))


def test_an_array_changed_afterwards_changes_nobody() -> None:
    values = np.zeros((2, 1))
    population = ArrayPopulation(values)

    values[:] = 1.0
    population.evaluate(asked("value", 1), slice(None))[:] = 1.0

    assert not everything(population).any()


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 2.0],
        [[[[1.0]]]],
        [[1.0], [2.0, 3.0]],
        np.zeros((2, 0)),
        [["1"]],
        [[1j]],
        [[None]],
        [[float("nan")]],
        [[float("inf")]],
    ],
    ids=repr,
)
def test_what_is_no_finite_array_is_refused(values: Any) -> None:
    with pytest.raises(ParameterError, match=r"^values must be "):
        ArrayPopulation(values)


def test_no_repr_shows_data(populations: list[Population]) -> None:
    log, array = populations

    assert repr(log) == "EventLog(devices=4, periods=3)"
    assert repr(array) == "ArrayPopulation(devices=4, periods=3)"
    assert repr(PersonSource(log, 2)) == f"PersonSource(population={log!r}, index=2)"


def test_a_person_is_a_data_source_with_one_row(populations: list[Population]) -> None:
    for population in populations:
        source: DataSource = PersonSource(population, 2)

        for feature in every_question(population):
            expected = population.evaluate(feature, slice(2, 3))
            np.testing.assert_array_equal(source.evaluate(feature), expected)
            assert expected.shape[0] == 1


@pytest.mark.parametrize("index", [-1, 4, 1.0])
def test_a_person_who_does_not_exist_is_refused(populations: list[Population], index: Any) -> None:
    with pytest.raises(ParameterError, match="index must be an integer >= 0 and <= 3"):
        PersonSource(populations[0], index)
