"""What a training refuses or says plainly, each in one line."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from demur_proto.errors import DataError, ParameterError, StateError
from demur_proto.study import View
from demur_server.training.trainer import (
    Checkpoint,
    TrainingState,
    load_checkpoint,
    save_checkpoint,
)
from demur_sim.cli import main
from demur_sim.training.plots import draw
from demur_sim.training.results import TrainingResult
from demur_sim.training.run import run_training
from demur_sim.training.scenario import Arithmetic, Counts, Source, TrainingScenario, load_training
from demur_sim.training.torch_models import made

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
    named = replace(COUNTED, name="a Noise: b", arithmetic=Arithmetic.FLOAT)

    said = run_training(named, workers=1).statement

    for part in (
        "(a Noise: b: halts)",
        "Neighbour: zero-out",
        "View: aggregate",
        "arbitrary people",
    ):
        assert part in said


def test_a_statement_in_floats_says_that_counts_are_none() -> None:
    floats = replace(COUNTED, arithmetic=Arithmetic.FLOAT)

    assert "Counts beside the gradients are integers" in run_training(floats, workers=1).statement
    without = run_training(replace(floats, counts=Counts()), workers=1).statement
    assert "Counts beside" not in without


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("clip=1e-300", r"clip in --set must be from 1e-250 to 1e\+250, got 1e-300"),
        ("clip=1e300", r"clip in --set must be from 1e-250 to 1e\+250"),
        ("data.alpha=1e-300", r"data\.alpha in --set must be 0, or from 1e-06 to 1e\+06"),
    ],
)
def test_a_key_beyond_what_there_is_a_grid_or_a_law_for_is_named(override: str, said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        load_training("digits", overrides=[override])


@pytest.mark.parametrize(
    ("scenario", "said"),
    [
        (replace(FEW, arithmetic=Arithmetic.FLOAT, clip=1e-160), "clip must be nearer to 1"),
        (replace(FEW, epsilon=1e3), "delta must be > 1, .* a smaller epsilon needs less"),
        (replace(COUNTED, epsilon=1e3), "delta must be above 3, .* a smaller epsilon needs less"),
        (replace(COUNTED, epsilon=1e-9), "epsilon must be more at delta 1e-05, so that 0.1 of it"),
        (
            replace(FEW, counts=Counts(every=1, errors=1e-30)),
            "so that 1e-30 of it, the share of one study, has",
        ),
    ],
    ids=["clip", "large epsilon", "large epsilon of several", "small epsilon", "errors"],
)
def test_what_does_not_fit_is_told_by_a_key_that_there_is(
    scenario: TrainingScenario, said: str
) -> None:
    with pytest.raises(ParameterError, match=said):
        run_training(scenario, workers=1)


def an_archive(path: Path, *, white: float) -> str:
    images, labels = np.full((4, 2, 2), white), np.array([0, 1, 0, 1])
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)
    return str(path)


def test_examples_to_test_on_that_overflow_a_feature_map_are_refused(tmp_path: Path) -> None:
    source = Source(source=an_archive(tmp_path / "huge.npz", white=1e300))

    with pytest.raises(DataError, match="huge: test: expected examples of finite features"):
        run_training(replace(FEW, data=source, features={"map": "pixels"}), workers=1)


def test_a_run_with_other_examples_to_test_on_does_not_go_on(tmp_path: Path) -> None:
    kept, file = tmp_path / "x.npz", tmp_path / "data.npz"
    scenario = replace(
        FEW, data=Source(source=an_archive(file, white=9)), features={"map": "pixels"}
    )
    run_training(scenario, workers=1, checkpoint=kept)
    with np.load(file) as arrays:
        np.savez(file, **{**arrays, "x_test": arrays["x_test"] + 1})

    with pytest.raises(StateError, match="other settings: examples to test on was"):
        run_training(scenario, workers=1, checkpoint=kept, resume=True)


def test_a_folder_of_an_impossible_name_holds_nothing_to_go_on_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "digits", "--resume", "--out", "x" * 300]) == 1

    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("checkpoint.npz: cannot be read: File name too long")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("1 / 0", r"imported \(ZeroDivisionError: division by zero\)"),
        ("make = (", r"imported \(SyntaxError: '\(' was never closed"),
        ("def make(size): ...", r"called without arguments \(TypeError: make\(\) missing 1"),
        ("def make(): raise ValueError('two\\nlines')", r"arguments \(ValueError: two lines\)"),
    ],
)
def test_what_the_code_of_a_module_raises_is_one_line(
    code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_failing_module.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "a_failing_module", raising=False)
    torch = SimpleNamespace(nn=SimpleNamespace(Module=type("Module", (), {})))  # nothing is made

    with pytest.raises(ParameterError, match=said):
        made(torch, "a_failing_module:make")


@pytest.mark.parametrize("name", [5, ["pixels"], {"pixels": 1}, None])
def test_what_is_no_name_of_a_feature_map_is_refused(name: Any) -> None:
    with pytest.raises(ParameterError, match=r"features\.map must be pixels or "):
        replace(FEW, features={"map": name})


def test_a_title_with_dollars_is_drawn_as_it_is(tmp_path: Path) -> None:
    result = run_training(replace(FEW, title=r"$\frac$ of a dollar"), workers=1)

    draw(result, tmp_path / "plot.png")

    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_noise_that_fits_no_word_is_told_by_the_promise_that_needs_it() -> None:
    scenario = replace(FEW, epsilon=1e-9, delta=1e-20, view=View.LOCAL, budget=1 << 30)

    with pytest.raises(ParameterError, match="epsilon of few must be more: words of its noise"):
        run_training(scenario, workers=1)
