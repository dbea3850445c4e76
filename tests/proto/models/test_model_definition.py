import contextlib
import hashlib
import math
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur_proto.errors import DemurError, ParameterError, UnsupportedError, WireError
from demur_proto.models.architectures import HiddenLayer, Softmax
from demur_proto.models.definition import (
    LARGEST_MODEL_BYTES,
    ModelDefinition,
    Module,
    define_model,
    read_model,
)
from demur_proto.models.features import OrientedGradients, Pixels
from demur_proto.models.whitened_gradients import WhitenedGradients
from demur_proto.v1 import model_pb2

SOFTMAX = Softmax(inputs=6, classes=2)
MODELS = [
    ModelDefinition(architecture=SOFTMAX, theta=np.linspace(-1, 1, 14)),
    ModelDefinition(
        architecture=SOFTMAX, features=Pixels(height=2, width=3), theta=np.full(14, -0.0)
    ),
    ModelDefinition(
        architecture=HiddenLayer(inputs=16, hidden=3, classes=4),
        features=OrientedGradients(height=8, width=8, block=1, bins=4, cap=0.5, signed=True),
        theta=np.linspace(-1e300, 5e-324, 67),
    ),
    ModelDefinition(
        architecture=Softmax(inputs=4, classes=2),
        features=WhitenedGradients(
            height=8, width=8, cells=1, bins=4, synthetic=100, seed=2**32 - 1, power=0.5, norm=1.0
        ),
        theta=np.zeros(10),
    ),
    ModelDefinition(
        architecture=Module(path="no.such.module:Net", inputs=6, classes=2, parameters=3),
        theta=np.ones(3),
    ),
]
models = pytest.mark.parametrize("model", MODELS)


def message(model: ModelDefinition = MODELS[1]) -> model_pb2.ModelDefinition:
    return model_pb2.ModelDefinition.FromString(define_model(model).definition)


@models
def test_a_model_survives_the_wire_bit_for_bit(model: ModelDefinition) -> None:
    defined = define_model(model)

    read = read_model(defined.definition)

    assert read.value.architecture == model.architecture
    assert read.value.features == model.features
    assert read.value.theta.tobytes() == model.theta.tobytes()
    assert read.hash == defined.hash
    assert read.hash == hashlib.sha256(b"demur.model.v1\x00" + defined.definition).digest()
    assert define_model(read.value).definition == defined.definition


def test_the_bytes_are_those_that_another_language_would_write() -> None:
    tiny = ModelDefinition(
        architecture=Softmax(inputs=1, classes=2), theta=np.array([1.0, -2.0, 0.0, 0.5])
    )

    theta = "000000000000f03f 00000000000000c0 0000000000000000 000000000000e03f"
    expected = bytes.fromhex("0a04 0801 1002 8201 20" + theta)
    assert define_model(tiny).definition == expected


def test_reading_a_module_imports_nothing() -> None:
    model = ModelDefinition(
        architecture=Module(path="this:zen", inputs=6, classes=2, parameters=3), theta=np.ones(3)
    )

    read_model(define_model(model).definition)

    assert "this" not in sys.modules


def test_theta_is_a_copy_that_cannot_be_written() -> None:
    theta = np.zeros(14)
    model = ModelDefinition(architecture=SOFTMAX, theta=theta)

    theta[0] = 1.0

    assert model.theta[0] == 0.0
    with pytest.raises(ValueError, match="read-only"):
        model.theta[0] = 2.0


@pytest.mark.parametrize("length", [0, 1, 8, 13 * 8, 14 * 8 - 1, 15 * 8])
def test_parameters_of_another_number_are_refused(length: int) -> None:
    sent = message()
    sent.theta = bytes(length)

    with pytest.raises(WireError) as caught:
        read_model(sent.SerializeToString())

    expected = f"theta must be 14 numbers of 8 bytes, got '{length} bytes'"
    assert str(caught.value) == f"not a valid model: {expected}"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_parameters_that_are_not_finite_are_refused_and_said_where(bad: float) -> None:
    theta = np.zeros(14)
    theta[5] = bad
    sent = message()
    sent.theta = theta.tobytes()

    with pytest.raises(WireError, match=f"theta must be finite numbers, got '{bad} at 5'"):
        read_model(sent.SerializeToString())
    with pytest.raises(ParameterError, match="theta must be finite"):
        ModelDefinition(architecture=SOFTMAX, theta=theta)


@pytest.mark.parametrize(
    ("wrong", "about"),
    [
        ({"architecture": "softmax"}, "architecture must be one of Softmax, HiddenLayer, Module"),
        ({"features": "pixels"}, "features must be one of Pixels, OrientedGradients, Whit"),
        ({"features": Pixels(height=2, width=2)}, "inputs must be 4, as many as features, got 6"),
        ({"theta": np.zeros(13)}, r"theta must be float64 of shape \[14\]"),
        ({"theta": np.zeros(14, dtype=np.float32)}, r"theta must be float64 of shape \[14\]"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(wrong: dict[str, Any], about: str) -> None:
    with pytest.raises(ParameterError, match=about) as caught:
        ModelDefinition(**{"architecture": SOFTMAX, "theta": np.zeros(14), **wrong})

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "path", ["", "net", "a:b:c", "a.b", ".a:b", "a:", ":b", "a b:c", "a/b:c", "a:b()", "a:b\n"]
)
def test_a_path_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(ParameterError, match="path must be"):
        Module(path=path, inputs=1, classes=2, parameters=1)


@pytest.mark.parametrize(
    ("part", "name", "value", "about"),
    [
        ("softmax", "inputs", 0, "inputs must be an integer >= 1"),
        ("softmax", "classes", 1, "classes must be an integer >= 2"),
        ("softmax", "inputs", 2**32 - 1, "inputs must be an integer >= 1"),
        ("softmax", "inputs", 7, ""),
        ("pixels", "white", math.nan, "white must be a finite number > 0"),
        ("pixels", "height", 0, "height must be an integer >= 1"),
    ],
)
def test_a_part_outside_its_range_is_refused(part: str, name: str, value: Any, about: str) -> None:
    sent = message()
    setattr(getattr(sent, part), name, value)

    with pytest.raises(WireError, match=f"not a valid model: {about}"):
        read_model(sent.SerializeToString())


def test_a_model_without_an_architecture_is_refused() -> None:
    with pytest.raises(WireError, match="it has no architecture"):
        read_model(b"")


def test_a_definition_that_no_model_needs_is_refused_unread() -> None:
    with pytest.raises(WireError, match="a model takes at most 2098176 bytes, got 2098177"):
        read_model(bytes(LARGEST_MODEL_BYTES + 1))


@pytest.mark.parametrize("extra", [b"\x98\x06\x01", b"\x9a\x06\x02hi"])
def test_fields_of_a_later_version_are_unsupported_and_never_ignored(extra: bytes) -> None:
    nested = message()
    nested.softmax.MergeFromString(extra)

    for sent in (define_model(MODELS[0]).definition + extra, nested.SerializeToString()):
        with pytest.raises(UnsupportedError, match="fields that this version does not know"):
            read_model(sent)


@models
def test_any_changed_byte_gives_another_hash_or_is_refused(model: ModelDefinition) -> None:
    defined = define_model(model)

    for at, byte in enumerate(defined.definition):
        changed = bytearray(defined.definition)
        changed[at] = byte ^ (1 << at % 8)
        with contextlib.suppress(DemurError):
            assert read_model(bytes(changed)).hash != defined.hash


@settings(max_examples=200)
@given(st.data())
def test_random_and_spliced_bytes_raise_nothing_but_our_errors(data: st.DataObject) -> None:
    original = define_model(data.draw(st.sampled_from(MODELS))).definition
    start = data.draw(st.integers(0, len(original)))
    stop = data.draw(st.integers(start, len(original)))
    for sent in (
        original[:start] + data.draw(st.binary(max_size=9)) + original[stop:],
        data.draw(st.binary(max_size=80)),
    ):
        with contextlib.suppress(DemurError):
            read_model(sent)


def test_no_parameter_is_in_a_repr() -> None:
    assert "theta" not in repr(MODELS[0])
    assert "definition" not in repr(define_model(MODELS[0])).replace("ModelDefinition", "")
