"""Error counts as values and bytes, and a person's own share of a model's errors."""

import itertools
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from demur_proto.accounting.histograms import design_histogram_study
from demur_proto.errors import ParameterError, UnsupportedError, WireError
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.models.architectures import Softmax
from demur_proto.models.base import Examples
from demur_proto.models.definition import ModelDefinition, Module, define_model
from demur_proto.models.features import Pixels
from demur_proto.models.gradients import error_shares, person_error_share
from demur_proto.queries import ErrorCount, Feature, Linear
from demur_proto.queries.registry import mechanism_for
from demur_proto.round import round_of
from demur_proto.study import Purpose, Study, design_study
from demur_proto.v1 import round_pb2
from demur_proto.wire.definition import Defined, define_round, define_study, read_round
from demur_proto.wire.words import WordType

# Scores are (x, −x): class 0 for x above zero, else class 1.
SIGN = define_model(
    ModelDefinition(
        architecture=Softmax(inputs=1, classes=2), theta=np.array([1.0, -1.0, 0.0, 0.0])
    )
)


def a_study(**changes: Any) -> Defined[Study]:
    options = {"grid_exponent": -14, "maximum_dimension": 1, "minimum_cohort": 4, **changes}
    options.setdefault("purpose", Purpose.ERRORS)
    return define_study(design_study(name="wrong", epsilon=1.0, delta=1e-6, answers=3, **options))


STUDY = a_study()
ASKED = define_round(round_of(STUDY, ErrorCount(model_hash=SIGN.hash, parameters=4), number=1))


def message() -> round_pb2.Round:
    return round_pb2.Round.FromString(ASKED.definition)


def query_of(asked: Defined[Any] = ASKED) -> ErrorCount:
    assert isinstance(asked.value.query, ErrorCount)
    return asked.value.query


@pytest.mark.parametrize("on_grid", [False, True])
def test_an_error_count_survives_the_wire(on_grid: bool) -> None:
    asked = define_round(
        round_of(STUDY, ErrorCount(model_hash=SIGN.hash, parameters=4, on_grid=on_grid), number=1)
    )

    assert read_round(asked.definition, study=STUDY) == asked
    assert query_of(asked) == ErrorCount(
        model_hash=SIGN.hash,
        parameters=4,
        sigma=STUDY.value.base_sigma,
        grid_exponent=-14,
        on_grid=on_grid,
    )


def test_what_it_asks_is_in_field_21_by_the_wire_format_of_protobuf() -> None:
    # (21 << 3) | 2 = 170 is a1 varint of two bytes; then 36 bytes: field 1 is the hash, field 2 is 4.
    assert ASKED.definition.endswith(bytes.fromhex("aa01240a20") + SIGN.hash + b"\x10\x04")


def test_it_is_a_sum_of_one_number_of_clip_1_and_promises_what_that_does() -> None:
    sums = a_study(purpose=Purpose.DATA)
    linear = round_of(sums, Linear([Feature(name="wrong")], clip=1.0), number=1)

    assert mechanism_for(STUDY.value, ASKED.value) == mechanism_for(sums.value, linear)
    assert (ASKED.value.weight, ASKED.value.word_type) == (linear.weight, WordType.INT32)
    of_errors = ASKED.value.query.guarantee_in(STUDY.value)
    assert of_errors == linear.query.guarantee_in(sums.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("model_hash", bytes(31)), ("model_hash", "x" * 32), ("parameters", 0)),
        *(("parameters", 1 << 31), ("parameters", 1.0), ("sigma", 0.0), ("sigma", float("nan"))),
        *(("grid_exponent", -13), ("grid_exponent", 1)),
    ],
)
def test_fields_outside_their_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=field):
        replace(query_of(), **{field: value})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda each: setattr(each, "clip", 2.0), r"clip must be 1\.0 in an error count"),
        (lambda each: each.ClearField("clip"), "clip must be 1"),
        (lambda each: setattr(each, "dimension", 2), "dimension must be 1, a report's words"),
        (lambda each: setattr(each.error_count, "model_hash", b""), "model_hash must be a SHA-256"),
        (lambda each: setattr(each.error_count, "parameters", 0), "parameters must be"),
        (lambda each: setattr(each, "weight", 1), "weight must be"),
        (lambda each: setattr(each, "grid_exponent", -12), "grid_exponent must be at most -14"),
        (lambda each: each.ClearField("error_count"), "it asks nothing"),
    ],
)
def test_bytes_that_contradict_themselves_or_the_study_are_refused_in_one_line(
    change: Any, complaint: str
) -> None:
    changed = message()
    change(changed)

    with pytest.raises(WireError, match=complaint) as caught:
        read_round(changed.SerializeToString(), study=STUDY)

    assert len(str(caught.value).splitlines()) == 1


def test_a_study_of_histograms_alone_counts_no_errors() -> None:
    alone = define_study(
        design_histogram_study(name="h", epsilon=1.0, delta=1e-6, minimum_cohort=1, categories=4)
    )

    with pytest.raises(ParameterError, match=r"query must be a histogram, .* got 'error count'"):
        round_of(alone, ErrorCount(model_hash=SIGN.hash, parameters=4), number=1)


def test_another_model_or_another_number_of_parameters_is_refused() -> None:
    other = define_model(
        ModelDefinition(architecture=Softmax(inputs=2, classes=2), theta=np.zeros(6))
    )

    query_of().check_model(SIGN)
    with pytest.raises(WireError, match="another model"):
        query_of().check_model(other)
    with pytest.raises(WireError, match="parameters must be 4, the number of the model's"):
        replace(query_of(), parameters=5).check_model(SIGN)


# ---- a person's share --------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_it_is_the_share_of_the_examples_that_the_model_labels_wrongly(number: int) -> None:
    rng = np.random.default_rng(number)
    inputs, labels = rng.normal(size=(number, 1)), rng.integers(0, 2, size=number)

    found = person_error_share(SIGN.value, inputs, labels)

    wrong = sum((0 if x > 0 else 1) != y for x, y in zip(inputs[:, 0], labels, strict=True))
    assert found.tolist() == [[float(Fraction(wrong, number))]]


def test_a_model_is_wrong_about_what_it_cannot_predict_or_what_is_no_class() -> None:
    assert person_error_share(SIGN.value, [[np.nan], [1.0]], [0, 2]).tolist() == [[1]]
    assert person_error_share(SIGN.value, np.zeros((0, 1)), []).tolist() == [[0.0]]


def test_everybodys_shares_are_those_of_each_alone() -> None:
    rng = np.random.default_rng(3)
    people = np.array([0, 0, 3, 4, 4, 9])
    inputs, labels = rng.normal(size=(9, 1)), rng.integers(0, 2, size=9)

    together = error_shares(
        SIGN.value.architecture,  # type: ignore[arg-type]
        SIGN.value.theta,
        Examples(inputs=inputs, labels=labels, people=people),
    )

    alone = [
        person_error_share(SIGN.value, inputs[first:stop], labels[first:stop])[0]
        for first, stop in itertools.pairwise(people)
    ]
    np.testing.assert_array_equal(together, alone)


def test_images_go_through_the_feature_map() -> None:
    mapped = ModelDefinition(
        architecture=Softmax(inputs=1, classes=2),
        features=Pixels(height=1, width=1),
        theta=np.array([1.0, -1.0, -0.5, 0.5]),  # class 0 above half of white
    )

    images = np.array([[[0]], [[127]], [[128]], [[255]]], dtype=np.uint8)

    assert person_error_share(mapped, images, [0, 0, 0, 0]).tolist() == [[0.5]]


@pytest.mark.parametrize("labels", [[0.5], "a", [[1]], [None], [0, 1]])
def test_labels_that_fit_no_example_are_refused(labels: Any) -> None:
    with pytest.raises(ParameterError, match="labels"):
        person_error_share(SIGN.value, [[1.0]], labels)


def test_a_module_is_not_looked_for() -> None:
    path = Module(path="nowhere.at_all:Net", inputs=1, classes=2, parameters=4)

    with pytest.raises(UnsupportedError, match=r"nowhere\.at_all:Net is not supported"):
        person_error_share(
            ModelDefinition(architecture=path, theta=np.zeros(4)), np.zeros((1, 1)), [0]
        )


# ---- which values are values -------------------------------------------------------------------


@pytest.mark.parametrize("on_grid", [False, True])
def test_whatever_is_no_value_becomes_the_reference_and_whatever_is_one_is_known(
    on_grid: bool,
) -> None:
    mechanism = mechanism_for(
        STUDY.value,
        round_of(STUDY, ErrorCount(model_hash=SIGN.hash, parameters=4, on_grid=on_grid), number=1),
    )
    assert isinstance(mechanism, GaussianLinear)
    values = np.array([[0.0], [1.0], [0.25], [1 / 3], [2.0], [np.nan], [np.inf], [-np.inf]])

    sound = mechanism.sound(values)

    assert sound.tolist() == [True, True, True, not on_grid, not on_grid, False, False, False]
    with pytest.raises(ParameterError, match="values must be of shape"):
        mechanism.sound(np.zeros((2, 2)))
