"""What a run found, whatever it asked."""

import hashlib
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from demur_proto.arrays import Integers, Values
from demur_proto.everyone import scaled_up
from demur_proto.guarantee import Guarantee
from demur_proto.mechanisms.base import Estimate
from demur_proto.release import Release, Withheld
from demur_proto.study import Study
from demur_proto.wire.definition import Defined
from demur_sim.engine.session import Aftermath, Fidelity
from demur_sim.people.presence import Turnout
from demur_sim.scenario import Refusal, Scenario

SILENT = (
    "Nothing is promised: in this run a device that is refused falls silent, which shows that its "
    "owner was active before. With cover reports the same study would keep: "
)


@dataclass(frozen=True, kw_only=True, repr=False)
class Result(ABC):
    """A finished run."""

    scenario: Scenario
    seed: int
    fidelity: Fidelity
    workers: int
    devices: int
    study: Defined[Study]
    releases: tuple[Release, ...]  #: in round order
    truth: Values
    """Simulator's truth: the sums or counts over everyone enrolled [rounds, d], data units."""
    aftermath: Aftermath
    wall_s: float
    turnout: Turnout | None = None  #: where devices come and go

    @property
    @abstractmethod
    def active_truth(self) -> Values:
        """Simulator's truth: the same over those who contributed [rounds, d], data units."""

    @property
    @abstractmethod
    def sigma(self) -> float:
        """Standard deviation of a released number that nobody contributes to, data units."""

    @property
    @abstractmethod
    def worst_case_sigma(self) -> float:
        """The same where everyone pays for every round, for the same guarantee, data units."""

    @property
    @abstractmethod
    def worst_case_rounds(self) -> int:
        """How many rounds everyone can pay for at the noise of this run."""

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """What is promised to whom."""

    @property
    @abstractmethod
    def simulated(self) -> str:
        """Why the run itself protects nobody, in one sentence after a space."""

    @property
    def value_range(self) -> tuple[float, bool] | None:
        """The most that a value may be, and whether either sign; None where nothing is to be scaled up."""
        return None

    @abstractmethod
    def details(self) -> dict[str, Any]:
        """What the summary says besides, for this kind of question."""

    @abstractmethod
    def study_details(self) -> dict[str, Any]:
        """What `study.json` says besides, for this kind of question."""

    @property
    def counted(self) -> int:
        """How many reports a round has, in the mean."""
        if self.turnout is None:
            return self.devices
        return max(1, round(sum(each.reports for each in self.releases) / len(self.releases)))

    @cached_property
    def enrolled(self) -> Integers:
        """How many devices are enrolled in each round [rounds]. Public."""
        if self.turnout is None:
            return np.full(len(self.releases), self.devices, dtype=np.int64)
        return self.turnout.enrolled(devices=self.devices, rounds=len(self.releases))

    @cached_property
    def scaled(self) -> tuple[Estimate | None, ...]:
        """For everyone enrolled, scaled up from those whose reports came; None without an interval.

        Empty where every device reports in every round, and of a running count, which scales itself.
        """
        if self.turnout is None or self.value_range is None:
            return ()
        largest, signed = self.value_range
        return tuple(
            scaled_up(
                Estimate(
                    estimate=release.estimate,
                    standard_error=release.standard_error,
                    half_width=release.half_width,
                    low_end=release.low_end,
                    high_end=release.high_end,
                ),
                reports=release.reports,
                cohort=cohort,
                largest=largest,
                signed=signed,
            )
            if release.has_interval
            else None
            for release, cohort in zip(self.releases, self.enrolled.tolist(), strict=True)
        )

    @cached_property
    def estimates(self) -> Values:
        """What was released [rounds, d], data units; NaN where it was withheld."""
        return self._released("estimate")

    @cached_property
    def standard_errors(self) -> Values:
        """The released standard errors [rounds, d], likewise."""
        return self._released("standard_error")

    @cached_property
    def lows(self) -> Values:
        """Lower ends of the released intervals [rounds, d], likewise; NaN also where there is none."""
        return self._released("low")

    @cached_property
    def highs(self) -> Values:
        """Their upper ends [rounds, d]."""
        return self._released("high")

    @property
    def coverage(self) -> float:
        """How many of the released intervals hold what is true of those who contributed; NaN without."""
        there = ~np.isnan(self.lows)
        if not there.any():
            return math.nan
        held = (self.lows <= self.active_truth) & (self.active_truth <= self.highs)
        return float(held[there].mean())

    @property
    def answered_rounds(self) -> int:
        """How many rounds published numbers."""
        return sum(release.withheld is Withheld.NOTHING for release in self.releases)

    @property
    def within_reach(self) -> Values:
        """Simulator's truth: what releases are held against [rounds, d]; of sums, clipped values."""
        return self.truth

    @property
    def rmse(self) -> float:
        """Root mean squared error of the releases against `within_reach`, data units."""
        return self._root_mean_square(self.estimates - self.within_reach)

    @property
    def exhausted_fraction(self) -> float:
        """Simulator's truth: the share of devices that were refused at least once."""
        return float(self.aftermath.refused.mean())

    @property
    def is_private(self) -> bool:
        """Whether the guarantee holds of the design: not when a refusal shows."""
        return self.scenario.refusal is Refusal.COVER

    @property
    def statement(self) -> str:
        """What is promised to whom, and what not, in plain words."""
        return ("" if self.is_private else SILENT) + self.guarantee.statement + self.simulated

    @property
    def releases_sha256(self) -> str:
        """SHA-256 of the released sums as int64, little-endian, row-major, in round order."""
        digest = hashlib.sha256()
        for release in self.releases:
            digest.update(release.sums_bytes)
        return digest.hexdigest()

    @property
    def reports_per_s(self) -> float:
        """Reports of all devices a second, while devices were answering."""
        answering_s = self.aftermath.answering_s
        reports = sum(release.reports for release in self.releases)
        return reports / answering_s if answering_s > 0 else 0.0

    def summary(self) -> dict[str, Any]:
        """The run in one JSON object; the keys are a contract with other tools."""
        return {
            "scenario": self.scenario.name,
            "kind": str(self.scenario.kind),
            "seed": self.seed,
            "fidelity": str(self.fidelity),
            "workers": self.workers,
            "devices": self.devices,
            "rounds": len(self.releases),
            "reports": sum(release.reports for release in self.releases),
            "presence": self._presence_json(),
            "guarantee": guarantee_json(
                self.guarantee, statement=self.statement, is_private=self.is_private
            ),
            "sigma": self.sigma,
            "rmse": {
                "individual": number(self.rmse),
                "worst_case_all_rounds": self.worst_case_sigma,
            },
            "answered_rounds": {
                "individual": self.answered_rounds,
                "worst_case_same_noise": self.worst_case_rounds,
            },
            "wall_s": self.wall_s,
            "reports_per_s": self.reports_per_s,
            "peak_rss_mb": self.aftermath.peak_rss_mb,
            "releases_sha256": self.releases_sha256,
            **self.details(),
        }

    def _presence_json(self) -> dict[str, Any] | None:
        if self.turnout is None:
            return None
        reports = np.array([release.reports for release in self.releases])
        return {
            **{
                name: {
                    "least": int(counts.min()),
                    "mean": float(counts.mean()),
                    "most": int(counts.max()),
                }
                for name, counts in (("enrolled", self.enrolled), ("reports", reports))
            },
            "minimum_cohort": self.study.value.minimum_cohort,
            "withheld_rounds": len(self.releases) - self.answered_rounds,
        }

    def _released(self, name: str) -> Values:
        rows = np.full(self.truth.shape, math.nan)
        for row, release in zip(rows, self.releases, strict=True):
            numbers = getattr(release, name)
            if release.withheld is Withheld.NOTHING and numbers.size:
                row[:] = numbers  # one for each, or one that all share
        return rows

    def _root_mean_square(self, errors: Values) -> float:
        """Over the rounds that published numbers; NaN without any."""
        if not self.answered_rounds:
            return math.nan
        return float(np.sqrt(np.nanmean(errors**2)))


def guarantee_json(
    guarantee: Guarantee, *, statement: str, is_private: bool = True
) -> dict[str, Any]:
    """A guarantee as every result has it; the keys are a contract with other tools.

    Args:
        guarantee: of the design.
        statement: all of it in plain words.
        is_private: whether it holds: not where a refusal shows.
    """

    def promised(value: float) -> float | None:
        return value if is_private else None

    return {
        "epsilon": promised(guarantee.epsilon),
        "delta": promised(guarantee.delta),
        "unit": "device",
        "neighbour": "zero-out",
        "view": str(guarantee.view),
        "statement": statement,
        "per_report_mu": guarantee.per_report_mu,
        "per_report_epsilon": guarantee.per_report_epsilon,
        "measure": str(guarantee.measure),
        "in_measure": promised(guarantee.budget),
        "between_two_people": {
            "epsilon": promised(guarantee.pair_epsilon),
            "delta": promised(guarantee.pair_delta),
        },
    }


def number(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else value
