"""A question that makes its study: one that the study would not allow leaves no study behind."""

from typing import Any

import pytest

from demur_proto.errors import ParameterError
from demur_proto.queries import Feature
from demur_server.commands.question import Question

NEW = {"minimum_cohort": 2}


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"weights": "1,nan"}, "^weights must be finite numbers, got nan$"),
        ({"weights": "1,2;3"}, "^weights must be rows of one length"),
        ({"weights": "1;2"}, "^dimension must be <= 1, the study's most, got 2$"),
        ({"dimension": 2}, "^dimension must be <= 1, the study's most, got 2$"),
        ({"clip": 2.0, "on_grid": True, "grid_exponent": 3}, "^grid_exponent must be"),
        ({"categories": 4, "question_epsilon": 50.0}, "^epsilon must be less: no device"),
    ],
    ids=str,
)
def test_a_first_question_that_cannot_be_put_makes_no_study(
    told: dict[str, Any], said: str
) -> None:
    with pytest.raises(ParameterError, match=said) as caught:
        Question.read([Feature(name="x")], {**NEW, **told}).study([], "new")

    assert len(str(caught.value).splitlines()) == 1


def test_a_first_question_that_can_be_put_makes_one() -> None:
    told = {**NEW, "weights": "1,0.5;0,-1", "maximum_dimension": 2}

    study = Question.read([Feature(name="x")], told).study([], "new")

    assert (study.name, study.maximum_dimension) == ("new", 2)
