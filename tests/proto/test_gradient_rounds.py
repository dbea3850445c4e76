"""Gradient rounds as values and bytes, and a person's own gradient."""

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from demur_proto.errors import ParameterError, UnsupportedError, WireError
from demur_proto.models.architectures import Softmax
from demur_proto.models.definition import ModelDefinition, Module, define_model
from demur_proto.models.features import Pixels
from demur_proto.models.gradients import model_of, person_gradient
from demur_proto.queries import Feature, Gradient, Linear
from demur_proto.queries.registry import mechanism_for
from demur_proto.round import round_of
from demur_proto.study import Measure, MechanismFamily, Study, View, design_study
from demur_proto.v1 import round_pb2
from demur_proto.wire.definition import Defined, define_round, define_study, read_round
from demur_proto.wire.frames import PIECE_BYTES, Pieces, largest_definition, pieces_of
from demur_proto.wire.words import WordType

MODEL = define_model(
    ModelDefinition(
        architecture=Softmax(inputs=2, classes=2),
        theta=np.array([1.0, -1.0, 0.5, 0.0, 0.25, 0.0]),
    )
)


def a_study(**changes: Any) -> Defined[Study]:
    options = {"grid_exponent": -15, "maximum_dimension": 100, "minimum_cohort": 4, **changes}
    return define_study(design_study(name="g", epsilon=1.0, delta=1e-6, answers=3, **options))


STUDY = a_study()
ASKED = define_round(
    round_of(STUDY, Gradient(model_hash=MODEL.hash, dimension=6, clip=0.75), number=1)
)


def message() -> round_pb2.Round:
    return round_pb2.Round.FromString(ASKED.definition)


def test_a_gradient_round_survives_the_wire() -> None:
    assert read_round(ASKED.definition, study=STUDY) == ASKED
    assert ASKED.value.query == Gradient(
        model_hash=MODEL.hash,
        dimension=6,
        clip=0.75,
        sigma=STUDY.value.base_sigma,
        grid_exponent=-15,
    )


def test_it_has_the_mechanism_weight_and_promise_of_a_linear_round_off_the_grid() -> None:
    features = [Feature(name=f"f{number}") for number in range(6)]
    linear = round_of(STUDY, Linear(features, clip=0.75), number=1)

    assert mechanism_for(STUDY.value, ASKED.value) == mechanism_for(STUDY.value, linear)
    assert (ASKED.value.weight, ASKED.value.word_type) == (linear.weight, WordType.INT32)
    of_gradient = ASKED.value.query.guarantee_in(STUDY.value)
    assert of_gradient == linear.query.guarantee_in(STUDY.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("model_hash", bytes(31)), ("model_hash", "x" * 32), ("dimension", 0), ("clip", 0.0)),
        *(("sigma", float("nan")), ("grid_exponent", -13), ("grid_exponent", 1.0)),
    ],
)
def test_fields_outside_their_range_are_refused(field: str, value: Any) -> None:
    query = ASKED.value.query
    assert isinstance(query, Gradient)

    with pytest.raises(ParameterError, match=field):
        replace(query, **{field: value})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda each: setattr(each, "on_grid", True), "on_grid must be unset in a gradient round"),
        (lambda each: setattr(each.gradient, "model_hash", b""), "model_hash must be a SHA-256"),
        (lambda each: setattr(each, "dimension", 101), "dimension must be <= 100"),
        (lambda each: setattr(each, "weight", 1), "weight must be"),
        (lambda each: setattr(each, "grid_exponent", -12), "grid_exponent must be at most -15"),
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


def test_a_study_of_histograms_alone_has_no_gradients() -> None:
    pure = a_study(
        view=View.LOCAL,
        measure=Measure.ZCDP,
        mechanism_family=MechanismFamily.MIXED,
        minimum_cohort=1,
    )
    asked = round_of(pure, Gradient(model_hash=MODEL.hash, dimension=6), number=1)
    assert asked.query.value_length == 6
    from demur_proto.accounting.histograms import design_histogram_study

    alone = define_study(
        design_histogram_study(name="h", epsilon=1.0, delta=1e-6, minimum_cohort=1, categories=4)
    )
    with pytest.raises(ParameterError, match="query must be a histogram"):
        round_of(alone, Gradient(model_hash=MODEL.hash, dimension=6), number=1)


# ---- a person's gradient -----------------------------------------------------------------------


def loss(theta: Any, inputs: Any, labels: Any) -> float:
    """Mean cross-entropy by the textbook."""
    scores = np.asarray(inputs) @ theta[:4].reshape(2, 2) + theta[4:]
    likelihoods = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    return float(-np.log(likelihoods[np.arange(len(labels)), labels]).mean())


def test_it_is_the_derivative_of_the_mean_loss_over_all_examples() -> None:
    inputs, labels = [[1.0, 2.0], [-1.0, 0.5], [0.0, 3.0]], [1, 0, 1]
    step = 1e-6

    found = person_gradient(MODEL.value, inputs, labels)

    differences = [
        (
            loss(MODEL.value.theta + direction, inputs, labels)
            - loss(MODEL.value.theta - direction, inputs, labels)
        )
        / (2 * step)
        for direction in step * np.eye(6)
    ]
    np.testing.assert_allclose(found, [differences], rtol=0, atol=1e-9)


def test_nobody_learns_from_nothing_or_from_a_label_that_is_no_class() -> None:
    assert person_gradient(MODEL.value, np.zeros((0, 2)), []).tolist() == [[0.0] * 6]
    assert np.isnan(person_gradient(MODEL.value, [[1.0, 2.0]], [2])).any()


def test_images_go_through_the_feature_map() -> None:
    mapped = ModelDefinition(
        architecture=Softmax(inputs=2, classes=2),
        features=Pixels(height=1, width=2),
        theta=MODEL.value.theta,
    )
    image = np.array([[[0, 255]]], dtype=np.uint8)

    found = person_gradient(mapped, image, [1])

    np.testing.assert_array_equal(found, person_gradient(MODEL.value, [[0.0, 1.0]], [1]))


@pytest.mark.parametrize("labels", [[0.5], "a", [[1]], [None]])
def test_labels_that_are_no_integers_are_refused(labels: Any) -> None:
    with pytest.raises(ParameterError, match="labels"):
        person_gradient(MODEL.value, [[1.0, 2.0]], labels)


def test_another_model_or_another_size_is_refused() -> None:
    query = ASKED.value.query
    assert isinstance(query, Gradient)
    other = define_model(
        ModelDefinition(architecture=Softmax(inputs=1, classes=2), theta=np.zeros(4))
    )

    query.check_model(MODEL)
    with pytest.raises(WireError, match="another model"):
        query.check_model(other)
    with pytest.raises(WireError, match="dimension must be 6, the number of the model's"):
        replace(query, dimension=7).check_model(MODEL)
    assert other.parameters == 4


def test_a_module_is_not_looked_for() -> None:
    path = Module(path="nowhere.at_all:Net", inputs=2, classes=2, parameters=6)

    with pytest.raises(UnsupportedError, match=r"nowhere\.at_all:Net is not supported"):
        model_of(ModelDefinition(architecture=path, theta=np.zeros(6)))


# ---- pieces ------------------------------------------------------------------------------------


def test_pieces_put_together_are_the_definition() -> None:
    definition = np.random.default_rng(1).bytes(PIECE_BYTES + 12_345)
    pieces = Pieces(most_bytes=len(definition))

    for piece in pieces_of(definition):
        pieces.add(piece)

    assert pieces.size == len(definition)
    assert hashlib.sha256(pieces.whole()).digest() == hashlib.sha256(definition).digest()


@pytest.mark.parametrize(
    ("piece", "complaint"),
    [
        (b"", "a piece of a model is 1 to"),
        (bytes(PIECE_BYTES + 1), "a piece of a model is 1 to"),
        (b"678901", "takes at most 10 bytes, and more"),
    ],
)
def test_pieces_that_are_too_large_or_nothing_are_refused(piece: bytes, complaint: str) -> None:
    pieces = Pieces(most_bytes=10)
    pieces.add(b"12345")

    with pytest.raises(WireError, match=complaint):
        pieces.add(piece)


def test_no_definition_is_larger_than_its_parameters_allow() -> None:
    assert len(MODEL.definition) <= largest_definition(6)
    wide = Softmax(inputs=(1 << 15) - 1, classes=8)
    whole = define_model(ModelDefinition(architecture=wide, theta=np.ones(wide.parameters)))
    assert wide.parameters == 1 << 18
    assert len(whole.definition) <= largest_definition(wide.parameters)
