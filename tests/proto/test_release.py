import copy
import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.arrays import fixed_floats, fixed_integers
from demur_proto.errors import UnsupportedError, WireError
from demur_proto.release import Estimand, Release, Withheld
from demur_proto.v1 import release_pb2

words = st.integers(-(1 << 63), (1 << 63) - 1)
numbers = st.floats(allow_nan=False)
NOTHING = fixed_floats([])
RELEASE = Release(
    study_hash=bytes(32),
    round_hash=bytes(range(32)),
    number=3,
    reports=120,
    withheld=Withheld.NOTHING,
    sums=np.array([5, -7]),
    estimate=np.array([0.5, -0.7]),
    standard_error=np.array([0.1]),
    half_width=np.array([0.2]),
    confidence=0.95,
    estimand=Estimand.S_ACTIVE,
    guarantee="(1, 1e-06)-differential privacy",
)


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.lists(st.tuples(words, finite, finite.map(abs)), min_size=1, max_size=5),
    st.booleans(),
    st.integers(0, (1 << 64) - 1),
)
def test_a_release_survives_the_wire(
    coordinates: list[tuple[int, float, float]], shared: bool, reports: int
) -> None:
    errors = [error for _, _, error in coordinates][: 1 if shared else None]
    release = replace(
        RELEASE,
        sums=fixed_integers([total for total, _, _ in coordinates]),
        estimate=fixed_floats([value for _, value, _ in coordinates]),
        standard_error=fixed_floats(errors),
        half_width=fixed_floats(errors),
        reports=reports,
    )

    sent = release.message().SerializeToString()

    assert Release.of(release_pb2.Release.FromString(sent)) == release


def test_sums_are_signed_little_endian_words() -> None:
    assert RELEASE.sums_bytes == b"".join(x.to_bytes(8, "little", signed=True) for x in (5, -7))


def test_a_withheld_release_says_why_and_estimates_nothing() -> None:
    release = replace(
        RELEASE,
        withheld=Withheld.BELOW_MINIMUM_COHORT,
        sums=fixed_integers([]),
        estimate=NOTHING,
        standard_error=NOTHING,
        half_width=NOTHING,
        estimand=Estimand.NOTHING,
        confidence=math.nan,
    )

    message = release.message()
    back = Release.of(message)

    assert message.estimand == release_pb2.ESTIMAND_UNSPECIFIED
    assert RELEASE.message().estimand == release_pb2.ESTIMAND_S_ACTIVE
    assert back.withheld is Withheld.BELOW_MINIMUM_COHORT
    assert (back.sums.size, back.estimate.size, back.standard_error.size) == (0, 0, 0)
    assert back == release


@pytest.mark.parametrize("length", [1, 7, 9, 15])
def test_sums_that_are_no_whole_words_are_refused(length: int) -> None:
    with pytest.raises(WireError):
        Release.of(release_pb2.Release(sums=bytes(length)))


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"standard_error": [0.1] * 3}, "2 sums, 2 estimates, 3 standard errors, 1 half widths"),
        ({"half_width": []}, "estimand S_active lacks an interval"),
        ({"half_width": [0.1] * 3}, "1 standard errors, 3 half widths"),
        ({"low_end": [0.3], "high_end": [0.7]}, "1 lower and 1 upper ends"),
        ({"low_end": [0.3] * 2, "high_end": [0.7, 0.2]}, "upper ends in order"),
        ({"low_end": [0.3] * 2, "high_end": [0.7, math.inf]}, "not finite"),
        ({"estimand": Estimand.S_SHRUNK}, "estimand S_shrunk has an interval"),
        ({"estimand": Estimand.NOTHING}, "estimand nothing has an interval"),
        ({"half_width": [], "estimand": Estimand.S_SHRUNK}, "no confidence, got 0.95"),
        ({"sums": [5]}, "1 sums, 2 estimates"),
        ({"estimate": []}, "2 sums, 0 estimates"),
        ({"withheld": Withheld.BELOW_MINIMUM_COHORT}, "without numbers has 2 sums, 2 estimates"),
        ({"estimate": [0.5, math.nan]}, "not finite"),
        ({"half_width": [math.inf]}, "not finite"),
        ({"standard_error": [-0.1]}, "an error below zero"),
        ({"confidence": 7.0}, "a confidence lies between 0 and 1, got 7.0"),
        ({"confidence": math.nan}, "a confidence lies between 0 and 1, got nan"),
    ],
)
def test_what_no_collector_publishes_is_refused(changed: dict[str, Any], complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        Release.of(replace(RELEASE, **changed).message())


def test_an_unknown_reason_for_withholding_is_unsupported() -> None:
    message = RELEASE.message()
    message.withheld = release_pb2.Withheld.ValueType(7)

    with pytest.raises(UnsupportedError):
        Release.of(message)


def test_an_estimand_that_nobody_knows_is_unsupported() -> None:
    message = RELEASE.message()
    message.estimand = release_pb2.Estimand.ValueType(7)

    with pytest.raises(UnsupportedError, match="estimand 7"):
        Release.of(message)


COUNTS = replace(
    RELEASE,
    half_width=NOTHING,
    low_end=np.array([0.0, 0.0]),
    high_end=np.array([3.0, 1.0]),
)
SHRUNK = replace(RELEASE, half_width=NOTHING, confidence=math.nan, estimand=Estimand.S_SHRUNK)


def test_an_interval_reaches_as_far_on_either_side_or_has_its_own_ends_or_there_is_none() -> None:
    assert (RELEASE.low.tolist(), RELEASE.high.tolist()) == ([0.3, -0.7 - 0.2], [0.7, -0.7 + 0.2])
    assert RELEASE.interval_at(1) == (-0.7 - 0.2, -0.7 + 0.2)
    assert (COUNTS.low.tolist(), COUNTS.high.tolist()) == ([0.0, 0.0], [3.0, 1.0])
    assert COUNTS.interval_at(0) == (0.0, 3.0)
    assert (SHRUNK.low.size, SHRUNK.high.size, SHRUNK.has_interval) == (0, 0, False)
    assert all(map(math.isnan, SHRUNK.interval_at(0)))


@pytest.mark.parametrize("release", [COUNTS, SHRUNK], ids=["ends", "no interval"])
def test_releases_of_every_kind_of_interval_survive_the_wire(release: Release) -> None:
    sent = release.message().SerializeToString()

    assert Release.of(release_pb2.Release.FromString(sent)) == release


def test_whoever_knows_no_ends_reads_an_interval_that_reaches_as_far() -> None:
    message = COUNTS.message()

    [half] = message.half_width

    assert (COUNTS.estimate - half <= COUNTS.low).all()
    assert (COUNTS.estimate + half >= COUNTS.high).all()


def test_a_release_is_an_array_of_estimates_and_one_of_their_errors() -> None:
    estimates, errors = RELEASE.array()
    nothing, no_errors = replace(RELEASE, estimate=NOTHING).array()

    assert estimates.tolist() == [0.5, -0.7]
    assert errors.tolist() == [0.1, 0.1]
    assert (nothing.shape, no_errors.shape) == ((0,), (0,))


def test_nobody_can_change_a_release() -> None:
    sums, estimate = np.array([5, -7]), np.array([0.5, -0.7])
    release = replace(RELEASE, sums=sums, estimate=estimate)

    sums[0], estimate[0] = 99, 99.0
    copy, _ = release.array()
    copy[0] = 99.0

    assert release == RELEASE
    for array in (release.sums, release.estimate, release.standard_error, release.half_width):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    back = Release.of(RELEASE.message())
    assert not back.sums.flags.writeable
    assert not back.estimate.flags.writeable


def test_a_view_that_cannot_be_written_may_still_change_and_is_copied() -> None:
    behind = np.array([0.5, -0.7])
    seen = behind[:]
    seen.flags.writeable = False
    release = replace(RELEASE, estimate=seen)

    behind[0] = 99.0

    assert release == RELEASE
    assert replace(RELEASE, estimate=release.estimate).estimate is release.estimate


@pytest.mark.parametrize(
    "copied",
    [lambda release: pickle.loads(pickle.dumps(release)), copy.copy, copy.deepcopy],
    ids=["pickle", "copy", "deepcopy"],
)
def test_a_copy_of_a_release_says_the_same_and_cannot_be_changed_either(
    copied: Callable[[Release], Release],
) -> None:
    again = copied(RELEASE)

    assert again == RELEASE
    for array in (again.sums, again.estimate, again.standard_error, again.half_width):
        assert not array.flags.writeable


@pytest.mark.parametrize(
    "changed",
    [
        {"study_hash": bytes(31) + b"1"},
        {"number": 4},
        {"reports": 121},
        {"withheld": Withheld.BELOW_MINIMUM_COHORT},
        {"sums": np.array([5, -8])},
        {"estimate": np.array([0.5, math.nan])},
        {"standard_error": np.array([0.1, 0.1])},
        {"half_width": np.array([0.3])},
        {"low_end": np.array([0.3, 0.4])},
        {"high_end": np.array([0.3, 0.4])},
        {"estimand": Estimand.NOTHING},
        {"confidence": 0.9},
        {"guarantee": "none"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_releases_are_equal_when_they_say_the_same(changed: dict[str, Any]) -> None:
    withheld = replace(RELEASE, confidence=float("nan"))

    assert replace(RELEASE, **changed) != RELEASE
    assert replace(RELEASE, number=3) == RELEASE
    assert replace(RELEASE, confidence=-float("nan")) == withheld
    assert RELEASE != "a release"
    with pytest.raises(TypeError, match="unhashable"):
        hash(RELEASE)


def test_a_repr_shows_no_array() -> None:
    assert "0.5" not in repr(RELEASE)
    assert "number=3" in repr(RELEASE)


@given(st.lists(numbers, max_size=300))
def test_what_is_packed_by_hand_is_what_the_schema_packs(values: list[float]) -> None:
    by_hand = replace(RELEASE, estimate=fixed_floats(values)).message()
    by_schema = replace(RELEASE, estimate=NOTHING).message()
    by_schema.estimate.extend(values)

    assert by_hand.SerializeToString() == by_schema.SerializeToString()
