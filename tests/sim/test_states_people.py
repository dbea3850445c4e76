"""Made-up people with a state follow the law that they are said to follow, whoever asks for whichever part."""

import math
import pickle
from functools import cache
from typing import Any

import numpy as np
import pytest

from demur_proto.arrays import Flags, Values
from demur_proto.errors import ParameterError
from demur_proto.queries import Feature
from demur_sim.people.populations import PersonSource
from demur_sim.people.states import States

DEVICES, PERIODS = 20_000, 400
SIGMAS = 5.0  #: how many standard errors a count may be off: once in two million


def at(period: int) -> Feature:
    return Feature(name="state", parameters={"period": period})


def everything(people: States) -> Values:
    """Everybody's state in every period [n, periods]."""
    periods = range(1, people.periods + 1)
    return np.concatenate([people.evaluate(at(p), slice(None)) for p in periods], axis=1)


@cache
def people() -> States:
    return States.of(devices=DEVICES, periods=PERIODS, seed=1)


@cache
def changes() -> Flags:
    """Who changed when [n, periods]: everybody is off at first."""
    changed: Flags = np.diff(everything(people()), axis=1, prepend=0.0) != 0
    return changed


def test_states_are_zero_or_one() -> None:
    assert np.unique(everything(people())).tolist() == [0, 1]


@pytest.mark.parametrize("times", [0, 1, 2, 5, 20])
def test_people_change_as_often_as_the_law_says(times: int) -> None:
    often = changes().sum(axis=1)
    # Rounded to `times` or less: up to times + 1/2.
    expected = 0.5 * math.erfc(-(math.log(times + 0.5) - 0.3) / 1.1 / math.sqrt(2))

    share = (often <= times).mean()

    assert abs(share - expected) <= SIGMAS * math.sqrt(expected * (1 - expected) / DEVICES)


@pytest.mark.parametrize(("times", "first"), [(1, 1), (2, 1), (3, 1), (3, 3)])
def test_any_set_of_periods_is_as_likely_as_any_other(times: int, first: int) -> None:
    """Order statistics of k distinct periods out of T: the j-th has mean j(T + 1)/(k + 1)."""
    some = changes()[changes().sum(axis=1) == times]

    when = np.sort(np.nonzero(some)[1].reshape(-1, times) + 1, axis=1)[:, first - 1]

    mean = first * (PERIODS + 1) / (times + 1)
    variance = (
        first * (times + 1 - first) * (PERIODS + 1) * (PERIODS - times)
        / ((times + 1) ** 2 * (times + 2))
    )  # fmt: skip
    assert abs(when.mean() - mean) <= SIGMAS * math.sqrt(variance / len(when))
    assert when.var() == pytest.approx(variance, rel=SIGMAS * math.sqrt(2 / len(when)))


@pytest.mark.parametrize(("periods", "most"), [(1024, 256), (10, 10), (1, 1)])
def test_nobody_changes_more_often_than_there_are_periods_or_than_256_times(
    periods: int, most: int
) -> None:
    some = States.of(devices=50_000, periods=periods, seed=9)  # one of them would 421 times

    assert np.diff(some.start).max() == most


def test_totals_are_what_everybody_adds_up_to() -> None:
    assert people().totals().tolist() == everything(people()).sum(axis=0).tolist()


def test_any_slice_part_or_person_says_the_same() -> None:
    whole = everything(people())

    for block in (slice(0, 0), slice(5, 6), slice(100, 4000), slice(DEVICES, DEVICES)):
        assert np.array_equal(people().evaluate(at(77), block), whole[block, 76:77])
        part = people().part(block)
        assert part.devices == block.stop - block.start
        assert np.array_equal(everything(part), whole[block])
    assert PersonSource(people(), 9).evaluate(at(77)).tolist() == whole[9:10, 76:77].tolist()


def test_shuffled_people_are_the_same_people() -> None:
    dealt = everything(people().part(slice(0, 500)).shuffled(np.random.default_rng(1)))
    before = everything(people().part(slice(0, 500)))

    assert not np.array_equal(dealt, before)
    assert sorted(map(tuple, dealt.tolist())) == sorted(map(tuple, before.tolist()))


def test_who_they_are_follows_from_the_seed() -> None:
    again = States.of(devices=DEVICES, periods=PERIODS, seed=1)
    others = States.of(devices=DEVICES, periods=PERIODS, seed=2)

    assert np.array_equal(again.when, people().when)
    assert not np.array_equal(others.start, people().start)


def test_a_copy_in_another_process_says_the_same_and_no_repr_says_anything() -> None:
    some = people().part(slice(0, 3))

    assert np.array_equal(everything(pickle.loads(pickle.dumps(some))), everything(some))
    assert repr(some) == f"States(devices=3, periods={PERIODS})"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"devices": 0}, "devices"),
        ({"periods": 0}, "periods"),
        ({"periods": (1 << 14) + 1}, "periods"),
        ({"seed": -1}, "seed"),
    ],
)
def test_people_who_cannot_be_are_refused(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(ParameterError, match=expected):
        States.of(**{"devices": 1, "periods": 1, "seed": 0, **change})


@pytest.mark.parametrize(
    "feature",
    [
        at(0),
        at(PERIODS + 1),
        Feature(name="active", parameters={"period": 1}),
        Feature(name="state"),
    ],
)
def test_what_they_do_not_know_is_refused(feature: Feature) -> None:
    with pytest.raises(ParameterError):
        people().evaluate(feature, slice(0, 1))
