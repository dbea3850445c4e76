"""What a run over several budget windows found, and what it promises in each and over all of them."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from demur_proto.accounting.windows import OverWindows, Windows, over_windows, told_stays
from demur_proto.study import Study
from demur_sim.results.base import SILENT, Result, number
from demur_sim.results.running import RunningResult
from demur_sim.scenario import Scenario

LIFETIME = (
    " What somebody does in one window may go together with what they do in another: only the promise "
    "over all windows that they take part in covers what both tell of them."
)


@dataclass(frozen=True, kw_only=True, repr=False)
class WindowedResult:
    """The finished runs of all windows, in order."""

    scenario: Scenario
    schedule: Windows
    results: tuple[Result, ...]  #: one for each window
    wall_s: float

    @property
    def first(self) -> Result:
        """That of the first window; what it promises, all of them do."""
        return self.results[0]

    @cached_property
    def promises(self) -> list[OverWindows]:
        """What holds for somebody who stays for so many windows, from one to all of them."""
        studies = [studies_of(result) for result in self.results]
        delta = self.scenario.delta
        return [over_windows(studies, stay=stay, delta=delta) for stay in told_stays(len(studies))]

    @property
    def lifetime(self) -> OverWindows:
        """What holds for somebody who stays for all windows."""
        return self.promises[-1]

    @property
    def is_private(self) -> bool:
        """Whether the guarantees hold of the design: not when a refusal shows."""
        return self.first.is_private

    @property
    def statement(self) -> str:
        """What is promised over all windows, in plain words; that of each window is its own."""
        silent = "" if self.is_private else SILENT
        return silent + self.lifetime.statement + LIFETIME + self.first.simulated

    @property
    def rmse(self) -> float:
        """Root mean squared error against everyone enrolled, over all rounds released."""
        squares = np.concatenate(
            [np.square(result.estimates - result.within_reach).ravel() for result in self.results]
        )
        released = squares[~np.isnan(squares)]
        return float(np.sqrt(released.mean())) if released.size else math.nan

    @property
    def exhausted_fraction(self) -> float:
        """Simulator's truth: the share of devices that were refused in some window."""
        refused = np.any([result.aftermath.refused for result in self.results], axis=0)
        return float(np.mean(refused))

    @property
    def releases_sha256(self) -> str:
        """SHA-256 of the released sums of all windows, as `Result.releases_sha256`."""
        digest = hashlib.sha256()
        for result in self.results:
            for release in result.releases:
                digest.update(release.sums_bytes)
        return digest.hexdigest()

    def summary(self) -> dict[str, Any]:
        """The run in one JSON object; the keys are a contract with other tools."""
        first = self.first
        return {
            "scenario": self.scenario.name,
            "kind": str(self.scenario.kind),
            "seed": first.seed,
            "fidelity": str(first.fidelity),
            "workers": first.workers,
            "devices": first.devices,
            "rounds": self.schedule.horizon,
            "reports": sum(each.reports for part in self.results for each in part.releases),
            "window": self.scenario.window,
            "over_windows": [self._promise_json(each) for each in self.promises],
            "statement": self.statement,
            "rmse": {"individual": number(self.rmse)},
            "answered_rounds": {"individual": sum(part.answered_rounds for part in self.results)},
            "simulator_truth": {"exhausted_fraction": self.exhausted_fraction},
            "wall_s": self.wall_s,
            "peak_rss_mb": max(part.aftermath.peak_rss_mb for part in self.results),
            "releases_sha256": self.releases_sha256,
            "windows": [
                {"first": window.first, "last": window.last, **part.summary()}
                for window, part in zip(self.schedule.windows, self.results, strict=True)
            ],
        }

    def _promise_json(self, promise: OverWindows) -> dict[str, Any]:
        def kept(value: float) -> float | None:
            return value if self.is_private else None

        epsilon, delta = promise.pair
        return {
            "windows": promise.windows,
            "epsilon": kept(promise.epsilon),
            "delta": kept(promise.delta),
            "unit": "device",
            "neighbour": "zero-out",
            "view": str(promise.view),
            "measure": str(promise.measure),
            "in_measure": kept(promise.budget),
            "between_two_people": {"epsilon": kept(epsilon), "delta": kept(delta)},
        }


def studies_of(result: Result) -> Sequence[Study]:
    """All that the people of a window were in."""
    halts = result.design.halts if isinstance(result, RunningResult) else None
    return [result.study.value] if halts is None else [result.study.value, halts]
