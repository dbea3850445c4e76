from typing import Any

import numpy as np
import pytest

from demur_proto.errors import ParameterError
from demur_proto.models.base import Examples

GOOD: dict[str, Any] = {
    "inputs": np.zeros((3, 2)),
    "labels": np.array([0, 1, 0]),
    "people": np.array([0, 1, 1, 3]),
}


def test_blocks_of_people_hold_what_they_own() -> None:
    examples = Examples(
        inputs=np.arange(6.0).reshape(3, 2), labels=np.array([4, 5, 6]), people=GOOD["people"]
    )

    first, rest, nobody = (examples.of_people(*pair) for pair in ((0, 1), (1, 3), (2, 2)))

    assert first.labels.tolist() == [4]
    assert (rest.labels.tolist(), rest.people.tolist()) == ([5, 6], [0, 0, 2])
    assert rest.inputs.tolist() == [[2.0, 3.0], [4.0, 5.0]]
    assert (nobody.number_of_people, len(nobody.inputs)) == (0, 0)
    assert np.shares_memory(rest.inputs, examples.inputs)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("inputs", np.zeros(3)),
        ("inputs", np.zeros((3, 2), dtype=np.int64)),
        ("inputs", np.zeros((3, 2), dtype=np.float16)),
        ("labels", np.array([0, 1])),
        ("labels", np.array([0.0, 1.0, 0.0])),
        ("labels", np.array([0, 1, 0], dtype=np.uint8)),
        ("people", np.array([0, 1, 2])),
        ("people", np.array([1, 2, 3])),
        ("people", np.array([0, 2, 1, 3])),
        ("people", np.array([], dtype=np.int64)),
        ("people", np.array([0.0, 3.0])),
        ("people", np.array([[0, 3]])),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused_in_one_line(name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=f"^{name} must be ") as caught:
        Examples(**{**GOOD, name: value})

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("people", [(-1, 2), (2, 1), (0, 4), (0.0, 1), (True, 1)])
def test_people_who_are_not_there_are_refused(people: Any) -> None:
    with pytest.raises(ParameterError, match="must be an integer from"):
        Examples(**GOOD).of_people(*people)


def test_nothing_of_a_person_is_in_the_repr() -> None:
    assert repr(Examples(**GOOD)) == "Examples()"
