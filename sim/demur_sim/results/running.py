"""What a run of a running count found, how far off it is, and why."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from demur_proto.arrays import Flags, Integers, Values, Vector
from demur_proto.errors import ParameterError
from demur_proto.everyone import EveryoneInterval, Measured, everyone_interval
from demur_proto.guarantee import Guarantee
from demur_proto.mechanisms.categorical import categories_of
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.queries import Feature
from demur_proto.release import Release
from demur_proto.running.estimates import solution_of
from demur_proto.running.factorisations import change_norm
from demur_proto.running.segments import Admission, Factorisation
from demur_sim.comparison.beside import Beside
from demur_sim.engine.counting_studies import CountingDesign
from demur_sim.engine.session import blocks
from demur_sim.people.populations import Population
from demur_sim.results.base import Result, number
from demur_sim.results.sums import SIMULATED, running_errors, worst_case_error
from demur_sim.scenario import Kind

BOUND = 1  #: the largest state


@dataclass(frozen=True, kw_only=True, repr=False)
class RunningResult(Result):
    """A finished running count; the data unit is people who are on.

    Whoever ran out counts with the state that they told last: `active_truth` is the sum of states as
    told, `truth` as they are. Under admission `halt` nothing is told as a whole, and `active_truth` is
    what the releases are unbiased for: the solution of what was sent.
    """

    design: CountingDesign
    halts: tuple[Release, ...]  #: how many ran out, round by round; empty if that was not asked
    beside: tuple[Beside, ...] = ()  #: other designs for the same people

    @cached_property
    def mechanism(self) -> GaussianLinear:
        """The mechanism of every round."""
        return GaussianLinear.of(self.study.value, self.design.query)

    @cached_property
    def active_truth(self) -> Values:
        """Simulator's truth: the sum of the states as told [rounds, 1]."""
        sent = np.array(self.aftermath.contributed, dtype=np.float64)[:, 0]
        sums = np.array([weights @ sent[: len(weights)] for weights in self._solutions])
        whole = self.scenario.admission is Admission.COMMIT
        return (np.rint(sums) if whole else sums)[:, None]

    @cached_property
    def noise_errors(self) -> Vector:
        """The standard error of every round if nobody is missing [rounds], people."""
        gains = np.array([math.fsum(weights * weights) for weights in self._solutions])
        return running_errors(self.mechanism, gains, devices=self.devices)

    @property
    def sigma(self) -> float:
        """Its root mean square over rounds."""
        return float(np.sqrt(np.mean(self.noise_errors**2)))

    @property
    def worst_case_sigma(self) -> float:
        """The standard error if everybody paid for their state in every round."""
        daily = replace(
            self.scenario,
            kind=Kind.LINEAR,
            factorisation=Factorisation.SQUARE_ROOT,  # a linear question says nothing of these
            admission=Admission.COMMIT,
            first_segment=0,
            halts=0.0,
            beside="",
        )
        return worst_case_error(daily, devices=self.devices, rounds=len(self.releases))

    @property
    def worst_case_rounds(self) -> int:
        """How many rounds everyone could pay for, state by state, at the noise of this run."""
        study = self.study.value
        state = BOUND**2 << -2 * study.base_grid_exponent
        return min(len(self.releases), study.budget_units // (study.base_weight * state))

    @property
    def guarantee(self) -> Guarantee:
        """What is promised to whom, by both studies together."""
        return self.design.guarantee

    @property
    def simulated(self) -> str:
        """Why the run itself protects nobody."""
        return SIMULATED

    @property
    def has_intervals(self) -> bool:
        """Whether releases have one."""
        return self.scenario.admission is Admission.COMMIT

    @property
    def truncation_rmse(self) -> float:
        """Simulator's truth: how far states as told are from states as they are, over all rounds."""
        return float(np.sqrt(np.mean((self.active_truth - self.truth) ** 2)))

    @cached_property
    def everyone(self) -> Sequence[EveryoneInterval | None]:
        """The intervals for everyone; None where there is none; empty if nobody counted who ran out."""
        if not (self.has_intervals and self.halts):
            return ()
        return [
            _everyone(release, halted)
            for release, halted in zip(self.releases, self.halts, strict=True)
        ]

    @property
    def everyone_coverage(self) -> float:
        """How many of these hold the sum of the states as they are."""
        held = [
            each.low <= float(truth) <= each.high
            for each, truth in zip(self.everyone, self.truth[:, 0], strict=False)
            if each is not None
        ]
        return float(np.mean(held)) if held else math.nan

    def details(self) -> dict[str, Any]:
        """What the summary says besides."""
        scenario, people = self.scenario, self.devices
        truth: dict[str, Any] = {
            "exhausted_fraction": self.exhausted_fraction,
            "fraction_rmse": number(self.rmse / people),
            "fraction_rmse_truncation": self.truncation_rmse / people,
            "fraction_rmse_theory": math.hypot(self.sigma, self.truncation_rmse) / people,
            "fraction_rmse_theory_between_two_people": (
                math.hypot(2 * self.sigma, self.truncation_rmse) / people
            ),
        }
        if self.has_intervals:
            truth["coverage"] = number(self.coverage)
        if self.everyone:
            truth["everyone_coverage"] = number(self.everyone_coverage)
        return {
            "budget": {
                "value": scenario.budget,
                "measure": str(self.study.value.measure),
                "unit": "single changes, whenever they come",
            },
            "segment": {
                "horizon": self.design.segment.horizon,
                "horizons": list(self.design.horizons),
                "factorisation": str(scenario.factorisation),
                "admission": str(scenario.admission),
                "change_norm": self._change_norm,
            },
            "fraction": {
                "noise": self.sigma / people,
                "noise_between_two_people": 2 * self.sigma / people,
                "worst_case_all_rounds": self.worst_case_sigma / people,
            },
            "halts": self._halts_json() if self.halts else None,
            "simulator_truth": truth,
            "beside": [each.summary(self.truth[:, 0]) for each in self.beside],
        }

    def study_details(self) -> dict[str, Any]:
        """What `study.json` says besides."""
        study, halts = self.study.value, self.design.halts
        return {
            "base_weight": study.base_weight,
            "base_sigma": study.base_sigma,
            "base_grid_exponent": study.base_grid_exponent,
            "share_sigma": self.mechanism.share_sigma,
            "per_report_mu": self.guarantee.per_report_mu,
            "change_norm": self._change_norm,
            "halts": None
            if halts is None
            else {"budget": halts.budget, "epsilon": halts.epsilon, "base_sigma": halts.base_sigma},
        }

    @property
    def _change_norm(self) -> float:
        return change_norm(
            self.scenario.factorisation,
            horizon=self.design.horizons[-1],
            exponent=self.study.value.base_grid_exponent,
        )

    @cached_property
    def _solutions(self) -> list[Vector]:
        """B[t, 1 … t] for every round t."""
        segment, exponent = self.design.query.segment, self.design.query.noise.grid_exponent
        solutions = []
        for release in self.releases:
            solutions.append(solution_of(segment, exponent=exponent))
            segment = segment.following(release.number)
        return solutions

    def _halts_json(self) -> dict[str, Any]:
        last = self.halts[-1]
        bounds = [each for each in self.everyone if each is not None]
        return {
            "share": self.scenario.halts,
            "estimate": float(last.estimate[0]) if last.estimate.size else None,
            "standard_error": number(last.standard_error_at(0)),
            "at_most": bounds[-1].most_halted if bounds else None,
        }


def _everyone(release: Release, halted: Release) -> EveryoneInterval | None:
    if not (release.estimate.size and halted.estimate.size):  # one was withheld
        return None
    return everyone_interval(
        Measured.of(release), Measured.of(halted), largest=float(BOUND), signed=True
    )


# What only a simulator knows of a round: sums over people as they are, without noise or filter.

AT_ONCE = 1 << 16  #: people counted in one go


def value_totals(
    people: Population, asked: Feature, *, clip: float, among: Flags | None = None
) -> tuple[list[float], list[float]]:
    """Simulator's truth: the sums over everyone of their values, and of their clipped values [d], data units.

    A value with a number that is not finite counts as nothing, as on a device.

    Args:
        people: who they are.
        asked: the feature.
        clip: ℓ₂ radius of a value, data units.
        among: whose values count [devices]; by default everyone's.

    Raises:
        ParameterError: there is nobody, or the population does not know the feature.
    """
    totals, clipped_totals, at = [], [], 0
    for values in blocks(people, [asked]):
        some = values if among is None else values[among[at : at + len(values)]]
        finite: Flags = np.all(np.isfinite(some), axis=1)
        some = np.where(finite[:, None], some, 0.0)
        totals.append(some.sum(axis=0))
        clipped_totals.append(_clipped(some, clip).sum(axis=0))
        at += len(values)
    if not totals:
        raise ParameterError("population", people.devices, "at least one device")
    return np.sum(totals, axis=0).tolist(), np.sum(clipped_totals, axis=0).tolist()


def category_counts(
    people: Population, asked: Feature, categories: int, *, among: Flags | None = None
) -> Integers:
    """Simulator's truth: how many of everyone have each category [k].

    Args:
        people: who they are.
        asked: the feature.
        categories: k; with one it is who has the value 1.
        among: who counts [devices]; by default everyone.

    Raises:
        ParameterError: there is nobody, or the population does not know the feature.
    """
    if not people.devices:
        raise ParameterError("population", people.devices, "at least one device")
    counts = np.zeros(categories, dtype=np.int64)
    for start in range(0, people.devices, AT_ONCE):
        block = slice(start, min(start + AT_ONCE, people.devices))
        values = people.evaluate(asked, block)[:, 0]
        if among is not None:
            values = values[among[block]]
        values = categories_of(values, categories=categories)
        some = values[(values >= 0) & (values < categories)]  # not NaN
        whole = some.astype(np.int64)
        counts += np.bincount(whole[whole == some], minlength=categories)
    return counts


def states_total(people: Population, asked: Feature) -> float:
    """Simulator's truth: the sum over everyone of their state; whoever has none counts as nothing.

    Raises:
        ParameterError: there is nobody, or the population does not know the feature.
    """
    if not people.devices:
        raise ParameterError("population", people.devices, "at least one device")
    total = 0.0
    for start in range(0, people.devices, AT_ONCE):
        values = people.evaluate(asked, slice(start, min(start + AT_ONCE, people.devices)))
        total += float(
            values[(values >= 0) & (values <= BOUND) & (np.rint(values) == values)].sum()
        )
    return total


def _clipped(values: Values, clip: float) -> Values:
    norms = np.linalg.norm(values, axis=1, keepdims=True)
    clipped: Values = values * np.minimum(1.0, clip / np.maximum(norms, clip))
    return clipped
