"""What a training refuses or says plainly, each in one line."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demur_proto.errors import DataError, ParameterError
from demur_server.training.checkpoints import Checkpoint, load_checkpoint, save_checkpoint
from demur_server.training.trainer import TrainingState
from demur_sim.training.results import TrainingResult
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


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """What a training with both kinds of counts leaves after its first step."""
    path = tmp_path_factory.mktemp("kept") / "checkpoint.npz"

    class Killed(Exception):
        pass

    def kill(state: TrainingState, accuracy: float) -> None:
        raise Killed

    with pytest.raises(Killed):
        run_training(COUNTED, workers=1, checkpoint=path, progress=kill)
    return load_checkpoint(path)


def goes_on(checkpoint: Checkpoint, folder: Path, *, fidelity: str = "cohort") -> TrainingResult:
    save_checkpoint(checkpoint, folder / "x.npz")
    return run_training(
        COUNTED, workers=1, fidelity=fidelity, checkpoint=folder / "x.npz", resume=True
    )


def test_what_processes_kept_goes_on_in_processes_only(kept: Checkpoint, tmp_path: Path) -> None:
    nobody = replace(kept, extra={name: kept.extra[name] for name in kept.extra if "curve" in name})

    with pytest.raises(DataError, match="go on with the fidelity processes"):
        goes_on(nobody, tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"theta": np.zeros(3)},
        {"total": np.zeros(3)},
        {"best": np.zeros(3)},
        {"memory": ()},
        {"memory": (np.zeros(3),)},
    ],
    ids=["theta", "average", "best", "no memory", "memory"],
)
def test_a_state_of_another_model_does_not_go_on(
    kept: Checkpoint, changes: dict[str, Any], tmp_path: Path
) -> None:
    other = replace(kept, state=replace(kept.state, **changes))

    with pytest.raises(DataError, match="the checkpoint is of no training with 170 parameters"):
        goes_on(other, tmp_path)


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("devices.spent", np.full(60, -1), "spent less than nothing, or more than all"),
        ("devices.spent", np.full(60, 1 << 62), "spent less than nothing, or more than all"),
        ("errors.spent", np.full(60, 1 << 62), "spent less than nothing, or more than all"),
        ("halts.since", np.full(60, 2), "changes at none of its 1 counts"),
        ("curve.accuracy", np.zeros(0), "has no curve of 1 steps"),
        ("curve.active", np.zeros(2), "has no curve of 1 steps"),
    ],
)
def test_what_no_run_can_have_kept_does_not_go_on(
    kept: Checkpoint, name: str, values: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=said):
        goes_on(replace(kept, extra={**kept.extra, name: values}), tmp_path)


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
