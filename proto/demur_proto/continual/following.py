"""Whether a round goes on with the segment that it says it belongs to. All of it is public."""

from collections.abc import Sequence

from demur_proto.errors import ParameterError, StateError
from demur_proto.round import CountingQuery, Round


def counting_of(asked: Round) -> CountingQuery | None:
    """The running count that a round asks for; None if it asks for something else."""
    return asked.query if isinstance(asked.query, CountingQuery) else None


def check_follows(later: Round, earlier: Round) -> None:
    """Refuse a round that names the segment of an earlier one, and does not go on with it.

    A running count adds up only while kind, noise, grid, horizon and bound stay as they were; and were
    a position asked twice, or earlier ones after it, devices would pay for it twice.

    Args:
        later: the round, which asks for a running count.
        earlier: one with the same `first_round`.

    Raises:
        ParameterError: it does not.
    """
    after, before = counting_of(later), counting_of(earlier)
    if after is None or before is None:
        raise ParameterError("segment", earlier.number, "one whose rounds ask for running counts")
    if after.fixed() != before.fixed():
        raise ParameterError(
            "segment",
            f"another in round {later.number} than in round {earlier.number}",
            "the same but for its position, as must be kind, feature, bound, sigma, grid and admission",
        )
    if after.segment.position <= before.segment.position or later.number <= earlier.number:
        raise ParameterError(
            "position",
            after.segment.position,
            f"above {before.segment.position}, that of round {earlier.number}",
        )


def check_next(asked: Round, before: Sequence[Round]) -> None:
    """Refuse a round of a running count that is not the next position of its segment.

    Args:
        asked: a round that asks for a running count.
        before: those of its segment so far, in order.

    Raises:
        ParameterError: it does not go on with its segment.
        StateError: another position is the next one.
    """
    query = counting_of(asked)
    position = 1 if query is None else query.segment.position
    name = f"round {asked.number} cannot open: position {position}"
    if before:
        check_follows(asked, before[-1])
    elif position > 1:
        raise StateError(f"{name} of a segment that no round has begun")
    if len(before) + 1 != position:
        raise StateError(
            f"{name} cannot follow round {before[-1].number}, at position {len(before)}"
        )
