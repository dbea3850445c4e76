"""A release: what becomes public. It never changes once published."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import partial

import numpy as np

from demur_proto.accounting.intervals import Intervals, no_numbers
from demur_proto.arrays import Integers, Vector, fixed_floats, fixed_integers, same_floats
from demur_proto.errors import UnsupportedError, WireError
from demur_proto.v1 import release_pb2
from demur_proto.wire.words import varint


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


class Estimand(StrEnum):
    """What an estimate is unbiased for."""

    NOTHING = "nothing"  #: withheld, or a running count under admission `halt`
    S_ACTIVE = "S_active"  #: the sum over the people who contributed; its interval is for that
    S_SHRUNK = "S_shrunk"
    """The same of values as shrunk by budgets, under policy `clip`. It may be far below S_active, and by how
    much is secret: there is no interval."""

    @property
    def told(self) -> str:
        """What it is, in words that follow "unbiased for"."""
        return _TOLD[self]


_TOLD: Mapping[Estimand, str] = {
    Estimand.NOTHING: "nothing",
    Estimand.S_ACTIVE: "S_active",
    Estimand.S_SHRUNK: "values as shrunk by budgets",
}
ESTIMANDS = {
    Estimand.NOTHING: release_pb2.ESTIMAND_UNSPECIFIED,
    Estimand.S_ACTIVE: release_pb2.ESTIMAND_S_ACTIVE,
    Estimand.S_SHRUNK: release_pb2.ESTIMAND_S_SHRUNK,
}

FLOATS = ("estimate", "standard_error", "half_width", "low_end", "high_end")
LENGTH_DELIMITED = 2  #: the wire type of bytes and packed numbers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Release(Intervals):
    """The result of one round.

    `estimand` says what `estimate` is unbiased for. S_active is the sum over the people who contributed a
    value; a person whose filter refused counts as nothing, so late in a study it lags behind the
    sum over everyone. `low` and `high` are its intervals. In a running count people count with the
    state that they took up last, and `sums` are those of this round alone. Under policy `clip` it is
    values as shrunk by budgets, and under admission `halt` nothing of the kind: there are no intervals.

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
    """Likewise, where the interval is ± this: of sums and running counts. Else empty."""
    low_end: Vector = field(repr=False, default_factory=no_numbers)
    """Per category, the lower end of an interval that has no middle in the estimate; else empty."""
    high_end: Vector = field(repr=False, default_factory=no_numbers)  #: likewise, the upper end
    confidence: float  #: probability that an interval covers, per estimate; NaN where there is none
    estimand: Estimand  #: what the estimates are unbiased for
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
            self.estimand,
            self.guarantee,
        )

    def standard_error_at(self, coordinate: int) -> float:
        """The standard error of one estimate; NaN where it was withheld."""
        return _at(self.standard_error, coordinate)

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
        message = release_pb2.Release(
            study_hash=self.study_hash,
            round_hash=self.round_hash,
            number=self.number,
            reports=self.reports,
            withheld=WITHHELD[self.withheld],
            sums=self.sums_bytes,
            confidence=self.confidence,
            estimand=ESTIMANDS[self.estimand],
            guarantee=self.guarantee,
        )
        # Extending a field makes a Python number of every element, which takes several times as long.
        for name in FLOATS:
            message.MergeFromString(_packed(name, getattr(self, name)))
        if self.low_end.size:  # whoever knows no ends reads an interval that holds as often
            reach = np.maximum(self.estimate - self.low_end, self.high_end - self.estimate)
            message.half_width.append(float(reach.max()))
        return message

    @classmethod
    def of(cls, message: release_pb2.Release) -> "Release":
        """From the wire.

        Raises:
            WireError: the sums are not 64-bit words; or the numbers are not those of a release: one
                that is not finite, errors that are neither shared nor one for each estimate, an
                estimate without a sum, anything at all in a release that was withheld.
            UnsupportedError: withheld for a reason, or an estimate of something, that this version does
                not know.
        """
        if len(message.sums) % 8:
            raise WireError(f"sums are 8 bytes each, got {len(message.sums)} in all")
        withheld = [key for key, value in WITHHELD.items() if value == message.withheld]
        if not withheld:
            raise UnsupportedError(f"withheld {message.withheld} is not supported by this version")
        estimands = [key for key, value in ESTIMANDS.items() if value == message.estimand]
        if not estimands:
            raise UnsupportedError(f"estimand {message.estimand} is not supported by this version")
        # With ends, half widths are for those who know none.
        half_width = () if message.low_end or message.high_end else message.half_width
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
            half_width=np.fromiter(half_width, np.float64, len(half_width)),
            low_end=np.fromiter(message.low_end, np.float64, len(message.low_end)),
            high_end=np.fromiter(message.high_end, np.float64, len(message.high_end)),
            confidence=message.confidence,
            estimand=estimands[0],
            guarantee=message.guarantee,
        )
        _check(release)
        return release


def _check(release: Release) -> None:
    """Refuse what no collector publishes, before anybody computes with it."""
    estimates, published = release.estimate.size, release.withheld is Withheld.NOTHING
    errors = release.standard_error.size
    fit = (
        release.sums.size >= estimates > 0 and errors in {1, estimates} and release.intervals_fit
        if published
        else not (release.sums.size or estimates or errors or release.has_interval)
    )
    if not fit:
        raise WireError(
            f"a release {'with' if published else 'without'} numbers has {release.sums.size} sums, "
            f"{estimates} estimates, {errors} standard errors, {release.half_width.size} half widths, "
            f"and {release.low_end.size} lower and {release.high_end.size} upper ends in order"
        )
    finite = all(np.isfinite(getattr(release, name)).all() for name in FLOATS)
    if not finite or (release.standard_error < 0).any() or (release.half_width < 0).any():
        raise WireError("a release has an estimate that is not finite, or an error below zero")
    if release.has_interval != (release.estimand is Estimand.S_ACTIVE):
        having = "has" if release.has_interval else "lacks"
        raise WireError(f"a release of the estimand {release.estimand} {having} an interval")
    if release.has_interval and not 0 < release.confidence < 1:
        raise WireError(f"a confidence lies between 0 and 1, got {release.confidence}")
    if not release.has_interval and not math.isnan(release.confidence):
        raise WireError(f"without an interval there is no confidence, got {release.confidence}")


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
