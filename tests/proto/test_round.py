import math
import pickle
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.errors import ParameterError
from demur_proto.queries import Feature, Linear
from demur_proto.queries.base import check_grid
from demur_proto.round import Round
from demur_proto.wire.words import WordType

LINEAR = Linear(
    features=(Feature(name="f", parameters={"b": 2.0, "a": 1.0}),),
    dimension=1,
    clip=1.0,
    sigma=4.0,
    grid_exponent=-7,
    on_grid=True,
)
ROUND = Round(
    study_hash=bytes(32),
    number=1,
    query=LINEAR,
    weight=1,
    word_type=WordType.INT32,
)


@given(
    exponent=st.integers(-40, 5),
    clip=st.floats(1e-3, 1e3),
    dimension=st.one_of(st.just(1), st.integers(1, 10**6)),
)
def test_off_the_grid_a_step_is_refused_exactly_when_it_is_too_coarse(
    exponent: int, clip: float, dimension: int
) -> None:
    step = Fraction(2) ** exponent
    # γ ≤ C / max(2^14, 64√d), squared where a root would have to be taken.
    fine = step * 2**14 <= Fraction(clip) and step**2 * 4096 * dimension <= Fraction(clip) ** 2

    try:
        check_grid(exponent, clip=clip, dimension=dimension, on_grid=False)
    except ParameterError:
        accepted = False
    else:
        accepted = True

    assert accepted == fine


@given(exponent=st.integers(-60, 10), clip=st.floats(1e-3, 1e3))
def test_on_the_grid_a_step_is_refused_exactly_when_it_does_not_divide_the_clip(
    exponent: int, clip: float
) -> None:
    divides = (Fraction(clip) / Fraction(2) ** exponent).denominator == 1

    try:
        check_grid(exponent, clip=clip, dimension=1, on_grid=True)
    except ParameterError:
        accepted = False
    else:
        accepted = True

    assert accepted == divides


@given(
    exponent=st.integers(-3, 20),
    clip=st.one_of(st.floats(1e-3, 1e3), st.sampled_from([1.0, math.nextafter(1.0, 0)])),
    dimension=st.one_of(st.just(1), st.integers(1, 10**6)),
)
def test_the_refusal_of_a_coarse_grid_names_the_coarsest_that_is_accepted(
    exponent: int, clip: float, dimension: int
) -> None:
    with pytest.raises(ParameterError, match="at most") as caught:
        check_grid(exponent, clip=clip, dimension=dimension, on_grid=False)

    named = int(caught.value.expected.split()[2])
    check_grid(named, clip=clip, dimension=dimension, on_grid=False)
    with pytest.raises(ParameterError):
        check_grid(named + 1, clip=clip, dimension=dimension, on_grid=False)


@pytest.mark.parametrize("field", ["clip", "sigma"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, -math.inf, True, "1"])
def test_numbers_outside_their_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=field):
        replace(LINEAR, **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("study_hash", bytes(31)),
        ("number", 0),
        ("number", 1 << 32),
        ("query", None),
        ("query", "linear"),
        ("weight", 0),
        ("weight", (1 << 62) + 1),
        ("weight", 1.0),
        ("word_type", "int32"),
        ("answer_after_ms", -1),
        ("answer_after_ms", 86_400_001),
        ("close_unix_ms", -1),
    ],
)
def test_fields_outside_their_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ParameterError):
        replace(ROUND, **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("features", ()),
        ("features", (Feature(name="f"), Feature(name="g"))),  # more than coordinates
        ("dimension", -1),
        ("dimension", None),
        ("clip", None),
        ("dimension", 1 << 31),
        ("grid_exponent", 901),
        ("grid_exponent", -901),
        ("grid_exponent", 1),  # the clip is below one step
    ],
)
def test_fields_of_a_linear_query_outside_their_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ParameterError):
        replace(LINEAR, **{field: value})


@pytest.mark.parametrize("field", ["sigma", "grid_exponent"])
def test_no_round_ever_has_a_noise_that_is_not_stated(field: str) -> None:
    change: dict[str, Any] = {field: None}

    with pytest.raises(ParameterError, match=f"^{field} must be stated"):
        replace(ROUND, query=replace(LINEAR, **change))


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, "1", None, True, 10**400, -(10**400), 1j]
)
def test_parameters_that_are_no_finite_numbers_are_refused(value: Any) -> None:
    with pytest.raises(ParameterError, match="parameter p"):
        Feature(name="f", parameters={"p": value})


@pytest.mark.parametrize("name", ["", "x" * 101, "a\x00b", "line\nbreak", "\ud800"])
def test_names_that_do_not_print_are_refused(name: str) -> None:
    with pytest.raises(ParameterError):
        Feature(name=name)
    with pytest.raises(ParameterError):
        Feature(name="f", parameters={name: 1.0})


def test_a_feature_never_changes() -> None:
    given_ = {"p": 1.0}
    feature = Feature(name="f", parameters=given_)
    given_["p"] = 2.0
    held: Any = feature

    assert feature.parameters["p"] == 1.0
    with pytest.raises(FrozenInstanceError):
        held.name = "g"
    with pytest.raises(TypeError):
        held.parameters["p"] = 3.0


def test_equal_features_are_one_key_whatever_the_order_of_their_parameters() -> None:
    one = Feature(name="f", parameters={"a": 1.0, "b": 2.0})
    two = Feature(name="f", parameters={"b": 2, "a": 1})

    assert one == two
    assert len({one, two}) == 1
    assert one != Feature(name="f", parameters={"a": 1.0})


def test_rounds_cross_process_borders_whole() -> None:
    assert pickle.loads(pickle.dumps(ROUND)) == ROUND
