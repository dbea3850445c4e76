"""Histogram rounds as bytes, and everything that a device checks of one before it answers."""

import hashlib
import json
import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur_proto.accounting.histograms import design_histogram_study
from demur_proto.errors import DemurError, ParameterError, UnsupportedError, WireError
from demur_proto.mechanisms.registry import Randomiser
from demur_proto.queries import MOST_CATEGORIES, Feature, Histogram, Linear
from demur_proto.queries.registry import mechanism_for, room_of
from demur_proto.round import Round, round_of
from demur_proto.study import Measure, MechanismFamily, Policy, Study, View, design_study
from demur_proto.v1 import round_pb2, study_pb2
from demur_proto.wire.definition import (
    LARGEST_REPORT_BYTES,
    Defined,
    define_round,
    define_study,
    read_round,
    read_study,
)
from demur_proto.wire.words import WordType, decode_words, encode_words
from demur_sim.engine.sampling import FastSampler

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "golden" / "definitions.json").read_text(encoding="utf-8")
)
STUDY = define_study(
    Study(
        name="Gerätefehler",
        view=View.LOCAL,
        measure=Measure.ZCDP,
        policy=Policy.RETIRE,
        budget=0.024,
        epsilon=1.0,
        delta=1e-6,
        mechanism_family=MechanismFamily.PURE,
        minimum_cohort=500,
        horizon=100,
        maximum_dimension=64,
    )
)
QUERY = Histogram(
    feature=Feature(name="event", parameters={"period": 9.0}),
    categories=64,
    mechanism=Randomiser.OLH,
    epsilon=0.3,
    size=2,
)
ROUND = define_round(
    Round(
        study_hash=STUDY.hash,
        number=7,
        query=QUERY,
        weight=4_971_765_811_313_799,
        word_type=WordType.INT32,
        answer_after_ms=1500,
    )
)
MIXED = define_study(
    design_study(
        name="both",
        epsilon=1.0,
        delta=1e-6,
        answers=10,
        minimum_cohort=500,
        measure=Measure.ZCDP,
        view=View.LOCAL,
        mechanism_family=MechanismFamily.MIXED,
        maximum_dimension=64,
    )
)


def round_message() -> round_pb2.Round:
    return round_pb2.Round.FromString(ROUND.definition)


def read(message: round_pb2.Round) -> Defined[Round]:
    return read_round(message.SerializeToString(), study=STUDY)


# ---- the contract with other languages -------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "defined"), [("histogram_study", STUDY), ("histogram_round", ROUND)]
)
def test_definitions_are_the_recorded_bytes(
    kind: str, defined: Defined[Study] | Defined[Round]
) -> None:
    tag = bytes.fromhex(GOLDEN[kind]["tag"])

    assert defined.definition.hex() == GOLDEN[kind]["definition"]
    assert hashlib.sha256(tag + defined.definition).hexdigest() == GOLDEN[kind]["hash"]
    assert defined.hash.hex() == GOLDEN[kind]["hash"]


def test_the_recorded_bytes_are_read_as_the_values_that_they_define() -> None:
    study = read_study(bytes.fromhex(GOLDEN["histogram_study"]["definition"]))
    asked = read_round(bytes.fromhex(GOLDEN["histogram_round"]["definition"]), study=study)

    assert (study, asked) == (STUDY, ROUND)
    assert study.value.budget_units == GOLDEN["histogram_study"]["budget_units"]
    assert asked.value.weight == GOLDEN["histogram_round"]["weight"]


def test_a_study_of_histograms_has_the_budget_of_1_to_40_and_no_base_round() -> None:
    message = study_pb2.Study.FromString(STUDY.definition)

    assert STUDY.value.budget_units == math.lcm(*range(1, 41)) == 5_342_931_457_063_200
    assert message.budget_units == 5_342_931_457_063_200
    assert (message.base_weight, message.base_sigma, message.base_grid_exponent) == (0, 0, 0)
    assert STUDY.value.sampler_delta == 0.0


def test_the_recorded_weight_is_what_a_category_costs() -> None:
    # Local hashing with g = 2, by hand: with probability 1/2 category and null collide, or else it
    # is randomised response with p = e^0.3/(e^0.3 + 1). The largest D_α/α, over a fine grid of α:
    p = math.exp(0.3) / (math.exp(0.3) + 1)
    rho = max(
        math.log(0.5 + 0.5 * (p**a * (1 - p) ** (1 - a) + (1 - p) ** a * p ** (1 - a)))
        / (a - 1)
        / a
        for a in np.linspace(1 + 1e-6, 20, 20_000)
    )

    exact = Fraction(rho) * STUDY.value.budget_units / Fraction(0.024)
    assert 1 - 1e-9 <= ROUND.value.weight / exact <= 1 + 1e-6


# ---- there and back --------------------------------------------------------------------------


@given(
    mechanism=st.sampled_from(Randomiser),
    categories=st.integers(2, 64),
    epsilon=st.floats(1e-3, 8.0),
    number=st.integers(1, 100),
    slot=st.integers(0, 86_400_000),
    close=st.integers(0, 1 << 53),
    study=st.sampled_from([STUDY, MIXED]),
)
@settings(max_examples=60)
def test_a_histogram_survives_the_wire(
    mechanism: Randomiser,
    categories: int,
    epsilon: float,
    number: int,
    slot: int,
    close: int,
    study: Defined[Study],
) -> None:
    asked = round_of(
        study,
        Histogram(
            Feature(name="event"), categories=categories, mechanism=mechanism, epsilon=epsilon
        ),
        number=number,
        answer_after_ms=slot,
        close_unix_ms=close,
    )

    defined = define_round(asked)

    assert read_round(defined.definition, study=study) == defined
    assert pickle.loads(pickle.dumps(asked)) == asked


@pytest.mark.parametrize("mechanism", Randomiser)
def test_the_words_of_a_report_are_as_many_and_as_large_as_the_round_says(
    mechanism: Randomiser, rng: np.random.Generator
) -> None:
    asked = round_of(
        STUDY, Histogram(QUERY.feature, categories=13, mechanism=mechanism, epsilon=1.0), number=1
    )
    sampler = FastSampler(rng)
    randomiser = mechanism_for(STUDY.value, asked)
    words, units = randomiser.encode(np.arange(-1.0, 14.0)[:, None], sampler)

    reports = randomiser.randomise(words, sampler)

    assert units.tolist() == [0, *[1] * 13, 0]
    length = asked.query.report_length
    data = encode_words(reports, asked.word_type)
    assert len(data) == 15 * asked.word_type.report_bytes(length)
    back, sound = decode_words(data, asked.word_type, reports=15, dimension=length)
    assert sound.all()
    assert np.array_equal(back, reports)
    assert randomiser.valid(back).all()
    assert asked.word_type is (
        WordType.BIT if mechanism.value in ("sue", "oue", "subset") else WordType.INT32
    )


@pytest.mark.parametrize("mechanism", Randomiser)
@pytest.mark.parametrize("epsilon", [1e-6, 1.0, 10.0, 50.0])
def test_the_sums_of_the_largest_round_fit_64_bits_and_its_release_a_message(
    mechanism: Randomiser, epsilon: float
) -> None:
    query = replace(QUERY, mechanism=mechanism, epsilon=epsilon, size=0)
    randomiser = replace(query, categories=MOST_CATEGORIES).randomiser

    # Sums take 8 bytes each; estimates, errors and widths too, each. Analysts take 16 MiB.
    assert 8 * randomiser.sums_length + 3 * 8 * MOST_CATEGORIES + 65536 < 16 << 20
    # Words of 32 bits hold every report, and one report fits a frame.
    assert randomiser.sums_length < 1 << 31
    assert -(-randomiser.report_length // 8) <= LARGEST_REPORT_BYTES
    small = query.randomiser
    ones = small.tally(small.randomise(np.array([[5]]), FastSampler(np.random.default_rng(1))))
    assert 0 <= ones.min() <= ones.max() <= 1  # so that 2^53 reports cannot overflow
    assert room_of(small) == 1 << 53


@pytest.mark.parametrize("mechanism", Randomiser)
def test_every_category_costs_the_same_and_none_costs_nothing(mechanism: Randomiser) -> None:
    randomiser = replace(QUERY, mechanism=mechanism, size=0).randomiser

    assert randomiser.largest == 1
    assert randomiser.charge_zcdp(0) == randomiser.charge_pure(0) == 0.0
    for charge in (randomiser.charge_zcdp, randomiser.charge_pure):
        assert len({charge(symbol) for symbol in range(1, 65)}) == 1
        assert 0 < charge(1) <= 0.3 * (1 + 1e-12)


# ---- what is not exactly right is refused ----------------------------------------------------


@pytest.mark.parametrize("change", [-4, 2**43])
def test_a_weight_that_a_category_does_not_cost_is_refused(change: int) -> None:
    message = round_message()
    low = math.ceil(QUERY.weight_in(STUDY.value) / (1 + 2.0**-40))
    message.weight = (low if change < 0 else ROUND.value.weight) + change

    with pytest.raises(WireError, match="weight"):
        read(message)


def test_a_round_from_when_no_category_was_hashed_is_read_with_its_dearer_weight() -> None:
    mine = QUERY.weight_in(STUDY.value)

    assert ROUND.value.weight > 1.99 * mine
    assert read(round_message()).value == ROUND.value


@pytest.mark.parametrize("change", [-1000, 1, 2**42])
def test_a_weight_that_another_exponential_function_finds_is_accepted(change: int) -> None:
    message = round_message()
    message.weight += change  # of 5e15: a few units in the last place of a float, or 1/1000

    assert read(message).value.weight == ROUND.value.weight + change


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("clip", 1.0),
        ("clip", -0.5),
        ("clip", math.nan),
        ("sigma", 1.0),
        ("grid_exponent", -7),
        ("on_grid", True),
        ("dimension", 0),
        ("dimension", 2),
        ("dimension", 64),
        ("number", 0),
        ("number", 101),
        ("word_type", round_pb2.WORD_TYPE_BIT),
        ("word_type", round_pb2.WORD_TYPE_INT64),
        ("weight", 0),
        ("weight", 1),
        ("weight", (1 << 62) + 1),
        ("answer_after_ms", 86_400_001),
    ],
)
def test_each_wrong_field_of_the_round_is_refused_in_one_line(field: str, value: Any) -> None:
    message = round_message()
    setattr(message, field, value)

    with pytest.raises(WireError, match=f"not a valid round: {field} must be ") as caught:
        read(message)

    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("categories", 0),
        ("categories", 65),  # more than the study allows
        ("categories", (1 << 18) + 1),
        ("categories", (1 << 32) - 1),
        ("epsilon", 0.0),
        ("epsilon", -1.0),
        ("epsilon", math.nan),
        ("epsilon", math.inf),
        ("epsilon", 1e-10),
        ("epsilon", 51.0),
        ("size", 1),
        ("size", 4),  # no prime
        ("size", (1 << 32) - 1),
    ],
)
def test_each_wrong_field_of_the_histogram_is_refused_in_one_line(field: str, value: Any) -> None:
    message = round_message()
    setattr(message.histogram, field, value)

    name = "hash_range" if field == "size" and value < MOST_CATEGORIES else field
    with pytest.raises(WireError, match=f"not a valid round: {name} must be ") as caught:
        read(message)

    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("value", [0, 77])
def test_a_randomiser_that_nobody_knows_is_unsupported(value: int) -> None:
    message = round_message()
    message.histogram.mechanism = round_pb2.Randomiser.ValueType(value)

    with pytest.raises(UnsupportedError, match="mechanism"):
        read(message)


def test_a_histogram_of_no_feature_is_refused() -> None:
    message = round_message()
    message.histogram.ClearField("feature")

    with pytest.raises(WireError, match="feature"):
        read(message)


def stated(mechanism: Randomiser, size: int) -> Defined[Round]:
    """A round whose only fault may be the size."""
    right = round_of(STUDY, replace(QUERY, mechanism=mechanism, size=0), number=1)
    return define_round(replace(right, query=replace(QUERY, mechanism=mechanism, size=size)))


@pytest.mark.parametrize(
    ("mechanism", "size"),
    [(Randomiser.BLH, 0), (Randomiser.OLH, 0), (Randomiser.SUBSET, 0), (Randomiser.BLH, 3)]
    + [
        (mechanism, 2)
        for mechanism in (Randomiser.KRR, Randomiser.SUE, Randomiser.OUE, Randomiser.HADAMARD)
    ],
)
def test_a_size_is_stated_exactly_where_there_is_one(mechanism: Randomiser, size: int) -> None:
    def refused() -> Any:
        return read_round(stated(mechanism, size).definition, study=STUDY)

    with pytest.raises(DemurError, match="size must be "):
        refused()


@pytest.mark.parametrize("size", [2, 3, 5])
def test_any_size_that_works_is_accepted_with_what_it_costs(size: int) -> None:
    query = replace(QUERY, mechanism=Randomiser.OLH, size=size)

    asked = define_round(round_of(STUDY, query, number=1))

    assert read_round(asked.definition, study=STUDY) == asked


FAMILIES: dict[str, tuple[Defined[Study], Callable[[Defined[Study]], Round]]] = {
    "a linear round in a study of histograms": (
        STUDY,
        lambda study: replace(
            round_of(MIXED, Linear([QUERY.feature]), number=1), study_hash=study.hash
        ),
    ),
    "a histogram in a Gaussian study": (
        define_study(
            replace(MIXED.value, mechanism_family=MechanismFamily.GAUSSIAN),
        ),
        lambda study: replace(ROUND.value, study_hash=study.hash),
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_round_of_another_family_is_refused_whoever_asks(name: str) -> None:
    study, ask = FAMILIES[name]
    asked = ask(study)

    with pytest.raises(WireError, match="query must be ") as caught:
        read_round(define_round(asked).definition, study=study)
    with pytest.raises(ParameterError, match="query must be "):
        round_of(study, asked.query, number=1)
    with pytest.raises(ParameterError, match="query must be "):
        asked.query.guarantee_in(study.value)

    assert str(study.value.mechanism_family) in str(caught.value)


@settings(max_examples=100)
@given(st.data())
def test_spliced_definitions_raise_nothing_but_our_errors(data: st.DataObject) -> None:
    for original in (STUDY.definition, ROUND.definition):
        start = data.draw(st.integers(0, len(original)))
        stop = data.draw(st.integers(start, len(original)))
        spliced = original[:start] + data.draw(st.binary(max_size=9)) + original[stop:]
        for understood in (read_study, lambda data: read_round(data, study=STUDY)):
            try:
                again = understood(spliced)
            except DemurError:
                continue
            assert again.definition == spliced


# ---- the study -------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [MechanismFamily.PURE, MechanismFamily.MIXED])
@pytest.mark.parametrize(
    ("field", "value"),
    [("view", View.AGGREGATE), ("measure", Measure.GDP), ("policy", Policy.CLIP)],
)
def test_histograms_are_for_zcdp_in_view_local_without_clipping(
    family: MechanismFamily, field: str, value: Any
) -> None:
    study = STUDY if family is MechanismFamily.PURE else MIXED

    with pytest.raises(ParameterError, match=f"{field} must be .*got '{value}'"):
        replace(study.value, **{field: value})


@pytest.mark.parametrize(
    ("field", "value"), [("base_sigma", 1.0), ("base_sigma", True), ("base_grid_exponent", -7)]
)
def test_a_study_of_histograms_states_no_base_round(field: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=f"{field} must be 0"):
        replace(STUDY.value, **{field: value})


@pytest.mark.parametrize("field", ["budget_units", "base_weight"])
def test_the_integers_of_a_study_of_histograms_are_checked(field: str) -> None:
    message = study_pb2.Study.FromString(STUDY.definition)
    setattr(message, field, getattr(message, field) + 1)

    with pytest.raises(WireError, match="budget_units"):
        read_study(message.SerializeToString())


def test_a_mixed_study_reserves_for_its_gaussian_noise_alone() -> None:
    gaussian = replace(MIXED.value, mechanism_family=MechanismFamily.GAUSSIAN)

    assert MIXED.value.sampler_delta == gaussian.sampler_delta > 0
    assert MIXED.value.budget_units == gaussian.budget_units


@given(
    sigma=st.floats(5.0, 500.0),
    squares=st.lists(st.integers(0, 1 << 28), max_size=30),
    categories=st.integers(0, 60),
    epsilon=st.floats(0.01, 3.0),
)
@settings(max_examples=80)
def test_what_fits_a_mixed_budget_never_exceeds_it_in_exact_rationals(
    sigma: float, squares: list[int], categories: int, epsilon: float
) -> None:
    # The two kinds of charges meet in one integer: neither may be worth more than it says.
    study = MIXED.value
    linear = round_of(MIXED, Linear([QUERY.feature], sigma=sigma), number=1)
    query = replace(QUERY, mechanism=Randomiser.KRR, epsilon=epsilon, size=0)
    histogram = round_of(MIXED, query, number=2)
    rho = Fraction(query.randomiser.charge_zcdp(1))
    spent, total = 0, Fraction(0)
    steps = Fraction(2) ** study.base_grid_exponent

    charges = [(linear.weight * z, steps**2 * z / (2 * Fraction(sigma) ** 2)) for z in squares]
    charges += [(histogram.weight, rho)] * categories
    for units, exact in charges:
        if spent + units <= study.budget_units:
            spent += units
            total += exact

    assert total <= Fraction(study.budget)


# ---- what is said ----------------------------------------------------------------------------


def test_the_statement_says_what_noise_this_is_and_what_one_report_shows() -> None:
    guarantee = replace(QUERY, mechanism=Randomiser.OUE, size=0).guarantee_in(STUDY.value)

    for words in (
        "(1, 1e-06)-differential privacy, from 0.024-zCDP, over all rounds of the study.",
        "Unit: one device = one person, with everything it reports in the study.",
        "Neighbour: zero-out: the person's data replaced by a public record",
        "View: local: the adversary sees every report and who sent it.",
        "Between two arbitrary people: (2, 3.72e-06), from 0.096-zCDP.",  # ρ → 4ρ
        "Noise: randomised responses from integer thresholds over a cryptographic source;",
        "devices that draw otherwise are not covered.",
        "One report on its own: 0.16",  # ln((e^0.3 + 1)/2) = 0.1612
        "-differential privacy, by the same neighbour; 0.3 between two arbitrary people.",
    ):
        assert words in guarantee.statement
    assert "2^-120" not in guarantee.statement
    assert guarantee.per_report_mu is None
    assert guarantee.per_report_epsilon == pytest.approx(
        math.log((math.exp(0.3) + 1) / 2), rel=1e-12
    )


def test_a_mixed_study_says_both_of_its_noises() -> None:
    linear = round_of(MIXED, Linear([QUERY.feature]), number=1)

    for query in (linear.query, replace(QUERY, size=2)):
        statement = query.guarantee_in(MIXED.value).statement
        assert "total variation 2^-120 of the rounded Gaussian" in statement
        assert "Histograms: randomised responses from integer thresholds" in statement


def test_a_design_keeps_its_target_with_all_of_delta() -> None:
    study = design_histogram_study(
        name="x", epsilon=1.0, delta=1e-6, minimum_cohort=10, categories=64
    )

    assert study.measure_delta <= 1e-6
    with pytest.raises(ParameterError, match="delta"):
        replace(study, budget=study.budget * (1 + 1e-9))
