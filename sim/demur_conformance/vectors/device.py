"""Vectors about what every device must do to the same bits: definitions, ids, words, charges, rounding."""

from typing import Any

import numpy as np

from demur_client.budget.decide import charge_units
from demur_client.budget.filters import Filter
from demur_conformance.vectors.case import Case, Check, Tally, Verdict, examine
from demur_proto.arrays import Bits, Values, Words
from demur_proto.errors import DataError, UnsupportedError, WireError
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.queries.registry import mechanism_for
from demur_proto.study import Policy, Study
from demur_proto.transport.credentials import DeviceCredential
from demur_proto.v1 import report_pb2
from demur_proto.wire.definition import (
    LARGEST_REPORT_BYTES,
    Defined,
    read_round,
    read_study,
    report_id,
)
from demur_proto.wire.frames import report_messages
from demur_proto.wire.words import WordType, encode_words


def check_study_definitions(cases: list[dict[str, Any]]) -> Verdict:
    """The hash and the integers of a study."""
    return examine("study_definitions", cases, _study_definition)


def check_round_definitions(cases: list[dict[str, Any]]) -> Verdict:
    """The hash of a round, and what follows from its numbers."""
    return examine("round_definitions", cases, _round_definition)


def check_refused_rounds(cases: list[dict[str, Any]]) -> Verdict:
    """Definitions that no device may answer."""
    return examine("refused_rounds", cases, _refused_round)


def check_report_ids(cases: list[dict[str, Any]]) -> Verdict:
    """What a report is called."""
    return examine("report_ids", cases, _report_id)


def check_report_proofs(cases: list[dict[str, Any]]) -> Verdict:
    """What a device gives a gateway."""
    return examine("report_proofs", cases, _report_proof)


def check_word_encodings(cases: list[dict[str, Any]]) -> Verdict:
    """Integers as bytes."""
    return examine("word_encodings", cases, _word_encoding)


def check_charge_traces(cases: list[dict[str, Any]]) -> Verdict:
    """What a filter charges, decides and keeps, in whole units."""
    return examine("charge_traces", cases, _charge_trace)


def check_roundings(cases: list[dict[str, Any]]) -> Verdict:
    """A value onto the grid and into the clip, with given coins."""
    return examine("roundings", cases, _rounding)


def check_chunkings(cases: list[dict[str, Any]]) -> Verdict:
    """How a report travels."""
    return examine("chunkings", cases, _chunking)


FAMILIES: dict[str, Check] = {
    "study_definitions": check_study_definitions,
    "round_definitions": check_round_definitions,
    "refused_rounds": check_refused_rounds,
    "report_ids": check_report_ids,
    "report_proofs": check_report_proofs,
    "word_encodings": check_word_encodings,
    "charge_traces": check_charge_traces,
    "roundings": check_roundings,
    "chunkings": check_chunkings,
}


class _Coins:
    """A sampler of coins that are known."""

    name = "known"

    def __init__(self, coins: list[float]) -> None:
        self._coins = coins

    def uniform(self, *, reports: int, dimension: int) -> Values:
        return np.array(self._coins, dtype=np.float64).reshape(reports, dimension)

    def gaussian(self, steps: float, *, reports: int, dimension: int) -> Words:
        return np.zeros((reports, dimension), dtype=np.int64)

    def words(self, count: int) -> Bits:
        return np.zeros(count, dtype=np.uint64)


def _study_definition(case: Case, tally: Tally) -> None:
    study = _study(case, "definition")
    tally.same("hash", study.hash.hex(), case.text("hash"))
    tally.same("budget_units", study.value.budget_units, _whole(case, "budget_units"))
    tally.same("base_weight", study.value.base_weight, _whole(case, "base_weight"))


def _round_definition(case: Case, tally: Tally) -> None:
    study = _study(case, "study")
    try:
        asked = read_round(_bytes(case, "definition"), study=study)
    except (WireError, UnsupportedError) as error:
        raise DataError(f"{case.where}.definition must be a round of the study: {error}") from None
    mechanism = mechanism_for(study.value, asked.value)
    if not isinstance(mechanism, GaussianLinear):
        raise DataError(f"{case.where}.definition must be a linear round, got another")
    tally.same("hash", asked.hash.hex(), case.text("hash"))
    tally.same("weight", asked.value.weight, _whole(case, "weight"))
    tally.same("squared_radius", mechanism.squared_radius, _whole(case, "squared_radius"))
    tally.same("word_limit", mechanism.word_limit, _whole(case, "word_limit"))
    tally.same("share_sigma", mechanism.share_sigma, case.number("share_sigma"))
    size = asked.value.word_type.report_bytes(mechanism.report_length)
    tally.same("report_bytes", size, case.integer("report_bytes"))


def _refused_round(case: Case, tally: Tally) -> None:
    study = _study(case, "study")
    try:
        read_round(_bytes(case, "definition"), study=study)
    except (WireError, UnsupportedError):
        return
    tally.fail("it is answered")


def _report_id(case: Case, tally: Tally) -> None:
    made = report_id(_bytes(case, "secret"), _bytes(case, "round_hash"))
    tally.same("report_id", made.hex(), case.text("report_id"))


def _report_proof(case: Case, tally: Tally) -> None:
    credential = DeviceCredential(device_id=bytes(16), secret=_bytes(case, "secret"))
    parts = (_bytes(case, name) for name in ("round_hash", "report_id", "words"))
    tally.same("proof", credential.proof(*parts).hex(), case.text("proof"))


def _word_encoding(case: Case, tally: Tally) -> None:
    wholes = _wholes(case, "words")
    if any(abs(each) > WordType.INT64.limit for each in wholes):
        raise DataError(f"{case.where}.words must be within 64 bits")
    words = np.array([wholes], dtype=np.int64)
    word_type = _named(WordType, case, "word_type")
    tally.same("bytes", encode_words(words, word_type).hex(), case.text("bytes"))


def _charge_trace(case: Case, tally: Tally) -> None:
    budget = _whole(case, "budget_units")
    mine = Filter(budget_units=budget, policy=_named(Policy, case, "policy"))
    for number, step in enumerate(case.cases("steps"), start=1):
        squared_norm, weight = _whole(step, "squared_norm"), _whole(step, "weight")
        given = mine.try_spend(squared_norm, weight=weight, shrunk=step.flag("shrunk"))
        charge = charge_units(squared_norm, weight=weight, budget_units=budget)
        tally.same(f"charge {number}", charge, _whole(step, "charge"))
        tally.same(f"decision {number}", "CONT" if given else "HALT", step.text("decision"))
        tally.same(f"remaining {number}", mine.remaining_units, _whole(step, "remaining"))


def _rounding(case: Case, tally: Tally) -> None:
    value = np.array([case.numbers("value")], dtype=np.float64)
    mechanism = GaussianLinear(
        dimension=value.shape[1],
        clip=case.number("clip"),
        grid_exponent=case.integer("grid_exponent"),
        sigma=case.number("clip"),
        shares=1,
        on_grid=case.flag("on_grid"),
    )
    if len(case.numbers("coins")) != value.shape[1]:
        raise DataError(f"{case.where}.coins must be one for each number of the value")
    coins = _Coins(case.numbers("coins"))
    if case.is_null("radius"):
        words, squares = mechanism.encode(value, coins)
        shrunk = False
    else:
        radius = _whole(case, "radius")
        if not 0 <= radius <= mechanism.squared_radius:
            raise DataError(f"{case.where}.radius must be from 0 to R, got {radius}")
        radii = np.array([radius])
        words, squares, flags = mechanism.encode_within(value, coins, radii=radii)
        shrunk = bool(flags[0])
    tally.same("words", words[0].tolist(), _wholes(case, "words"))
    tally.same("squared_norm", int(squares[0]), _whole(case, "squared_norm"))
    tally.same("shrunk", shrunk, case.flag("shrunk"))


def _chunking(case: Case, tally: Tally) -> None:
    size = case.integer("bytes")
    if not 0 <= size <= LARGEST_REPORT_BYTES:
        raise DataError(f"{case.where}.bytes must be from 0 to {LARGEST_REPORT_BYTES}, got {size}")
    report = report_pb2.Report(words=bytes(size))
    sizes = [
        len(message.chunk.words) if message.HasField("chunk") else 0
        for message in report_messages(report)
    ]
    expected = _wholes(case, "chunks")
    tally.same("chunks", [] if sizes == [0] else sizes, expected)


def _study(case: Case, name: str) -> Defined[Study]:
    try:
        return read_study(_bytes(case, name))
    except (WireError, UnsupportedError) as error:
        raise DataError(f"{case.where}.{name} must be a study: {error}") from None


def _bytes(case: Case, name: str) -> bytes:
    digits = case.text(name)
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise DataError(f"{case.where}.{name} must be hexadecimal digits") from None


def _whole(case: Case, name: str) -> int:
    """An integer of any size, as text."""
    exact = case.exact(name)
    if exact.denominator != 1:
        raise DataError(f"{case.where}.{name} must be a whole number, got {exact}")
    return exact.numerator


def _wholes(case: Case, name: str) -> list[int]:
    exacts = case.exacts(name)
    if any(each.denominator != 1 for each in exacts):
        raise DataError(f"{case.where}.{name} must be whole numbers")
    return [each.numerator for each in exacts]


def _named(kind: Any, case: Case, name: str) -> Any:
    stated = case.text(name)
    try:
        return kind(stated)
    except ValueError:
        raise DataError(
            f"{case.where}.{name} must be {' or '.join(kind)}, got {stated!r}"
        ) from None
