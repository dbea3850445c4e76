"""A block of people in one running count, as arrays. Same decisions as `RunningState`."""

from dataclasses import dataclass, field
from typing import final

import numpy as np
import numpy.typing as npt

from demur_client.budget import charge_units, decide
from demur_client.commitment import commit
from demur_proto.arrays import Flags, Integers, Values, Vector, Words
from demur_proto.continual.factors import factors_of
from demur_proto.continual.states import changes_wanted
from demur_proto.round import CountingQuery
from demur_proto.segments import Admission

EVERYBODY = slice(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one position means for everybody: worked out once for all blocks. Public."""

    query: CountingQuery
    weight: int  #: of its round
    row: Vector = field(repr=False)  #: [H + 1]: C[t, s] at s; 0 at 0 and beyond t
    shared: Integers = field(repr=False)  #: [H + 1]: as `Factors.shared`, likewise
    alone: int  #: energy of a change by 1 at t, up to the horizon
    in_doubles: bool  #: whatever a person's changes share with one now, doubles add it up exactly

    @classmethod
    def of(cls, query: CountingQuery, *, weight: int) -> "Step":
        """The step of a round."""
        position, horizon = query.segment.position, query.segment.horizon
        factors = factors_of(
            query.segment.factorisation, horizon=horizon, exponent=query.grid_exponent
        )
        row, shared = np.zeros((2, horizon + 1), dtype=np.int64)
        row[1 : position + 1] = factors.row(position)
        shared[1 : position + 1] = factors.shared(position)
        alone = int(shared[position])
        return cls(
            query=query,
            weight=weight,
            row=row.astype(np.float64),
            shared=shared,
            alone=alone,
            in_doubles=horizon * query.bound**2 << -2 * query.grid_exponent < 1 << 53,
        )


@final
class RunningBlock:
    """Everybody's changes of a segment in one list: whose, at which position, by how much.

    Args:
        devices: how many people.
    """

    def __init__(self, devices: int) -> None:
        self._list: npt.NDArray[np.int32] = np.zeros((3, 0), dtype=np.int32)
        self._changes = 0  # in use of it
        self.told: Integers = np.zeros(devices, dtype=np.int64)  #: the states as told
        self.planned: Integers = np.zeros(devices, dtype=np.int64)  #: see `commitment`

    @property
    def changes(self) -> npt.NDArray[np.int64]:
        """Who, position and amount of every change [3, k]: wide, since NumPy widens each index anyway."""
        return self._list[:, : self._changes].astype(np.int64)

    @property
    def room(self) -> npt.NDArray[np.int32]:
        """That list with the room that it has for more [3, m]."""
        return self._list

    def begin(self) -> None:
        """Go on in another segment: what was told stays told, and nothing more is sent of it."""
        self._list, self._changes = self._list[:, :0].copy(), 0
        self.planned[:] = 0  # so it is already, once all positions were asked

    def take(self, who: Integers, amounts: Integers, position: int | Integers) -> None:
        """Take up changes of some people [k]; nobody is named twice."""
        end = self._changes + len(who)
        while end > self._list.shape[1]:
            more = max(len(self.told), self._list.shape[1])
            self._list = np.hstack([self._list, np.zeros((3, more), dtype=np.int32)])
        place = self._list[:, self._changes : end]
        place[0], place[1], place[2] = who, position, amounts
        self._changes = end
        self.told[who] += amounts

    def answer(
        self,
        step: Step,
        values: Values,
        here: slice | Integers = EVERYBODY,
        *,
        remaining: Integers,
        refused: Flags,
        budget_units: int,
        retire: bool,
    ) -> tuple[Words, Flags, Flags]:
        """Everybody's words, charged.

        Args:
            step: of the round.
            values: [n, 1], the states now; NaN for none.
            here: who takes part. The others take up nothing; what is held for their word stays spent.
            remaining: of everybody's budget; changed in place.
            refused: who was ever refused; changed in place.
            budget_units: T.
            retire: policy `retire`.

        Returns:
            words [n, 1], grid steps; whose word was sent and not covered [n]; who told their state as
            it is [n]. Simulator's truth.
        """
        wanted, whole = changes_wanted(values, told=self.told, bound=step.query.bound)
        moved = wanted != 0
        away = None if isinstance(here, slice) else np.ones_like(whole)
        if away is not None:
            away[here] = False
            moved &= ~away
            whole |= away
        who = np.flatnonzero(moved)  # for all others nothing is to be decided
        change = wanted[who]
        if step.query.admission is Admission.COMMIT and who.size:
            taken, self.planned[who], remaining[who], refused[who] = commit(
                change,
                planned=self.planned[who],
                cross=self._shared(step, moved)[who],
                alone=step.alone,
                weight=step.weight,
                budget_units=budget_units,
                remaining=remaining[who],
                refused=refused[who],
                retire=retire,
            )
            whole[who[~taken]] = False
            who, change = who[taken], change[taken]
        self.take(who, change, step.query.segment.position)
        words = self._words(step)
        squares = words * words
        if step.query.admission is Admission.COMMIT:
            self.planned -= squares
            return words[:, None], np.ones_like(whole), whole
        if away is not None:
            squares[away] = 0
        given, _, _ = decide(
            charge_units(squares, weight=step.weight, budget_units=budget_units),
            remaining=remaining,
            refused=refused,
            retire=retire,
        )
        return words[:, None], given, whole & given

    def _words(self, step: Step) -> Integers:
        """Everybody's changes by their weights in the row [n].

        Added up in doubles, which is exact: a word is below 2^30, and no sum on the way above 2^45.
        """
        who, where, amounts = self.changes
        sums = np.bincount(who, weights=step.row[where] * amounts, minlength=len(self.told))
        return sums.astype(np.int64)

    def _shared(self, step: Step, moved: Flags) -> Integers:
        """For whoever wants to change, their changes by what those share with one now [n]."""
        who, where, amounts = self.changes
        theirs = np.flatnonzero(moved[who])
        who, where, amounts = who[theirs], where[theirs], amounts[theirs]
        parts = step.shared[where] * amounts
        if step.in_doubles:  # what any of their words could share is below the energy of them all
            return np.bincount(who, weights=parts, minlength=len(moved)).astype(np.int64)
        sums: Integers = np.zeros_like(self.told)
        np.add.at(sums, who, parts)
        return sums
