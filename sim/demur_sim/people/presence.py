"""How many people a round takes at a time: blocks, and the portions of a block where it is wide.

Both are part of what a seed means, since what is drawn is drawn for one after the other.
"""

import math
from dataclasses import dataclass, fields
from typing import final

import numpy as np

from demur_proto.arrays import Flags, Integers, Vector
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.queries import Gradient, Query
from demur_sim.engine.sampling import Purpose, stream

BLOCK = 4096  #: people in a block; part of what a seed means
PORTION_WORDS = 1 << 17  #: worked on at once in a wide round, so that they fit a cache; likewise


def block_count(devices: int) -> int:
    """How many blocks this many devices make.

    >>> block_count(23_570)
    6
    """
    return -(-devices // BLOCK)


def portions(query: Query, devices: int) -> list[slice]:
    """How a block of so many devices goes through a round: a whole, or in portions that fit memory.

    What is drawn is drawn portion by portion, so where they begin is part of what a seed means.
    """
    step = devices
    if isinstance(query, Gradient):
        step = max(1, min(BLOCK, PORTION_WORDS // query.dimension))
    return [slice(at, min(at + step, devices)) for at in range(0, devices, step)]


# Who is there: devices that enrol and leave, miss rounds and report late, whatever their data.
#
# All of it is public, and drawn from a stream of its own: no filter, value or noise has any part in it.

NEVER = 1 << 40  #: later than any round


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """How devices come and go. By default all are there in every round.

    Raises:
        ParameterError: a field is outside its range, or nobody would ever be there.

    >>> Presence(enrolled=0.5, enrol=0.5, drop_out=0.2).expected_reports(3).tolist()
    [0.4, 0.6000000000000001, 0.7000000000000001]
    """

    enrolled: float = 1.0  #: share of devices that are enrolled before the first round; 0 to 1
    enrol: float = 0.0
    """How likely a device that never was enrolled enrols before a later round, each round; 0 to 1."""
    stay: float = 0.0
    """Rounds from the first to the last of an enrolled device, which leaves for good, in the mean;
    at least 1; 0: nobody leaves."""
    drop_out: float = 0.0  #: how likely an enrolled device misses a round; 0 to below 1
    late: float = 0.0
    """How likely the report of one that takes part comes after the round was closed; 0 to below 1."""

    def __post_init__(self) -> None:
        for item in fields(self):
            name, value = f"presence.{item.name}", getattr(self, item.name)
            if type(value) not in (int, float) or not 0 <= value < math.inf:
                raise ParameterError(name, value, "a number >= 0")
        for name in ("enrolled", "enrol"):
            if getattr(self, name) > 1:
                raise ParameterError(f"presence.{name}", getattr(self, name), "from 0 to 1")
        for name in ("drop_out", "late"):
            if getattr(self, name) >= 1:
                expected = "at least 0 and below 1"
                raise ParameterError(f"presence.{name}", getattr(self, name), expected)
        if 0 < self.stay < 1:
            raise ParameterError(
                "presence.stay", self.stay, "at least 1 round, or 0 for all of them"
            )
        if not self.enrolled and not self.enrol:
            raise ParameterError("presence.enrol", 0.0, "above 0 where nobody is enrolled at first")

    @property
    def is_whole(self) -> bool:
        """Whether every device reports in every round, in time."""
        return self.all_take_part and not self.late

    @property
    def all_take_part(self) -> bool:
        """Whether every device takes part in every round, in time or late."""
        return self.enrolled == 1 and not (self.stay or self.drop_out)

    def expected_enrolled(self, rounds: int) -> Vector:
        """The share of devices that are enrolled in each round, in expectation [rounds].

        Raises:
            ParameterError: `rounds` is not an integer >= 1.
        """
        check_integer("rounds", rounds, 1)
        here, outside = float(self.enrolled), 1.0 - self.enrolled
        kept = 1 - 1 / self.stay if self.stay else 1.0
        shares = [here]
        for _ in range(rounds - 1):
            here = here * kept + outside * self.enrol
            outside *= 1 - self.enrol
            shares.append(here)
        return np.array(shares)

    def expected_reports(self, rounds: int) -> Vector:
        """The share of devices whose report is counted in each round, in expectation [rounds].

        Raises:
            ParameterError: `rounds` is not an integer >= 1.
        """
        shares: Vector = self.expected_enrolled(rounds) * ((1 - self.drop_out) * (1 - self.late))
        return shares


@final
class BlockTurnout:
    """Which devices of one block are there, round by round. Made by `Turnout.block`."""

    def __init__(self, turnout: "Turnout", *, block: int, devices: int) -> None:
        self._turnout = turnout
        self._block = block
        presence = turnout.presence
        rng = stream(turnout.seed, Purpose.PRESENCE, 0, block)
        chances, later = rng.random(devices), _waits(rng, presence.enrol, devices)
        self.first: Integers = np.where(chances < presence.enrolled, 1, 1 + later)  #: round [n]
        leaving = 1 / presence.stay if presence.stay else 0.0
        self.end: Integers = self.first + _waits(rng, leaving, devices)
        """One past the last round of each device [n]."""

    def enrolled(self, number: int) -> Flags:
        """Who is enrolled in a round of the study [n]."""
        at = self._turnout.before + number
        flags: Flags = (self.first <= at) & (at < self.end)
        return flags

    def of(self, number: int) -> tuple[Flags, Flags]:
        """Who takes part in a round of the study, and whose report is then late [n] each."""
        presence, at = self._turnout.presence, self._turnout.before + number
        rng = stream(self._turnout.seed, Purpose.PRESENCE, at, self._block)
        here, late = rng.random((2, len(self.first)))
        there = self.enrolled(number) & (here >= presence.drop_out)
        return there, there & (late < presence.late)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turnout:
    """Who is there in one run. The same for every study of the run, and at every fidelity."""

    presence: Presence
    seed: int  #: of the whole run; >= 0
    before: int = 0  #: rounds of the run before the first one of the study

    def __post_init__(self) -> None:
        if not isinstance(self.presence, Presence):
            raise ParameterError("presence", self.presence, "a Presence")
        check_integer("seed", self.seed, 0)
        check_integer("before", self.before, 0)

    def block(self, number: int, *, devices: int) -> BlockTurnout:
        """That of one block of devices."""
        return BlockTurnout(self, block=number, devices=devices)

    def blocks(self, devices: int) -> list[BlockTurnout]:
        """Those of all devices, block by block."""
        return [
            self.block(at // BLOCK, devices=min(BLOCK, devices - at))
            for at in range(0, devices, BLOCK)
        ]

    def enrolled(self, *, devices: int, rounds: int) -> Integers:
        """How many devices are enrolled in each round of the study [rounds]. Public."""
        change: Integers = np.zeros(rounds + 2, dtype=np.int64)
        for block in self.blocks(devices):
            for at, sign in ((block.first, 1), (block.end, -1)):
                within = np.clip(at - self.before, 1, rounds + 1)
                change += sign * np.bincount(within, minlength=rounds + 2)
        return np.cumsum(change)[1 : rounds + 1]


def fewest_expected(presence: Presence, *, devices: int, rounds: int) -> int:
    """How many reports a round has at least, in expectation; rounded down."""
    return math.floor(devices * float(presence.expected_reports(rounds).min()))


def _waits(rng: np.random.Generator, chance: float, devices: int) -> Integers:
    """In how many rounds something happens that is as likely in each [n]; `NEVER` if it cannot."""
    if not chance:
        return np.full(devices, NEVER, dtype=np.int64)
    waits: Integers = np.minimum(rng.geometric(chance, size=devices), NEVER)
    return waits
