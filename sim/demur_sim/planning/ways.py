"""The ways to ask for the same number, and how noisy each is with a given budget."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from demur_proto.arrays import Vector
from demur_proto.continual.factors import factors_of, noise_gains
from demur_proto.counting_queries import COARSEST_COUNTING
from demur_proto.guarantee import Guarantee, guarantee_of
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.segments import Factorisation
from demur_proto.study import Study
from demur_sim.counting_design import design_counting
from demur_sim.planning.model import Model
from demur_sim.planning.telling import Weights, change_truncation
from demur_sim.planning.truncations import (
    Truncation,
    Truncations,
    answer_truncations,
    spread_truncations,
)
from demur_sim.scenario import Kind, Scenario
from demur_sim.simulation import study_of
from demur_sim.summing import fine_exponent, running_errors, summing

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
