"""A block of people in one segment of a running count, as arrays. Same decisions as `RunningState`."""

from dataclasses import dataclass, field
from typing import final

import numpy as np
import numpy.typing as npt

from demur_client.budget import charge_units, decide
from demur_client.commitment import commit
from demur_proto.arrays import Flags, Integers, Values, Words
from demur_proto.continual.factors import factors_of
from demur_proto.continual.states import changes_wanted
from demur_proto.round import CountingQuery
from demur_proto.segments import Admission

FEWEST_CHANGES = 2  #: room for so many of each person to begin with


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one position means for everybody: worked out once for all blocks. Public."""

    query: CountingQuery
    weight: int  #: of its round
    row: Integers = field(repr=False)  #: [H + 1]: C[t, s] at s; 0 at 0 and beyond t
    shared: Integers = field(repr=False)  #: [H + 1]: as `Factors.shared`, likewise
    alone: int  #: energy of a change by 1 at t, up to the horizon

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
        return cls(query=query, weight=weight, row=row, shared=shared, alone=int(shared[position]))


@final
class RunningBlock:
    """Everybody's changes so far, compactly: where they were, and by how much.

    Args:
        devices: how many people.
    """

    def __init__(self, devices: int) -> None:
        shape = devices, FEWEST_CHANGES
        self.positions: npt.NDArray[np.int16] = np.zeros(shape, dtype=np.int16)  # 0: no change
        self.amounts: npt.NDArray[np.int32] = np.zeros(shape, dtype=np.int32)
        self.number: Integers = np.zeros(devices, dtype=np.int64)  # of changes
        self.told: Integers = np.zeros(devices, dtype=np.int64)
        self.planned: Integers = np.zeros(devices, dtype=np.int64)  # see `commitment`

    def answer(
        self,
        step: Step,
        values: Values,
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
            remaining: of everybody's budget; changed in place.
            refused: who was ever refused; changed in place.
            budget_units: T.
            retire: policy `retire`.

        Returns:
            words [n, 1], grid steps; whose word was sent and not covered [n]; who told their state as
            it is [n]. Simulator's truth.
        """
        wanted, sound = changes_wanted(values, told=self.told, bound=step.query.bound)
        who = np.flatnonzero(wanted)  # for all others nothing is to be decided
        change = wanted[who]
        whole: Flags = sound
        if step.query.admission is Admission.COMMIT and who.size:
            taken, self.planned[who], remaining[who], refused[who] = commit(
                change,
                planned=self.planned[who],
                cross=self._weighted(step.shared, who),
                alone=step.alone,
                weight=step.weight,
                budget_units=budget_units,
                remaining=remaining[who],
                refused=refused[who],
                retire=retire,
            )
            whole[who[~taken]] = False
            who, change = who[taken], change[taken]
        self._take(who, change, step.query.segment.position)
        words = self._weighted(step.row, slice(None))
        squares = words * words
        if step.query.admission is Admission.COMMIT:
            self.planned -= squares
            return words[:, None], np.ones_like(whole), whole
        given, _, _ = decide(
            charge_units(squares, weight=step.weight, budget_units=budget_units),
            remaining=remaining,
            refused=refused,
            retire=retire,
        )
        return words[:, None], given, whole & given

    def _weighted(self, weights: Integers, who: Integers | slice) -> Integers:
        """Everybody's changes, each times the weight of its position, added up [n]."""
        sums: Integers = np.vecdot(weights[self.positions[who]], self.amounts[who])
        return sums

    def _take(self, who: Integers, change: Integers, position: int) -> None:
        if not who.size:
            return
        if int(self.number[who].max()) == self.positions.shape[1]:
            self.positions = np.hstack([self.positions, np.zeros_like(self.positions)])
            self.amounts = np.hstack([self.amounts, np.zeros_like(self.amounts)])
        at = self.number[who]
        self.positions[who, at] = position
        self.amounts[who, at] = change
        self.number[who] += 1
        self.told[who] += change
