"""A segment: the rounds of one running count, and how prefix sums are taken apart for it."""

from dataclasses import dataclass, replace
from enum import StrEnum

from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError, StateError

MOST_POSITIONS = 1 << 14  #: of a segment
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Which round of which running count a round is.

    The first one is written without `first_round`; `after` gives the next.

    Raises:
        ParameterError: a field is outside its range.

    >>> first = Segment(horizon=30, cohort=1000)
    >>> first.begun(7).after().position, first.begun(7).after().first_round
    (2, 7)
    """

    horizon: int  #: H, most rounds of the segment; 1 to 2^14
    cohort: int
    """How many devices are to answer, public; >= 1. Sums of fewer reports are scaled up to it."""
    factorisation: Factorisation = Factorisation.SQUARE_ROOT
    position: int = 1  #: which of its rounds; 1 to H
    first_round: int = 0  #: number of the round at position 1; 0 there: whichever that gets

    def __post_init__(self) -> None:
        check_integer("horizon", self.horizon, 1, MOST_POSITIONS)
        check_integer("cohort", self.cohort, 1, MOST_DEVICES)
        if not isinstance(self.factorisation, Factorisation):
            raise ParameterError("factorisation", self.factorisation, "a Factorisation")
        check_integer("position", self.position, 1, self.horizon)
        check_integer("first_round", self.first_round, int(self.position > 1), (1 << 32) - 1)

    def begun(self, number: int) -> "Segment":
        """The same, where the round at position 1 is known to get this number.

        Raises:
            ParameterError: it is not a round's number.
        """
        check_integer("number", number, 1, (1 << 32) - 1)
        return self if self.first_round else replace(self, first_round=number)

    def after(self, number: int = 0) -> "Segment":
        """The next position.

        Args:
            number: of the round that was asked with this one; needed after the first, where it is
                not known yet.

        Raises:
            ParameterError: it is needed, and not given.
            StateError: the segment is over.
        """
        if self.position == self.horizon:
            raise StateError(
                f"position {self.position} was the last of its segment; begin another one"
            )
        begun = self.begun(number) if not self.first_round else self
        return replace(begun, position=self.position + 1)

    def start(self) -> "Segment":
        """Its position 1: what all rounds of a segment have in common."""
        return replace(self, position=1)
