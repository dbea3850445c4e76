"""Segments of running counts as messages, and what the rounds that have one leave unset."""

from collections.abc import Mapping
from typing import TypeVar

from demur_proto.errors import ParameterError, UnsupportedError
from demur_proto.segments import Admission, Factorisation, Segment
from demur_proto.v1 import round_pb2

FACTORISATIONS = {
    Factorisation.SQUARE_ROOT: round_pb2.FACTORISATION_SQUARE_ROOT,
    Factorisation.TREE: round_pb2.FACTORISATION_TREE,
    Factorisation.IDENTITY: round_pb2.FACTORISATION_IDENTITY,
}
ADMISSIONS = {
    Admission.COMMIT: round_pb2.ADMISSION_COMMIT,
    Admission.HALT: round_pb2.ADMISSION_HALT,
}

Key = TypeVar("Key")


def segment_message(segment: Segment) -> round_pb2.Segment:
    """For the wire."""
    return round_pb2.Segment(
        factorisation=FACTORISATIONS[segment.factorisation],
        horizon=segment.horizon,
        position=segment.position,
        first_round=segment.first_round,
        cohort=segment.cohort,
        earlier_horizons=segment.earlier,
        origin=segment.origin,
    )


def segment_value(message: round_pb2.Segment) -> Segment:
    """From the wire.

    Raises:
        ParameterError: it is no segment.
        UnsupportedError: its factorisation is none that this version knows.
    """
    return Segment(
        factorisation=named(FACTORISATIONS, message.factorisation, "factorisation"),
        horizon=message.horizon,
        position=message.position,
        first_round=message.first_round,
        cohort=message.cohort,
        earlier=tuple(message.earlier_horizons),
        origin=message.origin,
    )


def bound_of(message: round_pb2.Round) -> int:
    """The largest state of a running count, which is its clip.

    Raises:
        ParameterError: it is no whole number, or the round has a promise that it has no use for.
    """
    if message.on_grid:
        raise ParameterError("on_grid", True, "unset in a running count")
    if not 0 < message.clip < 1 << 31 or message.clip != int(message.clip):
        raise ParameterError("clip", message.clip, "an integer from 1 to 2^31, the largest state")
    return int(message.clip)


def named(names: Mapping[Key, int], stated: int, field: str) -> Key:
    """What a number of the schema stands for.

    Raises:
        UnsupportedError: nothing that this version knows.
    """
    for value, number in names.items():
        if number == stated:
            return value
    raise UnsupportedError(f"{field} {stated} is not supported by this version")
