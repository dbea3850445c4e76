"""What a training refuses or says plainly, each in one line."""

from dataclasses import replace
from typing import Any

import pytest

from demur_proto.errors import ParameterError
from demur_sim.training.run import run_training
from demur_sim.training.scenario import TrainingScenario
from demur_sim.training.scenario_parts import Counts, Source

FEW = TrainingScenario(
    name="few",
    budget=2,
    steps=3,
    data=Source(people=60),
    features={"map": "oriented_gradients", "cell": 7, "block": 1, "bins": 4},
)
COUNTED = replace(FEW, counts=Counts(every=1, errors=0.2, halts=0.1, most_halts=1.0))


@pytest.mark.parametrize("changes", [{}, {"arithmetic": "float"}, {"noise": "summed"}])
def test_no_training_claims_a_process_for_each_device(changes: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="fidelity must be cohort or processes, in a training"):
        run_training(replace(FEW, **changes), fidelity="device")


def test_a_name_cuts_nothing_off_a_statement_in_floats() -> None:
    named = replace(COUNTED, name="a Noise: b", arithmetic="float")

    said = run_training(named, workers=1).statement

    for part in (
        "(a Noise: b: halts)",
        "Neighbour: zero-out",
        "View: aggregate",
        "arbitrary people",
    ):
        assert part in said


def test_a_statement_in_floats_says_that_counts_are_none() -> None:
    floats = replace(COUNTED, arithmetic="float")

    assert "Counts beside the gradients are integers" in run_training(floats, workers=1).statement
    without = run_training(replace(floats, counts=Counts()), workers=1).statement
    assert "Counts beside" not in without
