"""A release: what becomes public. It never changes once published."""

import math
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import partial

import numpy as np

from demur_proto.arrays import Integers, Vector, fixed_floats, fixed_integers, same_floats
from demur_proto.errors import UnsupportedError, WireError
from demur_proto.v1 import release_pb2
from demur_proto.varints import varint


class Withheld(StrEnum):
    """Why a closed round published no numbers."""

    NOTHING = "nothing"  #: it did publish
    BELOW_MINIMUM_COHORT = "below_minimum_cohort"  #: fewer reports than the study allows
    SEGMENT_BROKEN = "segment_broken"  #: an earlier round of a running count published nothing


WITHHELD = {
    Withheld.NOTHING: release_pb2.WITHHELD_UNSPECIFIED,
    Withheld.BELOW_MINIMUM_COHORT: release_pb2.WITHHELD_BELOW_MINIMUM_COHORT,
    Withheld.SEGMENT_BROKEN: release_pb2.WITHHELD_SEGMENT_BROKEN,
}


FLOATS = ("estimate", "standard_error", "half_width")
LENGTH_DELIMITED = 2  #: the wire type of bytes and packed numbers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Release:
    """The result of one round.

    `estimate` is unbiased for S_active, the sum over the people who contributed a value; a person
    whose filter refused counts as nothing, so late in a study it lags behind the sum over
    everyone. In a running count people count with the state that they took up last, and `sums` are
    those of this round alone. Under admission `halt` it says nothing of the kind, and has no interval.

    Its arrays are read-only, and have copies of what they are made from; so are those of its copies.
    """

    study_hash: bytes
    round_hash: bytes
    number: int  #: the round's number within the study
    reports: int  #: how many were counted
    withheld: Withheld  #: why the fields below are empty, if they are
    sums: Integers = field(repr=False)
    """What the server added up, exactly: grid steps, or counts."""
    estimate: Vector = field(repr=False)  #: per coordinate, data units; or per category, people
    standard_error: Vector = field(repr=False)
    """In the same units; one for each, or one that all share."""
    half_width: Vector = field(repr=False)
    """Likewise: the interval for S_active is ± this; empty where there is none."""
    confidence: float  #: probability that it covers, per estimate
    guarantee: str  #: the study's guarantee in words

    def __post_init__(self) -> None:
        object.__setattr__(self, "sums", fixed_integers(self.sums))
        for name in FLOATS:
            object.__setattr__(self, name, fixed_floats(getattr(self, name)))

    def __eq__(self, other: object) -> bool:
        """Whether another release says the same, number for number."""
        if not isinstance(other, Release):
            return NotImplemented
        return (
            self._head == other._head
            and np.array_equal(self.sums, other.sums)
            and same_floats(self.confidence, other.confidence)
            and all(same_floats(getattr(self, each), getattr(other, each)) for each in FLOATS)
        )

    def __reduce__(self) -> "tuple[partial[Release], tuple[()]]":
        """Pickles and copies are made anew: arrays that were pickled come back writeable."""
        return partial(
            Release, **{each.name: getattr(self, each.name) for each in fields(self)}
        ), ()

    @property
    def _head(self) -> tuple[object, ...]:
        return (
            self.study_hash,
            self.round_hash,
            self.number,
            self.reports,
            self.withheld,
            self.guarantee,
        )

    def standard_error_at(self, coordinate: int) -> float:
        """The standard error of one estimate; NaN where it was withheld."""
        return _at(self.standard_error, coordinate)

    def half_width_at(self, coordinate: int) -> float:
        """Half the width of one estimate's interval; NaN where it was withheld."""
        return _at(self.half_width, coordinate)

    @property
    def sums_bytes(self) -> bytes:
        """The sums as signed 64-bit little-endian integers."""
        return self.sums.astype("<i8", copy=False).tobytes()

    def array(self) -> tuple[Vector, Vector]:
        """Copies of the estimates [d], and of their standard errors [d]; both empty when withheld."""
        estimates = self.estimate.copy()
        errors: Vector = np.full(estimates.shape, self.standard_error, dtype=np.float64)
        return estimates, errors

    def message(self) -> release_pb2.Release:
        """For the wire."""
        published = self.withheld is Withheld.NOTHING
        message = release_pb2.Release(
            study_hash=self.study_hash,
            round_hash=self.round_hash,
            number=self.number,
            reports=self.reports,
            withheld=WITHHELD[self.withheld],
            sums=self.sums_bytes,
            confidence=self.confidence,
            estimand=(
                release_pb2.ESTIMAND_S_ACTIVE
                if published and self.half_width.size
                else release_pb2.ESTIMAND_UNSPECIFIED
            ),
            guarantee=self.guarantee,
        )
        # Extending a field makes a Python number of every element, which takes several times as long.
        for name in FLOATS:
            message.MergeFromString(_packed(name, getattr(self, name)))
        return message

    @classmethod
    def of(cls, message: release_pb2.Release) -> "Release":
        """From the wire.

        Raises:
            WireError: the sums are not 64-bit words; or the numbers are not those of a release: one
                that is not finite, errors that are neither shared nor one for each estimate, an
                estimate without a sum, anything at all in a release that was withheld.
            UnsupportedError: withheld for a reason that this version does not know.
        """
        if len(message.sums) % 8:
            raise WireError(f"sums are 8 bytes each, got {len(message.sums)} in all")
        withheld = [key for key, value in WITHHELD.items() if value == message.withheld]
        if not withheld:
            raise UnsupportedError(f"withheld {message.withheld} is not supported by this version")
        release = cls(
            study_hash=message.study_hash,
            round_hash=message.round_hash,
            number=message.number,
            reports=message.reports,
            withheld=withheld[0],
            sums=np.frombuffer(message.sums, dtype="<i8"),
            estimate=np.fromiter(message.estimate, np.float64, len(message.estimate)),
            standard_error=np.fromiter(
                message.standard_error, np.float64, len(message.standard_error)
            ),
            half_width=np.fromiter(message.half_width, np.float64, len(message.half_width)),
            confidence=message.confidence,
            guarantee=message.guarantee,
        )
        _check(release)
        return release


def _check(release: Release) -> None:
    """Refuse what no collector publishes, before anybody computes with it."""
    estimates, published = release.estimate.size, release.withheld is Withheld.NOTHING
    errors = {release.standard_error.size, release.half_width.size}
    if estimates == 1 and errors == {0, 1} and math.isnan(release.confidence):
        errors = {release.standard_error.size}  # a running count without an interval
    fit = (
        release.sums.size >= estimates > 0 and errors <= {1, estimates}
        if published
        else not release.sums.size and not estimates and errors == {0}
    )
    if not fit:
        raise WireError(
            f"a release {'with' if published else 'without'} numbers has {release.sums.size} sums, "
            f"{estimates} estimates, {release.standard_error.size} standard errors and "
            f"{release.half_width.size} half widths"
        )
    finite = all(np.isfinite(getattr(release, name)).all() for name in FLOATS)
    if not finite or (release.standard_error < 0).any() or (release.half_width < 0).any():
        raise WireError("a release has an estimate that is not finite, or an error below zero")
    if published and release.half_width.size and not 0 < release.confidence < 1:
        raise WireError(f"a confidence lies between 0 and 1, got {release.confidence}")


def _at(values: Vector, coordinate: int) -> float:
    """The number of a coordinate, of one for each or one that all share.

    >>> _at(np.array([1.5]), 2), _at(np.array([1.5, 2.5]), 1)
    (1.5, 2.5)
    """
    if values.size > 1:
        return float(values[coordinate])
    return float(values[0]) if values.size else math.nan


def _packed(name: str, values: Vector) -> bytes:
    """A repeated field of doubles as the wire has it: tag, length in bytes, numbers.

    >>> release_pb2.Release.FromString(_packed("estimate", np.array([0.5, 2.0]))).estimate
    [0.5, 2.0]
    """
    number = release_pb2.Release.DESCRIPTOR.fields_by_name[name].number
    content = values.astype("<f8", copy=False).tobytes()
    return varint(number << 3 | LENGTH_DELIMITED) + varint(len(content)) + content
