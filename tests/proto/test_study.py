import math
import pickle
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from demur_client.budget.decide import charge_units
from demur_client.budget.filters import Filter
from demur_proto.accounting import conversions
from demur_proto.accounting.calibration import squared_radius
from demur_proto.errors import ParameterError
from demur_proto.queries import Feature, Linear
from demur_proto.round import round_of
from demur_proto.study import Measure, Policy, Study, View, design_study, largest_rho, sampler_delta
from demur_proto.wire.definition import define_study, read_study

STUDY = Study(
    name="x",
    view=View.AGGREGATE,
    measure=Measure.GDP,
    policy=Policy.SKIP,
    budget=0.2,
    epsilon=1.0,
    delta=1e-6,
    base_sigma=16.0,
    base_grid_exponent=-7,
    minimum_cohort=1000,
    dishonest=10,
    horizon=100,
    maximum_dimension=3,
)


@settings(max_examples=80)
@given(
    epsilon=st.floats(-2, 1).map(lambda x: 10**x),
    delta=st.floats(-15, -0.5).map(lambda x: 10**x),
    answers=st.one_of(st.integers(1, 40), st.integers(1, 100_000)),
    clip=st.sampled_from([1.0, 0.3, 2.5, 1e-3, 7.0, 1e4 / 3]),
    fineness=st.integers(0, 4),
    measure=st.sampled_from([Measure.GDP, Measure.ZCDP]),
    view=st.sampled_from(View),
    policy=st.sampled_from(Policy),
    dishonest=st.integers(0, 9),
)
def test_exactly_the_designed_number_of_full_clip_answers_fits(
    epsilon: float,
    delta: float,
    answers: int,
    clip: float,
    fineness: int,
    measure: Measure,
    view: View,
    policy: Policy,
    dishonest: int,
) -> None:
    study = design_study(
        name="x",
        epsilon=epsilon,
        delta=delta,
        answers=answers,
        clip=clip,
        measure=measure,
        view=view,
        policy=policy,
        minimum_cohort=10,
        dishonest=dishonest,
        grid_exponent=math.floor(math.log2(clip)) - 14 - fineness,
    )
    defined = read_study(define_study(study).definition)
    asked = round_of(defined, Linear([Feature(name="f")], clip=clip), number=1)
    full = squared_radius(clip, study.base_grid_exponent)

    charge = charge_units(full, weight=asked.weight, budget_units=study.budget_units)

    assert defined.value == study
    assert answers * charge <= study.budget_units < (answers + 1) * charge
    if answers <= 40:
        mine = Filter.of(study)
        given_ = [mine.try_spend(full, weight=asked.weight) for _ in range(answers + 1)]
        assert given_ == [True] * answers + [False]


@example(epsilon=0.028, delta=0.83, reserve=0.0, measure=Measure.ZCDP)  # was refused
@settings(max_examples=60)
@given(
    epsilon=st.floats(-2, 1).map(lambda x: 10**x),
    delta=st.floats(-15, -0.5).map(lambda x: 10**x),
    reserve=st.floats(0.0, 0.999),
    measure=st.sampled_from([Measure.GDP, Measure.ZCDP]),
)
def test_a_design_is_valid_even_where_the_sampler_takes_much_of_delta(
    epsilon: float, delta: float, reserve: float, measure: Measure
) -> None:
    per_coordinate = (1 + math.exp(epsilon)) * 2.0**-120
    coordinates = reserve * delta / per_coordinate
    horizon = max(1, min((1 << 32) - 1, int(coordinates)))
    dimension = max(1, min((1 << 31) - 1, int(coordinates / horizon)))

    study = design_study(
        name="x",
        epsilon=epsilon,
        delta=delta,
        answers=3,
        minimum_cohort=1,
        view=View.LOCAL,
        measure=measure,
        horizon=horizon,
        maximum_dimension=dimension,
    )

    assert Fraction(study.measure_delta) + Fraction(study.sampler_delta) <= Fraction(
        math.nextafter(delta, 1)
    )


def test_less_noise_than_designed_is_refused() -> None:
    study = design_study(
        name="x", epsilon=1.0, delta=1e-6, answers=15, minimum_cohort=10, horizon=9
    )

    with pytest.raises(ParameterError, match="budget"):
        replace(study, budget=study.budget * (1 + 1e-9))
    with pytest.raises(ParameterError, match="budget"):
        replace(study, epsilon=study.epsilon * (1 - 1e-9))
    with pytest.raises(ParameterError, match="budget"):
        replace(study, delta=study.delta * (1 - 1e-9))


@given(
    epsilon=st.floats(1e-3, 20.0),
    view=st.sampled_from(View),
    cohort=st.integers(1, 10**6),
    horizon=st.integers(0, 10**6),
    dimension=st.integers(1, 10**6),
)
def test_the_samplers_share_of_delta_is_never_below_its_formula(
    epsilon: float, view: View, cohort: int, horizon: int, dimension: int
) -> None:
    share = sampler_delta(
        epsilon=epsilon,
        view=view,
        minimum_cohort=cohort,
        horizon=horizon,
        maximum_dimension=dimension,
    )

    devices = cohort if view is View.AGGREGATE else 1
    coordinates = devices * dimension * (horizon or 1 << 32)
    # e^ε from below: a partial sum of its series, all of whose terms are positive.
    term, power = Fraction(1), Fraction(0)
    for k in range(1, 90):
        power += term
        term = term * Fraction(epsilon) / k
    exact = (1 + power) * coordinates / Fraction(2) ** 120
    assert exact <= Fraction(share) <= exact * (1 + Fraction(1, 10**11))


@given(st.floats(1.0, 50.0), st.floats(0.1, 0.22))
def test_the_budget_norm_is_exact(base_sigma: float, budget: float) -> None:
    gdp = replace(STUDY, base_sigma=base_sigma, budget=budget)
    zcdp = replace(gdp, measure=Measure.ZCDP, budget=budget / 16)

    assert gdp.budget_norm == (Fraction(base_sigma) * Fraction(budget)) ** 2
    assert zcdp.budget_norm == 2 * Fraction(base_sigma) ** 2 * Fraction(budget / 16)


@pytest.mark.parametrize(
    ("view", "shares"), [(View.AGGREGATE, 990), (View.LOCAL, 1)], ids=["aggregate", "local"]
)
def test_the_noise_is_split_over_the_honest_part_of_the_cohort(view: View, shares: int) -> None:
    assert replace(STUDY, view=view).noise_shares == shares


@pytest.mark.parametrize("field", ["budget", "epsilon", "delta", "base_sigma"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, -math.inf, "1", None, True])
def test_numbers_outside_their_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=field):
        replace(STUDY, **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "a\nb"),
        ("name", "x" * 201),
        ("delta", 1.0),
        ("base_grid_exponent", 901),
        ("base_grid_exponent", -901),
        ("base_grid_exponent", -7.0),
        ("minimum_cohort", 0),
        ("minimum_cohort", 1 << 31),
        ("dishonest", 1000),
        ("dishonest", -1),
        ("horizon", 1 << 32),
        ("maximum_dimension", 0),
        ("budget", 1 << 4000),
        ("base_sigma", (1 << 53) + 1),
    ],
)
def test_fields_outside_their_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ParameterError):
        replace(STUDY, **{field: value})


@pytest.mark.parametrize(
    ("field", "text"), [("view", "local"), ("measure", "gdp"), ("policy", "retire")]
)
def test_the_bare_text_of_a_choice_is_refused(field: str, text: Any) -> None:
    with pytest.raises(ParameterError, match=field):
        replace(STUDY, **{field: text})


@pytest.mark.parametrize(("budget", "sigma"), [(1e-200, 1e-200), (0.1, 1e300), (0.1, 1e-9)])
def test_a_budget_that_no_grid_counts_is_refused(budget: float, sigma: float) -> None:
    with pytest.raises(ParameterError, match="between one and 2\\^62"):
        replace(STUDY, budget=budget, base_sigma=sigma)


def test_a_design_that_the_sampler_alone_would_break_is_refused() -> None:
    with pytest.raises(ParameterError, match="sampler"):
        design_study(name="x", epsilon=1.0, delta=1e-27, answers=1, minimum_cohort=1)


@pytest.mark.parametrize(
    ("field", "value"),
    [("epsilon", math.nan), ("delta", 1), ("delta", 0.0), ("answers", 0), ("clip", -1.0)],
)
def test_designs_outside_their_range_are_refused(field: str, value: Any) -> None:
    arguments: dict[str, Any] = {
        "name": "x",
        "epsilon": 1.0,
        "delta": 1e-6,
        "answers": 3,
        "minimum_cohort": 10,
    }

    with pytest.raises(ParameterError, match=field):
        design_study(**{**arguments, field: value})


def test_a_measure_that_studies_cannot_have_is_refused_with_those_they_can() -> None:
    measure: Any = "renyi"

    with pytest.raises(
        ParameterError, match="measure must be gdp or zcdp, with linear rounds, got 'renyi'"
    ):
        design_study(
            name="x", epsilon=1.0, delta=1e-6, answers=3, minimum_cohort=10, measure=measure
        )


def test_studies_cross_process_borders_whole() -> None:
    assert pickle.loads(pickle.dumps(STUDY)) == STUDY


@pytest.mark.parametrize("delta", [1e-12, 0.5, 0.999999, 0.9999999999999999])
def test_the_largest_budget_is_found_at_once_even_where_delta_hardly_depends_on_it(
    delta: float,
) -> None:
    rho = largest_rho(4.0, delta=delta)

    assert conversions.zcdp_delta(rho, epsilon=4.0) <= delta
    assert rho > 0.5 * conversions.zcdp_rho(4.0, delta=delta)
