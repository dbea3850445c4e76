"""The study of a scenario's histograms, and what its rounds ask."""

from typing import Any

from demur_proto.histograms import (
    best_histogram_study,
    design_histogram_study,
    epsilon_for_answers,
)
from demur_proto.round import Feature, Histogram, Randomiser
from demur_proto.study import Measure, Study
from demur_sim.scenario import Scenario


def histogram_study(scenario: Scenario, *, cohort: int, answers: int, horizon: int) -> Study:
    """The study that a scenario of histograms asks for, in its measure or in the best for so many answers.

    Args:
        scenario: a histogram.
        cohort: fewest reports that may be released.
        answers: how many answers with a category fit each device.
        horizon: most rounds; 0 when not fixed.

    Raises:
        ParameterError: an argument is outside its range.
    """
    contract: dict[str, Any] = {
        "name": scenario.name,
        "epsilon": scenario.epsilon,
        "delta": scenario.delta,
        "minimum_cohort": cohort,
        "categories": scenario.categories,
        "policy": scenario.policy,
        "horizon": horizon,
    }
    if scenario.measure is None:
        mechanism = Randomiser(scenario.mechanism)
        return best_histogram_study(**contract, mechanism=mechanism, answers=answers)
    counted = answers if scenario.measure is Measure.ANSWERS else 0
    return design_histogram_study(**contract, measure=scenario.measure, answers=counted)


def query_of(scenario: Scenario, study: Study, *, answers: int | None = None) -> Histogram:
    """What a scenario's rounds ask, in the first period; the others differ in that only.

    Args:
        scenario: a histogram.
        study: the contract; it says what the devices can spend.
        answers: how many answers with a category fit each device; by default the scenario's budget.

    Raises:
        ParameterError: the categories or the answers are outside the mechanism's range.
    """
    mechanism = Randomiser(scenario.mechanism)
    epsilon = epsilon_for_answers(
        study,
        mechanism=mechanism,
        categories=scenario.categories,
        answers=scenario.budget if answers is None else answers,
    )
    return Histogram(
        feature=Feature(name=scenario.feature, parameters={**scenario.parameters, "period": 1}),
        categories=scenario.categories,
        mechanism=mechanism,
        epsilon=epsilon,
    )
