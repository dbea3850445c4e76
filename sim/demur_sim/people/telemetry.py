"""A made-up population of which one day can be drawn at a time, without ever storing them all."""

from dataclasses import dataclass
from itertools import accumulate
from typing import final

import numpy as np

from demur_proto.arrays import Bits, Values
from demur_proto.checks import check_integer
from demur_proto.queries import MOST_CATEGORIES, Feature
from demur_sim.engine.sampling import Purpose, stream
from demur_sim.people.populations import MOST_DEVICES, MOST_PERIODS, bounds, checked_period

EVENT = "event"  #: the only feature: a category, or NaN for none
RAREST = 1 / 40  #: events a day of the least active people

_FEATURES = {EVENT: ("period",)}
_WEYL = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ over the golden ratio, made odd
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

Numbers = np.ndarray[tuple[int], np.dtype[np.uint32]]  # shape [n]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Telemetry:
    """People who have an event of one category on some days; `of` makes them.

    The feature `event` with the parameter `period` is the category, 0 to k − 1, or NaN on a day
    without an event. Both laws have heavy tails, and everything else is independent:

        person i has an event on any day with probability r_i = min(1, 1 / (40 √u_i)),
        u_i uniform on (0, 1], so that P(r_i ≥ x) = 1 / (1600 x²) for 1/40 ≤ x ≤ 1;
        the event is of category c with probability (1 / (c + 1)) / (1 + 1/2 + … + 1/k)

    which is Pareto's law of index 2, capped, and Zipf's law. Probabilities of a person's events
    and of categories are rounded to multiples of 2⁻³². A value is a function of seed, person and
    period alone: 64 bits of SplitMix64, of which the upper half decides whether there is an event
    and the lower half of which category. So it is the same in any slice, part and order.

    Source: Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators", for the
    mixing function, with the constants of Vigna's splitmix64.

    >>> people = Telemetry.of(devices=3, periods=200, categories=64, seed=0)
    >>> day = Feature(name="event", parameters={"period": 9})
    >>> people.evaluate(day, slice(0, 2)).shape
    (2, 1)
    """

    periods: int
    keys: Bits  #: [periods]: of the bits of each period
    ends: Numbers  #: [categories]: the lower half of the bits stays at or below the category's
    person: Numbers  #: [n]: who lives on the device
    last: Numbers  #: [n]: the person has an event where the upper half stays at or below this

    def __post_init__(self) -> None:
        for array in (self.keys, self.ends, self.person, self.last):
            array.flags.writeable = False

    @classmethod
    def of(cls, *, devices: int, periods: int, categories: int, seed: int) -> "Telemetry":
        """Everybody, in the order of their numbers.

        Args:
            devices: how many people there are; >= 1.
            periods: how many days can be asked about; >= 1.
            categories: k, how many kinds of events there are; 2 to 2^18.
            seed: who these people are; >= 0.

        Raises:
            ParameterError: an argument is outside its range.
        """
        check_integer("devices", devices, 1, MOST_DEVICES)
        check_integer("periods", periods, 1, MOST_PERIODS)
        check_integer("categories", categories, 2, MOST_CATEGORIES)
        check_integer("seed", seed, 0)
        person = np.arange(devices, dtype=np.uint32)
        uniform = ((_bits(person, _key(seed, 0)) >> 11) + 1) * 2.0**-53  # on (0, 1]
        rate = np.minimum(1.0, RAREST / np.sqrt(uniform))
        return cls(
            periods=periods,
            keys=np.array([_key(seed, period) for period in range(1, periods + 1)]),
            ends=_ends(categories),
            person=person,
            last=(np.rint(rate * 2**32) - 1).astype(np.uint32),
        )

    def __repr__(self) -> str:
        return f"Telemetry(devices={self.devices}, periods={self.periods})"

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return len(self.person)

    @property
    def features(self) -> tuple[str, ...]:
        """Only `event`."""
        return tuple(_FEATURES)

    def evaluate(self, feature: Feature, devices: slice) -> Values:
        """A feature of a block of devices [n, 1]."""
        period = checked_period(feature, self.features, _FEATURES, self.periods)
        first, stop = bounds(devices, self.devices)
        bits = _bits(self.person[first:stop], self.keys[period - 1])
        (active,) = np.nonzero((bits >> 32) <= self.last[first:stop])
        values = np.full((stop - first, 1), np.nan)
        values[active, 0] = self.ends.searchsorted(bits[active].astype(np.uint32))
        return values

    def part(self, devices: slice) -> "Telemetry":
        """A piece with only these devices, numbered from 0 again."""
        first, stop = bounds(devices, self.devices)
        return self._with(self.person[first:stop], self.last[first:stop])

    def shuffled(self, rng: np.random.Generator) -> "Telemetry":
        """The same people, dealt to the devices in random order."""
        order = np.empty(self.devices, dtype=np.intp)
        order[rng.permutation(self.devices)] = np.arange(self.devices)
        return self._with(self.person[order], self.last[order])

    def _with(self, person: Numbers, last: Numbers) -> "Telemetry":
        return Telemetry(
            periods=self.periods, keys=self.keys, ends=self.ends, person=person, last=last
        )


def _key(seed: int, period: int) -> np.uint64:
    """Where the bits of a period start; those of 0 are about the people themselves."""
    return np.uint64(stream(seed, Purpose.PEOPLE, period).bit_generator.random_raw())


def _bits(person: Numbers, key: np.uint64) -> Bits:
    """64 bits for each person [n]: SplitMix64 from the key on, person by person."""
    bits: Bits = person * _WEYL
    bits += key
    shifted = bits >> 30
    bits ^= shifted
    bits *= _FIRST
    np.right_shift(bits, 27, out=shifted)
    bits ^= shifted
    bits *= _SECOND
    np.right_shift(bits, 31, out=shifted)
    bits ^= shifted
    return bits


def _ends(categories: int) -> Numbers:
    """The last of the 2³² lower halves that means each category; the last one's is the last."""
    sums = list(accumulate((1 << 80) // rank for rank in range(1, categories + 1)))
    return np.array([(part << 32) // sums[-1] - 1 for part in sums], dtype=np.uint32)
