"""What some people of a block answered to a round: what leaves them, and what only a simulator knows."""

from dataclasses import dataclass

import numpy as np

from demur_proto.arrays import Flags, Integers, Values, Vector, Words
from demur_proto.mechanisms.base import Mechanism
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.round import CountingQuery, Query
from demur_sim.round_sums import clipped_sums, given_sums


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BlockAnswer:
    """What a portion of one block answered to one round; of a narrow round, the whole block."""

    block: int
    people: slice  #: which of the block
    words: Words  #: reports of those who sent in time [n, w]
    sent: Flags  #: who did [devices of the portion]
    late_words: Words  #: reports of those who send once the round is closed [m, w]
    late: Flags  #: who does [devices of the portion]
    contributed: Vector  #: simulator's truth: see `Answered.contributed`


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Answered:
    """What those people of a portion who take part in a round put in. Secret, but for who is there."""

    words: Words  #: zero for cover [n, e]
    sent: Flags  #: who sends anything [n]
    late: Flags  #: whose report is late [n]
    portion: slice  #: which of the block
    who: slice | Integers  #: those of the block who take part
    rough: Values | None = None
    """Where words may be other than values: those of who answers with data, zero for others [n, v]."""

    @property
    def in_time(self) -> Flags:
        """Whose report is counted [n]."""
        return self.sent & ~self.late

    def placed(self, flags: Flags) -> Flags:
        """Flags of those who take part [n], as flags of the whole portion."""
        if isinstance(self.who, slice):
            return flags
        whole: Flags = np.zeros(self.portion.stop - self.portion.start, dtype=np.bool_)
        whole[self.who - self.portion.start] = flags
        return whole

    def contributed(self, query: Query, mechanism: Mechanism) -> Vector:
        """Simulator's truth: see `given_sums` and `clipped_sums`. Of a sum or histogram, what was counted.

        Of a running count all that was taken up: what is told once is told, whether its word is late
        or not.
        """
        whole = isinstance(query, CountingQuery) or not self.late.any()
        if self.rough is not None and isinstance(mechanism, GaussianLinear):
            return clipped_sums(mechanism, self.rough if whole else self.rough[self.in_time])
        return given_sums(query, self.words if whole else self.words[self.in_time])


def without_value(mechanism: Mechanism, values: Values, units: Integers) -> Flags:
    """Which rows of values [n, d] are no values, so that `encode` made them the reference [n].

    Args:
        mechanism: of the round.
        values: everyone's.
        units: what they cost, as `encode` gives it [n]; whatever is no value costs nothing.
    """
    suspect: Flags = units == 0
    if suspect.any():  # nothing may be a value as well: look at the others only
        other = values != 0
        suspect &= other[:, 0] if values.shape[1] == 1 else np.any(other, axis=1)
    if suspect.any():
        suspect[suspect] = ~mechanism.sound(values[suspect])
    return suspect
