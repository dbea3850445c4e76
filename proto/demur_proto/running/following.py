"""Whether a round goes on with the segment that it says it belongs to. All of it is public."""

from collections.abc import Sequence

import numpy as np

from demur_proto.arrays import Flags, Integers, Values
from demur_proto.errors import ParameterError, StateError
from demur_proto.queries.base import CountingQuery
from demur_proto.round import Round


def counting_of(asked: Round) -> CountingQuery | None:
    """The running count that a round asks for; None if it asks for something else."""
    return asked.query if isinstance(asked.query, CountingQuery) else None


def check_follows(later: Round, earlier: Round) -> None:
    """Refuse a round that names the running count of an earlier one, and does not go on with it.

    A running count adds up only while kind, noise, grid and bound stay as they were, and the horizon
    within a segment; and were a position asked twice, or earlier ones after it, devices would pay for
    it twice.

    Args:
        later: the round, which asks for a running count.
        earlier: one of the same count: in the same segment, or in one before.

    Raises:
        ParameterError: it does not.
    """
    after, before = counting_of(later), counting_of(earlier)
    if after is None or before is None:
        raise ParameterError("segment", earlier.number, "one whose rounds ask for running counts")
    if after.segment.first_round != before.segment.first_round:
        _check_goes_on(later, after, earlier, before)
        return
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
    """Refuse a round of a running count that is not the next one of it.

    Args:
        asked: a round that asks for a running count.
        before: those of its count so far, in order.

    Raises:
        ParameterError: it does not go on with its count.
        StateError: another position is the next one.
    """
    query = counting_of(asked)
    place, position = (1, 1) if query is None else (query.segment.place, query.segment.position)
    name = f"round {asked.number} cannot open: position {position}"
    last = counting_of(before[-1]) if before else None
    if last is not None:
        check_follows(asked, before[-1])
    elif place > 1:
        raise StateError(f"{name} of a segment that no round has begun")
    if last is not None and last.segment.place + 1 != place:
        raise StateError(
            f"{name} cannot follow round {before[-1].number}, at position {last.segment.position} "
            f"of {last.segment.horizon}"
        )


def _check_goes_on(
    later: Round, after: CountingQuery, earlier: Round, before: CountingQuery
) -> None:
    """Refuse a segment that does not go on with an earlier one."""
    over = (*before.segment.earlier, before.segment.horizon)
    same = after.segment.count == before.segment.count and after.whole() == before.whole()
    if not same or after.segment.earlier[: len(over)] != over:
        raise ParameterError(
            "segment",
            f"another in round {later.number} than in round {earlier.number}",
            "one that goes on with it: with the same kind, feature, bound, sigma, grid, admission, "
            "factorisation and cohort, and its horizon among the earlier ones",
        )
    if later.number <= earlier.number or after.segment.first_round <= earlier.number:
        raise ParameterError(
            "first_round", after.segment.first_round, f"above {earlier.number}, a round before it"
        )


# From a person's state to the change that would bring what they have told up to it.


def changes_wanted(values: Values, *, told: Integers, bound: int) -> tuple[Integers, Flags]:
    """The change of each person, and whether their value is a state at all.

    A value that is no integer from 0 to the bound, NaN for one, is none: nothing changes. All of it is
    secret.

    Args:
        values: [n, 1], the states now; units of the state.
        told: [n], the states as told so far.
        bound: the largest state.

    Returns:
        changes [n], from −bound to bound; which values are states [n].

    Raises:
        ParameterError: the values are not of shape [n, 1].

    >>> changes, sound = changes_wanted(
    ...     np.array([[1.0], [0.0], [np.nan], [0.5]]), told=np.array([0, 1, 1, 0]), bound=1)
    >>> changes.tolist(), sound.tolist()
    ([1, -1, 0, 0], [True, True, False, False])
    """
    if values.shape != (len(told), 1):
        raise ParameterError("values", values.shape, f"of shape [{len(told)}, 1]")
    states = values[:, 0]
    with np.errstate(invalid="ignore"):
        sound: Flags = (states >= 0) & (states <= bound) & (np.rint(states) == states)
    changes: Integers = np.where(sound, states, told).astype(np.int64) - told
    return changes, sound
