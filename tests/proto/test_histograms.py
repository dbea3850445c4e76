"""How many answers with a category fit, exactly as designed."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur_client.budget.filters import Filter
from demur_proto.accounting.histograms import (
    best_histogram_study,
    design_histogram_study,
    epsilon_for_answers,
    histogram_study_for_epsilon,
)
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.registry import Randomiser
from demur_proto.queries import Feature, Histogram
from demur_proto.study import (
    CATEGORICAL,
    Measure,
    MechanismFamily,
    Policy,
    Study,
    View,
    design_study,
)
from demur_proto.wire.definition import define_study, read_study

STUDY = design_histogram_study(
    name="x", epsilon=1.0, delta=1e-6, minimum_cohort=10, categories=1000
)


def weight(study: Study, mechanism: Randomiser, categories: int, epsilon: float) -> int:
    feature = Feature(name="any")
    return Histogram(
        feature=feature, categories=categories, mechanism=mechanism, epsilon=epsilon
    ).weight_in(study)


@settings(max_examples=12)
@given(
    target=st.floats(0.1, 8.0),
    mechanism=st.sampled_from(Randomiser),
    categories=st.sampled_from([2, 3, 64, 1000]),
    answers=st.one_of(st.integers(1, 40), st.integers(1, 100_000)),
    policy=st.sampled_from([Policy.SKIP, Policy.RETIRE]),
)
def test_so_many_answers_fit_at_the_largest_epsilon_and_not_one_more(
    target: float, mechanism: Randomiser, categories: int, answers: int, policy: Policy
) -> None:
    study = design_histogram_study(
        name="x",
        epsilon=target,
        delta=1e-6,
        minimum_cohort=10,
        categories=1000,
        policy=policy,
    )

    epsilon = epsilon_for_answers(
        study, mechanism=mechanism, categories=categories, answers=answers
    )

    cost = weight(study, mechanism, categories, epsilon)
    assert answers * cost <= study.budget_units
    if epsilon < 50:
        dearer = weight(study, mechanism, categories, math.nextafter(epsilon, math.inf))
        assert answers * dearer > study.budget_units
        assert (answers + 1) * cost > study.budget_units
        if answers <= 40:
            mine = Filter.of(study)
            given_ = [mine.try_spend(1, weight=cost) for _ in range(answers + 1)]
            assert given_ == [True] * answers + [False]
            assert mine.try_spend(0, weight=cost)  # nobody pays for no category
    assert read_study(define_study(study).definition).value == study


def test_the_same_answers_cost_a_mixed_study_the_same() -> None:
    mixed = design_study(
        name="x",
        epsilon=1.0,
        delta=1e-6,
        answers=7,
        minimum_cohort=10,
        measure=STUDY.measure,
        view=View.LOCAL,
        mechanism_family=MechanismFamily.MIXED,
        maximum_dimension=64,
    )

    epsilons = [
        epsilon_for_answers(study, mechanism=Randomiser.OUE, categories=64, answers=10)
        for study in (STUDY, mixed)
    ]

    # Its budget is smaller by what the Gaussian sampler may add to δ, which is next to nothing.
    assert epsilons[1] == pytest.approx(epsilons[0], rel=1e-9)


def test_twice_the_answers_cost_half_each() -> None:
    ten, twenty = (
        epsilon_for_answers(STUDY, mechanism=Randomiser.KRR, categories=64, answers=answers)
        for answers in (10, 20)
    )

    costs = [
        Histogram(
            feature=Feature(name="any"),
            categories=64,
            mechanism=Randomiser.KRR,
            epsilon=epsilon,
        ).randomiser.charge_zcdp(1)
        for epsilon in (ten, twenty)
    ]
    assert costs[0] == pytest.approx(2 * costs[1], rel=1e-9)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("answers", 0),
        ("answers", 10**15),  # at less than 1e-6 each
        ("answers", 1.0),
        ("categories", 0),
        ("categories", 1001),
        ("mechanism", "oue"),
    ],
)
def test_what_no_epsilon_could_do_is_refused(name: str, value: Any) -> None:
    arguments: dict[str, Any] = {"mechanism": Randomiser.OUE, "categories": 64, "answers": 10}

    with pytest.raises(ParameterError, match=f"{name} must be ") as caught:
        epsilon_for_answers(STUDY, **{**arguments, name: value})

    assert len(str(caught.value).splitlines()) == 1


def test_a_gaussian_study_has_no_epsilon_for_histograms() -> None:
    study = design_study(name="x", epsilon=1.0, delta=1e-6, answers=3, minimum_cohort=10)

    with pytest.raises(ParameterError, match="query must be linear"):
        epsilon_for_answers(study, mechanism=Randomiser.OUE, categories=64, answers=10)


@pytest.mark.parametrize(
    ("name", "value"),
    [("epsilon", 0.0), ("delta", 1.0), ("categories", 0), ("policy", Policy.CLIP), ("name", "")],
)
def test_designs_outside_their_range_are_refused(name: str, value: Any) -> None:
    arguments: dict[str, Any] = {
        "name": "x",
        "epsilon": 1.0,
        "delta": 1e-6,
        "minimum_cohort": 10,
        "categories": 64,
    }

    with pytest.raises(ParameterError, match=name):
        design_histogram_study(**{**arguments, name: value})


def test_an_ordinary_design_with_histograms_only_is_made_elsewhere() -> None:
    with pytest.raises(ParameterError, match="mechanism_family must be gaussian or mixed"):
        design_study(
            name="x",
            epsilon=1.0,
            delta=1e-6,
            answers=3,
            minimum_cohort=10,
            mechanism_family=MechanismFamily.PURE,
        )
    assert replace(STUDY, maximum_dimension=2).mechanism_family is MechanismFamily.PURE


@settings(max_examples=6)
@given(
    target=st.floats(0.2, 8.0),
    mechanism=st.sampled_from([Randomiser.KRR, Randomiser.OUE, Randomiser.SUBSET]),
    answers=st.integers(1, 400),
)
def test_the_best_study_gives_no_less_than_any_measure(
    target: float, mechanism: Randomiser, answers: int
) -> None:
    contract: dict[str, Any] = {
        "name": "x",
        "epsilon": target,
        "delta": 1e-6,
        "minimum_cohort": 10,
        "categories": 16,
    }
    asked: dict[str, Any] = {"mechanism": mechanism, "categories": 16, "answers": answers}

    best = best_histogram_study(**{**contract, **asked})

    each = {}
    for measure in CATEGORICAL:
        counted = answers if measure is Measure.ANSWERS else 0
        study = design_histogram_study(**contract, measure=measure, answers=counted)
        each[measure] = epsilon_for_answers(study, **asked)
    assert epsilon_for_answers(best, **asked) == each[best.measure]
    assert each[best.measure] >= max(each.values()) * (1 - 1e-3)
    assert each[Measure.ANSWERS] >= each[Measure.PURE] * (1 - 1e-9)


@pytest.mark.parametrize(
    ("each", "delta", "measure", "answers"),
    [
        (0.05, 1e-6, Measure.ANSWERS, 26),
        (1.0, 1e-6, Measure.PURE, 1),
        (0.25, 0.0, Measure.PURE, 4),
        (2.0, 1e-6, Measure.ZCDP, 0),  # which does not fit: whoever asks is told so later
    ],
)
def test_the_study_for_answers_of_one_epsilon_is_where_most_of_them_fit(
    each: float, delta: float, measure: Measure, answers: int
) -> None:
    study = histogram_study_for_epsilon(
        name="x",
        epsilon=1.0,
        delta=delta,
        minimum_cohort=10,
        categories=1,
        mechanism=Randomiser.KRR,
        each=each,
    )

    assert study.measure is measure
    assert study.budget_units // weight(study, Randomiser.KRR, 1, each) == answers


def test_without_a_delta_only_addition_is_left() -> None:
    study = best_histogram_study(
        name="x",
        epsilon=1.0,
        delta=0.0,
        minimum_cohort=10,
        categories=64,
        mechanism=Randomiser.OUE,
        answers=26,
    )

    assert (study.measure, study.delta) == (Measure.PURE, 0.0)
