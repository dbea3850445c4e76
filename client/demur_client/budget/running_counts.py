"""The decision of a running count: is a change taken up, and what is held for it?

Elementwise, for Python integers and int64 arrays alike, as in `demur_client.budget.decide`: a device and a
cohort decide by these same lines.

What a person has taken up so far fixes every word that they will still send in the segment, whatever
comes. `planned` is the sum of those words' squares, from this position to the horizon, and w·planned
is held: no other round can spend it. So of a change that was taken up every word is sent, and none is
ever refused.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol, final, overload

import numpy as np

from demur_client.budget.charges import HIDDEN
from demur_client.budget.decide import charge_units, decide
from demur_proto.arrays import Flags, Integers, Values
from demur_proto.errors import ParameterError
from demur_proto.queries import CountingQuery
from demur_proto.round import Round
from demur_proto.running.factorisations import Factors, factors_of
from demur_proto.running.following import changes_wanted, check_follows
from demur_proto.running.segments import Admission, Segment


@overload
def projected(change: int, *, planned: int, cross: int, alone: int) -> int: ...


@overload
def projected(change: Integers, *, planned: Integers, cross: Integers, alone: int) -> Integers: ...


def projected(change: Any, *, planned: Any, cross: Any, alone: int) -> Any:
    """Σ_{τ ≥ t} (z_τ + δ·C[τ, t])²: the energy still to come if a change δ is taken up at t.

    Args:
        change: δ, units of the state.
        planned: Σ_{τ ≥ t} z_τ² without it, grid steps².
        cross: Σ_{τ ≥ t} z_τ·C[τ, t], grid steps².
        alone: Σ_{τ ≥ t} C[τ, t]², grid steps².

    >>> projected(-1, planned=5, cross=5, alone=5)  # words (1, 2), less the change that made them
    0
    """
    return planned + change * (2 * cross + change * alone)


@overload
def commit(
    change: int,
    *,
    planned: int,
    cross: int,
    alone: int,
    weight: int,
    budget_units: int,
    remaining: int,
    refused: bool,
    retire: bool,
) -> tuple[bool, int, int, bool]: ...


@overload
def commit(
    change: Integers,
    *,
    planned: Integers,
    cross: Integers,
    alone: int,
    weight: int,
    budget_units: int,
    remaining: Integers,
    refused: Flags,
    retire: bool,
) -> tuple[Flags, Integers, Integers, Flags]: ...


def commit(
    change: Any,
    *,
    planned: Any,
    cross: Any,
    alone: int,
    weight: int,
    budget_units: int,
    remaining: Any,
    refused: Any,
    retire: bool,
) -> tuple[Any, Any, Any, Any]:
    """Whether a change is taken up, and the state after.

    It is taken up iff w times all the energy still to come fits what is left and what is held already.
    No change at all always fits. A change that cancels others may give back some of what they held.

    Args:
        change: δ, units of the state; 0 for none.
        planned: as `projected`; w·planned is held, and at most T.
        cross: as `projected`.
        alone: as `projected`.
        weight: the round's integer weight w.
        budget_units: T.
        remaining: what is left beside everything that is held, budget units.
        refused: whether an answer or a change was ever refused; an array is updated in place.
        retire: after a refusal no change is taken up any more.

    Returns:
        (taken up, planned after, remaining after, refused after). All secret.

    >>> commit(1, planned=0, cross=0, alone=5, weight=10, budget_units=80, remaining=80,
    ...        refused=False, retire=False)
    (True, 5, 30, False)
    >>> commit(1, planned=5, cross=2, alone=2, weight=10, budget_units=80, remaining=30,
    ...        refused=False, retire=False)  # 5 + 2·2 + 2 = 11 is more than 3 + 5
    (False, 5, 30, True)
    """
    energy = projected(change, planned=planned, cross=cross, alone=alone)
    held = weight * planned
    taken, left, refused = decide(
        charge_units(energy, weight=weight, budget_units=budget_units),
        remaining=remaining + held,
        refused=refused,
        retire=retire,
    )
    kept = taken == False  # an elementwise `not`
    return taken, energy * taken + planned * kept, left - held * kept, refused


def check_change(change: int, *, planned: int, cross: int, alone: int) -> None:
    """Refuse what is no change of one person, without saying what it is.

    Args:
        change: as in `commit`.
        planned: likewise.
        cross: likewise.
        alone: likewise.

    Raises:
        ParameterError: an argument is outside its range.
    """
    for name, value in (("change", change), ("cross", cross)):
        if type(value) is not int:  # without the value, a secret
            raise ParameterError(name, HIDDEN, "an integer")
    for name, value in (("planned", planned), ("alone", alone)):
        if type(value) is not int or value < 0:
            raise ParameterError(name, HIDDEN, "an integer >= 0")
    if projected(change, planned=planned, cross=cross, alone=alone) < 0:
        raise ParameterError("cross", HIDDEN, "such that no energy is below 0")


# What one person has told so far in a running count, and what follows from it.


class Payer(Protocol):
    """What words are paid from: a `Filter`, or a `Purse` of several."""

    def commit(
        self, change: int, *, planned: int, cross: int, alone: int, weight: int
    ) -> tuple[bool, int]:
        """As `Filter.commit`."""

    def try_spend(self, squared_norm: int, *, weight: int) -> bool:
        """As `Filter.try_spend`."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class RunningState:
    """One person's changes in one running count, after the last round of it that was answered.

    All of it is secret, but for that round and the positions. Its length is not: whatever was taken up,
    a position takes the same steps over arrays as long as the horizon. What is kept is as long as the
    positions that were answered, so that whoever begins many counts with far horizons fills no memory
    with them. Once a segment is over, only its last round is
    left, which later ones must follow, and the state that was told by then, from which another segment
    goes on.
    """

    last: Round | None = None  #: the last that was answered; None before
    positions: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """[k], of the segment, in order, those that were answered; [0] where nothing is known or wanted."""
    changes: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """[k], what was taken up at each of them."""
    planned: int = 0  #: energy of the words that are still to come, grid steps²
    before: int = 0  #: what was told in all segments before, units of the state

    @property
    def held(self) -> int:
        """What is held for the words to come, units of the study's budget."""
        return 0 if self.last is None else self.last.weight * self.planned

    def check(self, asked: Round) -> None:
        """Refuse a round that does not go on with this count, for public reasons only.

        Raises:
            ParameterError: it does not.
        """
        _counting(asked)
        if self.last is not None:
            check_follows(asked, self.last)

    def answer(self, asked: Round, value: Values, payer: Payer) -> "Told":
        """The word of a round, charged; and the state after it.

        Under admission `commit` a change is taken up if all that will be sent of it can be paid for,
        and no word is ever refused. Under `halt` every change is taken up, and the word is 0, which is
        cover, where it does not fit. Positions that this device was not asked at are gone: what was
        held for their words stays spent.

        Args:
            asked: checked before.
            value: [1, 1]; the state now, or NaN.
            payer: the filters of the round's study.

        Raises:
            ParameterError: the round asks for no running count.
        """
        query = _counting(asked)
        position = query.segment.position
        factors = _factors(query)
        here = self._in_segment(query.segment)
        changes = np.zeros(query.segment.horizon, dtype=np.int64)
        changes[here.positions - 1] = here.changes
        before = changes[:position]
        told = np.array([here.before + before.sum()])
        wanted, sound = changes_wanted(value, told=told, bound=query.bound)
        change = int(wanted[0])
        if query.admission is Admission.HALT:
            before[-1] = change
            word = int(factors.row(position) @ before)
            given = payer.try_spend(word**2, weight=asked.weight)
            after = self.after(asked, change=change, planned=0)
            return Told(
                word=word * given, whole=given and bool(sound[0]), change=change, state=after
            )
        shared = factors.shared(position)
        taken, planned = payer.commit(
            change,
            planned=here.planned - here._missed(factors, changes, position),
            cross=int(shared @ before),
            alone=int(shared[-1]),
            weight=asked.weight,
        )
        change *= taken
        before[-1] = change
        word = int(factors.row(position) @ before)
        after = self.after(asked, change=change, planned=planned - word**2)
        return Told(word=word, whole=taken and bool(sound[0]), change=change, state=after)

    def after(self, asked: Round, *, change: int, planned: int) -> "RunningState":
        """The state after a round, in which this change was taken up.

        Args:
            asked: the round.
            change: units of the state; 0 for none.
            planned: as in a state.

        Raises:
            ParameterError: the round asks for no running count.
        """
        segment = _counting(asked).segment
        here = self._in_segment(segment)
        if segment.over:
            return RunningState(last=asked, before=here.before + int(here.changes.sum()) + change)
        return RunningState(
            last=asked,
            positions=np.append(here.positions, segment.position),
            changes=np.append(here.changes, change),
            planned=planned,
            before=here.before,
        )

    def _in_segment(self, segment: Segment) -> "RunningState":
        """The same in the segment of a later round: no positions are left of another one."""
        last = None if self.last is None else _counting(self.last).segment
        if last is not None and last.first_round == segment.first_round and self.positions.size:
            return self
        told = self.before + int(self.changes.sum())
        return RunningState(before=told)

    def _missed(self, factors: Factors, changes: Integers, position: int) -> int:
        """The energy of words that were to come at positions that were never asked."""
        if self.last is None:
            return 0
        last = _counting(self.last).segment.position
        return sum(
            int(factors.row(missed) @ changes[:missed]) ** 2 for missed in range(last + 1, position)
        )


UNTOLD = RunningState()  #: before the first round of a segment


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Told:
    """What a position came to. Secret."""

    word: int  #: z, grid steps
    whole: bool  #: whether the state was told as it is
    change: int  #: what was taken up, units of the state
    state: RunningState  #: after it


def count_of(asked: Round) -> int | None:
    """The number of the round that began the running count of this one; None where it asks for none."""
    return asked.query.segment.count if isinstance(asked.query, CountingQuery) else None


def _counting(asked: Round) -> CountingQuery:
    if not isinstance(asked.query, CountingQuery):
        raise ParameterError("query", type(asked.query).__name__, "a RunningCount or a HaltCount")
    return asked.query


def _factors(query: CountingQuery) -> Factors:
    return factors_of(
        query.segment.factorisation,
        horizon=query.segment.horizon,
        exponent=query.noise.grid_exponent,
    )
