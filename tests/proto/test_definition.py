"""Studies and rounds as bytes: what every implementation of a device must agree on.

`tests/golden/definitions.json` holds one study, one round and some report ids for clients in
other languages; it must never change.
"""

import contextlib
import hashlib
import hmac
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur_proto.errors import DemurError, ParameterError, UnsupportedError, WireError
from demur_proto.queries import Feature, Linear
from demur_proto.queries.registry import KINDS
from demur_proto.round import Round, round_of
from demur_proto.study import Measure, Policy, Study, View, design_study
from demur_proto.v1 import round_pb2, study_pb2
from demur_proto.wire.definition import (
    Defined,
    ReportIds,
    define_round,
    define_study,
    read_round,
    read_study,
    report_id,
    study_hash_of,
)
from demur_proto.wire.hmacs import hash_definition
from demur_proto.wire.words import WordType

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "golden" / "definitions.json").read_text(encoding="utf-8")
)
STUDY = define_study(
    Study(
        name="Café visits",
        view=View.AGGREGATE,
        measure=Measure.GDP,
        policy=Policy.RETIRE,
        budget=0.21,
        epsilon=1.0,
        delta=1e-6,
        base_sigma=16.4,
        base_grid_exponent=-7,
        minimum_cohort=1000,
        dishonest=20,
        horizon=546,
        maximum_dimension=8,
    )
)
LINEAR = Linear(
    features=(
        Feature(name="active", parameters={"day": 3.0, "älter": -0.5}),
        Feature(name="spent"),
    ),
    dimension=2,
    clip=0.75,
    sigma=20.5,
    grid_exponent=-15,
    on_grid=False,
)
ROUND = define_round(
    Round(
        study_hash=STUDY.hash,
        number=3,
        query=LINEAR,
        weight=171_798_692,
        word_type=WordType.INT32,
        answer_after_ms=1500,
        close_unix_ms=1_900_000_000_000,
    )
)


def study_message() -> study_pb2.Study:
    return study_pb2.Study.FromString(STUDY.definition)


def round_message() -> round_pb2.Round:
    return round_pb2.Round.FromString(ROUND.definition)


# ---- the contract with other languages -------------------------------------------------------


@pytest.mark.parametrize(("kind", "defined"), [("study", STUDY), ("round", ROUND)])
def test_definitions_are_the_recorded_bytes(
    kind: str, defined: Defined[Study] | Defined[Round]
) -> None:
    assert defined.definition.hex() == GOLDEN[kind]["definition"]
    assert defined.hash.hex() == GOLDEN[kind]["hash"]


@pytest.mark.parametrize("kind", ["study", "round"])
def test_the_recorded_hash_is_sha256_of_tag_and_bytes(kind: str) -> None:
    tag = bytes.fromhex(GOLDEN[kind]["tag"])

    assert tag == f"demur.{kind}.v1".encode() + b"\x00"
    found = hashlib.sha256(tag + bytes.fromhex(GOLDEN[kind]["definition"])).hexdigest()
    assert found == GOLDEN[kind]["hash"]


def test_the_recorded_bytes_are_read_as_the_values_that_they_define() -> None:
    study = read_study(bytes.fromhex(GOLDEN["study"]["definition"]))
    asked = read_round(bytes.fromhex(GOLDEN["round"]["definition"]), study=study)

    assert study == STUDY
    assert asked == ROUND
    assert study.value.budget_units == GOLDEN["study"]["budget_units"]
    assert study.value.base_weight == GOLDEN["study"]["base_weight"]
    assert asked.value.weight == GOLDEN["round"]["weight"]


@pytest.mark.parametrize("recorded", GOLDEN["report_ids"])
def test_recorded_report_ids_are_the_first_half_of_the_hmac(recorded: dict[str, str]) -> None:
    secret, round_hash = (bytes.fromhex(recorded[key]) for key in ("secret", "round_hash"))

    found = report_id(secret, round_hash)

    assert found.hex() == recorded["report_id"]
    assert found == hmac.new(secret, round_hash, hashlib.sha256).digest()[:16]
    assert ReportIds([secret]).of(round_hash) == found


# ---- there and back --------------------------------------------------------------------------


@given(
    name=st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=30),
    view=st.sampled_from(View),
    measure=st.sampled_from([Measure.GDP, Measure.ZCDP]),
    policy=st.sampled_from(Policy),
    answers=st.integers(1, 500),
    epsilon=st.floats(0.1, 5.0),
    cohort=st.integers(2, 1000),
    horizon=st.integers(0, 10_000),
    dimension=st.integers(1, 1000),
    exponent=st.integers(-20, -14),
)
def test_a_study_survives_the_wire(
    name: str,
    view: View,
    measure: Measure,
    policy: Policy,
    answers: int,
    epsilon: float,
    cohort: int,
    horizon: int,
    dimension: int,
    exponent: int,
) -> None:
    study = design_study(
        name=name,
        epsilon=epsilon,
        delta=1e-7,
        answers=answers,
        minimum_cohort=cohort,
        view=view,
        measure=measure,
        policy=policy,
        horizon=horizon,
        maximum_dimension=dimension,
        grid_exponent=exponent,
        dishonest=cohort // 2,
    )

    defined = define_study(study)

    assert read_study(defined.definition) == defined
    assert defined.hash == hashlib.sha256(b"demur.study.v1\x00" + defined.definition).digest()


parameters = st.dictionaries(
    st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=10),
    st.floats(allow_nan=False, allow_infinity=False),
    max_size=3,
)
features = st.builds(
    lambda name, parameters: Feature(name=name, parameters=parameters),
    st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20),
    parameters,
)


@given(
    asked=st.lists(features, min_size=1, max_size=4),
    number=st.integers(1, 546),
    dimension=st.integers(4, 8),  # at least one for each feature
    clip=st.floats(0.5, 4.0),
    sigma=st.floats(1.0, 100.0),
    slot=st.integers(0, 86_400_000),
    close=st.integers(0, 1 << 53),
)
def test_a_round_survives_the_wire(
    asked: list[Feature],
    number: int,
    dimension: int,
    clip: float,
    sigma: float,
    slot: int,
    close: int,
) -> None:
    defined = define_round(
        round_of(
            STUDY,
            Linear(asked, dimension=dimension, clip=clip, sigma=sigma, grid_exponent=-15),
            number=number,
            answer_after_ms=slot,
            close_unix_ms=close,
        )
    )

    assert read_round(defined.definition, study=STUDY) == defined
    assert study_hash_of(defined.definition) == STUDY.hash
    assert defined.hash == hashlib.sha256(b"demur.round.v1\x00" + defined.definition).digest()


def test_a_study_and_a_round_of_the_same_bytes_have_different_hashes() -> None:
    assert hash_definition(b"demur.study.v1\x00", b"x") != hash_definition(
        b"demur.round.v1\x00", b"x"
    )


def test_the_order_of_parameters_does_not_change_the_bytes() -> None:
    one, two = (
        define_round(
            replace(ROUND.value, query=replace(LINEAR, features=(Feature(name="f", parameters=p),)))
        )
        for p in ({"a": 1.0, "b": 2.0}, {"b": 2.0, "a": 1.0})
    )

    assert one == two


# ---- what is not exactly right is refused ----------------------------------------------------


@pytest.mark.parametrize(
    ("defined", "read"),
    [(STUDY, read_study), (ROUND, lambda data: read_round(data, study=STUDY))],
    ids=["study", "round"],
)
def test_any_changed_byte_gives_another_hash_or_is_refused(
    defined: Defined[Study] | Defined[Round], read: Callable[[bytes], Defined[Any]]
) -> None:
    for at, byte in enumerate(defined.definition):
        for change in (0x01, 0x80, 0xFF, 1 << (at % 7 + 1)):
            changed = bytearray(defined.definition)
            changed[at] = byte ^ change
            try:
                other = read(bytes(changed))
            except DemurError:
                continue
            assert other.hash != defined.hash


@pytest.mark.parametrize("field", ["budget_units", "base_weight"])
@pytest.mark.parametrize("change", [-1, 1])
def test_integers_that_do_not_follow_from_the_study_are_refused(field: str, change: int) -> None:
    message = study_message()
    setattr(message, field, getattr(message, field) + change)

    with pytest.raises(WireError, match="budget_units"):
        read_study(message.SerializeToString())


@pytest.mark.parametrize("weight", [0, 1, ROUND.value.weight - 1, ROUND.value.weight + 1])
def test_a_weight_that_does_not_follow_from_the_round_is_refused(weight: int) -> None:
    message = round_message()
    message.weight = weight

    with pytest.raises(WireError, match="weight"):
        read_round(message.SerializeToString(), study=STUDY)


@pytest.mark.parametrize(
    "field", ["unit", "neighbour", "view", "mechanism_family", "measure", "policy"]
)
@pytest.mark.parametrize("value", [0, 77, -1])
def test_a_study_of_an_unknown_kind_is_unsupported(field: str, value: int) -> None:
    message = study_message()
    setattr(message, field, value)

    with pytest.raises(UnsupportedError, match=field):
        read_study(message.SerializeToString())


@pytest.mark.parametrize("value", [0, 77])
def test_a_round_of_an_unknown_word_type_is_unsupported(value: int) -> None:
    message = round_message()
    message.word_type = round_pb2.WordType.ValueType(value)

    with pytest.raises(UnsupportedError, match="word_type"):
        read_round(message.SerializeToString(), study=STUDY)


@pytest.mark.parametrize("field", ["budget", "epsilon", "delta", "base_sigma"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -1.0, 5e-324, 1.7e308])
def test_a_study_with_a_number_outside_its_range_is_refused(field: str, value: float) -> None:
    message = study_message()
    setattr(message, field, value)

    with pytest.raises(WireError):
        read_study(message.SerializeToString())


@pytest.mark.parametrize("field", ["clip", "sigma"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -1.0, 5e-324, 1.7e308])
def test_a_round_with_a_number_outside_its_range_is_refused(field: str, value: float) -> None:
    message = round_message()
    setattr(message, field, value)

    with pytest.raises(WireError):
        read_round(message.SerializeToString(), study=STUDY)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_parameter_that_is_not_finite_is_refused(value: float) -> None:
    message = round_message()
    message.linear.features[0].parameters[0].value = value

    with pytest.raises(WireError, match="finite"):
        read_round(message.SerializeToString(), study=STUDY)


def test_a_parameter_named_twice_is_refused() -> None:
    message = round_message()
    parameter = message.linear.features[0].parameters[0]
    message.linear.features[0].parameters.append(parameter)

    with pytest.raises(WireError, match="repeats"):
        read_round(message.SerializeToString(), study=STUDY)


def test_a_study_whose_budget_breaks_its_epsilon_and_delta_is_refused() -> None:
    message = study_message()
    message.epsilon = 0.1

    with pytest.raises(WireError, match="delta"):
        read_study(message.SerializeToString())


def test_a_round_of_another_study_is_refused() -> None:
    other = define_study(replace(STUDY.value, name="another"))

    with pytest.raises(WireError, match="another study"):
        read_round(ROUND.definition, study=other)


def test_every_question_of_the_schema_can_be_read() -> None:
    kinds = {kind.name for kind in round_pb2.Round.DESCRIPTOR.oneofs_by_name["query"].fields}

    assert kinds == set(KINDS)


def test_a_round_that_asks_nothing_is_refused() -> None:
    message = round_message()
    message.ClearField("linear")

    with pytest.raises(WireError, match="asks nothing"):
        read_round(message.SerializeToString(), study=STUDY)


def test_a_round_beyond_what_the_study_allows_is_refused() -> None:
    for field, value in (("number", 547), ("dimension", 9), ("number", 0), ("dimension", 0)):
        message = round_message()
        setattr(message, field, value)
        with pytest.raises(WireError, match=field):
            read_round(message.SerializeToString(), study=STUDY)


@pytest.mark.parametrize(
    "extra", [b"\x98\x06\x01", b"\x9a\x06\x02hi"], ids=["a number", "some text"]
)
def test_fields_of_a_later_version_are_unsupported_and_never_ignored(extra: bytes) -> None:
    # Field 99: whatever it says, it was agreed to or asked by someone who understood it.
    with pytest.raises(UnsupportedError, match="does not know"):
        read_study(STUDY.definition + extra)
    with pytest.raises(UnsupportedError, match="does not know"):
        read_round(ROUND.definition + extra, study=STUDY)
    nested = round_pb2.Feature.FromString(b"\x0a\x01f" + extra)
    message = round_message()
    message.linear.features.append(nested)
    with pytest.raises(UnsupportedError, match="does not know"):
        read_round(message.SerializeToString(), study=STUDY)


@settings(max_examples=300)
@given(st.binary(max_size=80))
def test_random_bytes_raise_nothing_but_our_errors(data: bytes) -> None:
    with pytest.raises(DemurError):
        read_study(data)
    with pytest.raises(DemurError):
        read_round(data, study=STUDY)
    with contextlib.suppress(DemurError):
        study_hash_of(data)


@settings(max_examples=200)
@given(st.data())
def test_spliced_definitions_raise_nothing_but_our_errors(data: st.DataObject) -> None:
    for original in (STUDY.definition, ROUND.definition):
        start = data.draw(st.integers(0, len(original)))
        stop = data.draw(st.integers(start, len(original)))
        spliced = original[:start] + data.draw(st.binary(max_size=9)) + original[stop:]
        for read in (read_study, lambda data: read_round(data, study=STUDY)):
            with contextlib.suppress(DemurError):
                read(spliced)


doubles = st.one_of(st.floats(), st.sampled_from([5e-324, 1e-300, 1e300, 700.0, 1e-9, 0.5]))
wide = st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(-1000, 1000)


@settings(max_examples=200)
@given(st.tuples(doubles, doubles, doubles, doubles), wide, st.sampled_from([1, 2]), st.booleans())
def test_extreme_numbers_raise_nothing_but_our_errors(
    numbers: tuple[float, float, float, float], exponent: int, kind: int, on_grid: bool
) -> None:
    contract = study_message()
    contract.budget, contract.epsilon, contract.delta, contract.base_sigma = numbers
    contract.base_grid_exponent = exponent
    contract.measure = study_pb2.Measure.ValueType(kind)
    question = round_message()
    question.clip, question.sigma = numbers[:2]
    question.grid_exponent = exponent
    question.on_grid = on_grid

    with pytest.raises(DemurError):
        read_study(contract.SerializeToString())
    with pytest.raises(DemurError):
        read_round(question.SerializeToString(), study=STUDY)


# ---- report ids ------------------------------------------------------------------------------


def test_report_ids_differ_by_device_and_by_round() -> None:
    secrets = [bytes([n]) * 32 for n in range(40)]
    rounds = [hashlib.sha256(bytes([n])).digest() for n in range(40)]

    ids = {report_id(secret, asked) for secret in secrets for asked in rounds}

    assert len(ids) == 1600
    assert {len(found) for found in ids} == {16}
    everyone = ReportIds(secrets)
    assert everyone.of(rounds[7]) == b"".join(report_id(secret, rounds[7]) for secret in secrets)


def test_a_value_that_is_invalid_cannot_be_defined() -> None:
    with pytest.raises(ParameterError):
        define_study(replace(STUDY.value, delta=math.nan))
