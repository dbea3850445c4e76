"""The files that keep a training."""

import csv
from pathlib import Path
from typing import Any

from demur_sim.result_files import write_files, write_json
from demur_sim.training.results import TrainingResult

CHECKPOINT = "checkpoint.npz"  #: in the folder of a training
MODEL = "model.bin"  #: the bytes of the final model's definition


def save_training(result: TrainingResult, folder: Path) -> None:
    """Write a training's files; see `write_files`.

    Raises:
        DataError: a file cannot be written.
    """
    write_files(
        {
            MODEL: lambda path: path.write_bytes(result.model.definition),
            "curve.csv": lambda path: _write_curve(result, path),
            "studies.json": lambda path: write_json(_studies(result), path),
            "plot.png": lambda path: _draw(result, path),
            "summary.json": lambda path: write_json(result.summary(), path),
        },
        folder,
    )


def _draw(result: TrainingResult, path: Path) -> None:
    from demur_sim.training import plots  # matplotlib takes a while to load

    plots.draw(result, path)


def _write_curve(result: TrainingResult, path: Path) -> None:
    """One line for each step."""
    errors = {count.step: count for count in result.state.errors}
    halts = {count.step: count for count in result.state.halts}
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(
            [
                *("step", "accuracy", "errors", "errors_standard_error"),
                *("halts", "halts_standard_error", "simulator_truth_active"),
            ]
        )
        for step in range(1, result.steps + 1):
            row: list[object] = [step, result.accuracies[step - 1]]
            for counts in (errors, halts):
                count = counts.get(step)
                row += ["", ""] if count is None else [count.value, count.standard_error]
            rows.writerow([*row, int(result.actives[step - 1])])


def _studies(result: TrainingResult) -> dict[str, Any]:
    design = result.design
    return {
        "statement": result.statement,
        "studies": {
            name: {
                "name": each.value.name,
                "hash": each.hash.hex(),
                "definition": each.definition.hex(),
                "view": str(each.value.view),
                "measure": str(each.value.measure),
                "policy": str(each.value.policy),
                "budget": each.value.budget,
                "budget_units": each.value.budget_units,
                "epsilon": each.value.epsilon,
                "delta": each.value.delta,
                "minimum_cohort": each.value.minimum_cohort,
                "dishonest": each.value.dishonest,
                "horizon": each.value.horizon,
                "base_sigma": each.value.base_sigma,
                "base_grid_exponent": each.value.base_grid_exponent,
            }
            for name, each in (
                ("gradients", design.study),
                ("errors", design.errors),
                ("halts", design.halts),
            )
            if each is not None
        },
    }
