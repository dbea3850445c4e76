"""Randomised response as a way to ask for the same number: one bit of every person, in every round."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

from demur_proto.guarantee import Guarantee
from demur_proto.mechanisms.of_round import guarantee_for, randomiser_of
from demur_proto.round import Histogram, Randomiser
from demur_proto.study import CATEGORICAL, Study
from demur_sim.histogram_design import query_of
from demur_sim.planning.ways import Way
from demur_sim.scenario import Kind, Scenario
from demur_sim.simulation import study_of


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
        mechanism = randomiser_of(self.asks(budget)[1])
        return math.sqrt(mechanism.frequencies.variance(0.0, reports=1))

    def promise(self, budget: int) -> Guarantee:
        """What is promised to whom."""
        return guarantee_for(*self.asks(budget))

    def details(self, budget: int) -> dict[str, Any]:
        """What a plan says of its noise besides."""
        study, query = self.asks(budget)
        return {"epsilon_per_answer": query.epsilon, "measure": str(study.measure)}


_OF_SUMS = ("clip", "on_grid", "grid_exponent", "dishonest", "factorisation", "admission")
_PLAIN = Scenario(name="plain")
_DEFAULTS: dict[str, Any] = {name: getattr(_PLAIN, name) for name in _OF_SUMS}
