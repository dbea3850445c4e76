"""How noisy the sums and running counts of a design are, before and without running it."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from demur_proto.arrays import Values, Vector
from demur_proto.guarantee import Guarantee, guarantee_of
from demur_proto.mechanisms.gaussian import FEWEST_NOISE_STEPS, GaussianLinear
from demur_proto.study import Study, View
from demur_sim.comparison.beside import Beside
from demur_sim.engine.simulation import study_of
from demur_sim.people.populations import FLAGS
from demur_sim.results.base import Result, number
from demur_sim.scenario import Scenario


def summing(
    scenario: Scenario, study: Study, *, dimension: int = 1, grid_exponent: int | None = None
) -> GaussianLinear:
    """The mechanism of a scenario's sums in a study.

    Args:
        scenario: says what is summed: clip, and whether values lie on the grid.
        study: says with which noise.
        dimension: coordinates of a sum.
        grid_exponent: by default the study's.

    Raises:
        ParameterError: the grid is too coarse for the noise.
    """
    return GaussianLinear(
        dimension=dimension,
        clip=scenario.clip,
        grid_exponent=study.base_grid_exponent if grid_exponent is None else grid_exponent,
        sigma=study.base_sigma,
        shares=study.noise_shares,
        on_grid=scenario.on_grid,
    )


def fine_exponent(study: Study, exponent: int) -> int:
    """This exponent of the grid, or the largest below that is fine enough for a share of the noise."""
    if study.noise_shares == 1:
        return exponent
    share = study.base_sigma / math.sqrt(study.noise_shares)
    return min(exponent, math.floor(math.log2(share / FEWEST_NOISE_STEPS)))


def worst_case_error(
    scenario: Scenario,
    *,
    devices: int,
    rounds: int,
    reports: int | None = None,
    dimension: int = 1,
) -> float:
    """The standard error of a sum where everyone pays for every round, for the same guarantee.

    Args:
        scenario: of sums.
        devices: how many people there are.
        rounds: how many rounds everyone pays for.
        reports: of a round; by default everyone's.
        dimension: coordinates of a sum.

    Returns:
        The standard error, data units.
    """
    study = study_of(scenario, devices=devices, answers=rounds, horizon=rounds)
    exponent = fine_exponent(study, scenario.grid_exponent)  # few answers need little noise
    mechanism = summing(scenario, study, dimension=dimension, grid_exponent=exponent)
    return mechanism.standard_error(devices if reports is None else reports)


def running_errors(mechanism: GaussianLinear, gains: Vector, *, devices: int) -> Vector:
    """The standard errors of a running count of which no report is lost.

    Args:
        mechanism: of every round.
        gains: `noise_gains` of its rounds [rounds].
        devices: how many people there are.

    Returns:
        [rounds], people.

    Source: `running_estimate`, of which this is the first part where all reports come.
    """
    share = devices * (mechanism.noise_steps**2 + 1 / 12)
    errors: Vector = np.sqrt(share * gains)
    return errors


# What a run of linear questions found, and what the same promise costs otherwise.

SIMULATED = (
    " This run is simulated: its noise is seeded floating point, not the exact noise that the "
    "statement rests on, so it describes the design and protects nobody."
)


@dataclass(frozen=True, kw_only=True, repr=False)
class LinearResult(Result):
    """A finished run of sums."""

    clipped_truth: Values  #: simulator's truth: over everyone enrolled, values clipped [rounds, d]
    beside: tuple[Beside, ...] = ()  #: other designs for the same people

    @cached_property
    def mechanism(self) -> GaussianLinear:
        """The mechanism of every round."""
        return self._mechanism(self.study.value)

    @cached_property
    def active_truth(self) -> Values:
        """Simulator's truth: over those who contributed, values clipped [rounds, d], data units.

        As they were before budgets shrunk and coins rounded them.
        """
        return np.ldexp(np.array(self.aftermath.contributed), self.scenario.grid_exponent)

    @property
    def within_reach(self) -> Values:
        """Simulator's truth: the sums over everyone, values clipped [rounds, d], data units.

        What clipping loses is an error of its own, `clipping_rmse`.
        """
        return self.clipped_truth

    @property
    def clipping_rmse(self) -> float:
        """Simulator's truth: how far sums of clipped values are from those of values, data units."""
        return float(np.sqrt(np.mean((self.truth - self.clipped_truth) ** 2)))

    @property
    def value_range(self) -> tuple[float, bool]:
        """Up to the clip; of either sign, but for features that are 0 or 1."""
        return self.scenario.clip, self.scenario.feature not in FLAGS

    @property
    def sigma(self) -> float:
        """Standard deviation of a released sum, data units."""
        return self.mechanism.standard_error(self.counted)

    @cached_property
    def local_sigma(self) -> float:
        """The same in view `local`, for the same guarantee and budget, data units."""
        study = study_of(
            self.scenario, devices=self.devices, view=View.LOCAL, horizon=len(self.releases)
        )
        return self._mechanism(study).standard_error(self.counted)

    @cached_property
    def worst_case_sigma(self) -> float:
        """The same where everyone pays for every round, for the same guarantee, data units."""
        return worst_case_error(
            self.scenario,
            devices=self.devices,
            reports=self.counted,
            rounds=len(self.releases),
            dimension=self.truth.shape[1],
        )

    @property
    def worst_case_rounds(self) -> int:
        """How many rounds everyone can pay for at the noise of this run."""
        study = self.study.value
        full = study.base_weight * self.mechanism.squared_radius
        return min(len(self.releases), study.budget_units // full)

    @property
    def guarantee(self) -> Guarantee:
        """What is promised to whom."""
        return guarantee_of(self.study.value, per_report_mu=self.mechanism.report_mu)

    @property
    def simulated(self) -> str:
        """Why the run itself protects nobody."""
        return SIMULATED

    def details(self) -> dict[str, Any]:
        """What the summary says besides."""
        return {
            "local_sigma": self.local_sigma,
            "budget": {
                "value": self.scenario.budget,
                "measure": str(self.study.value.measure),
                "unit": "answers at the full clip",
            },
            "simulator_truth": {
                "exhausted_fraction": self.exhausted_fraction,
                "coverage": number(self.coverage),
                "clipping_rmse": self.clipping_rmse,
            },
            "beside": [each.summary(self.within_reach[:, 0]) for each in self.beside],
        }

    def study_details(self) -> dict[str, Any]:
        """What `study.json` says besides."""
        study = self.study.value
        return {
            "base_weight": study.base_weight,
            "base_sigma": study.base_sigma,
            "base_grid_exponent": study.base_grid_exponent,
            "share_sigma": self.mechanism.share_sigma,
            "per_report_mu": self.guarantee.per_report_mu,
        }

    def _mechanism(self, study: Study) -> GaussianLinear:
        return summing(self.scenario, study, dimension=self.truth.shape[1])
