"""Gradient rounds in floats: everybody's payments against a slow filter in exact rationals."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from demur_proto.accounting.calibration import base_units
from demur_proto.arrays import Flags, Values, Vector
from demur_proto.errors import ParameterError, StateError
from demur_proto.models.architectures import Softmax
from demur_proto.models.definition import ModelDefinition
from demur_proto.study import Measure, MechanismFamily, Policy, Study, View, design_study
from demur_sim.engine.float_cohort import FloatCohort, FloatPrice, float_statement
from demur_sim.engine.sampling import Purpose, stream
from demur_sim.people.labelled import LabelledPeople
from demur_sim.people.presence import BLOCK

CLIP, SIGMA, EXPONENT = 2.0, 40.0, -12
INPUTS, CLASSES = 3, 2
MODEL = Softmax(inputs=INPUTS, classes=CLASSES)


def study_of(
    people: int, *, answers: int, policy: Policy = Policy.CLIP, view: View = View.AGGREGATE
) -> Study:
    """A study in which so many full answers fit exactly: ρ = kC²/(2σ²), which is a binary fraction."""
    return Study(
        name="floats",
        view=view,
        measure=Measure.ZCDP,
        policy=policy,
        budget=answers * CLIP**2 / (2 * SIGMA**2) * (1 + 2**-52),  # not a float too little
        epsilon=2.0,
        delta=1e-5,
        minimum_cohort=people,
        base_sigma=SIGMA,
        base_grid_exponent=EXPONENT,
        maximum_dimension=1 << 18,
    )


def crowd(people: int, *, scale: float = 1.0, seed: int = 5) -> LabelledPeople:
    """People with gradients of very different length."""
    rng = np.random.default_rng(seed)
    data = rng.normal(size=(people, INPUTS)) * scale * rng.exponential(1.0, (people, 1))
    return LabelledPeople.one_each(data, rng.integers(0, CLASSES, people))


def at(theta: Vector) -> ModelDefinition:
    return ModelDefinition(architecture=MODEL, theta=theta)


def thetas(rounds: int) -> list[Vector]:
    rng = np.random.default_rng(11)
    return [rng.normal(size=MODEL.parameters) * 0.3 for _ in range(rounds)]


def without_noise(cohort: FloatCohort, theta: Vector, *, number: int, seed: int) -> Vector:
    """What was given in a round: the released sum less the noise that its seed stands for."""
    released = cohort.noisy_sum(at(theta), number=number)
    reports = len(cohort.refused) if cohort.study.view is View.LOCAL else 1
    drawn = stream(seed, Purpose.SUMMED_NOISE, number).standard_normal(MODEL.parameters)
    given: Vector = released - drawn * SIGMA * math.sqrt(reports)
    return given


def rows_of(people: LabelledPeople, theta: Vector) -> Values:
    return MODEL.gradients(theta, people.examples(None, slice(0, people.devices)))


class SlowFilter:
    """Algorithm "filtered-gd" for one person in exact rationals: min(C, √(B − Σ‖ḡ‖²))."""

    def __init__(self, budget: Fraction) -> None:
        self.left = budget
        self.shrunk = False

    def factor(self, norm: float) -> float:
        if self.shrunk or norm == 0:
            return 0.0
        radius = min(CLIP, math.sqrt(self.left))
        self.shrunk = norm > radius and radius < CLIP
        self.left -= Fraction(min(norm, radius)) ** 2
        self.left = max(self.left, Fraction(0))
        return min(1.0, radius / norm)


def test_filtered_gradients_add_up_to_those_of_exact_filters() -> None:
    people, answers = crowd(300), 3
    study = study_of(300, answers=answers)
    cohort = FloatCohort(study, people, clip=CLIP, seed=1)
    slow = [SlowFilter(answers * Fraction(CLIP) ** 2) for _ in range(300)]

    for number, theta in enumerate(thetas(12), start=1):
        rows = rows_of(people, theta)
        factors = [
            each.factor(float(norm))
            for each, norm in zip(slow, np.linalg.norm(rows, axis=1), strict=True)
        ]
        given = without_noise(cohort, theta, number=number, seed=1)
        # A radius is 2e-12 short, or 1e-6 where hardly anything is left: sqrt of differences.
        np.testing.assert_allclose(given, np.array(factors) @ rows, rtol=0, atol=300 * 1e-6)

    shrunk: Flags = np.array([each.shrunk for each in slow])
    assert 30 < shrunk.sum() < 270
    np.testing.assert_array_equal(cohort.refused, shrunk)
    left = np.array([float(each.left) for each in slow])
    paid = cohort.spent / study.budget_units * answers * CLIP**2
    np.testing.assert_allclose(answers * CLIP**2 - paid, left, rtol=0, atol=1e-9)


@given(
    policy=st.sampled_from(list(Policy)),
    worst_case=st.booleans(),
    answers=st.integers(1, 4),
    scale=st.sampled_from([1e-3, 0.3, 1.0, 30.0, 1e9, 1e200]),
    seed=st.integers(0, 5),
)
def test_nobody_ever_gives_more_than_their_budget(
    policy: Policy, worst_case: bool, answers: int, scale: float, seed: int
) -> None:
    people = crowd(40, scale=scale, seed=seed)
    study = study_of(40, answers=answers, policy=policy)
    cohort = FloatCohort(study, people, clip=CLIP, seed=seed, worst_case=worst_case)
    before = cohort.spent

    for number, theta in enumerate(thetas(7), start=1):
        cohort.noisy_sum(at(theta), number=number)
        assert (cohort.spent >= before).all()
        before = cohort.spent

    assert (cohort.spent <= study.budget_units).all()


@pytest.mark.parametrize("policy", [Policy.SKIP, Policy.RETIRE])
def test_an_answer_that_does_not_fit_is_refused_whole(policy: Policy) -> None:
    people = crowd(200)
    study = study_of(200, answers=2, policy=policy)
    cohort = FloatCohort(study, people, clip=CLIP, seed=3)
    left = [2 * Fraction(CLIP) ** 2 for _ in range(200)]
    refused = [False] * 200

    for number, theta in enumerate(thetas(9), start=1):
        rows = rows_of(people, theta)
        norms = np.minimum(np.linalg.norm(rows, axis=1), CLIP)
        for person, norm in enumerate(norms.tolist()):
            cost = Fraction(norm) ** 2
            if cost <= left[person] and not (refused[person] and policy is Policy.RETIRE):
                left[person] -= cost
            else:
                refused[person] = True
                rows[person] = 0.0
        expected = (
            rows * np.minimum(1, CLIP / np.linalg.norm(rows_of(people, theta), axis=1))[:, None]
        ).sum(0)
        given = without_noise(cohort, theta, number=number, seed=3)
        np.testing.assert_allclose(given, expected, rtol=0, atol=1e-9)

    assert cohort.refused.tolist() == refused
    assert 20 < sum(refused) < 200


def test_both_algorithms_give_the_same_sums_for_as_many_steps_as_full_answers_fit() -> None:
    people, answers = crowd(500), 5
    filtered = FloatCohort(study_of(500, answers=answers), people, clip=CLIP, seed=2)
    private = FloatCohort(
        study_of(500, answers=answers, policy=Policy.RETIRE),
        people,
        clip=CLIP,
        seed=2,
        worst_case=True,
    )

    for number, theta in enumerate(thetas(answers), start=1):
        mine, other = (each.noisy_sum(at(theta), number=number) for each in (filtered, private))
        assert mine.tobytes() == other.tobytes()

    assert private.spent.tolist() == [private.full_charge * answers] * 500
    assert not private.refused.any()


def test_one_more_step_of_private_gd_is_cover_from_everyone() -> None:
    people = crowd(50)
    study = study_of(50, answers=1, policy=Policy.RETIRE)
    cohort = FloatCohort(study, people, clip=CLIP, seed=4, worst_case=True)
    first, second = thetas(2)
    cohort.noisy_sum(at(first), number=1)

    given = without_noise(cohort, second, number=2, seed=4)

    np.testing.assert_allclose(given, 0.0, atol=1e-9)
    assert cohort.refused.all()
    assert (cohort.spent == study.budget_units).all()


@pytest.mark.parametrize("measure", [Measure.ZCDP, Measure.GDP])
def test_a_clip_that_is_no_multiple_of_the_grid_costs_no_answer(measure: Measure) -> None:
    study = design_study(
        name="floats",
        epsilon=1.0,
        delta=1e-5,
        answers=3,
        minimum_cohort=20,
        clip=0.3,
        grid_exponent=-16,
        measure=measure,
        policy=Policy.RETIRE,
        maximum_dimension=1 << 8,
    )
    cohort = FloatCohort(study, crowd(20), clip=0.3, seed=4, worst_case=True)

    refused = []
    for number, theta in enumerate(thetas(4), start=1):
        cohort.noisy_sum(at(theta), number=number)
        refused.append(int(np.count_nonzero(cohort.refused)))

    assert refused == [0, 0, 0, 20]


def test_threads_change_no_bit() -> None:
    people = crowd(2 * BLOCK + 100)
    sums = []

    for threads in (1, 3):
        study = study_of(people.devices, answers=2)
        cohort = FloatCohort(study, people, clip=CLIP, seed=6, threads=threads)
        sums.append(
            [
                cohort.noisy_sum(at(theta), number=number).tobytes()
                for number, theta in enumerate(thetas(3), start=1)
            ]
        )

    assert sums[0] == sums[1]


@pytest.mark.parametrize(("view", "reports"), [(View.AGGREGATE, 1), (View.LOCAL, 100)])
def test_noise_is_drawn_once_for_a_sum_and_once_for_each_report(view: View, reports: int) -> None:
    wide = Softmax(inputs=1999, classes=2)
    people = LabelledPeople.one_each(np.zeros((100, 1999)), np.zeros(100, dtype=np.int64))
    cohort = FloatCohort(study_of(100, answers=9, view=view), people, clip=CLIP, seed=8)
    blank = ModelDefinition(architecture=wide, theta=np.zeros(wide.parameters))

    drawn = cohort.noisy_sum(blank, number=1)[:-2]  # less the biases: all else is noise

    # The deviation of d draws has a relative standard error of 1/√(2d).
    expected = SIGMA * math.sqrt(reports)
    assert drawn.std() == pytest.approx(expected, rel=5 / math.sqrt(2 * len(drawn)))
    assert abs(drawn.mean()) < 5 * expected / math.sqrt(len(drawn))


def test_a_gradient_that_is_not_finite_gives_nothing_and_costs_nothing() -> None:
    people = crowd(60)
    data = np.array(people.data, dtype=np.float64)
    data[3], data[4, 0] = np.nan, np.inf
    labels = people.labels.copy()
    labels[5] = CLASSES
    odd = [3, 4, 5]
    cohort = FloatCohort(
        study_of(60, answers=9),
        LabelledPeople.one_each(data, labels),
        clip=CLIP,
        seed=9,
    )
    (theta,) = thetas(1)

    given = without_noise(cohort, theta, number=1, seed=9)

    rows = np.delete(rows_of(people, theta), odd, axis=0)
    factors = np.minimum(1, CLIP / np.linalg.norm(rows, axis=1))
    np.testing.assert_allclose(given, factors @ rows, rtol=0, atol=1e-9)
    assert (cohort.spent[odd] == 0).all()
    assert (np.delete(cohort.spent, odd) > 0).all()


def test_a_cohort_goes_on_where_another_stopped() -> None:
    people, (first, second) = crowd(80), thetas(2)
    whole = FloatCohort(study_of(80, answers=1), people, clip=CLIP, seed=7)
    whole.noisy_sum(at(first), number=1)
    later = FloatCohort(study_of(80, answers=1), people, clip=CLIP, seed=7)

    later.restore(spent=whole.spent, refused=whole.refused, covered=whole.covered, rounds=1)

    mine, other = (each.noisy_sum(at(second), number=2) for each in (whole, later))
    assert mine.tobytes() == other.tobytes()
    assert whole.spent.tolist() == later.spent.tolist()


@pytest.mark.parametrize("number", [0, 1, 3])
def test_no_round_is_asked_twice_or_left_out(number: int) -> None:
    cohort = FloatCohort(study_of(9, answers=3), crowd(9), clip=CLIP, seed=1)
    cohort.noisy_sum(at(thetas(1)[0]), number=1)

    with pytest.raises(StateError, match=r"^round 2 is next, not round"):
        cohort.noisy_sum(at(thetas(1)[0]), number=number)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spent", np.zeros(8, dtype=np.int64)),
        ("spent", np.zeros(9)),
        ("spent", np.full(9, -1)),
        ("spent", np.full(9, 1 << 62)),
        ("refused", np.zeros(9)),
        ("refused", np.zeros(8, dtype=bool)),
        ("covered", np.zeros(9)),
        ("covered", np.zeros(8, dtype=bool)),
        ("rounds", -1),
        ("rounds", 1.0),
    ],
)
def test_the_state_of_another_cohort_is_refused(name: str, value: Any) -> None:
    cohort = FloatCohort(study_of(9, answers=3), crowd(9), clip=CLIP, seed=1)
    flags = np.zeros(9, dtype=bool)
    good = {
        "spent": np.zeros(9, dtype=np.int64),
        "refused": flags,
        "covered": flags,
        "rounds": 2,
    }

    with pytest.raises(ParameterError, match=f"^{name} must be "):
        cohort.restore(**{**good, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("clip", 0.0), ("clip", math.nan), ("seed", -1), ("threads", 0), ("people", crowd(8))],
)
def test_what_makes_no_cohort_is_refused_in_one_line(name: str, value: Any) -> None:
    good: dict[str, Any] = {"people": crowd(9), "clip": CLIP, "seed": 1}

    with pytest.raises(ParameterError, match=f"^{name} must be ") as caught:
        FloatCohort(study_of(9, answers=3), **{**good, name: value})

    assert "\n" not in str(caught.value)


def test_a_study_without_sums_is_refused() -> None:
    study = Study(
        name="counts",
        view=View.LOCAL,
        measure=Measure.ZCDP,
        policy=Policy.SKIP,
        budget=0.01,
        epsilon=2.0,
        delta=1e-5,
        minimum_cohort=9,
        mechanism_family=MechanismFamily.PURE,
    )

    with pytest.raises(ParameterError, match=r"^mechanism_family must be "):
        FloatCohort(study, crowd(9), clip=CLIP, seed=1)


def test_the_statement_says_what_floats_cannot_promise() -> None:
    text = float_statement(study_of(9, answers=3))

    assert text.startswith("In real arithmetic: (2, 1e-05)-differential privacy")
    assert all(word in text for word in ("Unit:", "Neighbour: zero-out", "View: aggregate"))
    assert "Arithmetic: float" in text
    assert "exact" not in text.replace("N(0, sigma^2)", "")


def test_the_worth_of_a_unit_is_that_of_the_study() -> None:
    study = study_of(9, answers=3)

    units, weight = base_units(study.budget_norm, EXPONENT)

    assert (units, weight) == (study.budget_units, study.base_weight)
    assert Fraction(units, weight) * Fraction(2) ** (2 * EXPONENT) == 3 * Fraction(CLIP) ** 2


floats, clips = st.floats(0.0, 1e6), st.floats(1e-2, 1e2)  # of which 2^62 squared steps are enough


def price_of(clip: float, answers: Fraction) -> FloatPrice:
    """In a study of so many full answers, whose clip need not be a multiple of its grid."""
    budget_norm = answers * Fraction(clip) ** 2
    units, _ = base_units(budget_norm, -20)
    return FloatPrice(clip=clip, budget_norm=budget_norm, budget_units=units)


@given(clip=clips, answers=st.integers(1, 400), more=st.fractions(0, Fraction(999, 1000)))
@example(clip=0.3, answers=5, more=Fraction(0))  # once one answer short: C²/γ² is no integer
@example(clip=10.0, answers=112, more=Fraction(0))
def test_as_many_full_answers_fit_as_the_budget_holds_whatever_the_clip(
    clip: float, answers: int, more: Fraction
) -> None:
    price = price_of(clip, answers + more)

    charges = price.charge(np.array([clip, np.nextafter(clip, 0)])).tolist()

    assert price.limit // price.full == answers
    assert charges == [price.full, price.full]


@given(clip=clips, answers=st.fractions(Fraction(1, 100), 400))
def test_all_that_may_be_spent_is_worth_no_more_than_the_budget(
    clip: float, answers: Fraction
) -> None:
    price = price_of(clip, answers)

    assert price.limit <= price.budget_units
    if answers >= 1:  # a unit is worth C² over what a full answer costs
        worth = Fraction(clip) ** 2 / price.full
        assert price.limit * worth <= price.budget_norm
        assert price.limit > price.budget_units - answers
    else:
        assert price.full > price.limit


@given(norm=floats, clip=clips, answers=st.integers(1, 100))
def test_a_charge_is_never_below_the_exact_one(norm: float, clip: float, answers: int) -> None:
    price = price_of(clip, Fraction(answers))

    (charge,) = price.charge(np.array([norm])).tolist()

    exact = Fraction(norm) ** 2 * price.full / Fraction(clip) ** 2
    if norm <= clip:
        assert charge <= price.full
    if charge <= price.budget_units:
        assert min(exact, Fraction(price.full)) <= charge <= exact * (1 + Fraction(2, 10**12)) + 1
    else:
        assert charge == price.budget_units + 1
        assert exact * (1 + Fraction(2, 10**12)) + 1 > price.budget_units


@given(share=st.floats(0.0, 1.0), clip=clips, answers=st.integers(1, 100))
def test_what_is_affordable_costs_no_more_than_what_is_left(
    share: float, clip: float, answers: int
) -> None:
    price = price_of(clip, Fraction(answers))
    limit = price.limit
    left = np.array([min(limit, int(share * limit)), 0, 1, 17, limit])

    radii = price.affordable(left, refused=np.zeros(5, dtype=bool))

    assert (price.charge(radii) <= left).all()
    assert (radii <= clip).all()
    # 3e-12 of what is left is lost, or all of it where that is less than a unit.
    tight = radii < clip
    assert (price.charge(radii) >= left * (1 - 1e-11) - 1)[tight & (left > 10**12)].all()
