"""What to simulate: one question put to one population, with everything said explicitly."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path

from demur_proto.checks import check_integer, check_positive, check_text
from demur_proto.counting_queries import COARSEST_COUNTING, FINEST_COUNTING
from demur_proto.errors import ParameterError
from demur_proto.grid import EXPONENT_LIMIT, squared_radius
from demur_proto.round import MOST_CATEGORIES, Feature, Randomiser, check_grid
from demur_proto.segments import MOST_POSITIONS, Admission, Factorisation
from demur_proto.study import Measure, Policy, View
from demur_sim.datasets.cdnow import load_cdnow
from demur_sim.datasets.events import check_days, read_events
from demur_sim.populations import FLAGS, MOST_DEVICES, MOST_PERIODS, Population
from demur_sim.scenario_tables import (
    TRAINING,
    flattened,
    inside,
    overridden,
    placed,
    read_table,
    shipped_of,
)
from demur_sim.states import STATE, States
from demur_sim.telemetry import EVENT, Telemetry

GAUSSIAN = "gaussian"  #: the mechanism of linear questions


class Kind(StrEnum):
    """What a round adds up over people."""

    LINEAR = "linear"  #: a feature's values
    HISTOGRAM = "histogram"  #: how many people are in each category of a feature
    PREFIX = "prefix"  #: a feature's values, which are states, as a running count of changes


class Refusal(StrEnum):
    """What a device sends when an answer no longer fits its budget."""

    COVER = "cover"  #: a report around the reference, which looks like any other
    SILENT = "silent"  #: nothing, which shows: in simulation only, to study the leak


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """A CSV file of events, or made-up people; without both, the shipped CDNOW customers.

    Raises:
        ParameterError: a field is outside its range, or describes what is not given.
    """

    csv: str | None = None  #: path of the file, plain or gzipped
    person: str = "customer_id"  #: column with whose event it is
    date: str = "date"  #: column with its day
    amount: str | None = None  #: column with its amount; None: events have none
    start: str | None = None  #: day of period 1, yyyy-mm-dd; None: the earliest in the file
    end: str | None = None  #: day of the last period, yyyy-mm-dd; None: the latest in the file
    devices: int = 0  #: how many people are made up; 0: none
    periods: int = 0  #: how many days of theirs there are
    seed: int = 0  #: who they are

    def __post_init__(self) -> None:
        for item in fields(self):
            name, value = f"data.{item.name}", getattr(self, item.name)
            if isinstance(item.default, int):
                continue
            if value is not None or item.default is not None:
                check_text(name, value, longest=4096)
            if self.csv is None and value != item.default:
                raise ParameterError(name, value, "left out where there is no data.csv")
        try:
            check_days(self.start, self.end)
        except ParameterError as error:
            raise ParameterError(f"data.{error.name}", error.value, error.expected) from None
        check_integer("data.devices", self.devices, 0, MOST_DEVICES)
        check_integer("data.periods", self.periods, 1 if self.devices else 0, MOST_PERIODS)
        check_integer("data.seed", self.seed, 0)
        if self.devices and self.csv is not None:
            raise ParameterError("data.devices", self.devices, "left out where there is a data.csv")
        for name in ("periods", "seed"):
            if getattr(self, name) and not self.devices:
                expected = "left out where there is no data.devices"
                raise ParameterError(f"data.{name}", getattr(self, name), expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that a simulation depends on, except its seed and its processes.

    Raises:
        ParameterError: a field is outside its range.

    >>> Scenario(name="rare", budget=3).view
    <View.AGGREGATE: 'aggregate'>
    """

    name: str  #: 1 to 200 printable characters
    title: str = ""  #: one line for a list of scenarios
    question: str = ""  #: what every round asks, in plain words
    feature: str = "active"  #: what devices evaluate on their owner's data
    parameters: Mapping[str, float] = field(default_factory=dict, hash=False)  #: besides `period`
    kind: Kind = Kind.LINEAR  #: what a round adds up over people
    categories: int = 0  #: of a histogram: k, how many values the feature can have
    mechanism: str = GAUSSIAN  #: how devices randomise; of a histogram: one of `Randomiser`
    beside: str = ""  #: of a histogram: another mechanism, for the same people in its own study
    factorisation: Factorisation = Factorisation.SQUARE_ROOT  #: of a running count
    admission: Admission = Admission.COMMIT  #: what its devices do with a change that does not fit
    first_segment: int = 0
    """Of a running count: horizon of its first segment, the next being twice as long; 0: one for all."""
    halts: float = 0.0
    """Of a running count: the share of the promise that pays for counting who ran out; 0: not asked."""
    epsilon: float = 1.0  #: of the guarantee, nats; > 0
    delta: float = 1e-6  #: of the guarantee; in (0, 1)
    measure: Measure = Measure.GDP  #: currency of charges and budget
    budget: int = 15  #: answers of full size, or changes, that one device can afford; >= 1
    view: View = View.AGGREGATE  #: what the adversary of the guarantee sees
    policy: Policy = Policy.SKIP  #: what a filter does after an answer that no longer fits
    refusal: Refusal = Refusal.COVER  #: what a device then sends
    rounds: int = 0  #: the first that many periods, one round each; 0: all of them
    minimum_cohort: int = 0  #: fewest reports that may be released; 0: everyone's
    dishonest: int = 0  #: how many of those may add no noise
    clip: float = 1.0  #: ℓ₂ radius of a value, data units; > 0
    grid_exponent: int = -7  #: grid step is 2^this data units; -900 to 900
    on_grid: bool = True  #: every possible value is a multiple of it, and within the clip
    sampler: str = "fast"  #: where noise comes from: seeded floats, the only choice
    shuffle: bool = True  #: people are dealt to devices at random
    data: Data = field(default_factory=Data)  #: who the people are

    def __post_init__(self) -> None:
        check_text("name", self.name, longest=200)
        for name in ("title", "question"):
            if getattr(self, name) != "":
                check_text(name, getattr(self, name), longest=1000)
        for name in ("epsilon", "clip"):
            check_positive(name, getattr(self, name))
            object.__setattr__(self, name, float(getattr(self, name)))
        if not isinstance(self.delta, float) or not 0 < self.delta < 1:
            raise ParameterError("delta", self.delta, "between 0 and 1, both excluded")
        check_integer("budget", self.budget, 1, 1 << 53)
        check_integer("rounds", self.rounds, 0, (1 << 32) - 1)
        check_integer("minimum_cohort", self.minimum_cohort, 0, MOST_DEVICES)
        check_integer("dishonest", self.dishonest, 0, (self.minimum_cohort or MOST_DEVICES) - 1)
        for name in ("on_grid", "shuffle"):
            if not isinstance(getattr(self, name), bool):
                raise ParameterError(name, getattr(self, name), "true or false")
        check_integer("grid_exponent", self.grid_exponent, -EXPONENT_LIMIT, EXPONENT_LIMIT)
        if self.sampler != "fast":
            raise ParameterError("sampler", self.sampler, "fast")
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in list(choices):
                raise ParameterError(name, value, " or ".join(choices))
            object.__setattr__(self, name, choices(value))
        object.__setattr__(self, "parameters", _parameters(self.feature, self.parameters))
        if not isinstance(self.data, Data):
            raise ParameterError("data", self.data, "a Data")
        _CHECKS[self.kind](self)


_CHOICES: Mapping[str, type[StrEnum]] = {
    "kind": Kind,
    "factorisation": Factorisation,
    "admission": Admission,
    "measure": Measure,
    "view": View,
    "policy": Policy,
    "refusal": Refusal,
}
_OF_HISTOGRAMS: Mapping[str, Sequence[StrEnum]] = {
    "view": (View.LOCAL,),
    "measure": (Measure.ZCDP,),
    "policy": (Policy.SKIP, Policy.RETIRE),
}
_OF_PREFIXES: Mapping[str, Sequence[StrEnum]] = {"policy": (Policy.SKIP, Policy.RETIRE)}
_OF_SUMS = ("clip", "grid_exponent", "on_grid")
_OF_CATEGORIES = ("categories", "mechanism", "beside")
_OF_COUNTS = ("factorisation", "admission", "first_segment", "halts")
_DATA_KEYS = [f"data.{item.name}" for item in fields(Data)]
_KEYS = [item.name for item in fields(Scenario) if item.name not in ("parameters", "data")]
_KEYS += ["parameters.*", *_DATA_KEYS]
_NUMERIC = [item.name for item in fields(Scenario) if isinstance(item.default, int | float)]
_NUMERIC += [f"data.{item.name}" for item in fields(Data) if isinstance(item.default, int)]


def list_scenarios() -> list[tuple[str, str]]:
    """Name and title of every shipped scenario that asks questions, by name."""
    return [(name, load_scenario(name).title) for name in shipped_of(training=False)]


def load_scenario(name_or_path: str | Path, *, overrides: Sequence[str] = ()) -> Scenario:
    """A shipped scenario by its name, or one's own from a TOML file.

    The file holds the fields of `Scenario` as keys, those of `Data` in a table `[data]`; what it
    leaves out has its default. A relative `data.csv` starts from the folder of the file.

    Args:
        name_or_path: a name that `list_scenarios` knows, or a path: whatever ends in .toml or
            names a folder too.
        overrides: texts `key=value` that replace what the file says, as in `data.csv=mine.csv`.
            The value is written as in TOML, texts also without quotes. A relative `data.csv`
            starts from the current folder.

    Raises:
        ParameterError: there is no such scenario or key, or a value is outside its range.
        DataError: the file cannot be read, or is not TOML.
    """
    written = read_table(name_or_path)
    if written.get("kind") == TRAINING:
        raise ParameterError(
            f"kind in {name_or_path}",
            TRAINING,
            "linear, histogram or prefix; demur train runs this one",
        )
    table = flattened(written, known=_KEYS, where=str(name_or_path))
    if isinstance(table.get("data.csv"), str):
        table["data.csv"] = str(Path(name_or_path).parent / table["data.csv"])
    replaced = overridden(overrides, known=_KEYS, numeric=_NUMERIC)
    table |= replaced
    with placed(name_or_path, replaced=replaced):
        if "name" not in table:
            raise ParameterError("name", None, "given")
        return Scenario(
            **{key: value for key, value in table.items() if "." not in key},
            parameters=inside("parameters", table),
            data=Data(**inside("data", table)),
        )


def population_of(scenario: Scenario) -> Population:
    """The people of a scenario, in the order of their ids and not shuffled yet.

    Raises:
        DataError: the file with their data cannot be read.
        ParameterError: they do not have the scenario's feature, or not with these parameters, or
            its values break the promise of `on_grid`, or are no values that could be added up.
    """
    data = scenario.data
    if data.devices:
        return _made_up(scenario)
    if data.csv is None:
        log = load_cdnow()
    else:
        log = read_events(
            data.csv,
            person=data.person,
            date=data.date,
            amount=data.amount,
            start=data.start,
            end=data.end,
        )
    if log.total is None and scenario.feature in ("amount", "amount_at_least"):
        raise ParameterError("data.amount", None, f"the column that {scenario.feature!r} adds up")
    _check_feature(scenario, log)
    if scenario.on_grid and scenario.kind is Kind.LINEAR:
        _check_promise(scenario)
    return log


def _made_up(scenario: Scenario) -> Population:
    data = scenario.data
    people: Population
    if scenario.kind is Kind.HISTOGRAM:
        people = Telemetry.of(
            devices=data.devices,
            periods=data.periods,
            categories=scenario.categories,
            seed=data.seed,
        )
    elif scenario.kind is Kind.PREFIX:
        people = States.of(devices=data.devices, periods=data.periods, seed=data.seed)
    else:
        expected = (
            f"histogram or prefix where there is data.devices, who have an {EVENT!r} with a category, "
            f"or a {STATE!r}"
        )
        raise ParameterError("kind", scenario.kind, expected)
    _check_feature(scenario, people)
    return people


def _check_feature(scenario: Scenario, people: Population) -> None:
    """Refuse what no round could ask."""
    asked = Feature(name=scenario.feature, parameters={**scenario.parameters, "period": 1})
    people.evaluate(asked, slice(0, 0))


def _check_promise(scenario: Scenario) -> None:
    """Refuse a false `on_grid`: a value that breaks it would silently count as nothing."""
    if scenario.feature not in FLAGS:
        raise ParameterError(
            "on_grid", True, f"false for {scenario.feature!r}, which has values of any size"
        )
    if scenario.clip < 1 or scenario.grid_exponent > 0:
        raise ParameterError(
            "on_grid",
            True,
            f"false unless clip >= 1 and grid_exponent <= 0: {scenario.feature!r} may be 1",
        )


def _check_linear(scenario: Scenario) -> None:
    _check_left_out(scenario, *_OF_CATEGORIES, *_OF_COUNTS)
    exponent, clip = scenario.grid_exponent, scenario.clip
    squared_radius(clip, exponent)
    check_grid(exponent, clip=clip, dimension=1, on_grid=scenario.on_grid)


def _check_histogram(scenario: Scenario) -> None:
    """Categories are randomised on each device for itself: no noise to share, no grid, no clip."""
    check_integer("categories", scenario.categories, 2, MOST_CATEGORIES)
    others = [each for each in Randomiser if each != scenario.mechanism]
    if len(others) == len(Randomiser):
        raise ParameterError("mechanism", scenario.mechanism, " or ".join(Randomiser))
    if scenario.beside and scenario.beside not in others:
        raise ParameterError("beside", scenario.beside, " or ".join(others))
    _check_possible(scenario, _OF_HISTOGRAMS)
    _check_left_out(scenario, *_OF_SUMS, *_OF_COUNTS)


def _check_prefix(scenario: Scenario) -> None:
    """The clip follows from factorisation and horizon; the grid is that of running counts."""
    exponent = scenario.grid_exponent
    if not FINEST_COUNTING <= exponent <= COARSEST_COUNTING:
        expected = f"from {FINEST_COUNTING} to {COARSEST_COUNTING} where kind is prefix"
        raise ParameterError("grid_exponent", exponent, expected)
    check_integer("first_segment", scenario.first_segment, 0, MOST_POSITIONS)
    if type(scenario.halts) not in (int, float) or not 0 <= scenario.halts < 1:
        raise ParameterError("halts", scenario.halts, "at least 0 and below 1")
    if scenario.halts and scenario.refusal is not Refusal.COVER:
        raise ParameterError("halts", scenario.halts, "0 where refused devices fall silent")
    _check_possible(scenario, _OF_PREFIXES)
    _check_left_out(scenario, *_OF_CATEGORIES, "clip", "on_grid")


_CHECKS: Mapping[Kind, Callable[[Scenario], None]] = {
    Kind.LINEAR: _check_linear,
    Kind.HISTOGRAM: _check_histogram,
    Kind.PREFIX: _check_prefix,
}


def _check_possible(scenario: Scenario, possible: Mapping[str, Sequence[StrEnum]]) -> None:
    """Refuse a choice that this kind does not have."""
    for name, choices in possible.items():
        if getattr(scenario, name) not in choices:
            expected = f"{' or '.join(choices)} where kind is {scenario.kind}"
            raise ParameterError(name, str(getattr(scenario, name)), expected)


def _check_left_out(scenario: Scenario, *names: str) -> None:
    """Refuse what this kind has no use for."""
    for item in fields(scenario):
        if item.name in names and getattr(scenario, item.name) != item.default:
            value = getattr(scenario, item.name)
            value = str(value) if isinstance(value, StrEnum) else value
            raise ParameterError(item.name, value, f"left out where kind is {scenario.kind}")


def _parameters(feature: str, given: Mapping[str, float]) -> dict[str, float]:
    """A copy of the parameters, checked together with their feature."""
    if not isinstance(given, Mapping):
        raise ParameterError("parameters", given, "a table of numbers")
    if "period" in given:
        raise ParameterError("parameters.period", given["period"], "left out: rounds set it")
    for name, value in given.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not abs(value) <= sys.float_info.max:
            raise ParameterError(f"parameters.{name}", value, "a finite number")
    return dict(Feature(name=feature, parameters=given).parameters)
