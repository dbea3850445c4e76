"""The ways to ask for the same number, and how noisy each is with a given budget."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from demur_proto.arrays import Vector
from demur_proto.guarantee import Guarantee, guarantee_of
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.mechanisms.registry import Randomiser
from demur_proto.queries import Histogram
from demur_proto.running.factorisations import factors_of, noise_gains
from demur_proto.running.segments import COARSEST_COUNTING, Factorisation
from demur_proto.study import CATEGORICAL, Study
from demur_sim.engine.counting_studies import design_counting
from demur_sim.engine.simulation import query_of, study_of
from demur_sim.planning.model import (
    Model,
    Truncation,
    Truncations,
    Weights,
    answer_truncations,
    change_truncation,
    spread_truncations,
)
from demur_sim.results.sums import fine_exponent, running_errors, summing
from demur_sim.scenario import Kind, Scenario

SUM_EXPONENT = -7  #: of the grid of a sum, unless noise shares need a finer one
LONGEST_SEGMENT = 4096  #: rounds for which running counts are planned


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to ask, to be planned for so many people and rounds.

    Its scenarios keep what the given one promises, and differ in how it is asked.
    """

    scenario: Scenario
    model: Model
    people: int  #: n

    @property
    def rounds(self) -> int:
        """T."""
        return self.model.rounds

    @property
    def name(self) -> str:
        """As tables call it."""
        return str(Kind.LINEAR)

    @property
    def correlation(self) -> str | None:
        """The factorisation that correlates the noise of its rounds, if any."""
        return None

    @property
    def unit(self) -> str:
        """What a budget counts."""
        return "answers"

    @property
    def step(self) -> int:
        """By how much more a budget surely holds more: of answers by 1."""
        return 1

    @property
    def most(self) -> int:
        """A budget from which nothing is missing."""
        return self._truncations.most

    def asked(self, budget: int) -> Scenario:
        """The scenario that asks so."""
        return self._asked(budget, kind=Kind.LINEAR, exponent=SUM_EXPONENT)

    def design(self, budget: int) -> tuple[Study, GaussianLinear]:
        """The study with so many answers of everybody, and the mechanism of its rounds."""
        asked = self.asked(budget)
        study = study_of(asked, devices=self.people, horizon=self.rounds)
        return study, summing(asked, study)

    def variance(self, budget: int) -> float:
        """Of the noise of a released number, mean over rounds, people squared."""
        return self.design(budget)[1].standard_error(self.people) ** 2

    def sigma(self, budget: int) -> float:
        """Of the noise that the view shows in one round, units of the value."""
        return self.design(budget)[1].sigma

    def promise(self, budget: int) -> Guarantee:
        """What is promised to whom."""
        study, mechanism = self.design(budget)
        return guarantee_of(study, per_report_mu=mechanism.report_mu)

    def details(self, budget: int) -> dict[str, Any]:
        """What a plan says of its noise besides."""
        study, mechanism = self.design(budget)
        return {
            "share_sigma": mechanism.share_sigma,
            "grid_exponent": mechanism.grid_exponent,
            "measure": str(study.measure),
        }

    def truncation(self, budget: int) -> Truncation:
        """What of people's values is missing."""
        return self._truncations.of(budget)

    @cached_property
    def _truncations(self) -> Truncations:
        if self.model.law is not None:
            return spread_truncations(self.model.law, rounds=self.rounds)
        return answer_truncations(self.model.values)

    def _asked(
        self,
        budget: int,
        *,
        kind: Kind,
        exponent: int,
        factorisation: Factorisation = Factorisation.SQUARE_ROOT,
    ) -> Scenario:
        """On this grid, or one that is fine enough, for these people and for those of the model."""
        asked = replace(
            self.scenario,
            kind=kind,
            budget=budget,
            clip=1.0,
            on_grid=True,
            grid_exponent=exponent,
            factorisation=factorisation,
        )
        devices = max(self.people, self.model.people)
        study = study_of(asked, devices=devices, horizon=self.rounds)
        return replace(asked, grid_exponent=fine_exponent(study, exponent))


@dataclass(frozen=True, kw_only=True)
class RunningWay(Way):
    """The number as a running count of its changes, all rounds in one segment, admission `commit`."""

    factorisation: Factorisation
    _segments: dict[int, "_Segment"] = field(default_factory=dict, init=False, repr=False)

    @property
    def name(self) -> str:
        """As tables call it."""
        return f"{Kind.PREFIX} {self.factorisation}"

    @property
    def correlation(self) -> str | None:
        """Its factorisation."""
        return str(self.factorisation)

    @property
    def unit(self) -> str:
        """What a budget counts."""
        return "changes"

    @property
    def step(self) -> int:
        """By 2: whoever ran out after an odd number of changes counts as 1 from then on."""
        return 2

    @property
    def most(self) -> int:
        """A budget from which nothing is missing: room for everybody's changes, whenever they come."""
        values = self.model.values
        changes = values[0].astype(np.int64)
        for earlier, later in pairwise(values):
            changes += earlier != later
        return max(1, int(changes.max()))

    def asked(self, budget: int) -> Scenario:
        """The scenario that asks so."""
        return self._asked(
            budget,
            kind=Kind.PREFIX,
            exponent=COARSEST_COUNTING,
            factorisation=self.factorisation,
        )

    def design(self, budget: int) -> tuple[Study, GaussianLinear]:
        """The study with room for so many changes of everybody, and the mechanism of its rounds."""
        found = design_counting(self.asked(budget), devices=self.people, rounds=self.rounds)
        return found.study, GaussianLinear.of(found.study, found.query)

    def variance(self, budget: int) -> float:
        """Of the noise of a released number, mean over rounds, people squared."""
        _, mechanism = self.design(budget)
        gains = self._segment(mechanism).gains
        return float(np.mean(running_errors(mechanism, gains, devices=self.people) ** 2))

    def truncation(self, budget: int) -> Truncation:
        """What of people's values is missing."""
        study, mechanism = self.design(budget)
        return change_truncation(self.model.values, self._segment(mechanism).weights, study)

    def _segment(self, mechanism: GaussianLinear) -> "_Segment":
        """What follows from its grid, worked out once."""
        exponent = mechanism.grid_exponent
        if exponent not in self._segments:
            factors = factors_of(self.factorisation, horizon=self.rounds, exponent=exponent)
            self._segments[exponent] = _Segment(
                gains=noise_gains(factors, rounds=self.rounds),
                weights=Weights.of(factors, horizon=self.rounds),
            )
        return self._segments[exponent]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Segment:
    """Noise and weights of the rounds of a segment."""

    gains: Vector = field(repr=False)  #: of `noise_gains`
    weights: Weights


# Randomised response as a way to ask for the same number: one bit of every person, in every round.


@dataclass(frozen=True, kw_only=True)
class ResponseWay(Way):
    """The number as a histogram of one category: "yes" costs an answer, and "no" is the reference.

    In the scenario's measure where that is one of histograms, else in the best for each budget.
    """

    _known: dict[int, tuple[Study, Histogram]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def name(self) -> str:
        """As tables call it."""
        return f"{Kind.HISTOGRAM} {Randomiser.KRR}"

    def asked(self, budget: int) -> Scenario:
        """The scenario that asks so."""
        measure = self.scenario.measure
        return replace(
            self.scenario,
            kind=Kind.HISTOGRAM,
            categories=1,
            mechanism=Randomiser.KRR,
            budget=budget,
            measure=measure if measure in CATEGORICAL else None,
            **{name: _DEFAULTS[name] for name in _OF_SUMS},
        )

    def asks(self, budget: int) -> tuple[Study, Histogram]:
        """The study with so many answers of everybody, and what its rounds ask."""
        if budget not in self._known:
            asked = self.asked(budget)
            study = study_of(asked, devices=self.people, horizon=self.rounds)
            self._known[budget] = study, query_of(asked, study)
        return self._known[budget]

    def variance(self, budget: int) -> float:
        """Of the noise of a released number, people squared; the same whatever the number is."""
        return self.people * self.sigma(budget) ** 2

    def sigma(self, budget: int) -> float:
        """Of one report's estimate: √(p(1 − p))/(2p − 1), which is 1/(2 sinh(ε/2))."""
        mechanism = self.asks(budget)[1].randomiser
        return math.sqrt(mechanism.frequencies.variance(0.0, reports=1))

    def promise(self, budget: int) -> Guarantee:
        """What is promised to whom."""
        study, query = self.asks(budget)
        return query.guarantee_in(study)

    def details(self, budget: int) -> dict[str, Any]:
        """What a plan says of its noise besides."""
        study, query = self.asks(budget)
        return {"epsilon_per_answer": query.epsilon, "measure": str(study.measure)}


_OF_SUMS = ("clip", "on_grid", "grid_exponent", "dishonest", "factorisation", "admission")
_PLAIN = Scenario(name="plain")
_DEFAULTS: dict[str, Any] = {name: getattr(_PLAIN, name) for name in _OF_SUMS}
