"""Weights of linear questions: a public matrix, the same bits everywhere, and no other numbers."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counting_kit import a_study
from demur_proto.errors import ParameterError, WireError
from demur_proto.queries import Feature, Linear, Weights
from demur_proto.round import round_of
from demur_proto.v1 import round_pb2
from demur_proto.wire.definition import define_round, read_round

STUDY = a_study(maximum_dimension=8)
X, Y = Feature(name="x"), Feature(name="y")
MATRIX = [[1.0, 2.0, 0.0], [0.5, -1.0, 3.0]]


def test_weighted_questions_come_back_as_they_were_written() -> None:
    asked = define_round(round_of(STUDY, Linear([X, Y], weights=Weights.of(MATRIX)), number=1))

    read = read_round(asked.definition, study=STUDY).value

    assert read == asked.value
    assert read.query.weights == Weights(((1.0, 2.0, 0.0), (0.5, -1.0, 3.0)))  # type: ignore[attr-defined]
    assert read.query.value_length == 2


def test_without_weights_a_question_is_the_bytes_that_it_was_before_there_were_any() -> None:
    message = round_pb2.Round.FromString(
        define_round(round_of(STUDY, Linear([X, Y]), number=1)).definition
    )

    assert not message.linear.weights


numbers = st.floats(-1e6, 1e6)


@settings(max_examples=40, deadline=None)
@given(
    matrix=st.integers(1, 4).flatmap(
        lambda width: st.lists(
            st.lists(numbers, min_size=width, max_size=width), min_size=1, max_size=4
        )
    ),
    seed=st.integers(0, 99),
)
def test_each_persons_value_is_the_matrix_times_theirs_whoever_else_is_there(
    matrix: list[list[float]], seed: int
) -> None:
    values = np.random.default_rng(seed).normal(size=(5, len(matrix[0])))
    weights = Weights.of(matrix)

    found = weights.apply(values)

    np.testing.assert_allclose(found, values @ np.array(matrix).T, rtol=1e-12, atol=1e-6)
    alone = [weights.apply(values[at : at + 1]) for at in range(5)]
    assert found.tobytes() == np.concatenate(alone).tobytes()


def test_a_number_that_is_none_makes_none() -> None:
    found = Weights.of([[0.0, 1.0], [1.0, 0.0]]).apply(np.array([[np.nan, 1.0], [1.0, np.inf]]))

    assert np.isnan(found[0]).all()
    assert not np.isfinite(found[1]).any()


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"weights": [[math.nan, 1.0]]}, "weights"),
        ({"weights": [[math.inf, 1.0]]}, "weights"),
        ({"weights": [[10**400, 1.0]]}, "weights"),
        ({"weights": [["a", 1.0]]}, "weights"),
        ({"weights": [[True, 1.0]]}, "weights"),
        ({"weights": [[1.0, 2.0], [1.0]]}, "weights"),
        ({"weights": []}, "weights"),
        ({"weights": [[]]}, "weights"),
        ({"weights": 3}, "weights"),
        ({"weights": [1.0, 2.0]}, "weights"),
        ({"weights": np.ones((1, 4097))}, "weights"),
        ({"weights": [[1.0, 2.0]], "dimension": 2}, "dimension"),
        ({"weights": [[1.0]]}, "dimension"),  # two features give two numbers at least
    ],
    ids=lambda each: str(each)[:30],
)
def test_weights_that_are_none_are_refused_in_one_line(wrong: dict[str, Any], name: str) -> None:
    with pytest.raises(ParameterError, match=f"^{name} must be") as caught:
        round_of(
            STUDY, Linear([X, Y], **{**wrong, "weights": Weights.of(wrong["weights"])}), number=1
        )

    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("weights", [[1.0] * 5, [math.nan, 1.0, 1.0, 1.0], [1.0, 2.0]], ids=str)
def test_a_message_whose_weights_do_not_fit_is_refused(weights: list[float]) -> None:
    asked = define_round(round_of(STUDY, Linear([X, Y], weights=Weights.of(MATRIX)), number=1))
    message = round_pb2.Round.FromString(asked.definition)
    message.linear.ClearField("weights")
    message.linear.weights.extend(weights)

    with pytest.raises(WireError, match=r"weights|dimension"):
        read_round(message.SerializeToString(), study=STUDY)
