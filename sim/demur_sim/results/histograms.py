"""What a run of histograms found, how far off it is, and what the same promise costs otherwise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from demur_proto.arrays import Values, Vector
from demur_proto.guarantee import Guarantee
from demur_proto.mechanisms.categorical import Categorical
from demur_proto.queries import Histogram
from demur_proto.release import Withheld
from demur_sim.engine.simulation import histogram_study, query_of
from demur_sim.results.base import Result, number

SHOWN = 10  #: categories in the summary, the largest first
SIMULATED = (
    " This run is simulated: its randomness follows from a seed, not from the cryptographic source "
    "that the statement rests on, so it describes the design and protects nobody."
)


@dataclass(frozen=True, kw_only=True, repr=False)
class HistogramResult(Result):
    """A finished run of counts by category; the data unit is people.

    Theory, here, is the standard error that the mechanism has at the true counts of those who
    contributed.
    """

    query: Histogram  #: of the first round
    beside: "HistogramResult | None" = None  #: the same people in a study with another mechanism

    @property
    def side_by_side(self) -> Sequence["HistogramResult"]:
        """This result, and the one beside it if there is one."""
        return (self,) if self.beside is None else (self, self.beside)

    @cached_property
    def mechanism(self) -> Categorical:
        """The mechanism of every round."""
        return self.query.randomiser

    @cached_property
    def active_truth(self) -> Values:
        """Simulator's truth: how many contributed each category [rounds, k]."""
        return np.array(self.aftermath.contributed, dtype=np.float64)

    @property
    def value_range(self) -> tuple[float, bool]:
        """In a category or not."""
        return 1.0, False

    @property
    def sigma(self) -> float:
        """Standard error of the count of a category that nobody contributes."""
        return _empty_error(self.mechanism, self.counted)

    @cached_property
    def worst_case_query(self) -> Histogram:
        """What could be asked if everyone paid for every round, at the same guarantee."""
        study, rounds = self.study.value, len(self.releases)
        other = histogram_study(
            self.scenario, cohort=study.minimum_cohort, answers=rounds, horizon=study.horizon
        )
        return query_of(self.scenario, other, answers=rounds)

    @cached_property
    def worst_case_sigma(self) -> float:
        """The standard error `sigma` of that."""
        return _empty_error(self.worst_case_query.randomiser, self.counted)

    @property
    def worst_case_rounds(self) -> int:
        """How many rounds everyone can pay for at the noise of this run."""
        study = self.study.value
        return min(len(self.releases), study.budget_units // self.query.weight_in(study))

    @property
    def guarantee(self) -> Guarantee:
        """What is promised to whom."""
        return self.query.guarantee_in(self.study.value)

    @property
    def report_bytes(self) -> int:
        """The size of one report."""
        words = self.query.report_length
        return self.query.word_type_in(self.study.value).report_bytes(words)

    @cached_property
    def theory(self) -> Values:
        """The standard error of every count in theory [rounds, k]."""
        counted = [max(1, release.reports) for release in self.releases]
        frequencies = self.mechanism.frequencies
        nobody, all_of_them = (
            np.array([[frequencies.variance(share * n, reports=n)] for n in counted])
            for share in (0.0, 1.0)
        )
        reports = np.array(counted, dtype=np.float64)[:, None]
        # The variance is linear in the count.
        variance: Values = nobody + self.active_truth / reports * (all_of_them - nobody)
        return np.sqrt(variance)

    @property
    def active_rmse(self) -> float:
        """Root mean squared error against those who contributed, over rounds and categories."""
        return self._root_mean_square(self.estimates - self.active_truth)

    @property
    def theory_rmse(self) -> float:
        """What theory says of it."""
        return self._root_mean_square(np.where(np.isnan(self.estimates), math.nan, self.theory))

    @cached_property
    def total_interval(self) -> tuple[Vector, Vector]:
        """The interval for each category over all rounds that published numbers, low and high [k].

        Support counts of rounds add up to that of one round with as many reports.
        """
        published = [each for each in self.releases if each.withheld is Withheld.NOTHING]
        if not published:
            return np.zeros(self.query.categories), np.zeros(self.query.categories)
        total = self.mechanism.estimate(
            np.sum([each.sums for each in published], axis=0),
            reports=sum(each.reports for each in published),
        )
        return total.low, total.high

    @property
    def simulated(self) -> str:
        """Why the run itself protects nobody."""
        return SIMULATED

    def totals(self) -> list[dict[str, float]]:
        """Each category over all rounds that published numbers, the largest estimates first."""
        if not self.answered_rounds:
            return []
        released = ~np.isnan(self.estimates[:, 0])
        estimates = self.estimates[released].sum(axis=0)
        errors = np.sqrt((self.standard_errors[released] ** 2).sum(axis=0))
        everyone = self.truth[released].sum(axis=0)
        active = self.active_truth[released].sum(axis=0)
        return [
            {
                "category": category,
                "estimate": float(estimates[category]),
                "standard_error": float(errors[category]),
                "simulator_truth_everyone": float(everyone[category]),
                "simulator_truth_active": float(active[category]),
            }
            for category in np.argsort(-estimates, kind="stable").tolist()
        ]

    def details(self) -> dict[str, Any]:
        """What the summary says besides."""
        return {
            "budget": {
                "value": self.scenario.budget,
                "measure": str(self.study.value.measure),
                "unit": "answers with a category",
            },
            **self._comparable(),
            "totals": self.totals()[:SHOWN],
            "beside": None if self.beside is None else self.beside._comparison(),
        }

    def study_details(self) -> dict[str, Any]:
        """What `study.json` says besides."""
        study = self.study.value
        return {
            "maximum_dimension": study.maximum_dimension,
            "mechanism": str(self.query.mechanism),
            "categories": self.query.categories,
            "epsilon_per_answer": self.query.epsilon,
            "answer_epsilon": study.answer_epsilon,
            "weight": self.query.weight_in(study),
            "per_report_epsilon": self.guarantee.per_report_epsilon,
            "per_report_pair_epsilon": self.guarantee.per_report_pair_epsilon,
        }

    def _comparable(self) -> dict[str, Any]:
        return {
            "mechanism": {
                "name": str(self.query.mechanism),
                "categories": self.query.categories,
                "epsilon_per_answer": self.query.epsilon,
                "report_bytes": self.report_bytes,
            },
            "worst_case": {
                "epsilon_per_answer": self.worst_case_query.epsilon,
                "standard_error": self.worst_case_sigma,
                "ratio": self.worst_case_sigma / self.sigma,
            },
            "simulator_truth": {
                "exhausted_fraction": self.exhausted_fraction,
                "rmse_active": number(self.active_rmse),
                "rmse_theory": number(self.theory_rmse),
                "error_over_theory": number(self.active_rmse / self.theory_rmse),
                "coverage": number(self.coverage),
            },
        }

    def _comparison(self) -> dict[str, Any]:
        """What a summary says of the result beside."""
        return {
            **self._comparable(),
            "sigma": self.sigma,
            "rmse": number(self.rmse),
            "reports_per_s": self.reports_per_s,
            "releases_sha256": self.releases_sha256,
        }


def _empty_error(mechanism: Categorical, reports: int) -> float:
    """Standard error of the count of a category that none of so many reports is about."""
    return math.sqrt(mechanism.frequencies.variance(0.0, reports=reports))
