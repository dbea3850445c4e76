"""A segment: the rounds of one running count, and how prefix sums are taken apart for it."""

from dataclasses import dataclass, replace
from enum import StrEnum

from demur_proto.checks import check_integer, check_positive, named
from demur_proto.errors import ParameterError, StateError
from demur_proto.v1 import round_pb2

MOST_POSITIONS = 1 << 14  #: of a segment
MOST_SEGMENTS = 256  #: of a running count
MOST_DEVICES = 1 << 53


class Factorisation(StrEnum):
    """How the matrix of all prefix sums is taken apart into B·C. Made by `continual.factors`."""

    SQUARE_ROOT = "square_root"  #: B and C are its square root: least noise over all rounds
    TREE = "tree"  #: C adds up changes over the intervals of a binary tree
    IDENTITY = "identity"  #: C sends changes as they are, so that noise adds up


class Admission(StrEnum):
    """What a device does with a change that its budget does not pay for."""

    COMMIT = "commit"  #: takes it up only if all that will be sent of it fits, and holds that much
    HALT = "halt"  #: takes it up, and answers with cover what does not fit; for study


FACTORISATIONS = {
    Factorisation.SQUARE_ROOT: round_pb2.FACTORISATION_SQUARE_ROOT,
    Factorisation.TREE: round_pb2.FACTORISATION_TREE,
    Factorisation.IDENTITY: round_pb2.FACTORISATION_IDENTITY,
}
ADMISSIONS = {
    Admission.COMMIT: round_pb2.ADMISSION_COMMIT,
    Admission.HALT: round_pb2.ADMISSION_HALT,
}


def doubling(rounds: int, *, first: int) -> tuple[int, ...]:
    """Horizons of the segments that a count without an end goes through, each twice the one before.

    Args:
        rounds: how many rounds to make room for; 1 to 2^21.
        first: horizon of the first segment; 1 to 2^14.

    Raises:
        ParameterError: an argument is outside its range.

    >>> doubling(20, first=4)
    (4, 8, 16)
    """
    check_integer("rounds", rounds, 1, MOST_SEGMENTS // 2 * MOST_POSITIONS)
    check_integer("first", first, 1, MOST_POSITIONS)
    horizons = [first]
    while sum(horizons) < rounds:
        horizons.append(min(2 * horizons[-1], MOST_POSITIONS))
    return tuple(horizons)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Which round of which running count a round is.

    The first one is written without `first_round`; `after` gives the next. A count whose end is not
    known goes on beyond its segment's horizon in another one, twice as long: `doubled`.

    Raises:
        ParameterError: a field is outside its range.

    >>> first = Segment(horizon=30, cohort=1000)
    >>> first.begun(7).after().position, first.begun(7).after().first_round
    (2, 7)
    >>> longer = Segment(horizon=1, cohort=1000).doubled(7)
    >>> longer.horizon, longer.place, longer.begun(8).count
    (2, 2, 7)
    """

    horizon: int  #: H, most rounds of the segment; 1 to 2^14
    cohort: int
    """How many devices are to answer, public; >= 1. Sums of fewer reports are scaled up to it."""
    factorisation: Factorisation = Factorisation.SQUARE_ROOT
    position: int = 1  #: which of its rounds; 1 to H
    first_round: int = 0  #: number of the round at position 1; 0 there: whichever that gets
    earlier: tuple[int, ...] = ()
    """Horizons of the segments before in the same count, in order; all of them are over."""
    origin: int = 0  #: number of the round that began the first of these; 0 where there are none

    def __post_init__(self) -> None:
        check_integer("horizon", self.horizon, 1, MOST_POSITIONS)
        check_integer("cohort", self.cohort, 1, MOST_DEVICES)
        if not isinstance(self.factorisation, Factorisation):
            raise ParameterError("factorisation", self.factorisation, "a Factorisation")
        check_integer("position", self.position, 1, self.horizon)
        check_integer("first_round", self.first_round, int(self.position > 1), (1 << 32) - 1)
        if not isinstance(self.earlier, tuple) or len(self.earlier) >= MOST_SEGMENTS:
            raise ParameterError(
                "earlier", self.earlier, f"a tuple of less than {MOST_SEGMENTS} horizons"
            )
        for horizon in self.earlier:
            check_integer("earlier", horizon, 1, MOST_POSITIONS)
        begins = bool(self.earlier)
        check_integer("origin", self.origin, int(begins), (1 << 32) - 1 if begins else 0)
        if self.first_round and self.first_round < self.origin + sum(self.earlier):
            raise ParameterError(
                "first_round", self.first_round, "a round after those of all earlier segments"
            )

    @property
    def count(self) -> int:
        """Number of the round that began the running count; 0 where that is not known yet."""
        return self.origin or self.first_round

    @property
    def place(self) -> int:
        """Which round of the running count it is, over all of its segments; >= 1."""
        return sum(self.earlier) + self.position

    @property
    def over(self) -> bool:
        """Whether no position comes after this one."""
        return self.position == self.horizon

    def begun(self, number: int) -> "Segment":
        """The same, where the round at position 1 is known to get this number.

        Raises:
            ParameterError: it is not a round's number.
        """
        if self.first_round:
            return self
        check_integer("number", number, 1, (1 << 32) - 1)
        return replace(self, first_round=number)

    def after(self, number: int = 0) -> "Segment":
        """The next position.

        Args:
            number: of the round that was asked with this one; needed after the first, where it is
                not known yet.

        Raises:
            ParameterError: it is needed, and not given.
            StateError: the segment is over.
        """
        if self.over:
            raise StateError(
                f"position {self.position} was the last of its segment; go on with doubled(), or "
                "begin another count"
            )
        return replace(self.begun(number), position=self.position + 1)

    def doubled(self, number: int = 0) -> "Segment":
        """Position 1 of a segment that goes on where this one ends, twice as long.

        It is never longer than 2^14. States that were told stay told, and only changes are paid for.

        Args:
            number: of the round that was asked with this one; needed where it is the first.

        Raises:
            ParameterError: it is needed, and not given.
            StateError: the segment is not over.
        """
        if not self.over:
            raise StateError(
                f"position {self.position} of {self.horizon} is not the last of its segment; go on "
                "with after()"
            )
        begun = self.begun(number)
        return Segment(
            horizon=min(2 * self.horizon, MOST_POSITIONS),
            cohort=self.cohort,
            factorisation=self.factorisation,
            earlier=(*self.earlier, self.horizon),
            origin=begun.count,
        )

    def following(self, number: int = 0) -> "Segment":
        """What comes next in a count without an end: `after`, or `doubled` where it is over.

        Raises:
            ParameterError: the number is needed, and not given.
        """
        return self.doubled(number) if self.over else self.after(number)

    def start(self) -> "Segment":
        """Its position 1: what all rounds of a segment have in common."""
        return replace(self, position=1)

    def whole(self) -> "Segment":
        """What all rounds of a count have in common, whichever segment they are in."""
        return Segment(horizon=1, cohort=self.cohort, factorisation=self.factorisation)

    def message(self) -> round_pb2.Segment:
        """For the wire."""
        return round_pb2.Segment(
            factorisation=FACTORISATIONS[self.factorisation],
            horizon=self.horizon,
            position=self.position,
            first_round=self.first_round,
            cohort=self.cohort,
            earlier_horizons=self.earlier,
            origin=self.origin,
        )

    @classmethod
    def read(cls, message: round_pb2.Segment) -> "Segment":
        """From the wire.

        Raises:
            ParameterError: it is no segment.
            UnsupportedError: its factorisation is none that this version knows.
        """
        return cls(
            factorisation=named(FACTORISATIONS, message.factorisation, "factorisation"),
            horizon=message.horizon,
            position=message.position,
            first_round=message.first_round,
            cohort=message.cohort,
            earlier=tuple(message.earlier_horizons),
            origin=message.origin,
        )


LARGEST_ENERGY = 1 << 60  #: of a running count's words, grid steps², so that sums of it fit 63 bits
FINEST_COUNTING, COARSEST_COUNTING = -20, -14  #: grid exponents of a running count


def check_counting(
    segment: Segment, *, bound: int, sigma: float | None, exponent: int | None
) -> None:
    """Refuse a grid on which the rows of C differ from what they are rounded from, or do not fit.

    Args:
        segment: of which a query is a round.
        bound: the largest state.
        sigma: of one round's noise; None where that is not stated yet.
        exponent: of the grid; likewise.

    Raises:
        ParameterError: an argument is outside its range.
    """
    if not isinstance(segment, Segment):
        raise ParameterError("segment", segment, "a Segment")
    check_integer("bound", bound, 1, (1 << 31) - 1)
    if sigma is not None:
        check_positive("sigma", sigma)
    if exponent is None:
        return
    # 1/max(2^14, 64√H) is 2^-14 at every horizon that a segment may have.
    check_integer("grid_exponent", exponent, FINEST_COUNTING, COARSEST_COUNTING)
    if segment.horizon * bound**2 << -2 * exponent >= LARGEST_ENERGY:
        raise ParameterError(
            "bound",
            bound,
            f"less: {segment.horizon} words must stay below 2^60 squared grid steps together",
        )


def check_place(segment: Segment, number: int) -> None:
    """Refuse a position that the round of this number cannot be.

    Args:
        segment: with its first round.
        number: of the round in its study.

    Raises:
        ParameterError: a segment's rounds would not be distinct rounds of the study, in order.
    """
    if segment.position == 1 and segment.first_round != number:
        raise ParameterError(
            "first_round", segment.first_round, f"{number}, the round's own number"
        )
    if segment.first_round + segment.position - 1 > number:
        most = number - segment.first_round + 1
        raise ParameterError("position", segment.position, f"at most {most} in round {number}")
