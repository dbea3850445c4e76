"""Studies of histograms: which budget a target gives, and which ε each answer may then have."""

import math
from dataclasses import replace

from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.of_round import mechanism_of, weight_of
from demur_proto.mechanisms.thresholds import MOST_EPSILON
from demur_proto.round import MOST_CATEGORIES, Feature, Histogram, Randomiser
from demur_proto.study import Measure, MechanismFamily, Policy, Study, View, largest_rho

LEAST_EPSILON = (
    1e-6  #: of a round, nats: at less, no number of people would be enough to see anything
)


def design_histogram_study(
    *,
    name: str,
    epsilon: float,
    delta: float,
    minimum_cohort: int,
    categories: int,
    policy: Policy = Policy.SKIP,
    horizon: int = 0,
) -> Study:
    """The study of histograms with the largest budget that keeps (ε, δ), in view local.

    How many answers fit is up to the rounds: `epsilon_for_answers` says what each may cost.

    Args:
        name: what people call it.
        epsilon: target ε of everything together, nats, zero-out; > 0.
        delta: target δ, in (0, 1).
        minimum_cohort: fewest reports that may be released; >= 1.
        categories: the most that a histogram may have; 2 to 2^18.
        policy: what a filter does after a refusal: skip or retire.
        horizon: most rounds; 0 when not fixed.

    Raises:
        ParameterError: an argument is outside its range.

    >>> study = design_histogram_study(name="hello", epsilon=1.0, delta=1e-6, minimum_cohort=1000,
    ...                                categories=64)
    >>> round(study.budget, 4), study.budget_units
    (0.0244, 5342931457063200)
    """
    check_positive("epsilon", epsilon)
    check_integer("categories", categories, 2, MOST_CATEGORIES)
    if not isinstance(delta, float) or not 0 < delta < 1:
        raise ParameterError("delta", delta, "between 0 and 1, both excluded")
    return Study(
        name=name,
        view=View.LOCAL,
        measure=Measure.ZCDP,
        policy=policy,
        budget=largest_rho(epsilon, delta=delta),
        epsilon=epsilon,
        delta=delta,
        mechanism_family=MechanismFamily.PURE,
        minimum_cohort=minimum_cohort,
        horizon=horizon,
        maximum_dimension=categories,
    )


def epsilon_for_answers(
    study: Study, *, mechanism: Randomiser, categories: int, answers: int
) -> float:
    """The largest ε of a mechanism at which so many answers fit each device of a study.

        the largest float ε with n · w(ε) ≤ T, in the integers that filters keep

    Args:
        study: the contract; it must allow histograms.
        mechanism: how devices randomise their category.
        categories: k, how many there are; >= 2.
        answers: n, how many answers with a category one device can afford; >= 1.

    Returns:
        ε of the rounds, nats; at most the mechanism's largest, 50.

    Raises:
        ParameterError: an argument is outside its range, or the study has no histograms, or even an
            ε of 1e-6 is too large.

    >>> study = design_histogram_study(name="hello", epsilon=1.0, delta=1e-6, minimum_cohort=1000,
    ...                                categories=64)
    >>> for answers in (1, 10):
    ...     print(round(epsilon_for_answers(study, mechanism=Randomiser.OUE, categories=64,
    ...                                     answers=answers), 3))
    0.443
    0.14
    """
    check_integer("answers", answers, 1, study.budget_units)

    query = Histogram(
        feature=Feature(name="any"),
        categories=categories,
        mechanism=mechanism,
        epsilon=MOST_EPSILON,
    )
    mechanism_of(study, query)

    def fits(epsilon: float) -> bool:
        return answers * weight_of(study, replace(query, epsilon=epsilon)) <= study.budget_units

    low, high = LEAST_EPSILON, MOST_EPSILON
    if fits(high):
        return high
    if not fits(low):
        raise ParameterError("answers", answers, f"fewer: not even an epsilon of {low:g} fits")
    while True:
        # Charges grow with ε as its square, so equal steps of ln ε halve the work.
        middle = math.sqrt(low * high) if high > 2 * low else (low + high) / 2
        if not low < middle < high:
            return low
        low, high = (middle, high) if fits(middle) else (low, middle)
