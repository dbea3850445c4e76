"""Rounds of running counts as bytes: they come back as they were, and what does not fit is refused."""

import math
from dataclasses import replace
from typing import Any

import pytest

from counting_kit import a_study
from demur_proto.errors import ParameterError, StateError, WireError
from demur_proto.queries import Feature, HaltCount, RunningCount
from demur_proto.round import Round, round_of
from demur_proto.running.segments import Admission, Factorisation, Segment
from demur_proto.v1 import round_pb2
from demur_proto.wire.definition import Defined, define_round, read_round

STUDY = a_study()
COUNTING = RunningCount(
    feature=Feature(name="online", parameters={"day": 3.0}),
    segment=Segment(
        horizon=40, cohort=1000, factorisation=Factorisation.TREE, position=3, first_round=1
    ),
    bound=3,
    sigma=20.5,
    grid_exponent=-15,
    admission=Admission.HALT,
)
HALTS = HaltCount(halted_study=bytes(32), segment=COUNTING.segment, sigma=20.5, grid_exponent=-15)


def running_round(query: RunningCount | HaltCount = COUNTING) -> Defined[Round]:
    return define_round(round_of(STUDY, query, number=3))


SECOND = replace(
    COUNTING,
    segment=Segment(horizon=4, cohort=9, position=1, first_round=3, earlier=(2,), origin=1),
)


@pytest.mark.parametrize(
    "query", [COUNTING, HALTS, SECOND], ids=["prefix", "halt_count", "second segment"]
)
def test_running_counts_come_back_as_they_were_written(query: RunningCount | HaltCount) -> None:
    asked = running_round(query)

    assert read_round(asked.definition, study=STUDY).value == asked.value


def broken(query: RunningCount = COUNTING, **changes: Any) -> round_pb2.Round:
    message = round_pb2.Round.FromString(running_round(query).definition)
    for path, value in changes.items():
        *parents, name = path.split("__")
        place: Any = message
        for parent in parents:
            place = getattr(place, parent)
        setattr(place, name, value)
    return message


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"on_grid": True}, "on_grid"),
        ({"clip": 0.0}, "clip"),
        ({"clip": 1.5}, "clip"),
        ({"clip": math.nan}, "clip"),
        ({"clip": math.inf}, "clip"),
        ({"clip": 2.0**13}, "bound"),
        ({"sigma": math.nan}, "sigma"),
        ({"grid_exponent": -13}, "grid_exponent"),
        ({"grid_exponent": -21}, "grid_exponent"),
        ({"dimension": 2}, "dimension"),
        ({"prefix__segment__horizon": 0}, "horizon"),
        ({"prefix__segment__horizon": 1 << 15}, "horizon"),
        ({"prefix__segment__position": 0}, "position"),
        ({"prefix__segment__position": 41}, "position"),
        ({"prefix__segment__position": 4}, "position"),
        ({"prefix__segment__position": 1}, "first_round"),
        ({"prefix__segment__first_round": 0}, "first_round"),
        ({"prefix__segment__cohort": 0}, "cohort"),
    ],
)
def test_a_running_count_that_does_not_fit_itself_is_refused_in_one_line(
    changes: dict[str, Any], said: str
) -> None:

    with pytest.raises(WireError, match=said) as caught:
        read_round(broken(**changes).SerializeToString(), study=STUDY)

    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"origin": 0}, "origin"),
        ({"origin": 2}, "first_round"),
        ({"earlier_horizons": []}, "origin"),
        ({"earlier_horizons": [0]}, "earlier"),
        ({"earlier_horizons": [1 << 15]}, "earlier"),
        ({"earlier_horizons": [3]}, "first_round"),
        ({"earlier_horizons": [1] * 256}, "earlier"),
    ],
)
def test_a_later_segment_that_does_not_fit_its_count_is_refused_in_one_line(
    changes: dict[str, Any], said: str
) -> None:
    message = broken(SECOND)
    for name, value in changes.items():
        message.prefix.segment.ClearField(name)  # type: ignore[arg-type]
        message.prefix.segment.MergeFrom(round_pb2.Segment(**{name: value}))

    with pytest.raises(WireError, match=said) as caught:
        read_round(message.SerializeToString(), study=STUDY)

    assert len(str(caught.value).splitlines()) == 1


def test_a_count_without_an_end_goes_on_in_segments_twice_as_long() -> None:
    segment, seen = Segment(horizon=1 << 13, cohort=5, position=1 << 13, first_round=9), []
    for number in range(1 << 13, 1 << 15):
        segment = segment.following(number)
        if segment.position == 1:
            seen.append((segment.horizon, segment.earlier, segment.origin, segment.place))
        segment = segment.begun(9 + number)

    assert seen == [
        (1 << 14, (1 << 13,), 9, (1 << 13) + 1),
        (1 << 14, (1 << 13, 1 << 14), 9, (1 << 13) + (1 << 14) + 1),  # none is longer
    ]


def test_a_segment_is_doubled_when_it_is_over_and_not_before() -> None:
    first = Segment(horizon=2, cohort=1).begun(3)

    with pytest.raises(StateError, match=r"after\(\)"):
        first.doubled()
    assert first.after().doubled().count == 3


def test_a_segment_goes_on_from_round_to_round_and_ends() -> None:
    first = Segment(horizon=2, cohort=1)

    second = first.after(5)

    assert (second.position, second.first_round) == (2, 5)
    with pytest.raises(StateError, match=r"doubled.*begin another"):
        second.after(6)
    with pytest.raises(ParameterError, match="number"):
        first.after()  # of which round it began with, nothing is known yet
