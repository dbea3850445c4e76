"""Which changes of a state are told under admission `commit`, and what a running count misses."""

from dataclasses import dataclass, field
from typing import final

import numpy as np
import numpy.typing as npt

from demur_client.commitment import commit
from demur_proto.arrays import Flags, Integers
from demur_proto.continual.factors import Factors
from demur_proto.study import Policy, Study
from demur_sim.planning.model import Table
from demur_sim.planning.truncations import Truncation


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What changes share, worked out once for all budgets; public."""

    shared: tuple[Integers, ...] = field(repr=False)  #: of each position t, `Factors.shared` [t]

    @classmethod
    def of(cls, factors: Factors, *, horizon: int) -> "Weights":
        """Those of a segment."""
        shared = (factors.shared(position) for position in range(1, horizon + 1))
        return cls(shared=tuple(shared))


def change_truncation(values: Table, weights: Weights, study: Study) -> Truncation:
    """What is missing in the running count of a state, if everybody tells what their budget holds.

    Whoever has told another state than theirs tries again in every round, as devices do. Every decision
    is that of `commit`; only, what has been sent already stays in its sum: both sides of its comparison
    are larger by the energy of that, and no word has to be worked out.

    Args:
        values: [T, m] flags, the states round after round; before the first they are 0.
        weights: of a segment of T rounds.
        study: whose rounds all have its base noise.
    """
    told = _Told(values.shape[1], study)
    bias, wrong = 0.0, 0.0
    people = values.shape[1]
    for state, shared in zip(values, weights.shared, strict=True):
        told.turn(state, shared)
        missing = np.count_nonzero(state & ~told.state) / people
        extra = np.count_nonzero(told.state & ~state) / people
        bias += (extra - missing) ** 2
        wrong += extra + missing
    rounds = len(values)
    return Truncation(mean_square=bias / rounds, wrong=wrong / rounds, modelled=people)


@final
class _Told:
    """The states that people have told, and at which positions they changed them."""

    def __init__(self, people: int, study: Study) -> None:
        self.state: Flags = np.zeros(people, dtype=np.bool_)
        self._units, self._weight = study.budget_units, study.base_weight
        self._retire = study.policy is Policy.RETIRE
        self._changes: Integers = np.zeros(people, dtype=np.int64)  # how many were told
        self._where: npt.NDArray[np.int32] = np.zeros((people, 1), dtype=np.int32)
        self._energy: Integers = np.zeros(
            people, dtype=np.int64
        )  # of all that was told, to the horizon
        self._remaining: Integers = np.full(people, self._units, dtype=np.int64)
        self._refused: Flags = np.zeros(people, dtype=np.bool_)

    def turn(self, state: Flags, shared: Integers) -> None:
        """One round: whoever is not in the state that they told tries to tell theirs."""
        who = np.flatnonzero(state != self.state)
        if not who.size:
            return
        change: Integers = np.where(state[who], 1, -1)
        most = int(self._changes[who].max())
        where = self._where[who, :most]
        # A state is 0 or 1, so the changes that a person has told alternate, and begin with +1.
        signs = 1 - 2 * (np.arange(most) % 2)
        by_position = np.concatenate([[0], shared])  # position 0 is none
        cross: Integers = by_position[where] @ signs
        taken, self._energy[who], self._remaining[who], self._refused[who] = commit(
            change,
            planned=self._energy[who],
            cross=cross,
            alone=int(shared[-1]),
            weight=self._weight,
            budget_units=self._units,
            remaining=self._remaining[who],
            refused=self._refused[who],
            retire=self._retire,
        )
        self._take(who[taken], position=len(shared))

    def _take(self, who: Integers, *, position: int) -> None:
        if who.size and self._changes[who].max() == self._where.shape[1]:
            self._where = np.hstack([self._where, np.zeros_like(self._where)])
        self._where[who, self._changes[who]] = position
        self._changes[who] += 1
        self.state[who] = ~self.state[who]
