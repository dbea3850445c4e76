"""A histogram of how many rounds people are active in, or change in, and people made up from it."""

import csv
import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import final

import numpy as np

from demur_proto.arrays import Integers, Vector, fixed_integers
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.running.segments import MOST_POSITIONS
from demur_sim.datasets.events import SHOWN, Lines, shown
from demur_sim.engine.sampling import Purpose, stream
from demur_sim.people.populations import MOST_DEVICES, MOST_PERIODS, EventLog
from demur_sim.people.states import States, spread

_NUMBER = re.compile(r"[0-9]{1,10}")


class Counted(StrEnum):
    """What the rounds of a person are that a histogram counts."""

    ACTIVE = "active_rounds"  #: those in which they are active
    CHANGES = "changes"  #: those in which their state changes; before the first it is 0


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Activity:
    """How many people have how many rounds, and no more is known: so rounds are spread evenly.

    People are independent and alike: how many rounds they have follows this histogram, and every set of
    so many rounds is equally likely.

    Raises:
        ParameterError: a field is outside its range, or the arrays do not fit together.

    >>> Activity(counted=Counted.ACTIVE, rounds=np.array([0, 3]), people=np.array([6, 2])).most
    3
    """

    counted: Counted
    rounds: Integers = field(repr=False)  #: [k], ascending and distinct; >= 0
    people: Integers = field(repr=False)  #: [k]: how many have so many; >= 0, and above 0 in all

    def __post_init__(self) -> None:
        if not isinstance(self.counted, Counted):
            raise ParameterError("counted", self.counted, "a Counted")
        for name in ("rounds", "people"):
            given = np.asarray(getattr(self, name))
            if given.ndim != 1 or given.dtype.kind not in "iu" or not given.size:
                found = f"{given.dtype} {given.shape}"
                raise ParameterError(name, found, "a sequence of integers, not empty")
            if given.min() < 0:
                raise ParameterError(name, int(given.min()), "integers >= 0")
            object.__setattr__(self, name, fixed_integers(given))
        if len(self.people) != len(self.rounds) or (np.diff(self.rounds) <= 0).any():
            raise ParameterError(
                "rounds", self.rounds.tolist(), "ascending, one for each of people"
            )
        if not 1 <= self.devices <= MOST_DEVICES:
            raise ParameterError("people", self.devices, f"from 1 to {MOST_DEVICES} in all")

    @property
    def devices(self) -> int:
        """How many people it counts."""
        return sum(self.people.tolist())

    @property
    def most(self) -> int:
        """The most rounds that anybody has."""
        return int(self.rounds[self.people > 0].max())

    @property
    def shares(self) -> Vector:
        """What share of all people has so many rounds [k]."""
        return self.people / self.devices

    def check_periods(self, periods: int) -> None:
        """Refuse fewer periods than somebody has rounds.

        Raises:
            ParameterError: there are too few, or more than can be made up.
        """
        longest = MOST_PERIODS if self.counted is Counted.ACTIVE else MOST_POSITIONS
        check_integer("periods", periods, 1, longest)
        if periods < self.most:
            expected = f"at least {self.most}, the most {self.counted} of anybody"
            raise ParameterError("periods", periods, expected)

    def made_up(self, *, devices: int, periods: int, seed: int) -> EventLog | States:
        """People who are like that: with a feature `active`, or a `state`.

        Args:
            devices: how many; >= 1.
            periods: how many rounds there are; at least `most`.
            seed: who they are; >= 0.

        Raises:
            ParameterError: an argument is outside its range.
        """
        check_integer("devices", devices, 1, MOST_DEVICES)
        check_integer("seed", seed, 0)
        self.check_periods(periods)
        rng = stream(seed, Purpose.PEOPLE)
        often = self.rounds[rng.choice(len(self.rounds), size=devices, p=self.shares)]
        if self.counted is Counted.CHANGES:
            return States.changing(often, periods=periods, rng=rng)
        keys = spread(often, periods=periods, rng=rng)
        return EventLog.of(
            devices=devices, periods=periods, device=keys // periods, period=keys % periods + 1
        )


def read_activity(path: str | Path) -> Activity:
    """Read a histogram from a CSV file, plain or gzipped, in UTF-8.

    Its header is `active_rounds,people` or `changes,people`, and its lines are in any order.

    Args:
        path: the file; its first bytes, not its name, say whether it is gzipped.

    Raises:
        DataError: the file cannot be read, or is not as described. One line that names file, line
            and what was expected.
    """
    lines = Lines(path)
    rows = csv.reader(lines, strict=True)
    found: dict[int, int] = {}
    try:
        counted = _header(lines, next(rows, None))
        for row in rows:
            if not row:
                continue  # an empty line counts nobody
            if len(row) != 2:
                raise lines.fault(f"2 fields as in the header, got {len(row)}")
            rounds, people = (
                _integer(lines, cell, name)
                for cell, name in zip(row, (counted, "people"), strict=True)
            )
            if rounds in found:
                raise lines.fault(f"each number of {counted} once, got {rounds} again")
            found[rounds] = people
    except csv.Error as error:
        raise lines.fault(f"well-formed CSV: {error}") from None
    if not 1 <= sum(found.values()) <= MOST_DEVICES:
        counts = f"1 to {MOST_DEVICES:,} people in all, found {sum(found.values()):,}"
        raise lines.fault(counts, line=lines.number + (not found))
    ordered = sorted(found)
    return Activity(
        counted=counted,
        rounds=np.array(ordered, dtype=np.int64),
        people=np.array([found[each] for each in ordered], dtype=np.int64),
    )


def _header(lines: Lines, header: list[str] | None) -> Counted:
    wanted = " or ".join(f"the header {each},people" for each in Counted)
    if header is None:
        raise lines.fault(f"{wanted}, found an empty file", line=1)
    for counted in Counted:
        if header == [counted, "people"]:
            return counted
    found = ", ".join(shown(each) for each in header[:SHOWN]) or "none"
    raise lines.fault(f"{wanted}, found the columns {found}")


def _integer(lines: Lines, cell: str, column: str) -> int:
    if not _NUMBER.fullmatch(cell):
        raise lines.fault(f"an integer >= 0 in column {str(column)!r}, got {shown(cell)}")
    return int(cell)
