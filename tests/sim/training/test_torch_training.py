"""Trainings of torch modules by their import path."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demur_proto.errors import ParameterError
from demur_sim.cli import main
from demur_sim.training.run import run_training
from demur_sim.training.scenario import (
    Arithmetic,
    Counts,
    Descent,
    Learner,
    Net,
    Source,
    TrainingScenario,
)


def a_file(folder: Path) -> Path:
    """Two clouds that a line parts, 42 numbers to an example, and a third class between."""
    rng = np.random.default_rng(1)
    labels = np.arange(300) % 3
    inputs = rng.normal(size=(300, 42)) + 2 * (labels[:, None] - 1)
    path = folder / "clouds.npz"
    arrays: dict[str, Any] = {"x_train": inputs[:240], "y_train": labels[:240]}
    np.savez(path, **arrays, x_test=inputs[240:], y_test=labels[240:])
    return path


def a_scenario(folder: Path, **changes: Any) -> TrainingScenario:
    settings: dict[str, Any] = {
        "name": "module",
        "epsilon": 50.0,
        "budget": 10,
        "steps": 10,
        "data": Source(source=str(a_file(folder))),
        "model": Learner(architecture=Net.MODULE, module="torch_kit:small_chain"),
        "optimiser": Descent(rate=3.0),
        "counts": Counts(every=5, errors=0.2),
    }
    return TrainingScenario(**{**settings, **changes})


@pytest.fixture
def torch() -> Any:
    """The package; where it is not installed, the test is skipped with a line that says so."""
    return pytest.importorskip("torch", reason="torch is not installed: see make test-torch")


@pytest.mark.parametrize("arithmetic", list(Arithmetic))
def test_a_module_trains_and_its_errors_are_counted(
    torch: Any, arithmetic: Arithmetic, tmp_path: Path
) -> None:
    scenario = a_scenario(tmp_path, arithmetic=arithmetic)

    one, two = (run_training(scenario, workers=workers) for workers in (1, 2))

    assert one.theta_sha256 == two.theta_sha256
    assert one.state.errors == two.state.errors
    assert len(one.theta) == 558
    assert one.test_accuracy > 0.5  # guessing is right about one in three
    assert (one.ending.spent <= one.design.study.value.budget_units).all()
    assert all(abs(each.value) <= 240 + 5 * each.standard_error for each in one.state.errors)


def test_the_paths_of_scenarios_and_files_are_of_the_command_too(
    torch: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toml = a_file(tmp_path).with_name("own.toml")
    toml.write_text(
        'name = "own"\nkind = "training"\nsteps = 2\nbudget = 2\n'
        'data = {source = "clouds.npz"}\n'
        'model = {architecture = "module", module = "torch_kit:small_chain"}\n'
    )

    assert main(["train", str(toml), "--out", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == 558


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("torch_kit:nothing", "model.module must be a module that can be imported"),
        ("nowhere.at_all:Net", "model.module must be a module that can be imported"),
        ("torch_kit:no_module", "model.module must be what makes an nn.Module"),
        ("torch_kit:NOT_A_MODULE", "model.module must be what makes an nn.Module"),
        ("torch_kit:places_chain", "inputs must be what the module takes"),
    ],
)
def test_what_is_no_module_is_refused_in_one_line(
    torch: Any, path: str, message: str, tmp_path: Path
) -> None:
    scenario = a_scenario(tmp_path, model=Learner(architecture=Net.MODULE, module=path))

    with pytest.raises(ParameterError, match=message) as caught:
        run_training(scenario)

    assert len(str(caught.value).splitlines()) == 1


def test_processes_train_no_modules_and_say_so_first(tmp_path: Path) -> None:
    with pytest.raises(
        ParameterError, match=r"model\.architecture must be softmax or hidden_layer"
    ):
        run_training(a_scenario(tmp_path), fidelity="processes")


def test_without_torch_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    module = ["model.architecture=module", "model.module=torch_kit:small_chain"]
    sets = [each for one in (f"data.source={a_file(tmp_path)}", *module) for each in ("--set", one)]
    toml = tmp_path / "own.toml"
    toml.write_text('name = "own"\nkind = "training"\n')

    assert main(["train", str(toml), *sets, "--out", str(tmp_path)]) == 1

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("demur: error: ")
    assert "pip install 'demur[torch]'" in line
