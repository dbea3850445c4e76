"""The made-up people follow the law that they are said to follow, whoever asks for whichever part."""

import math
import pickle
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.arrays import Values
from demur_proto.errors import ParameterError
from demur_proto.queries import Feature
from demur_sim.people.populations import PersonSource
from demur_sim.people.telemetry import Telemetry

DEVICES, PERIODS, CATEGORIES = 40_000, 25, 8
SIGMAS = 5.0  #: how many standard errors a count may be off: once in two million


def on_day(period: int) -> Feature:
    return Feature(name="event", parameters={"period": period})


def everything(people: Telemetry) -> Values:
    """What everybody did on every day [n, periods]."""
    days = [people.evaluate(on_day(p), slice(None)) for p in range(1, people.periods + 1)]
    return np.concatenate(days, axis=1)


@cache
def people() -> Telemetry:
    return Telemetry.of(devices=DEVICES, periods=PERIODS, categories=CATEGORIES, seed=1)


@cache
def events() -> Values:
    values = everything(people())
    values.flags.writeable = False
    return values


# ---- the law ---------------------------------------------------------------------------------


def event_probability(days: int) -> float:
    """Of an event on each of so many given days, E[rᵈ], by numerical integration over u."""
    u = (np.arange(1_000_000) + 0.5) / 1_000_000
    return float((np.minimum(1.0, 1 / (40 * np.sqrt(u))) ** days).mean())


def test_the_probability_of_an_event_is_what_integration_says() -> None:
    # In closed form: 2m − m² with m = 1/40.
    assert event_probability(1) == pytest.approx(2 / 40 - 1 / 1600, rel=1e-6)


@pytest.mark.parametrize("days", [1, 2, 3])
def test_people_have_events_as_often_as_the_law_says_and_again_on_other_days(days: int) -> None:
    had = ~np.isnan(events())
    # Disjoint groups of days; a person's own groups depend on each other, people do not.
    groups = [had[:, at : at + days].all(axis=1) for at in range(0, PERIODS - days + 1, days)]

    share = np.mean(groups, axis=0)

    error = share.std() / math.sqrt(DEVICES)
    assert abs(share.mean() - event_probability(days)) <= SIGMAS * error


def test_activity_has_the_tail_of_pareto_up_to_every_day() -> None:
    seen = (~np.isnan(events())).sum(axis=1)

    # Who has an event on all of 25 days: E[r²⁵], dominated by the one in 1,600 with r = 1.
    always = event_probability(PERIODS)
    assert 1 / 1600 < always < 2 / 1600
    error = math.sqrt(always * (1 - always) / DEVICES)
    assert abs((seen == PERIODS).mean() - always) <= SIGMAS * error
    # The most active tenth, r ≥ √10/40, has (2/√10 − 1/40) / (2 − 1/40) of all events. Their sum
    # has 4,000 terms of mean 0.15 and standard deviation below 0.2: a standard error of 2 %.
    top = np.sort(people().last)[-DEVICES // 10 :].astype(float).sum()
    assert top / people().last.astype(float).sum() == pytest.approx(0.3076, rel=0.1)


def test_rates_are_paretos_law_of_index_2() -> None:
    rates = (people().last.astype(float) + 1) / 2**32

    assert rates.min() >= 1 / 40 - 2**-32
    assert rates.max() == 1.0
    for x in (0.03, 0.05, 0.1, 0.3, 1.0):
        expected = 1 / (1600 * x * x)
        error = math.sqrt(expected * (1 - expected) / DEVICES)
        assert abs((rates >= x).mean() - expected) <= SIGMAS * error


def test_categories_are_zipfs_law_whoever_has_the_event_and_whenever() -> None:
    weights = np.array([1 / rank for rank in range(1, CATEGORIES + 1)])
    law = weights / weights.sum()
    rare = (people().last < np.median(people().last))[:, None] & np.ones(PERIODS, dtype=np.bool_)

    for chosen in (rare, ~rare):
        seen = events()[chosen]
        counts = np.bincount(seen[~np.isnan(seen)].astype(int), minlength=CATEGORIES)
        total = counts.sum()
        assert total > 10_000
        error = np.sqrt(law * (1 - law) / total)
        assert (np.abs(counts / total - law) <= SIGMAS * error).all()


def test_the_shares_of_categories_are_exact_to_the_last_bit_they_have() -> None:
    ends = people().ends.astype(float)

    shares = np.diff(ends, prepend=-1.0) / 2**32

    harmonic = sum(1 / rank for rank in range(1, CATEGORIES + 1))
    expected = [1 / (rank * harmonic) for rank in range(1, CATEGORIES + 1)]
    np.testing.assert_allclose(shares, expected, rtol=0, atol=2**-31)
    assert ends[-1] == 2**32 - 1


def test_neither_days_nor_neighbours_tell_of_each_other() -> None:
    had = (~np.isnan(events())).astype(float)
    rates = ((people().last.astype(float) + 1) / 2**32)[:, None]
    spread = (had - rates) / np.sqrt(np.maximum(rates * (1 - rates), 1e-12))  # 0 where r = 1

    # Products of independent terms of variance at most 1: their means have error 1/√count.
    for one, other in [*pairwise(range(PERIODS)), (0, PERIODS - 1)]:
        assert abs((spread[:, one] * spread[:, other]).mean()) <= SIGMAS / math.sqrt(DEVICES)
    for gap in (1, 2, 64, 4096):
        together = spread[gap:] * spread[:-gap]
        assert abs(together.mean()) <= SIGMAS / math.sqrt(together.size)


# ---- slices, parts, orders -------------------------------------------------------------------

bounds = st.none() | st.integers(min_value=-60, max_value=60)
slices = st.builds(slice, bounds, bounds)


@given(block=slices, inner=slices, seed=st.integers(0, 3))
def test_a_block_and_a_part_say_what_the_whole_says(block: slice, inner: slice, seed: int) -> None:
    some = Telemetry.of(devices=50, periods=3, categories=5, seed=seed)
    some = some.shuffled(np.random.default_rng(seed))
    whole = everything(some)
    part = pickle.loads(pickle.dumps(some.part(block)))

    np.testing.assert_array_equal(some.evaluate(on_day(2), block)[:, 0], whole[block, 1])
    np.testing.assert_array_equal(everything(part), whole[block])
    np.testing.assert_array_equal(everything(part.part(inner)), whole[block][inner])
    assert (part.devices, part.periods) == (len(range(50)[block]), 3)


def test_shuffling_deals_whole_people_to_other_devices() -> None:
    shuffled = people().shuffled(np.random.default_rng(7))

    dealt = np.random.default_rng(7).permutation(DEVICES)
    np.testing.assert_array_equal(everything(shuffled)[dealt], events())
    assert not np.array_equal(shuffled.person, people().person)


def test_the_seed_is_who_they_are_and_a_longer_study_begins_like_a_shorter_one() -> None:
    again, other, longer = (
        Telemetry.of(devices=500, periods=periods, categories=CATEGORIES, seed=seed)
        for periods, seed in ((5, 1), (5, 2), (9, 1))
    )

    np.testing.assert_array_equal(everything(again), events()[:500, :5])
    np.testing.assert_array_equal(everything(longer)[:, :5], everything(again))
    assert not np.array_equal(everything(other), everything(again), equal_nan=True)


def test_a_known_person_on_a_known_day_is_the_splitmix64_of_that_day() -> None:
    """Each step spelled out in Python integers, so that what a seed means never changes."""

    def splitmix64(state: int) -> int:
        mask = (1 << 64) - 1
        state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ state >> 27) * 0x94D049BB133111EB) & mask
        return state ^ state >> 31

    def bits(period: int, person: int) -> int:
        sequence = np.random.SeedSequence(1, spawn_key=(5, period))
        key = np.random.SFC64(sequence).random_raw()
        return splitmix64((int(key) + person * 0x9E3779B97F4A7C15) % 2**64)

    for person in range(300):
        u = ((bits(0, person) >> 11) + 1) / 2**53
        rate = min(1.0, 1 / (40 * math.sqrt(u)))
        for period in (1, 25):
            drawn = bits(period, person)
            value = events()[person, period - 1]
            assert (not np.isnan(value)) == (drawn >> 32 < round(rate * 2**32))
            if not np.isnan(value):
                place = (drawn % 2**32) / 2**32
                shares = np.cumsum([1 / rank for rank in range(1, CATEGORIES + 1)])
                assert value == np.searchsorted(shares / shares[-1], place, side="right")


# ---- edges -----------------------------------------------------------------------------------


def test_a_person_is_a_data_source_with_one_row() -> None:
    for index in range(0, DEVICES, 5_000):
        value = PersonSource(people(), index).evaluate(on_day(3))

        np.testing.assert_array_equal(value, events()[index : index + 1, 2:3])


def test_people_take_eight_bytes_each_however_many_days_there_are() -> None:
    part = people().part(slice(0, 10_000))

    sizes = [part.person.nbytes + part.last.nbytes, len(pickle.dumps(part))]

    assert sizes[0] == 80_000
    assert sizes[1] <= 80_000 + 10_000


def test_no_repr_shows_data() -> None:
    assert repr(people()) == "Telemetry(devices=40000, periods=25)"


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (Feature(name="active", parameters={"period": 1}), "feature must be one of event, got"),
        (Feature(name="event"), r"parameters of event must be exactly period, got \[\]"),
        (on_day(0), "period must be an integer from 1 to 25, got 0"),
        (on_day(26), "period must be an integer from 1 to 25, got 26"),
    ],
)
def test_what_nobody_knows_is_refused(feature: Feature, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        people().evaluate(feature, slice(None))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"devices": 0}, "devices must be an integer >= 1"),
        ({"devices": 1 << 31}, "devices must be an integer >= 1 and <= 2147483647"),
        ({"periods": 0}, "periods must be an integer >= 1"),
        ({"categories": 1}, "categories must be an integer >= 2"),
        ({"categories": 2.0}, "categories must be an integer >= 2"),
        ({"seed": -1}, "seed must be an integer >= 0"),
        ({"seed": True}, "seed must be an integer >= 0"),
    ],
)
def test_people_are_valid_from_birth(wrong: dict[str, Any], message: str) -> None:
    right = {"devices": 5, "periods": 2, "categories": 3, "seed": 0}

    with pytest.raises(ParameterError, match=message):
        Telemetry.of(**{**right, **wrong})
