"""Periods of a person's that are spread evenly: every set of so many is equally likely."""

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from demur_proto.arrays import Integers, Values
from demur_proto.checks import check_integer
from demur_proto.queries import Feature
from demur_proto.running.segments import MOST_POSITIONS
from demur_sim.engine.sampling import Purpose, stream
from demur_sim.people.populations import MOST_DEVICES, bounds, checked_period

AT_ONCE = 1 << 24  #: people times periods that are sorted in one go


def spread(
    often: Integers, *, periods: int, rng: np.random.Generator, few: int | None = None
) -> Integers:
    """So many distinct periods for each person, every set of them equally likely.

    Args:
        often: how many each person has [n]; 0 to `periods`.
        periods: T.
        rng: which ones.
        few: up to how many are drawn one by one, which takes long where hardly a period is left to
            draw; by default half of all. It is part of what a seed means.

    Returns:
        The keys i·T + t − 1 of person i, from 0, and each of their periods t, from 1; ascending [k].

    >>> spread(np.array([2, 0, 1]), periods=2, rng=np.random.default_rng(1)) // 2
    array([0, 0, 2])
    """
    devices = len(often)
    few = periods // 2 if few is None else few
    some = np.where(often > few, 0, often)
    keys: Integers = np.zeros(0, dtype=np.int64)
    missing = some
    while missing.any():  # periods that came twice are drawn again
        who = np.repeat(np.arange(devices), missing)
        drawn = who * periods + rng.integers(0, periods, size=len(who))
        keys = np.unique(np.concatenate([keys, drawn]))
        missing = some - np.bincount(keys // periods, minlength=devices)
    many = np.flatnonzero(often > few)
    if many.size:
        keys = np.sort(np.concatenate([keys, *_first_of_all(many, often, periods, rng)]))
    return keys


def _first_of_all(
    many: Integers, often: Integers, periods: int, rng: np.random.Generator
) -> list[npt.NDArray[np.int64]]:
    """The keys of people with many periods: the first of all in an order of each person's own."""
    step = max(1, AT_ONCE // periods)
    found = []
    for start in range(0, len(many), step):
        who = many[start : start + step]
        order = rng.random((len(who), periods)).argsort(axis=1)
        row, place = np.nonzero(np.arange(periods) < often[who][:, None])
        found.append(who[row] * periods + order[row, place])
    return found


# A made-up population with a state that is on or off, and rarely changes.

STATE = "state"  #: the only feature: 0 or 1
LOG_MEAN, LOG_DEVIATION = 0.3, 1.1  #: of the logarithm of how often a person changes, unrounded
MOST_CHANGES = 256  #: of one person

_FEATURES = {STATE: ("period",)}

Starts = npt.NDArray[np.int64]
Periods = npt.NDArray[np.int16]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class States:
    """People who are off at first, and then change now and then; `of` makes them.

    The feature `state` with the parameter `period` is 0 or 1. All people are independent and alike:

        person i changes K_i = min(256, T, round(exp(0.3 + 1.1·Z_i))) times, Z_i standard normal,
        at K_i distinct periods of the T there are, every set of so many being equally likely;
        the state in period t is 1 if the changes at 1 … t are an odd number

    So 18 % never change, 54 % no more than once, and 1.3 % more than 15 times. Only the periods of
    changes are kept: two bytes for each, and eight for each person.

    Source: rounded lognormal counts are heavy-tailed, as how often people act is; the two parameters
    are made up.

    >>> people = States.of(devices=3, periods=1024, seed=0)
    >>> people.evaluate(Feature(name="state", parameters={"period": 9}), slice(0, 2)).shape
    (2, 1)
    """

    periods: int
    start: Starts  #: [n + 1]: the changes of person i lie from start[i] to start[i + 1]
    when: Periods  #: [k]: the period of each change less 1, ascending within a person

    def __post_init__(self) -> None:
        for array in (self.start, self.when):
            array.flags.writeable = False

    @classmethod
    def of(cls, *, devices: int, periods: int, seed: int) -> "States":
        """Everybody, in the order in which they were drawn.

        Args:
            devices: how many people there are; >= 1.
            periods: T, how many periods can be asked about; 1 to 2^14.
            seed: who these people are; >= 0.

        Raises:
            ParameterError: an argument is outside its range.
        """
        check_integer("devices", devices, 1, MOST_DEVICES)
        check_integer("periods", periods, 1, MOST_POSITIONS)
        check_integer("seed", seed, 0)
        rng = stream(seed, Purpose.PEOPLE)
        often = np.exp(LOG_MEAN + LOG_DEVIATION * rng.standard_normal(devices))
        often = np.minimum(np.rint(often), min(MOST_CHANGES, periods)).astype(np.int64)
        keys = spread(often, periods=periods, rng=rng, few=MOST_CHANGES)
        return cls._at(keys, often, periods)

    @classmethod
    def changing(cls, often: Integers, *, periods: int, rng: np.random.Generator) -> "States":
        """People who change so many times, at periods of which every set is equally likely.

        Args:
            often: how many changes each of them has [n]; 0 to T.
            periods: T; 1 to 2^14.
            rng: of the periods.

        Raises:
            ParameterError: `periods` is outside its range.
        """
        check_integer("periods", periods, 1, MOST_POSITIONS)
        return cls._at(spread(often, periods=periods, rng=rng), often, periods)

    @classmethod
    def _at(cls, keys: Integers, often: Integers, periods: int) -> "States":
        return cls(periods=periods, start=_ends(often), when=(keys % periods).astype(np.int16))

    def __repr__(self) -> str:
        return f"States(devices={self.devices}, periods={self.periods})"

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return len(self.start) - 1

    @property
    def features(self) -> tuple[str, ...]:
        """Only `state`."""
        return tuple(_FEATURES)

    def totals(self) -> Integers:
        """How many people are on in each period [T]. Simulator's truth."""
        nth = np.arange(len(self.when)) - np.repeat(self.start[:-1], np.diff(self.start))
        changes = np.bincount(self.when, weights=1 - 2 * (nth % 2), minlength=self.periods)
        return np.cumsum(changes).astype(np.int64)

    def evaluate(self, feature: Feature, devices: slice) -> Values:
        """A feature of a block of devices [n, 1]."""
        period = checked_period(feature, self.features, _FEATURES, self.periods)
        first, stop = bounds(devices, self.devices)
        start = self.start[first : stop + 1]
        values: Values = np.zeros((stop - first, 1))
        if start.size:
            low, high = start.item(0), start.item(-1)
            # Whether the changes of everybody before are an odd number, then those of each person.
            odd = np.zeros(high - low + 1, dtype=np.bool_)
            np.logical_xor.accumulate(self.when[low:high] < period, out=odd[1:])
            before = odd[start - low]
            values[:, 0] = before[1:] ^ before[:-1]
        return values

    def part(self, devices: slice) -> "States":
        """A piece with only these devices, numbered from 0 again."""
        first, stop = bounds(devices, self.devices)
        start = self.start[first : stop + 1]
        return States(
            periods=self.periods,
            start=start - start[0],
            when=self.when[start.item(0) : start.item(-1)],
        )

    def shuffled(self, rng: np.random.Generator) -> "States":
        """The same people, dealt to the devices in random order."""
        person = np.empty(self.devices, dtype=np.int64)  # who lives on each device
        person[rng.permutation(self.devices)] = np.arange(self.devices)
        often = np.diff(self.start)[person]
        start = _ends(often)
        place = np.arange(start[-1]) + np.repeat(self.start[person] - start[:-1], often)
        return States(periods=self.periods, start=start, when=self.when[place])


def _ends(often: Integers) -> Starts:
    """Where each person's changes begin, and where the last one's end [n + 1]."""
    return np.concatenate([[0], np.cumsum(often)]).astype(np.int64)
