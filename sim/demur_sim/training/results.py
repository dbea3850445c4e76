"""What a training found, and what it promised."""

import csv
import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from demur_proto.accounting.numerics import text_up
from demur_proto.arrays import Vector
from demur_proto.models.definition import DOUBLE, DefinedModel, ModelDefinition, define_model
from demur_proto.study import View
from demur_server.training.optimisers import Count
from demur_server.training.trainer import Settings, TrainingState
from demur_sim.engine.float_cohort import in_real_arithmetic
from demur_sim.engine.session import Fidelity
from demur_sim.results.files import write_files, write_json
from demur_sim.training.design import TUNING, Design
from demur_sim.training.scenario import Arithmetic, TrainingScenario
from demur_sim.training.sources import Ending

COUNTS = (
    " Counts beside the gradients are integers on a grid instead, to which each device adds noise "
    "of its own."
)
SIMULATED = (
    " This run is simulated: its noise is seeded floating point, not the exact noise that the "
    "statement rests on, so it describes the design and protects nobody."
)


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingResult:
    """A finished training."""

    scenario: TrainingScenario
    seed: int
    fidelity: Fidelity
    workers: int
    devices: int
    design: Design
    settings: Settings
    state: TrainingState
    accuracies: Vector  #: on the examples to test on, of the candidate after each step [steps]
    actives: Vector  #: simulator's truth: people not yet refused or shrunk, after each step [steps]
    test_accuracy: float  #: of the final model
    tested: int  #: on how many examples
    ending: Ending
    data_sha256: str
    wall_s: float

    @property
    def theta(self) -> Vector:
        """The final parameters [d]."""
        return self.state.final

    @cached_property
    def model(self) -> DefinedModel:
        """The final model, for a file or for devices."""
        return define_model(
            ModelDefinition(
                architecture=self.settings.architecture,
                features=self.settings.features,
                theta=self.theta,
            )
        )

    @property
    def theta_sha256(self) -> str:
        """SHA-256 of the final parameters as float64, little-endian."""
        return hashlib.sha256(self.theta.astype(DOUBLE).tobytes()).hexdigest()

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return self.state.number

    @property
    def sigma(self) -> float:
        """Standard deviation of each coordinate of a released sum, data units."""
        study = self.design.study.value
        if self.scenario.arithmetic is Arithmetic.FLOAT:
            return study.base_sigma * (self.devices**0.5 if study.view is View.LOCAL else 1)
        return self.design.mechanism.standard_error(self.devices)

    @property
    def statement(self) -> str:
        """What is promised to whom, and what not, in plain words."""
        promised = self.design.guarantee.statement
        if self.scenario.arithmetic is Arithmetic.FLOAT:
            counts = COUNTS if self.scenario.counts.every else ""
            return in_real_arithmetic(promised) + counts + TUNING + SIMULATED
        return promised + TUNING + SIMULATED

    @property
    def exhausted_fraction(self) -> float:
        """Simulator's truth: the share of devices that were refused or shrunk at least once."""
        return float(self.ending.refused.mean())

    @property
    def most_spent(self) -> float:
        """Simulator's truth: the largest share of its budget that any device spent."""
        return float(self.ending.spent.max()) / self.design.study.value.budget_units

    def summary(self) -> dict[str, Any]:
        """The training in one JSON object; the keys are a contract with other tools."""
        guarantee = self.design.guarantee
        scenario = self.scenario
        floats = scenario.arithmetic is Arithmetic.FLOAT
        return {
            "scenario": scenario.name,
            "kind": scenario.kind,
            "seed": self.seed,
            "fidelity": str(self.fidelity),
            "workers": self.workers,
            "devices": self.devices,
            "rounds": self.steps,
            "reports": self.steps * self.devices,
            "algorithm": str(scenario.algorithm),
            "arithmetic": str(scenario.arithmetic),
            "noise": "float" if floats else str(scenario.noise),
            "accuracy": self.test_accuracy,
            "tested": self.tested,
            "steps": self.steps,
            "final_step": self.state.final_step,
            "ended": self.state.ended,
            "parameters": len(self.theta),
            "theta_sha256": self.theta_sha256,
            "model_sha256": self.model.hash.hex(),
            "data_sha256": self.data_sha256,
            "guarantee": {
                "epsilon": guarantee.epsilon,
                "delta": guarantee.delta,
                "unit": "device",
                "neighbour": "zero-out",
                "view": str(guarantee.view),
                "statement": self.statement,
                "per_report_mu": None if floats else guarantee.per_report_mu,
                "per_report_epsilon": guarantee.per_report_epsilon,
                "measure": str(guarantee.measure),
                "in_measure": guarantee.budget,
                "between_two_people": {
                    "epsilon": guarantee.pair_epsilon,
                    "delta": guarantee.pair_delta,
                },
                "studies": self._studies(),
                "tuning": TUNING.strip(),
            },
            "sigma": self.sigma,
            "budget": {
                "value": scenario.budget,
                "measure": str(scenario.measure),
                "unit": "gradients at the full clip",
            },
            "counts": {
                "errors": [_count(each) for each in self.state.errors],
                "halts": [_count(each) for each in self.state.halts],
            },
            "simulator_truth": {
                "exhausted_fraction": self.exhausted_fraction,
                "largest_share_spent": self.most_spent,
                "devices_over_budget": 0,
                "active": self.actives.astype(np.int64).tolist(),
            },
            "curve": {"accuracy": self.accuracies.tolist()},
            "wall_s": self.wall_s,
            "peak_rss_mb": self.ending.peak_rss_mb,
        }

    def _studies(self) -> dict[str, dict[str, Any]]:
        """What each study is promised by itself."""
        parts = {
            "gradients": self.design.study,
            "errors": self.design.errors,
            "halts": self.design.halts,
        }
        return {
            name: {
                "hash": each.hash.hex(),
                "epsilon": each.value.epsilon,
                "delta": each.value.delta,
                "in_measure": each.value.budget,
                "base_sigma": each.value.base_sigma,
            }
            for name, each in parts.items()
            if each is not None
        }


def _count(count: Count) -> dict[str, float]:
    return {
        "step": count.step,
        "estimate": count.value,
        "standard_error": count.standard_error,
    }


def binomial_error(share: float, number: int) -> float:
    """Standard error of a share of so many examples.

    >>> binomial_error(0.5, 100)
    0.05
    """
    return math.sqrt(share * (1 - share) / number)


# The files that keep a training.

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


# What a person reads when a training has ended.


def report(result: TrainingResult, folder: Path) -> str:
    """A training in a few lines.

    Args:
        result: what to tell of.
        folder: where its files are.
    """
    guarantee = result.design.guarantee
    scenario = result.scenario
    error = binomial_error(result.test_accuracy, result.tested)
    rows = {
        "guarantee": (
            f"({text_up(guarantee.epsilon)}, {text_up(guarantee.delta)}), unit one device, "
            f"neighbour zero-out, view {guarantee.view}"
        ),
        "not included": "tuning: what was tried in order to choose the settings",
        "accuracy": (
            f"{result.test_accuracy:.2%} of {result.tested:,} examples to test on "
            f"(± {1.96 * error:.2%})"
        ),
        "steps": f"{result.steps}, model of step {result.state.final_step}: {result.state.ended}",
        "noise": (
            f"standard error {result.sigma:,.1f} of each of {len(result.theta):,} sums, "
            f"clip {scenario.clip:g}"
        ),
        "arithmetic": str(scenario.arithmetic),
        "simulated": "with seeded noise, so the run itself protects nobody",
        "refused once": f"{result.exhausted_fraction:.2%} of devices (only a simulator knows this)",
        "took": f"{result.wall_s:.1f} s",
    }
    if scenario.arithmetic is Arithmetic.FLOAT:
        rows["trusted"] = "whoever adds up, who sees gradients without noise"
    elif guarantee.view is View.AGGREGATE and guarantee.per_report_mu is not None:
        alone = text_up(guarantee.per_report_mu, digits=2)
        rows["trusted"] = f"the collector: one report on its own is only {alone}-GDP"
    rows |= {
        "results": f"{folder}/summary.json",
        "model": f"{folder}/{MODEL}",
        "picture": f"{folder}/plot.png",
    }
    size = f"{result.devices:,} devices, {scenario.algorithm}"
    lines = [
        scenario.title or scenario.name,
        f"  {size}, fidelity {result.fidelity}, seed {result.seed}",
        *(f"  {label:15}  {text}" for label, text in rows.items()),
    ]
    return "\n".join(lines)
