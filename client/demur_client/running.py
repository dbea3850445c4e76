"""What one person has told so far in the segment of a running count, and what follows from it."""

from typing import final

import numpy as np

from demur_client.filters import Filter
from demur_proto.arrays import Integers, Values
from demur_proto.continual.factors import factors_of
from demur_proto.continual.following import check_follows
from demur_proto.continual.states import changes_wanted
from demur_proto.errors import ParameterError
from demur_proto.round import CountingQuery, Round
from demur_proto.segments import Admission


@final
class RunningState:
    """One person's changes in one segment. All of it is secret, and of a length that is not.

    Whatever was taken up, a position takes the same steps over arrays as long as the horizon.

    Args:
        begun: the first round of the segment that this device sees; not always the one at position 1.

    Raises:
        ParameterError: the round asks for no running count.
    """

    __slots__ = ("_changes", "_factors", "_last", "_planned", "_told")

    def __init__(self, begun: Round) -> None:
        query = _counting(begun)
        self._factors = factors_of(
            query.segment.factorisation,
            horizon=query.segment.horizon,
            exponent=query.grid_exponent,
        )
        self._changes: Integers = np.zeros(query.segment.horizon, dtype=np.int64)  # by position
        self._told = 0  # the state as told: all changes added up
        self._planned = 0  # energy of the words that are still to come, grid steps²
        self._last: Round | None = None

    def __repr__(self) -> str:
        return "RunningState(secret)"

    def check(self, asked: Round) -> None:
        """Refuse a round that does not go on with this segment, for public reasons only.

        Raises:
            ParameterError: it does not.
        """
        _counting(asked)
        if self._last is not None:
            check_follows(asked, self._last)

    def answer(self, asked: Round, value: Values, mine: Filter) -> tuple[int, bool]:
        """The word of a round, charged; and whether all of the value is in it.

        Under admission `commit` a change is taken up if all that will be sent of it can be paid for,
        and no word is ever refused. Under `halt` every change is taken up, and the word is 0, which is
        cover, where it does not fit. Positions that this device was not asked at are gone: what was
        held for their words stays spent.

        Args:
            asked: checked before.
            value: [1, 1]; the state now, or NaN.
            mine: the filter of the round's study.

        Returns:
            Secret: the word z, grid steps; and whether it tells the state as it is.
        """
        query = _counting(asked)
        position = query.segment.position
        self._pass_over(position)
        self._last = asked
        wanted, sound = changes_wanted(value, told=np.array([self._told]), bound=query.bound)
        change = int(wanted[0])
        before = self._changes[:position]
        if query.admission is Admission.COMMIT:
            shared = self._factors.shared(position)
            taken, self._planned = mine.commit(
                change,
                planned=self._planned,
                cross=int(shared @ before),
                alone=int(shared[-1]),
                weight=asked.weight,
            )
            change *= taken
        before[-1] = change
        self._told += change
        word = int(self._factors.row(position) @ before)
        if query.admission is Admission.COMMIT:
            self._planned -= word**2
            return word, taken and bool(sound[0])
        given = mine.try_spend(word**2, weight=asked.weight)
        return word * given, given and bool(sound[0])

    def _pass_over(self, position: int) -> None:
        """Words of positions that were never asked are not to come any more."""
        last = 0 if self._last is None else _counting(self._last).segment.position
        for missed in range(last + 1, position):
            self._planned -= int(self._factors.row(missed) @ self._changes[:missed]) ** 2


def _counting(asked: Round) -> CountingQuery:
    if not isinstance(asked.query, CountingQuery):
        raise ParameterError("query", type(asked.query).__name__, "a Prefix or a HaltCount")
    return asked.query
