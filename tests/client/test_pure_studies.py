"""Studies that count in `pure` and `answers`: what the worst adversary learns, in exact rationals."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur_client.budget.charges import CompositionBudget, PureBudget
from demur_client.budget.filters import Filter
from demur_client.ledger.scope import Declared, LifetimeCap
from demur_proto.accounting.calibration import GRAIN
from demur_proto.accounting.histograms import design_histogram_study, epsilon_for_answers
from demur_proto.accounting.pure import composition_delta, pure_rho
from demur_proto.errors import ParameterError, WireError
from demur_proto.guarantee import guarantee_of
from demur_proto.mechanisms.randomised_response import BinaryRandomisedResponse
from demur_proto.mechanisms.registry import Randomiser
from demur_proto.queries import Feature, Histogram
from demur_proto.queries.registry import mechanism_for
from demur_proto.round import round_of
from demur_proto.study import CATEGORICAL, Measure, MechanismFamily, Policy, Study, View
from demur_proto.v1 import study_pb2
from demur_proto.wire.definition import define_study, read_study


def study_in(measure: Measure, *, answers: int = 5, epsilon: float = 1.0) -> Study:
    return design_histogram_study(
        name="x",
        epsilon=epsilon,
        delta=1e-6,
        minimum_cohort=10,
        categories=64,
        measure=measure,
        answers=answers if measure is Measure.ANSWERS else 0,
    )


PURE, COMPOSED = study_in(Measure.PURE), study_in(Measure.ANSWERS)


def asked(
    epsilon: float, *, categories: int = 64, mechanism: Randomiser = Randomiser.KRR
) -> Histogram:
    feature = Feature(name="any")
    return Histogram(feature=feature, categories=categories, mechanism=mechanism, epsilon=epsilon)


# Whole transcripts. Answers are bits whose law under the person's data and under the reference differ by
# e^ε at most; which law comes next, and whether there is an answer at all, follows from what was seen.

Pair = tuple[Fraction, Fraction]  # how likely a 1 is with the data, and without
Strategy = Callable[[tuple[int, ...]], Pair | None]


def transcripts(
    strategy: Strategy, mine: Filter, charge: Callable[[Pair], int], *, steps: int
) -> Mapping[tuple[int, ...], Pair]:
    """Every transcript with its probability in both worlds; the filter sees the person's own data."""
    laws: dict[tuple[int, ...], Pair] = {}

    def walk(seen: tuple[int, ...], chances: Pair, remaining: int) -> None:
        pair = strategy(seen) if len(seen) < steps else None
        if pair is None:
            laws[seen] = chances
            return
        cost = charge(pair)
        given_ = cost <= remaining
        with_data = pair[0] if given_ else pair[1]  # covered: as without data
        for bit, first, second in (
            (1, with_data, pair[1]),
            (0, 1 - with_data, 1 - pair[1]),
        ):
            chance = (chances[0] * first, chances[1] * second)
            walk((*seen, bit), chance, remaining - cost if given_ else remaining)

    walk((), (Fraction(1), Fraction(1)), mine.remaining_units)
    return laws


def worst(laws: Mapping[tuple[int, ...], Pair], known: Fraction) -> Fraction:
    """The larger δ of both directions, by the worst event there is; `known` is e^ε."""
    forward = sum((max(Fraction(0), p - known * q) for p, q in laws.values()), Fraction(0))
    return max(
        forward, sum((max(Fraction(0), q - known * p) for p, q in laws.values()), Fraction(0))
    )


def ratio(pair: Pair) -> Fraction:
    """The largest likelihood ratio, e^ε of the answer."""
    (p, q), quotients = pair, []
    for first, second in ((p, q), (1 - p, 1 - q)):
        quotients += [first / second, second / first]
    return max(quotients)


CHANCES = [Fraction(k, 12) for k in range(1, 12)]


@settings(max_examples=30)
@given(st.data(), st.integers(1, 4), st.sampled_from([Fraction(1), Fraction(3, 2), Fraction(3)]))
def test_whatever_an_adversary_chooses_composition_is_the_worst_it_can_do(
    data: st.DataObject, n: int, known: Fraction
) -> None:
    odds = Fraction(2)
    table: dict[tuple[int, ...], Pair | None] = {}

    def strategy(seen: tuple[int, ...]) -> Pair | None:
        if seen not in table:
            drawn = data.draw(st.sampled_from(CHANCES)), data.draw(st.sampled_from(CHANCES))
            table[seen] = drawn
        return table[seen]

    mine = Filter(budget_units=n, policy=Policy.SKIP)

    def charge(pair: Pair) -> int:  # in exact rationals: e^ε₀ is 2
        return 0 if pair[0] == pair[1] else (1 if ratio(pair) <= odds else n + 1)

    laws = transcripts(strategy, mine, charge, steps=6)

    assert sum(p for p, _ in laws.values()) == sum(q for _, q in laws.values()) == 1
    bound = composition_delta(n, each=math.log(2), epsilon=math.log(known))
    assert worst(laws, known) <= Fraction(bound) * (1 + Fraction(1, 10**12))


@pytest.mark.parametrize("n", [1, 3, 6])
def test_binary_response_in_every_round_attains_the_bound(n: int) -> None:
    truth, known = Fraction(2, 3), Fraction(3, 2)
    mine = Filter(budget_units=n, policy=Policy.RETIRE)

    laws = transcripts(lambda seen: (truth, 1 - truth), mine, lambda pair: 1, steps=n + 2)

    bound = composition_delta(n, each=math.log(2), epsilon=math.log(known))
    assert float(worst(laws, known)) == pytest.approx(bound, rel=1e-12)
    # One answer more would break the promise, so the test can fail.
    loose = Filter(budget_units=n + 1, policy=Policy.RETIRE)
    more = transcripts(lambda seen: (truth, 1 - truth), loose, lambda pair: 1, steps=n + 2)
    assert worst(more, known) > worst(laws, known)


@settings(max_examples=30)
@given(st.data())
def test_no_transcript_of_a_pure_study_is_likelier_than_its_budget_allows(
    data: st.DataObject,
) -> None:
    budget = PureBudget(epsilon=Fraction(1), budget_units=GRAIN)
    mine = Filter.within(budget)
    table: dict[tuple[int, ...], Pair] = {}

    def strategy(seen: tuple[int, ...]) -> Pair:
        if seen not in table:
            table[seen] = (data.draw(st.sampled_from(CHANCES)), data.draw(st.sampled_from(CHANCES)))
        return table[seen]

    def charge(pair: Pair) -> int:
        return budget.charge(math.log(ratio(pair)) * (1 + 1e-12) if pair[0] != pair[1] else 0)

    laws = transcripts(strategy, mine, charge, steps=6)

    largest = max(max(p / q, q / p) for p, q in laws.values())
    assert math.log(largest) <= 1.0


# ---- figures ---------------------------------------------------------------------------------


def test_one_answer_that_is_one_dp_fits_a_study_that_is_one_dp() -> None:
    zero = replace(PURE, delta=0.0)

    for study in (PURE, zero):
        assert asked(1.0).weight_in(study) == study.budget_units
        assert asked(math.nextafter(1.0, 2)).weight_in(study) > study.budget_units
    assert guarantee_of(zero).delta == 0.0


@pytest.mark.parametrize(
    ("epsilon", "answers", "mechanism", "each"),
    [
        (1.0, 1, Randomiser.KRR, 1.0),
        (1.0, 1, Randomiser.OUE, 1.490),  # which is 1.000-DP against none
        (4.0, 10, Randomiser.OUE, 0.685),  # .400-DP each
    ],
)
def test_plain_addition_gives_few_answers_what_it_should(
    epsilon: float, answers: int, mechanism: Randomiser, each: float
) -> None:
    study = study_in(Measure.PURE, epsilon=epsilon)

    found = epsilon_for_answers(study, mechanism=mechanism, categories=64, answers=answers)

    assert found == pytest.approx(each, abs=5e-4)


@pytest.mark.parametrize("answers", [1, 3, 7, 40, 1000])
def test_like_answers_calibrated_for_so_many_fit_just_so_often(answers: int) -> None:
    for measure in CATEGORICAL:
        study = study_in(measure, answers=answers)
        each = epsilon_for_answers(study, mechanism=Randomiser.KRR, categories=64, answers=answers)
        mine, weight = Filter.of(study), asked(each).weight_in(study)

        given_ = [mine.try_spend(1, weight=weight) for _ in range(answers + 1)]

        assert given_ == [True] * answers + [False]
        assert mine.try_spend(0, weight=weight)  # nobody pays for no category


# ---- the contract ----------------------------------------------------------------------------


@pytest.mark.parametrize("study", [PURE, replace(PURE, delta=0.0), COMPOSED], ids=str)
def test_a_study_survives_the_wire(study: Study) -> None:
    assert read_study(define_study(study).definition).value == study


def test_a_round_that_costs_more_than_one_answer_may_is_for_nobody() -> None:
    defined = define_study(COMPOSED)
    feature = Feature(name="any")
    options: dict[str, Any] = {"categories": 64, "mechanism": Randomiser.KRR}

    dear = round_of(defined, Histogram(feature, epsilon=0.201, **options), number=1)
    fair = round_of(defined, Histogram(feature, epsilon=0.2, **options), number=1)

    assert (fair.weight, dear.weight) == (1, 6)
    mechanism_for(COMPOSED, fair)
    with pytest.raises(ParameterError, match="no device of this study could afford"):
        dear.query.check_affordable(COMPOSED, dear.weight)
    with pytest.raises(ParameterError, match="weight"):
        mechanism_for(COMPOSED, replace(dear, weight=1))


@pytest.mark.parametrize(
    ("study", "wrong", "message"),
    [
        (PURE, {"budget": 1.1}, "budget"),  # more than delta allows
        (PURE, {"answer_epsilon": 0.1}, "answer_epsilon must be 0 in measure pure"),
        (PURE, {"view": View.AGGREGATE}, "view must be local"),
        (PURE, {"policy": Policy.CLIP}, "policy must be skip or retire"),
        (PURE, {"delta": -1e-9}, "delta must be at least 0"),
        (COMPOSED, {"delta": 0.0}, "delta must be between 0 and 1"),
        (COMPOSED, {"budget": 6.0}, "budget must be small enough"),
        (COMPOSED, {"budget": 4.5}, "budget must be a whole number"),
        (COMPOSED, {"answer_epsilon": 0.0}, "answer_epsilon must be a finite number > 0"),
        (COMPOSED, {"answer_epsilon": 0.21}, "budget must be small enough"),
        (COMPOSED, {"answer_epsilon": math.nan}, "answer_epsilon"),
        (COMPOSED, {"answer_epsilon": 51.0}, "answer_epsilon must be at most 50"),
        (
            PURE,
            {"mechanism_family": MechanismFamily.MIXED, "base_sigma": 1.0},
            "measure must be zcdp in the family mixed",
        ),
        (
            PURE,
            {"mechanism_family": MechanismFamily.GAUSSIAN, "base_sigma": 1.0},
            "measure must be gdp or zcdp in the family gaussian",
        ),
    ],
)
def test_a_study_that_would_promise_too_much_is_refused(
    study: Study, wrong: dict[str, object], message: str
) -> None:
    with pytest.raises(ParameterError, match=message):
        replace(study, **wrong)  # type: ignore[arg-type]


def test_a_study_that_states_other_units_is_refused() -> None:
    message = study_pb2.Study.FromString(define_study(COMPOSED).definition)
    message.budget_units = 6

    with pytest.raises(WireError, match="budget_units"):
        read_study(message.SerializeToString())


@pytest.mark.parametrize(
    ("study", "promise", "pair"),
    [
        (PURE, "from pure 1-DP,", "people: (2, 0), from pure 2-DP. Noise"),
        (COMPOSED, "from at most 5 answers of pure 0.200004-DP each, composed exactly,", "Noise"),
    ],
)
def test_the_statement_names_the_measure(study: Study, promise: str, pair: str) -> None:
    statement = guarantee_of(study).statement

    assert promise in statement
    assert pair in statement


# ---- under caps ------------------------------------------------------------------------------


@given(
    epsilon=st.floats(0.01, 20.0),
    shares=st.lists(st.fractions(0, 1), min_size=1, max_size=8),
)
def test_a_share_of_a_pure_budget_never_costs_more_than_its_share_of_rho(
    epsilon: float, shares: list[Fraction]
) -> None:
    study = design_histogram_study(
        name="x", epsilon=epsilon, delta=1e-6, minimum_cohort=1, categories=4, measure=Measure.PURE
    )
    budget = PureBudget(epsilon=epsilon)
    whole = max(sum(shares, Fraction(0)), Fraction(1))
    losses = [float(epsilon * share / whole) for share in shares]
    cap = LifetimeCap(measure=Measure.ZCDP, budget=float(study.rho) * 2)

    units = sum(budget.charge(loss) for loss in losses)

    # What is lost as zCDP, as it would be charged answer by answer, against what the cap is told.
    lost = sum((Fraction(pure_rho(loss)) for loss in losses), Fraction(0))
    told = Fraction(cap.units(Declared.of(study), units), GRAIN) * Fraction(cap.budget)
    assert lost <= told * (1 + Fraction(1, 10**12))


def test_what_composed_answers_cost_a_cap_is_their_number_times_rho() -> None:
    declared = Declared.of(COMPOSED)

    assert declared.measure is Measure.ZCDP
    assert declared.budget == pytest.approx(5 * pure_rho(COMPOSED.answer_epsilon), rel=1e-12)
    with pytest.raises(ParameterError, match="measure"):
        replace(declared, measure=Measure.PURE)
    with pytest.raises(ParameterError, match="measure"):
        LifetimeCap(measure=Measure.ANSWERS, budget=1.0)


def test_a_budget_of_answers_says_what_the_rounds_of_its_study_weigh() -> None:
    budget = CompositionBudget(answers=5, each=COMPOSED.answer_epsilon)

    for epsilon in (0.01, 0.2, 0.201, 1.0):
        assert budget.charge(epsilon) == asked(epsilon).weight_in(COMPOSED)
    assert budget.budget_units == COMPOSED.budget_units


# ---- one bit ---------------------------------------------------------------------------------


def test_a_histogram_of_one_category_is_binary_response_with_no_for_the_reference() -> None:
    query = asked(math.log(3), categories=1)
    round_ = round_of(
        define_study(PURE),
        Histogram(query.feature, categories=1, mechanism=Randomiser.KRR, epsilon=0.5),
        number=1,
    )

    mechanism = mechanism_for(PURE, round_)

    assert isinstance(mechanism, BinaryRandomisedResponse)
    assert mechanism.charge_pure(1) == pytest.approx(0.5, rel=1e-12)
    assert mechanism.charge_pure(0) == 0.0
    for other in set(Randomiser) - {Randomiser.KRR}:
        with pytest.raises(ParameterError, match="mechanism must be krr, with one category"):
            replace(query, mechanism=other).weight_in(PURE)
