"""Which protocol versions this build speaks."""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import DecodeError

from demur_proto.checks import named
from demur_proto.errors import ParameterError, UnsupportedError, VersionError, WireError
from demur_proto.queries.registry import mechanism_for, read_query
from demur_proto.round import Round
from demur_proto.study import Measure, MechanismFamily, Policy, Purpose, Study, View
from demur_proto.v1 import round_pb2, study_pb2
from demur_proto.wire.hmacs import hash_definition, hmac_by_key, prepare_key
from demur_proto.wire.words import WordType

PROTOCOL_VERSION = 1
OLDEST_PROTOCOL_VERSION = 1


def check_version(version: int) -> None:
    """Refuse a protocol version outside the supported range, and name the range.

    >>> check_version(1)
    """
    if not OLDEST_PROTOCOL_VERSION <= version <= PROTOCOL_VERSION:
        raise VersionError(
            f"protocol version {version} is not supported; "
            f"this side speaks {OLDEST_PROTOCOL_VERSION} to {PROTOCOL_VERSION}"
        )


# Studies and rounds as bytes: written once, hashed, and never serialised again.

STUDY_TAG = b"demur.study.v1\x00"
ROUND_TAG = b"demur.round.v1\x00"
REPORT_ID_BYTES = 16
LARGEST_REPORT_WORDS = 1 << 24  #: so that a release fits a message and every database
LARGEST_REPORT_BYTES = 8 * LARGEST_REPORT_WORDS  #: 128 MiB, if they are INT64
LARGEST_DEFINITION_BYTES = 1 << 16  #: of a study or round: every device reads it

VIEWS = {View.LOCAL: study_pb2.VIEW_LOCAL, View.AGGREGATE: study_pb2.VIEW_AGGREGATE}
MEASURES = {
    Measure.GDP: study_pb2.MEASURE_GDP,
    Measure.ZCDP: study_pb2.MEASURE_ZCDP,
    Measure.PURE: study_pb2.MEASURE_PURE,
    Measure.ANSWERS: study_pb2.MEASURE_ANSWERS,
}
POLICIES = {
    Policy.SKIP: study_pb2.POLICY_SKIP,
    Policy.RETIRE: study_pb2.POLICY_RETIRE,
    Policy.CLIP: study_pb2.POLICY_CLIP,
}
FAMILIES = {
    MechanismFamily.GAUSSIAN: study_pb2.MECHANISM_FAMILY_GAUSSIAN,
    MechanismFamily.PURE: study_pb2.MECHANISM_FAMILY_PURE,
    MechanismFamily.MIXED: study_pb2.MECHANISM_FAMILY_MIXED,
}
PURPOSES = {
    Purpose.DATA: study_pb2.PURPOSE_UNSPECIFIED,
    Purpose.HALTS: study_pb2.PURPOSE_HALTS,
    Purpose.ERRORS: study_pb2.PURPOSE_ERRORS,
}
WORD_TYPES = {
    WordType.BIT: round_pb2.WORD_TYPE_BIT,
    WordType.INT32: round_pb2.WORD_TYPE_INT32,
    WordType.INT64: round_pb2.WORD_TYPE_INT64,
}

Value = TypeVar("Value", Study, Round)


@dataclass(frozen=True, slots=True)
class Defined(Generic[Value]):
    """A study or round together with the bytes that define it."""

    value: Value
    definition: bytes  #: exactly as written by the analyst
    hash: bytes  #: SHA-256(tag ‖ definition), 32 bytes


def define_study(study: Study) -> Defined[Study]:
    """Write a study down, once."""
    message = study_pb2.Study(
        name=study.name,
        unit=study_pb2.UNIT_DEVICE,
        neighbour=study_pb2.NEIGHBOUR_ZERO_OUT,
        view=VIEWS[study.view],
        mechanism_family=FAMILIES[study.mechanism_family],
        measure=MEASURES[study.measure],
        budget=study.budget,
        budget_units=study.budget_units,
        base_weight=study.base_weight,
        base_sigma=study.base_sigma,
        base_grid_exponent=study.base_grid_exponent,
        policy=POLICIES[study.policy],
        horizon=study.horizon,
        minimum_cohort=study.minimum_cohort,
        dishonest=study.dishonest,
        epsilon=study.epsilon,
        delta=study.delta,
        maximum_dimension=study.maximum_dimension,
        purpose=PURPOSES[study.purpose],
        answer_epsilon=study.answer_epsilon,
    )
    definition = message.SerializeToString(deterministic=True)
    return Defined(study, definition, hash_definition(STUDY_TAG, definition))


def read_study(definition: bytes) -> Defined[Study]:
    """Read a study from its bytes.

    Raises:
        WireError: the bytes are no study, or one whose stated integers are not those that follow
            from its other fields.
        UnsupportedError: a valid study of a kind that this version does not do.
    """
    message = _parsed(study_pb2.Study(), definition)
    _require(message.unit, [study_pb2.UNIT_DEVICE], "unit")
    _require(message.neighbour, [study_pb2.NEIGHBOUR_ZERO_OUT], "neighbour")
    try:
        study = Study(
            name=message.name,
            view=named(VIEWS, message.view, "view"),
            measure=named(MEASURES, message.measure, "measure"),
            policy=named(POLICIES, message.policy, "policy"),
            budget=message.budget,
            epsilon=message.epsilon,
            delta=message.delta,
            mechanism_family=named(FAMILIES, message.mechanism_family, "mechanism_family"),
            base_sigma=message.base_sigma,
            base_grid_exponent=message.base_grid_exponent,
            minimum_cohort=message.minimum_cohort,
            dishonest=message.dishonest,
            horizon=message.horizon,
            maximum_dimension=message.maximum_dimension,
            purpose=named(PURPOSES, message.purpose, "purpose"),
            answer_epsilon=message.answer_epsilon,
        )
    except ParameterError as error:
        raise WireError(f"not a valid study: {error}") from error
    stated = (message.budget_units, message.base_weight)
    derived = (study.budget_units, study.base_weight)
    if stated != derived:
        raise WireError(
            f"not a valid study: (budget_units, base_weight) must be {derived}, got {stated}"
        )
    return Defined(study, definition, hash_definition(STUDY_TAG, definition))


def define_round(asked: Round) -> Defined[Round]:
    """Write a round down, once."""
    message = round_pb2.Round(
        study_hash=asked.study_hash,
        number=asked.number,
        dimension=asked.query.report_length,
        weight=asked.weight,
        word_type=WORD_TYPES[asked.word_type],
        answer_after_ms=asked.answer_after_ms,
        close_unix_ms=asked.close_unix_ms,
    )
    asked.query.write(message)
    definition = message.SerializeToString(deterministic=True)
    return Defined(asked, definition, hash_definition(ROUND_TAG, definition))


def read_round(definition: bytes, *, study: Defined[Study]) -> Defined[Round]:
    """Read a round of a study from its bytes.

    A control question in a study that is not for it can be read, as such rounds were asked before
    studies said what they are for. Whether it may be asked and answered now is for `mechanism_for`.

    Raises:
        WireError: the bytes are no round, or not one of this study.
        UnsupportedError: a valid round of a kind that this version does not answer.
    """
    message = _parsed(round_pb2.Round(), definition)
    if message.study_hash != study.hash:
        raise WireError("not a valid round: it belongs to another study")
    word_type = named(WORD_TYPES, message.word_type, "word_type")
    if message.dimension > LARGEST_REPORT_WORDS:
        raise UnsupportedError(
            f"reports of {message.dimension} words are too large, and {LARGEST_REPORT_WORDS} are the "
            "most; ask for fewer coordinates at a time"
        )
    try:
        asked = Round(
            study_hash=message.study_hash,
            number=message.number,
            query=read_query(message),
            weight=message.weight,
            word_type=word_type,
            answer_after_ms=message.answer_after_ms,
            close_unix_ms=message.close_unix_ms,
        )
        mechanism = mechanism_for(study.value, asked, kept=True)
        if message.dimension != mechanism.report_length:
            raise ParameterError(
                "dimension", message.dimension, f"{mechanism.report_length}, a report's words"
            )
    except ParameterError as error:
        raise WireError(f"not a valid round: {error}") from error
    return Defined(asked, definition, hash_definition(ROUND_TAG, definition))


def study_hash_of(definition: bytes) -> bytes:
    """Which study a round says it belongs to.

    Raises:
        WireError: the bytes are no round.
        UnsupportedError: they have fields that this version does not know.
    """
    return _parsed(round_pb2.Round(), definition).study_hash


def report_id(secret: bytes, round_hash: bytes) -> bytes:
    """First 16 bytes of HMAC-SHA256(device secret, round hash): one per device and round.

    >>> report_id(bytes(32), bytes(32)).hex()
    '33ad0a1c607ec03b09e6cd9893680ce2'
    """
    return hmac.digest(secret, round_hash, "sha256")[:REPORT_ID_BYTES]


class ReportIds:
    """Report ids of many devices at once: `report_id` with each device's key prepared.

    >>> ReportIds([bytes(32)]).of(bytes(32)) == report_id(bytes(32), bytes(32))
    True
    """

    def __init__(self, secrets: Iterable[bytes]) -> None:
        self._keys = [prepare_key(secret) for secret in secrets]

    def of(self, round_hash: bytes) -> bytes:
        """All devices' ids for one round, 16 bytes each, in order."""
        return b"".join(hmac_by_key(self._keys, round_hash))


Message = TypeVar("Message", study_pb2.Study, round_pb2.Round)


def _parsed(message: Message, definition: bytes) -> Message:
    if len(definition) > LARGEST_DEFINITION_BYTES:
        raise WireError(
            f"a definition takes at most {LARGEST_DEFINITION_BYTES} bytes, got {len(definition)}"
        )
    try:
        message.ParseFromString(definition)
    except DecodeError as error:
        raise WireError("not a definition: the bytes do not parse") from error
    # A field that this version does not know could change what was agreed to.
    understood = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != understood:
        raise UnsupportedError("the definition has fields that this version does not know")
    return message


def _require(stated: int, allowed: list[int], name: str) -> None:
    if stated not in allowed:
        raise UnsupportedError(f"{name} {stated} is not supported by this version")
