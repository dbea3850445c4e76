"""What a run found, and the files that keep it."""

import csv
import fcntl
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from demur_proto.arrays import Values
from demur_proto.definition import Defined
from demur_proto.errors import DataError
from demur_proto.guarantee import Guarantee, guarantee_of
from demur_proto.mechanisms.gaussian import FEWEST_NOISE_STEPS, GaussianLinear
from demur_proto.release import Release, Withheld
from demur_proto.study import Study, View
from demur_sim.scenario import Refusal, Scenario
from demur_sim.session import Aftermath, Fidelity
from demur_sim.simulation import study_of

SIMULATED = (
    " This run is simulated: its noise is seeded floating point, not the exact noise that the "
    "statement rests on, so it describes the design and protects nobody."
)
SILENT = (
    "Nothing is promised: in this run a device that is refused falls silent, which shows that its "
    "owner was active before. With cover reports the same study would keep: "
)


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """A finished run."""

    scenario: Scenario
    seed: int
    fidelity: Fidelity
    workers: int
    devices: int
    study: Defined[Study]
    releases: tuple[Release, ...]  #: in round order
    truth: Values  #: simulator's truth: the clipped sums over everyone [rounds, d], data units
    aftermath: Aftermath
    wall_s: float

    @cached_property
    def mechanism(self) -> GaussianLinear:
        """The mechanism of every round."""
        return self._mechanism(self.study.value)

    @cached_property
    def estimates(self) -> Values:
        """What was released [rounds, d], data units; NaN where it was withheld."""
        missing = (math.nan,) * self.truth.shape[1]
        return np.array([release.estimate or missing for release in self.releases])

    @cached_property
    def active_truth(self) -> Values:
        """Simulator's truth: the sums over those who contributed [rounds, d], data units."""
        return np.ldexp(
            np.array(self.aftermath.contributed, dtype=np.float64), self.scenario.grid_exponent
        )

    @property
    def sigma(self) -> float:
        """Standard deviation of a released sum, data units."""
        return self.mechanism.standard_error(self.devices)

    @cached_property
    def local_sigma(self) -> float:
        """The same in view `local`, for the same guarantee and budget, data units."""
        return self._mechanism(self._study(view=View.LOCAL)).standard_error(self.devices)

    @cached_property
    def worst_case_sigma(self) -> float:
        """The same where everyone pays for every round, for the same guarantee, data units."""
        study = self._study(answers=len(self.releases))
        exponent = self.scenario.grid_exponent
        if study.noise_shares > 1:  # fewer answers need less noise, and that a finer grid
            share = study.base_sigma / math.sqrt(study.noise_shares)
            exponent = min(exponent, math.floor(math.log2(share / FEWEST_NOISE_STEPS)))
        return self._mechanism(study, grid_exponent=exponent).standard_error(self.devices)

    @property
    def worst_case_rounds(self) -> int:
        """How many rounds everyone can pay for at the noise of this run."""
        study = self.study.value
        full = study.base_weight * self.mechanism.squared_radius
        return min(len(self.releases), study.budget_units // full)

    @property
    def answered_rounds(self) -> int:
        """How many rounds published numbers."""
        return sum(release.withheld is Withheld.NOTHING for release in self.releases)

    @property
    def rmse(self) -> float:
        """Root mean squared error of the releases against the sums over everyone, data units."""
        if not self.answered_rounds:
            return math.nan
        return float(np.sqrt(np.nanmean((self.estimates - self.truth) ** 2)))

    @property
    def exhausted_fraction(self) -> float:
        """Simulator's truth: the share of devices that were refused at least once."""
        return float(self.aftermath.refused.mean())

    @property
    def guarantee(self) -> Guarantee:
        """What is promised to whom."""
        return guarantee_of(self.study.value, per_report_mu=self.mechanism.report_mu)

    @property
    def is_private(self) -> bool:
        """Whether the guarantee holds of the design: not when a refusal shows."""
        return self.scenario.refusal is Refusal.COVER

    @property
    def statement(self) -> str:
        """What is promised to whom, and what not, in plain words."""
        return ("" if self.is_private else SILENT) + self.guarantee.statement + SIMULATED

    @property
    def releases_sha256(self) -> str:
        """SHA-256 of the released sums as int64, little-endian, row-major, in round order."""
        digest = hashlib.sha256()
        for release in self.releases:
            digest.update(release.sums_bytes)
        return digest.hexdigest()

    def summary(self) -> dict[str, Any]:
        """The run in one JSON object; the keys are a contract with other tools."""
        guarantee = self.guarantee
        reports = sum(release.reports for release in self.releases)
        answering_s = self.aftermath.answering_s

        def promised(value: float) -> float | None:
            return value if self.is_private else None

        return {
            "scenario": self.scenario.name,
            "seed": self.seed,
            "fidelity": str(self.fidelity),
            "workers": self.workers,
            "devices": self.devices,
            "rounds": len(self.releases),
            "reports": reports,
            "guarantee": {
                "epsilon": promised(guarantee.epsilon),
                "delta": promised(guarantee.delta),
                "unit": "device",
                "neighbour": "zero-out",
                "view": str(guarantee.view),
                "statement": self.statement,
                "per_report_mu": guarantee.per_report_mu,
                "measure": str(guarantee.measure),
                "in_measure": promised(guarantee.budget),
                "between_two_people": {
                    "epsilon": promised(guarantee.pair_epsilon),
                    "delta": promised(guarantee.pair_delta),
                },
            },
            "sigma": self.sigma,
            "local_sigma": self.local_sigma,
            "budget": {
                "value": self.scenario.budget,
                "measure": str(guarantee.measure),
                "unit": "answers at the full clip",
            },
            "rmse": {
                "individual": _number(self.rmse),
                "worst_case_all_rounds": self.worst_case_sigma,
            },
            "answered_rounds": {
                "individual": self.answered_rounds,
                "worst_case_same_noise": self.worst_case_rounds,
            },
            "simulator_truth": {"exhausted_fraction": self.exhausted_fraction},
            "wall_s": self.wall_s,
            "reports_per_s": reports / answering_s if answering_s > 0 else 0.0,
            "peak_rss_mb": self.aftermath.peak_rss_mb,
            "releases_sha256": self.releases_sha256,
        }

    def _study(self, *, answers: int | None = None, view: View | None = None) -> Study:
        """An alternative to this run's study, at the same guarantee."""
        return study_of(
            self.scenario,
            devices=self.devices,
            answers=answers,
            view=view,
            horizon=len(self.releases),
        )

    def _mechanism(self, study: Study, *, grid_exponent: int | None = None) -> GaussianLinear:
        return GaussianLinear(
            dimension=self.truth.shape[1],
            clip=self.scenario.clip,
            grid_exponent=study.base_grid_exponent if grid_exponent is None else grid_exponent,
            sigma=study.base_sigma,
            shares=study.noise_shares,
            on_grid=self.scenario.on_grid,
        )


def save(result: Result, folder: Path) -> None:
    """Write a run's files: all aside, then each renamed, `summary.json` last.

    A folder without `summary.json` holds no whole result. An earlier result stays whole while the
    new one is computed and written aside; its `summary.json` goes before the first file is
    replaced, so that no summary ever stands beside another run's files.

    Raises:
        DataError: a file cannot be written.
    """
    from demur_sim.plots import draw  # matplotlib takes a while to load

    files: dict[str, Callable[[Path], None]] = {
        "releases.csv": lambda path: _write_releases(result, path),
        "study.json": lambda path: _write_json(_study_json(result), path),
        "plot.png": lambda path: draw(result, path),
        "summary.json": lambda path: _write_json(result.summary(), path),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=folder) as aside:
            for name, write in files.items():
                write(Path(aside) / name)
            with _alone_in(folder):
                (folder / "summary.json").unlink(missing_ok=True)
                for name in files:
                    (Path(aside) / name).replace(folder / name)
    except OSError as error:
        where = error.filename2 or error.filename or folder
        raise DataError(f"cannot write results to {where}: {error.strerror or error}") from None


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other runs from replacing files in the same folder meanwhile."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)  # and so unlock


def _write_json(content: dict[str, Any], path: Path) -> None:
    text = json.dumps(content, indent=2, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def _write_releases(result: Result, path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(
            [
                "number",
                "coordinate",
                "reports",
                "withheld",
                "sum",
                "estimate",
                "standard_error",
                "low",
                "high",
                "estimand",
                "simulator_truth_everyone",
                "simulator_truth_active",
            ]
        )
        for row, release in enumerate(result.releases):
            for coordinate in range(result.truth.shape[1]):
                published = release.withheld is Withheld.NOTHING
                numbers = (
                    [
                        release.sums[coordinate],
                        release.estimate[coordinate],
                        release.standard_error,
                        release.estimate[coordinate] - release.half_width,
                        release.estimate[coordinate] + release.half_width,
                    ]
                    if published
                    else [""] * 5
                )
                rows.writerow(
                    [
                        release.number,
                        coordinate,
                        release.reports,
                        release.withheld,
                        *numbers,
                        "S_active",
                        result.truth[row, coordinate],
                        result.active_truth[row, coordinate],
                    ]
                )


def _study_json(result: Result) -> dict[str, Any]:
    study = result.study.value
    guarantee = result.guarantee
    return {
        "name": study.name,
        "hash": result.study.hash.hex(),
        "definition": result.study.definition.hex(),
        "unit": "device",
        "neighbour": "zero-out",
        "view": str(study.view),
        "measure": str(study.measure),
        "budget": study.budget,
        "budget_units": study.budget_units,
        "base_weight": study.base_weight,
        "base_sigma": study.base_sigma,
        "base_grid_exponent": study.base_grid_exponent,
        "policy": str(study.policy),
        "epsilon": study.epsilon,
        "delta": study.delta,
        "minimum_cohort": study.minimum_cohort,
        "dishonest": study.dishonest,
        "horizon": study.horizon,
        "share_sigma": result.mechanism.share_sigma,
        "per_report_mu": guarantee.per_report_mu,
        "sampler": result.scenario.sampler,
        "refusal": str(result.scenario.refusal),
        "statement": result.statement,
    }


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else value
