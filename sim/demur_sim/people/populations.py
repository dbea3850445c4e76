"""Amounts in bins with public edges: which category an amount is in."""

import itertools
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np
import numpy.typing as npt

from demur_proto.arrays import Flags, Integers, Values
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.queries import Feature

AMOUNT_BIN = "amount_bin"  #: the feature
EDGE = "edge_"  #: its parameters are edge_1, edge_2 and so on


def edges_of(parameters: Mapping[str, float]) -> tuple[float, ...]:
    """The edges among a feature's parameters, ascending.

    Args:
        parameters: of the feature; whatever is no edge is left alone.

    Raises:
        ParameterError: there is none, one is missing before the last, or they do not ascend.

    >>> edges_of({"period": 1.0, "edge_1": 15.0, "edge_2": 30.0})
    (15.0, 30.0)
    """
    given = [name for name in parameters if name.startswith(EDGE)]
    names = [f"{EDGE}{number}" for number in range(1, max(1, len(given)) + 1)]
    if any(name not in parameters for name in names):
        expected = f"{EDGE}1, {EDGE}2 and so on, none left out"
        raise ParameterError(f"parameters of {AMOUNT_BIN}", sorted(given), expected)
    edges = tuple(parameters[name] for name in names)
    if any(not low < high for low, high in itertools.pairwise(edges)):
        raise ParameterError(f"edges of {AMOUNT_BIN}", list(edges), "ascending, no two alike")
    return edges


def bins_of(amounts: npt.NDArray[np.float64], edges: tuple[float, ...]) -> Values:
    """The bin of each amount [m], as a float: how many edges it reaches, 0 to the number of edges.

    >>> bins_of(np.array([-1.0, 14.99, 15.0, 29.0, 30.0]), (15.0, 30.0)).tolist()
    [0.0, 0.0, 1.0, 1.0, 2.0]
    """
    return np.searchsorted(np.array(edges), amounts, side="right").astype(np.float64)


def bin_labels(edges: tuple[float, ...]) -> list[str]:
    """What a person calls the bins.

    >>> bin_labels((15.0, 30.0))
    ['below 15', '15 to 30', '30 and more']
    """
    between = [f"{low:g} to {high:g}" for low, high in itertools.pairwise(edges)]
    return [f"below {edges[0]:g}", *between, f"{edges[-1]:g} and more"]


# Who the simulated people are, and what each of them did when.
#
# Person i lives on device i, from 0; periods count from 1. Everything in here is somebody's data: no
# `repr` shows it, and only a device's own simulated half may evaluate it.

FLAGS = ("active", "amount_at_least")  #: features of which every value is 0 or 1
LARGEST_AMOUNT = 1e100  #: of one event, either sign: no sum of them overflows
MOST_DEVICES = (1 << 31) - 1
MOST_PERIODS = 1 << 24

_EVENT_FEATURES = {
    "active": ("period",),
    "events": ("period",),
    "amount": ("period",),
    "amount_at_least": ("period", "threshold"),
    AMOUNT_BIN: ("period",),  # and its edges
}
_ARRAY_FEATURES = {"value": ("period",)}


class Population(Protocol):
    """People whose devices can be asked for features, one period at a time."""

    @property
    def devices(self) -> int:
        """How many devices there are, which is how many people."""

    @property
    def periods(self) -> int:
        """How many periods the data cover."""

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features that `evaluate` knows."""

    def evaluate(self, feature: Feature, devices: slice) -> Values:
        """A feature of a block of devices [n, d], data units.

        Raises:
            ParameterError: the feature or its parameters are not among those there are.
        """

    def part(self, devices: slice) -> "Population":
        """A piece with only these devices, numbered from 0 again: what a worker process gets."""

    def shuffled(self, rng: np.random.Generator) -> "Population":
        """The same people, dealt to the devices in random order."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class EventLog:
    """Sparse events, each of one device in one period; `of` makes one and checks it.

    Features, all with the parameter `period`: `active` is 1 if the device has an event in that
    period, `events` their number, `amount` their sum, and `amount_at_least` is 1 if there is one
    and the sum reaches `threshold`. Without events all of these are 0. `amount_bin` is a category:
    how many of the ascending edges `edge_1`, `edge_2` and so on the sum reaches, and NaN, which is
    no category, without events. Without amounts the log offers the first two only.

    >>> log = EventLog.of(devices=3, periods=2, device=[2, 0, 2], period=[1, 2, 1])
    >>> log.evaluate(Feature(name="events", parameters={"period": 1.0}), slice(1, 3)).tolist()
    [[0.0], [2.0]]
    """

    devices: int
    periods: int
    start: Integers  #: [periods + 1]: the entries of period p lie from start[p-1] to start[p]
    device: Integers  #: [k], one entry per active device and period, ascending within a period
    number: Integers  #: [k] events of an entry
    total: npt.NDArray[np.float64] | None  #: [k] their summed amounts; None without amounts

    def __post_init__(self) -> None:
        for array in (self.start, self.device, self.number, self.total):
            if array is not None:
                array.flags.writeable = False

    @classmethod
    def of(
        cls,
        *,
        devices: int,
        periods: int,
        device: npt.ArrayLike,
        period: npt.ArrayLike,
        amount: npt.ArrayLike | None = None,
    ) -> "EventLog":
        """A log of events given in any order.

        Args:
            devices: how many devices there are, those without any event included; >= 1.
            periods: how many periods there are; >= 1.
            device: [k] device of each event, 0 to devices - 1.
            period: [k] period of each event, 1 to periods.
            amount: [k] amount of each event, within ±1e100; None if events have none.

        Raises:
            ParameterError: an argument is outside its range, or the lengths differ.
        """
        check_integer("devices", devices, 1, MOST_DEVICES)
        check_integer("periods", periods, 1, MOST_PERIODS)
        who = _integers("device", device, 0, devices - 1)
        when = _integers("period", period, 1, periods)
        how_much = None if amount is None else _amounts(amount)
        lengths = [len(each) for each in (who, when, how_much) if each is not None]
        if len(set(lengths)) > 1:
            raise ParameterError("device, period and amount", lengths, "equally long")
        order = np.arange(len(who)) if how_much is None else np.argsort(how_much, kind="stable")
        # Adding the amounts in ascending order makes sums independent of the order of the events.
        key, entry, number = np.unique(
            ((when - 1) * devices + who)[order], return_inverse=True, return_counts=True
        )
        total: npt.NDArray[np.float64] | None = None
        if how_much is not None:
            total = np.bincount(entry, weights=how_much[order], minlength=len(key)).astype(float)
        return cls(
            devices=devices,
            periods=periods,
            start=np.searchsorted(key, np.arange(periods + 1) * devices).astype(np.int64),
            device=key % devices,
            number=number.astype(np.int64),
            total=total,
        )

    def __repr__(self) -> str:
        return f"EventLog(devices={self.devices}, periods={self.periods})"

    @property
    def features(self) -> tuple[str, ...]:
        """`active` and `events`; with amounts also `amount`, `amount_at_least` and `amount_bin`."""
        names = tuple(_EVENT_FEATURES)
        return names if self.total is not None else names[:2]

    def evaluate(self, feature: Feature, devices: slice) -> Values:
        """A feature of a block of devices [n, 1]."""
        period = checked_period(feature, self.features, _parameters_for(feature), self.periods)
        first, stop = bounds(devices, self.devices)
        nothing = np.nan if feature.name == AMOUNT_BIN else 0.0
        values: Values = np.full((stop - first, 1), nothing)
        low, high = self.start.item(period - 1), self.start.item(period)
        low = bisect_left(self.device, first, low, high)
        high = bisect_left(self.device, stop, low, high)
        if low < high:
            values[self.device[low:high] - first, 0] = self._entries(feature, low, high)
        return values

    def _entries(
        self, feature: Feature, low: int, high: int
    ) -> npt.NDArray[np.float64] | Integers | Flags | float:
        """The feature's values for the entries from `low` to `high`."""
        if feature.name == "active":
            return 1.0
        if self.total is None or feature.name == "events":
            return self.number[low:high]
        total = self.total[low:high]
        if feature.name == AMOUNT_BIN:
            return bins_of(total, edges_of(feature.parameters))
        return total if feature.name == "amount" else total >= feature.parameters["threshold"]

    def part(self, devices: slice) -> "EventLog":
        """A piece with only these devices, numbered from 0 again."""
        first, stop = bounds(devices, self.devices)
        kept = (self.device >= first) & (self.device < stop)
        before = np.concatenate([[0], np.cumsum(kept)])
        return EventLog(
            devices=stop - first,
            periods=self.periods,
            start=before[self.start],
            device=self.device[kept] - first,
            number=self.number[kept],
            total=None if self.total is None else self.total[kept],
        )

    def shuffled(self, rng: np.random.Generator) -> "EventLog":
        """The same people, dealt to the devices in random order."""
        device = rng.permutation(self.devices)[self.device]
        period = np.repeat(np.arange(self.periods), np.diff(self.start))
        order = np.lexsort((device, period))
        return EventLog(
            devices=self.devices,
            periods=self.periods,
            start=self.start.copy(),
            device=device[order],
            number=self.number[order],
            total=None if self.total is None else self.total[order],
        )


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ArrayPopulation:
    """People given as an array; the feature `value` with the parameter `period` reads it.

    >>> people = ArrayPopulation(np.array([[0.0, 1.0], [0.5, 0.25]]))
    >>> people.evaluate(Feature(name="value", parameters={"period": 2.0}), slice(0, 2)).tolist()
    [[1.0], [0.25]]

    Raises:
        ParameterError: `values` is not a finite numeric array of two or three dimensions.
    """

    values: npt.NDArray[np.float64]  #: [n, periods, d]; [n, periods] is taken as d = 1

    def __post_init__(self) -> None:
        expected = "a numeric array [devices, periods] or [devices, periods, d], not empty"
        try:
            given = np.asarray(self.values)
        except ValueError:  # rows of different lengths
            raise ParameterError("values", type(self.values).__name__, expected) from None
        if given.dtype.kind not in "biuf" or given.ndim not in (2, 3) or not all(given.shape[1:]):
            raise ParameterError("values", f"{given.dtype} {given.shape}", expected)
        if not np.isfinite(given).all():
            raise ParameterError("values", "an array with NaN or infinity", "finite")
        object.__setattr__(self, "values", _period_by_period(given))

    def __repr__(self) -> str:
        return f"ArrayPopulation(devices={self.devices}, periods={self.periods})"

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return len(self.values)

    @property
    def periods(self) -> int:
        """How many periods the data cover."""
        _, periods, _ = self.values.shape
        return int(periods)

    @property
    def features(self) -> tuple[str, ...]:
        """Only `value`."""
        return tuple(_ARRAY_FEATURES)

    def evaluate(self, feature: Feature, devices: slice) -> Values:
        """A feature of a block of devices [n, d]; a copy of its own."""
        period = checked_period(feature, self.features, _ARRAY_FEATURES, self.periods)
        first, stop = bounds(devices, self.devices)
        values: Values = self.values[first:stop, period - 1].copy()
        return values

    def part(self, devices: slice) -> "ArrayPopulation":
        """A piece with only these devices, numbered from 0 again."""
        first, stop = bounds(devices, self.devices)
        return ArrayPopulation(self.values[first:stop])

    def shuffled(self, rng: np.random.Generator) -> "ArrayPopulation":
        """The same people, dealt to the devices in random order."""
        dealt = np.empty_like(self.values)
        dealt[rng.permutation(self.devices)] = self.values
        return ArrayPopulation(dealt)


def side_by_side(population: Population, features: Sequence[Feature], devices: slice) -> Values:
    """Some devices' values of some features, one feature after the other [n, d]."""
    parts = [population.evaluate(feature, devices) for feature in features]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


@final
@dataclass(frozen=True, slots=True)
class PersonSource:
    """One person of a population, as a real device's data source."""

    population: Population
    index: int  #: 0 to population.devices - 1

    def __post_init__(self) -> None:
        check_integer("index", self.index, 0, self.population.devices - 1)

    def evaluate(self, feature: Feature) -> Values:
        """The feature's value for this person [1, d], data units."""
        return self.population.evaluate(feature, slice(self.index, self.index + 1))


def _period_by_period(values: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """A read-only copy [n, periods, d] of which a period lies in one piece of memory."""
    full = values[:, :, None] if values.ndim == 2 else values
    laid = np.array(full.swapaxes(0, 1), dtype=np.float64, order="C").swapaxes(0, 1)
    laid.flags.writeable = False
    return laid


def _integers(name: str, given: npt.ArrayLike, low: int, high: int) -> Integers:
    array = np.asarray(given)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ParameterError(name, f"{array.dtype} {array.shape}", "a sequence of integers")
    outside = (array < low) | (array > high)
    if outside.any():
        raise ParameterError(name, array[outside][0].item(), f"from {low} to {high}")
    return array.astype(np.int64)


def _amounts(given: npt.ArrayLike) -> npt.NDArray[np.float64]:
    array = np.asarray(given)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iuf"):
        raise ParameterError("amount", f"{array.dtype} {array.shape}", "a sequence of numbers")
    outside = ~(np.abs(array) <= LARGEST_AMOUNT)  # NaN is outside
    if outside.any():
        raise ParameterError("amount", array[outside][0].item(), "finite and within ±1e100")
    return array.astype(np.float64)


def _parameters_for(feature: Feature) -> Mapping[str, tuple[str, ...]]:
    """The parameters of every feature of events, for the number of edges that this one has."""
    if feature.name != AMOUNT_BIN:
        return _EVENT_FEATURES
    edges = range(1, len(edges_of(feature.parameters)) + 1)
    return {**_EVENT_FEATURES, AMOUNT_BIN: ("period", *(f"{EDGE}{number}" for number in edges))}


def bounds(devices: slice, total: int) -> tuple[int, int]:
    """First and one past the last device of a block, with Python's meaning of a slice."""
    first, stop, step = devices.indices(total)
    if step != 1:
        raise ParameterError("devices", devices, "a slice with step 1")
    return first, max(first, stop)


def checked_period(
    feature: Feature, offered: tuple[str, ...], known: Mapping[str, tuple[str, ...]], periods: int
) -> int:
    """The period that a feature asks about, after checking the whole feature."""
    if feature.name not in offered:
        raise ParameterError("feature", feature.name, f"one of {', '.join(offered)}")
    wanted = known[feature.name]
    given = feature.parameters
    if len(given) != len(wanted) or any(name not in given for name in wanted):
        exactly = " and ".join(wanted)
        raise ParameterError(f"parameters of {feature.name}", sorted(given), f"exactly {exactly}")
    period = given["period"]
    if not (1 <= period <= periods and period == int(period)):
        raise ParameterError("period", period, f"an integer from 1 to {periods}")
    return int(period)
