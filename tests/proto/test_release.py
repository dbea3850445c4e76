import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.errors import UnsupportedError, WireError
from demur_proto.release import Release, Withheld
from demur_proto.v1 import release_pb2

words = st.integers(-(1 << 63), (1 << 63) - 1)
numbers = st.floats(allow_nan=False)
RELEASE = Release(
    study_hash=bytes(32),
    round_hash=bytes(range(32)),
    number=3,
    reports=120,
    withheld=Withheld.NOTHING,
    sums=(5, -7),
    estimate=(0.5, -0.7),
    standard_error=(0.1,),
    half_width=(0.2,),
    confidence=0.95,
    guarantee="(1, 1e-06)-differential privacy",
)


@given(
    st.lists(st.tuples(words, numbers), max_size=5),
    st.lists(numbers, max_size=5),
    st.integers(0, (1 << 64) - 1),
)
def test_a_release_survives_the_wire(
    coordinates: list[tuple[int, float]], errors: list[float], reports: int
) -> None:
    release = replace(
        RELEASE,
        sums=tuple(total for total, _ in coordinates),
        estimate=tuple(value for _, value in coordinates),
        standard_error=tuple(errors),
        half_width=tuple(2 * error for error in errors),
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
        sums=(),
        estimate=(),
        standard_error=(),
        half_width=(),
        confidence=math.nan,
    )

    message = release.message()
    back = Release.of(message)

    assert message.estimand == release_pb2.ESTIMAND_UNSPECIFIED
    assert RELEASE.message().estimand == release_pb2.ESTIMAND_S_ACTIVE
    assert back.withheld is Withheld.BELOW_MINIMUM_COHORT
    assert (back.sums, back.estimate) == ((), ())
    assert back.standard_error == ()


@pytest.mark.parametrize("length", [1, 7, 9, 15])
def test_sums_that_are_no_whole_words_are_refused(length: int) -> None:
    with pytest.raises(WireError):
        Release.of(release_pb2.Release(sums=bytes(length)))


def test_an_unknown_reason_for_withholding_is_unsupported() -> None:
    message = RELEASE.message()
    message.withheld = release_pb2.Withheld.ValueType(7)

    with pytest.raises(UnsupportedError):
        Release.of(message)


def test_a_release_is_an_array_of_estimates_and_one_of_their_errors() -> None:
    estimates, errors = RELEASE.array()
    nothing, no_errors = replace(RELEASE, estimate=(), sums=()).array()

    assert estimates.tolist() == [0.5, -0.7]
    assert errors.tolist() == [0.1, 0.1]
    assert (nothing.shape, no_errors.shape) == ((0,), (0,))
