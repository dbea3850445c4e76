import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from demur_client.sources.base import evaluate_query
from demur_proto.arrays import Values
from demur_proto.queries import Feature, Linear

QUERY = Linear(
    features=(Feature(name="a", parameters={"day": 2.0}), Feature(name="b")),
    dimension=3,
    clip=10.0,
    sigma=1.0,
    grid_exponent=-14,
    on_grid=True,
)


class Source:
    """A person's data: what each feature gives, or does."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers

    def evaluate(self, feature: Feature) -> Values:
        answer = self._answers[feature.name]
        result: Values = answer(feature) if callable(answer) else answer
        return result


def test_features_stand_side_by_side_in_the_order_of_the_query() -> None:
    source = Source(
        a=lambda feature: np.array([[feature.parameters["day"]]]), b=np.array([[3.0, 4.0]])
    )

    value = evaluate_query(QUERY, source)

    assert value is not None
    assert value.tolist() == [[2.0, 3.0, 4.0]]
    assert value.dtype == np.float64


@pytest.mark.parametrize("answer", [5, 5.0, [5], [[5]], np.float32(5), True, np.array(5)])
def test_any_shape_of_one_number_is_one_coordinate(answer: Any) -> None:
    value = evaluate_query(QUERY, Source(a=answer, b=[1, 2]))

    assert value is not None
    assert value.tolist() == [[1 if answer is True else 5, 1, 2]]


@pytest.mark.parametrize(
    "answer",
    [None, "text", {}, object(), [], [1, 2, 3], [[1], [2, 3]], np.zeros((2, 2)), 1j, [None]],
)
def test_what_is_not_the_right_number_of_numbers_is_a_failure_or_not_finite(answer: Any) -> None:
    value = evaluate_query(QUERY, Source(a=answer, b=[1, 2]))

    assert value is None or np.isnan(value).any()  # either becomes a cover report


def raising(error: BaseException) -> Callable[[Feature], Values]:
    def evaluate(feature: Feature) -> Values:
        raise error

    return evaluate


class Odd(BaseException):
    """An exception that is no Exception."""


@pytest.mark.parametrize(
    "error",
    [ValueError("42"), KeyError(), MemoryError(), RecursionError(), StopIteration(), Odd()],
    ids=repr,
)
def test_no_failure_of_the_data_leaves(error: BaseException) -> None:
    assert evaluate_query(QUERY, Source(a=raising(error), b=[1])) is None


def test_a_source_that_would_end_the_process_does_not() -> None:
    assert evaluate_query(QUERY, Source(a=lambda feature: sys.exit(3), b=[1])) is None


def test_a_source_without_the_feature_is_a_failure() -> None:
    assert evaluate_query(QUERY, Source(a=[1])) is None


def test_the_owner_can_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt):
        evaluate_query(QUERY, Source(a=raising(KeyboardInterrupt()), b=[1]))


def test_the_value_is_a_copy_of_the_owners_data() -> None:
    data = np.array([[1.0, 2.0]])

    value = evaluate_query(
        replace(QUERY, features=(Feature(name="a"),), dimension=2), Source(a=data)
    )
    assert value is not None
    value += 1

    assert data.tolist() == [[1.0, 2.0]]
