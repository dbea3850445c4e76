"""Studies of histograms: which budget a target gives, and which ε each answer may then have."""

import math
from collections.abc import Sequence
from dataclasses import replace

from demur_proto.accounting.pure import MOST_ANSWERS, composition_answers, composition_each
from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.registry import ANY_CATEGORY, Randomiser
from demur_proto.mechanisms.thresholds import MOST_EPSILON
from demur_proto.queries import MOST_CATEGORIES, Feature, Histogram
from demur_proto.queries.histogram import WEIGHT_MARGIN
from demur_proto.study import (
    CATEGORICAL,
    Measure,
    MechanismFamily,
    Policy,
    Study,
    View,
    check_target_delta,
    largest_rho,
)

NEARLY = 1e-3  #: measures whose ε differs by no more than this share are equally good
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
    measure: Measure = Measure.ZCDP,
    answers: int = 0,
) -> Study:
    """The study of histograms with the largest budget that keeps (ε, δ), in view local.

    How many answers fit is up to the rounds: `epsilon_for_answers` says what each may cost. Which
    measure gives each answer most depends on their number: `best_histogram_study` finds it.

    Args:
        name: what people call it.
        epsilon: target ε of everything together, nats, zero-out; > 0.
        delta: target δ, in (0, 1); in measure pure also 0.
        minimum_cohort: fewest reports that may be released; >= 1.
        categories: the most that a histogram may have; 1 to 2^18.
        policy: what a filter does after a refusal: skip or retire.
        horizon: most rounds; 0 when not fixed.
        measure: currency of the budget: zcdp, pure or answers.
        answers: in measure answers, how many with a category one device can afford; else 0.

    Raises:
        ParameterError: an argument is outside its range.

    >>> study = design_histogram_study(name="hello", epsilon=1.0, delta=1e-6, minimum_cohort=1000,
    ...                                categories=64)
    >>> round(study.budget, 4), study.budget_units
    (0.0244, 5342931457063200)
    >>> study = design_histogram_study(name="hello", epsilon=1.0, delta=1e-6, minimum_cohort=1000,
    ...                                categories=64, measure=Measure.ANSWERS, answers=26)
    >>> round(study.answer_epsilon, 4), study.budget_units
    (0.0501, 26)
    """
    check_positive("epsilon", epsilon)
    check_integer("categories", categories, 1, MOST_CATEGORIES)
    if not isinstance(measure, Measure) or measure not in CATEGORICAL:
        raise ParameterError("measure", measure, " or ".join(CATEGORICAL))
    check_target_delta(delta, measure)
    each = 0.0
    if measure is Measure.ANSWERS:
        check_integer("answers", answers, 1, MOST_ANSWERS)
        budget = float(answers)
        each = composition_each(answers, epsilon=epsilon, delta=delta)
    else:
        check_integer("answers", answers, 0, 0)
        budget = epsilon if measure is Measure.PURE else largest_rho(epsilon, delta=delta)
    return Study(
        name=name,
        view=View.LOCAL,
        measure=measure,
        policy=policy,
        budget=budget,
        epsilon=epsilon,
        delta=delta,
        mechanism_family=MechanismFamily.PURE,
        minimum_cohort=minimum_cohort,
        horizon=horizon,
        maximum_dimension=categories,
        answer_epsilon=each,
    )


def best_histogram_study(
    *,
    name: str,
    epsilon: float,
    delta: float,
    minimum_cohort: int,
    categories: int,
    mechanism: Randomiser,
    answers: int,
    policy: Policy = Policy.SKIP,
    horizon: int = 0,
) -> Study:
    """The study in the measure that gives each of so many answers the largest ε.

    Of measures within a thousandth of the largest it is the one whose budget is least in zCDP, which
    leaves most of a lifetime cap; then `pure` before `zcdp` before `answers`.

    Args:
        name: what people call it.
        epsilon: target ε of everything together, nats, zero-out; > 0.
        delta: target δ, in [0, 1); with 0 it is `pure`.
        minimum_cohort: fewest reports that may be released; >= 1.
        categories: k of its histograms; 1 to 2^18.
        mechanism: how devices randomise their category.
        answers: n, how many answers with a category one device can afford; >= 1.
        policy: what a filter does after a refusal: skip or retire.
        horizon: most rounds; 0 when not fixed.

    Raises:
        ParameterError: an argument is outside its range, or even an ε of 1e-6 is too large.

    >>> contract = {"name": "hello", "epsilon": 1.0, "delta": 1e-6, "minimum_cohort": 1000}
    >>> for mechanism, answers in ((Randomiser.OUE, 1), (Randomiser.OUE, 26), (Randomiser.KRR, 26)):
    ...     asked = {"mechanism": mechanism, "categories": 64, "answers": answers}
    ...     study = best_histogram_study(**contract, **asked)
    ...     print(study.measure, round(epsilon_for_answers(study, **asked), 3))
    pure 1.49
    answers 0.098
    zcdp 0.124
    """
    check_integer("answers", answers, 1)
    found: list[tuple[float, Study]] = []
    refused: ParameterError | None = None
    for measure in CATEGORICAL:
        if measure is Measure.ANSWERS and answers > MOST_ANSWERS:
            continue
        if measure is not Measure.PURE and delta == 0:
            continue
        study = design_histogram_study(
            name=name,
            epsilon=epsilon,
            delta=delta,
            minimum_cohort=minimum_cohort,
            categories=categories,
            policy=policy,
            horizon=horizon,
            measure=measure,
            answers=answers if measure is Measure.ANSWERS else 0,
        )
        try:
            each = epsilon_for_answers(
                study, mechanism=mechanism, categories=categories, answers=answers
            )
        except ParameterError as error:
            refused = error
            continue
        found.append((each, study))
    if refused is not None and not found:
        raise refused
    largest = max(each for each, _ in found)
    near = [study for each, study in found if each >= largest * (1 - NEARLY)]
    return min(near, key=lambda study: study.rho)


def histogram_study_for_epsilon(
    *,
    name: str,
    epsilon: float,
    delta: float,
    minimum_cohort: int,
    categories: int,
    mechanism: Randomiser,
    each: float,
    measures: Sequence[Measure] = CATEGORICAL,
    policy: Policy = Policy.SKIP,
    horizon: int = 0,
) -> Study:
    """The study in the measure in which most answers of a given ε fit; as `best_histogram_study` otherwise.

    Args:
        name: what people call it.
        epsilon: target ε of everything together, nats, zero-out; > 0.
        delta: target δ, in [0, 1); with 0 it is `pure`.
        minimum_cohort: fewest reports that may be released; >= 1.
        categories: k of its histograms; 1 to 2^18.
        mechanism: how devices randomise their category.
        each: ε of the mechanism in every round, nats; > 0.
        measures: those to look at.
        policy: what a filter does after a refusal: skip or retire.
        horizon: most rounds; 0 when not fixed.

    Raises:
        ParameterError: an argument is outside its range.

    >>> study = histogram_study_for_epsilon(name="hello", epsilon=1.0, delta=1e-6, minimum_cohort=1000,
    ...                                 categories=1, mechanism=Randomiser.KRR, each=0.05)
    >>> study.measure, study.budget_units
    (<Measure.ANSWERS: 'answers'>, 26)
    """
    query = Histogram(
        feature=Feature(name="any"), categories=categories, mechanism=mechanism, epsilon=each
    )
    own = min(query.randomiser.charge_pure(ANY_CATEGORY) * (1 + WEIGHT_MARGIN), each)
    found = []
    for counted in measures:
        answers = 0
        if counted is not Measure.PURE and delta == 0 and len(measures) > 1:
            continue
        if counted is Measure.ANSWERS:
            answers = max(1, composition_answers(own, epsilon=epsilon, delta=delta))
        found.append(
            design_histogram_study(
                name=name,
                epsilon=epsilon,
                delta=delta,
                minimum_cohort=minimum_cohort,
                categories=categories,
                policy=policy,
                horizon=horizon,
                measure=counted,
                answers=answers,
            )
        )
    return min(
        found, key=lambda study: (-(study.budget_units // query.weight_in(study)), study.rho)
    )


def epsilon_for_answers(
    study: Study, *, mechanism: Randomiser, categories: int, answers: int
) -> float:
    """The largest ε of a mechanism at which so many answers fit each device of a study.

        the largest float ε with n · w(ε) ≤ T, in the integers that filters keep

    In measure `answers` it is the same for every n that the study allows. For `olh` it may not be quite the
    largest, as the best range of its hash jumps while ε grows.

    Args:
        study: the contract; it must allow histograms.
        mechanism: how devices randomise their category.
        categories: k, how many there are; >= 1.
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
    query.mechanism_in(study)

    def fits(epsilon: float) -> bool:
        return answers * replace(query, epsilon=epsilon).weight_in(study) <= study.budget_units

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
