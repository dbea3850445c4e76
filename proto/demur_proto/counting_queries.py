"""What both kinds of running counts have in common: one whole number at a time, on a grid of their own."""

from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import ParameterError
from demur_proto.segments import Segment

LARGEST_ENERGY = 1 << 60  #: of a running count's words, grid steps², so that sums of it fit 63 bits
FINEST_COUNTING, COARSEST_COUNTING = -20, -14  #: grid exponents of a running count


class WholeNumber:
    """A query that each person answers with one whole number."""

    __slots__ = ()

    @property
    def dimension(self) -> int:
        """One number is sent."""
        return 1

    @property
    def on_grid(self) -> bool:
        """The rows of C are whole grid steps, so nothing is rounded."""
        return True

    @property
    def value_length(self) -> int:
        """Numbers in one person's value: their state."""
        return 1


def check_counting(segment: Segment, *, bound: int, sigma: float, exponent: int) -> None:
    """Refuse a grid on which the rows of C differ from what they are rounded from, or do not fit.

    Args:
        segment: of which a query is a round.
        bound: the largest state.
        sigma: of one round's noise.
        exponent: of the grid.

    Raises:
        ParameterError: an argument is outside its range.
    """
    if not isinstance(segment, Segment):
        raise ParameterError("segment", segment, "a Segment")
    check_integer("bound", bound, 1, (1 << 31) - 1)
    check_positive("sigma", sigma)
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
