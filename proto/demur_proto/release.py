"""A release: what becomes public. It never changes once published."""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from demur_proto.arrays import Integers, Vector
from demur_proto.errors import UnsupportedError, WireError
from demur_proto.v1 import release_pb2


class Withheld(StrEnum):
    """Why a closed round published no numbers."""

    NOTHING = "nothing"  #: it did publish
    BELOW_MINIMUM_COHORT = "below_minimum_cohort"  #: fewer reports than the study allows


WITHHELD = {
    Withheld.NOTHING: release_pb2.WITHHELD_UNSPECIFIED,
    Withheld.BELOW_MINIMUM_COHORT: release_pb2.WITHHELD_BELOW_MINIMUM_COHORT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The result of one round.

    `estimate` is unbiased for S_active, the sum over the people who contributed a value; a person
    whose filter refused counts as nothing, so late in a study it lags behind the sum over
    everyone.
    """

    study_hash: bytes
    round_hash: bytes
    number: int  #: the round's number within the study
    reports: int  #: how many were counted
    withheld: Withheld  #: why the fields below are empty, if they are
    sums: tuple[int, ...]  #: what the server added up, exactly: grid steps, or counts
    estimate: tuple[float, ...]  #: per coordinate, data units; or per category, people
    standard_error: tuple[float, ...]  #: in the same units; one for each, or one that all share
    half_width: tuple[float, ...]  #: likewise: the interval for S_active is estimate ± this
    confidence: float  #: probability that it covers, per estimate
    guarantee: str  #: the study's guarantee in words

    def standard_error_at(self, coordinate: int) -> float:
        """The standard error of one estimate; NaN where it was withheld."""
        return _at(self.standard_error, coordinate)

    def half_width_at(self, coordinate: int) -> float:
        """Half the width of one estimate's interval; NaN where it was withheld."""
        return _at(self.half_width, coordinate)

    @property
    def sums_bytes(self) -> bytes:
        """The sums as signed 64-bit little-endian integers."""
        return np.array(self.sums, dtype="<i8").tobytes()

    def array(self) -> tuple[Vector, Vector]:
        """Estimates [d] and their standard errors [d], data units; both empty when withheld."""
        estimates: Vector = np.array(self.estimate, dtype=np.float64)
        errors: Vector = np.full(estimates.shape, self.standard_error, dtype=np.float64)
        return estimates, errors

    def message(self) -> release_pb2.Release:
        """For the wire."""
        published = self.withheld is Withheld.NOTHING
        return release_pb2.Release(
            study_hash=self.study_hash,
            round_hash=self.round_hash,
            number=self.number,
            reports=self.reports,
            withheld=WITHHELD[self.withheld],
            sums=self.sums_bytes,
            estimate=self.estimate,
            standard_error=self.standard_error,
            half_width=self.half_width,
            confidence=self.confidence,
            estimand=(
                release_pb2.ESTIMAND_S_ACTIVE if published else release_pb2.ESTIMAND_UNSPECIFIED
            ),
            guarantee=self.guarantee,
        )

    @classmethod
    def of(cls, message: release_pb2.Release) -> "Release":
        """From the wire.

        Raises:
            WireError: the sums are not 64-bit words.
            UnsupportedError: withheld for a reason that this version does not know.
        """
        if len(message.sums) % 8:
            raise WireError(f"sums are 8 bytes each, got {len(message.sums)} in all")
        sums: Integers = np.frombuffer(message.sums, dtype="<i8")
        withheld = [key for key, value in WITHHELD.items() if value == message.withheld]
        if not withheld:
            raise UnsupportedError(f"withheld {message.withheld} is not supported by this version")
        return cls(
            study_hash=message.study_hash,
            round_hash=message.round_hash,
            number=message.number,
            reports=message.reports,
            withheld=withheld[0],
            sums=tuple(map(int, sums)),
            estimate=tuple(message.estimate),
            standard_error=tuple(message.standard_error),
            half_width=tuple(message.half_width),
            confidence=message.confidence,
            guarantee=message.guarantee,
        )


def _at(values: tuple[float, ...], coordinate: int) -> float:
    """The number of a coordinate, of one for each or one that all share.

    >>> _at((1.5,), 2), _at((1.5, 2.5), 1)
    (1.5, 2.5)
    """
    if len(values) > 1:
        return values[coordinate]
    return values[0] if values else math.nan
