"""What a run of linear questions found, and what the same promise costs otherwise."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from demur_proto.arrays import Values
from demur_proto.guarantee import Guarantee, guarantee_of
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.study import Study, View
from demur_sim.beside import Beside
from demur_sim.populations import FLAGS
from demur_sim.results import Result, number
from demur_sim.simulation import study_of
from demur_sim.summing import summing, worst_case_error

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
