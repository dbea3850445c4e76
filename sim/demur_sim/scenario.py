"""Whose data a scenario is about: the table `[data]`."""

import datetime as dt
import json
import sys
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from enum import StrEnum
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from demur_proto.accounting.calibration import EXPONENT_LIMIT, squared_radius
from demur_proto.checks import check_integer, check_positive, check_text, expected_name
from demur_proto.errors import DataError, ParameterError
from demur_proto.mechanisms.registry import Randomiser
from demur_proto.queries import MOST_CATEGORIES, Feature
from demur_proto.queries.base import check_grid
from demur_proto.running.segments import (
    COARSEST_COUNTING,
    FINEST_COUNTING,
    MOST_POSITIONS,
    Admission,
    Factorisation,
)
from demur_proto.study import CATEGORICAL, Measure, Policy, View, check_target_delta
from demur_sim.comparison.by_name import DesignName, names_of
from demur_sim.datasets.events import MOST_PERIOD_DAYS, check_days
from demur_sim.people.populations import FLAGS, MOST_DEVICES, MOST_PERIODS
from demur_sim.people.presence import Presence


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Who the people are: those with events in a CSV file, made-up ones, or the CDNOW customers.

    Made-up people follow a histogram of how often people are active, or the law of a shipped scenario.

    Raises:
        ParameterError: a field is outside its range, or describes what is not given.
    """

    csv: str | None = None  #: path of the file, plain or gzipped
    person: str = "customer_id"  #: column with whose event it is
    date: str = "date"  #: column with its day
    amount: str | None = None  #: column with its amount; None: events have none
    start: str | None = None  #: first day of period 1, yyyy-mm-dd; None: the earliest in the file
    end: str | None = None  #: last day of the last period, yyyy-mm-dd; None: the latest in the file
    period_days: int = 1  #: how many days a period has; 1 to 366
    histogram: str | None = None  #: path of a CSV file: of how many people act how often
    devices: int = 0  #: how many people are made up; 0: none, or as many as the histogram counts
    periods: int = 0  #: how many days of theirs there are
    seed: int = 0  #: who they are

    def __post_init__(self) -> None:
        for item in fields(self):
            name, value = f"data.{item.name}", getattr(self, item.name)
            if isinstance(item.default, int):
                continue
            if value is not None or item.default is not None:
                check_text(name, value, longest=4096)
            if self.csv is None and value != item.default and name != "data.histogram":
                raise ParameterError(name, value, "left out where there is no data.csv")
        try:
            check_days(self.start, self.end)
        except ParameterError as error:
            raise ParameterError(f"data.{error.name}", error.value, error.expected) from None
        check_integer("data.period_days", self.period_days, 1, MOST_PERIOD_DAYS)
        check_integer("data.devices", self.devices, 0, MOST_DEVICES)
        made_up = bool(self.devices) or self.histogram is not None
        check_integer("data.periods", self.periods, 1 if made_up else 0, MOST_PERIODS)
        check_integer("data.seed", self.seed, 0)
        for name in ("devices", "histogram"):
            if getattr(self, name) and self.csv is not None:
                expected = "left out where there is a data.csv"
                raise ParameterError(f"data.{name}", getattr(self, name), expected)
        if made_up and self.period_days != 1:
            expected = "left out where there are made-up people, whose periods have no days"
            raise ParameterError("data.period_days", self.period_days, expected)
        for name in ("periods", "seed"):
            if getattr(self, name) and not made_up:
                expected = "left out where there is no data.devices"
                raise ParameterError(f"data.{name}", getattr(self, name), expected)


# The TOML of scenarios: files, overrides, and one flat table of dotted keys.

TRAINING = "training"  #: the kind of scenarios that `demur train` runs
OF_NUMBERS = ("parameters", "features")  #: tables that hold numbers by any name

Table = dict[str, Any]


def shipped() -> dict[str, Traversable]:
    """The scenarios that come with demur, by name."""
    folder = resources.files("demur_sim") / "scenarios"
    files = {Path(file.name).stem: file for file in folder.iterdir() if file.name.endswith(".toml")}
    return dict(sorted(files.items()))


def shipped_of(*, training: bool) -> list[str]:
    """Those that train, or those that ask questions, by name."""
    return [name for name in shipped() if (read_table(name).get("kind") == TRAINING) is training]


def read_table(name_or_path: str | Path, *, training: bool = False) -> Table:
    """The TOML of a scenario, as it is.

    Args:
        name_or_path: of any kind.
        training: what to suggest in place of a name that there is not.

    Raises:
        ParameterError: there is no such scenario.
        DataError: the file cannot be read, or is not TOML.
    """
    known = shipped()
    path = Path(name_or_path)
    file: Path | Traversable
    if isinstance(name_or_path, str) and name_or_path in known:
        file = known[name_or_path]
    elif isinstance(name_or_path, Path) or path.suffix == ".toml" or name_or_path != path.name:
        file = path
    else:
        offered = shipped_of(training=training)
        expected = f"{expected_name(offered, str(name_or_path))}, or the path of a TOML file"
        raise ParameterError("scenario", name_or_path, expected)
    try:
        return tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # of UTF-8, of TOML, of Python's own limits
        raise DataError(f"{path}: expected TOML: {error}") from None


def read_override(text: str, *, numeric: Collection[str]) -> Table:
    """The key and the value of a text `key=value`.

    Args:
        text: the value as in TOML, texts also without quotes.
        numeric: keys whose values are numbers; whatever is inside `OF_NUMBERS` is one too.

    Raises:
        ParameterError: there is no equals sign.

    >>> read_override("budget=5", numeric=["budget"]), read_override("title=5", numeric=["budget"])
    ({'budget': 5}, {'title': '5'})
    """
    key, equals, value = map(str.strip, text.partition("="))
    if not equals:
        raise ParameterError("--set", text, "key=value")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError):
        return {key: value}  # a text without quotes
    of_text = key not in numeric and key.split(".")[0] not in OF_NUMBERS
    plain = parsed.keys() != {"value"} or (of_text and not isinstance(parsed["value"], str | dict))
    return {key: value if plain else parsed["value"]}


def overridden(
    overrides: Sequence[str], *, known: Sequence[str], numeric: Collection[str]
) -> Table:
    """What all overrides together say, dotted keys to values; of two to one key the last counts.

    Raises:
        ParameterError: one has no equals sign, or an unknown key.
    """
    replaced: Table = {}
    for override in overrides:
        replaced |= flattened(read_override(override, numeric=numeric), known=known, where="--set")
    return replaced


@contextmanager
def placed(name_or_path: str | Path, *, replaced: Table) -> Iterator[None]:
    """Say of an error about a key whether it stood in the file or in an override."""
    try:
        yield
    except ParameterError as error:
        where = "--set" if error.name in replaced else name_or_path
        raise ParameterError(f"{error.name} in {where}", error.value, error.expected) from None


def flattened(table: Mapping[str, Any], *, known: Sequence[str], where: str) -> Table:
    """Dotted keys to values.

    Args:
        table: keys to values, some of which are tables.
        known: every key that there is, dotted; `name.*` for a table that may hold any.
        where: what messages call the place.

    Raises:
        ParameterError: a key is unknown, or no table where there should be one.
    """
    flat: Table = {}
    tables = {key.split(".")[0] for key in known if "." in key}
    for key, value in table.items():
        if key not in tables:
            flat[key] = value
        elif isinstance(value, Mapping):
            flat |= {f"{key}.{name}": each for name, each in value.items()}
        else:
            raise ParameterError(f"{key} in {where}", value, "a table")
    for key, value in flat.items():
        if key not in known and f"{key.split('.')[0]}.*" not in known:
            raise ParameterError(f"key in {where}", key, expected_name(known, key))
        if key in ("data.start", "data.end") and type(value) is dt.date:
            flat[key] = value.isoformat()
    return flat


def inside(name: str, flat: Mapping[str, Any]) -> Table:
    """What the flat table has inside one of its tables."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): flat[key] for key in flat if key.startswith(prefix)}


# What to simulate: one question put to one population, with everything said explicitly.

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
    beside: str = ""
    """Of a histogram: another mechanism, for the same people in its own study; of other kinds in view
    `local`: names of other designs, with commas between them."""
    factorisation: Factorisation = Factorisation.SQUARE_ROOT  #: of a running count
    admission: Admission = Admission.COMMIT  #: what its devices do with a change that does not fit
    first_segment: int = 0
    """Of a running count: horizon of its first segment, the next being twice as long; 0: one for all."""
    halts: float = 0.0
    """Of a running count: the share of the promise that pays for counting who ran out; 0: not asked."""
    epsilon: float = 1.0  #: of the guarantee, nats; > 0
    delta: float = 1e-6  #: of the guarantee; in (0, 1), in measure pure also 0
    measure: Measure | None = None
    """Currency of charges and budget; None: gdp, of a histogram whichever gives its answers most."""
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
    window: int = 0
    """Rounds that one budget is for: after so many another study begins, with a fresh one; 0: all."""
    data: Data = field(default_factory=Data)  #: who the people are
    presence: Presence = field(default_factory=Presence)  #: how their devices come and go

    def __post_init__(self) -> None:
        check_text("name", self.name, longest=200)
        for name in ("title", "question"):
            if getattr(self, name) != "":
                check_text(name, getattr(self, name), longest=1000)
        for name in ("epsilon", "clip"):
            check_positive(name, getattr(self, name))
            object.__setattr__(self, name, float(getattr(self, name)))
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
            if value is None and name == "measure":
                if self.kind == Kind.HISTOGRAM:
                    continue
                value = Measure.GDP
            if value not in list(choices):
                raise ParameterError(name, value, " or ".join(choices))
            object.__setattr__(self, name, choices(value))
        check_target_delta(self.delta, self.measure or Measure.GDP)
        object.__setattr__(self, "parameters", _parameters(self.feature, self.parameters))
        check_integer("window", self.window, 0, (1 << 32) - 1)
        if not isinstance(self.data, Data):
            raise ParameterError("data", self.data, "a Data")
        if not isinstance(self.presence, Presence):
            raise ParameterError("presence", self.presence, "a Presence")
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
    "measure": CATEGORICAL,
    "policy": (Policy.SKIP, Policy.RETIRE),
}
_OF_SUMS_TOO: Mapping[str, Sequence[StrEnum]] = {"measure": (Measure.GDP, Measure.ZCDP)}
_OF_PREFIXES: Mapping[str, Sequence[StrEnum]] = {
    "policy": (Policy.SKIP, Policy.RETIRE),
    **_OF_SUMS_TOO,
}
_OF_SUMS = ("clip", "grid_exponent", "on_grid")
_OF_CATEGORIES = ("categories", "mechanism")
_OF_COUNTS = ("factorisation", "admission", "first_segment", "halts")
_DATA_KEYS = [f"data.{item.name}" for item in fields(Data)]
_PRESENCE_KEYS = [f"presence.{item.name}" for item in fields(Presence)]
_TABLES = ("parameters", "data", "presence")
_KEYS = [item.name for item in fields(Scenario) if item.name not in _TABLES]
_KEYS += ["parameters.*", *_PRESENCE_KEYS, *_DATA_KEYS]
_NUMERIC = [item.name for item in fields(Scenario) if isinstance(item.default, int | float)]
_NUMERIC += [f"data.{item.name}" for item in fields(Data) if isinstance(item.default, int)]
_NUMERIC += _PRESENCE_KEYS


def list_scenarios() -> list[tuple[str, str]]:
    """Name and title of every shipped scenario that asks questions, by name."""
    return [(name, load_scenario(name).title) for name in shipped_of(training=False)]


def load_scenario(name_or_path: str | Path, *, overrides: Sequence[str] = ()) -> Scenario:
    """A shipped scenario by its name, or one's own from a TOML file.

    The file holds the fields of `Scenario` as keys, those of `Data` in a table `[data]`, those of
    `Presence` in `[presence]`; what it leaves out has its default. A relative `data.csv` or
    `data.histogram` starts from the folder of the file.

    Args:
        name_or_path: a name that `list_scenarios` knows, or a path: whatever ends in .toml or
            names a folder too.
        overrides: texts `key=value` that replace what the file says, as in `data.csv=mine.csv`.
            The value is written as in TOML, texts also without quotes. A relative path
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
    return scenario_of(written, name_or_path, overrides=overrides)


def scenario_of(
    written: Mapping[str, object], where: str | Path, *, overrides: Sequence[str] = ()
) -> Scenario:
    """The scenario that a table of a TOML file is; see `load_scenario`.

    Args:
        written: keys to values.
        where: the file it stood in, or what messages call it instead.
        overrides: as in `load_scenario`.

    Raises:
        ParameterError: there is no such key, or a value is outside its range.
    """
    table = flattened(written, known=_KEYS, where=str(where))
    for key in ("data.csv", "data.histogram"):
        if isinstance(table.get(key), str):
            table[key] = str(Path(where).parent / table[key])
    replaced = overridden(overrides, known=_KEYS, numeric=_NUMERIC)
    table |= replaced
    with placed(where, replaced=replaced):
        if "name" not in table:
            raise ParameterError("name", None, "given")
        return Scenario(
            **{key: value for key, value in table.items() if "." not in key},
            parameters=inside("parameters", table),
            data=Data(**inside("data", table)),
            presence=Presence(**inside("presence", table)),
        )


def _check_linear(scenario: Scenario) -> None:
    _check_possible(scenario, _OF_SUMS_TOO)
    _check_left_out(scenario, *_OF_CATEGORIES, *_OF_COUNTS)
    _check_designs(scenario)
    exponent, clip = scenario.grid_exponent, scenario.clip
    squared_radius(clip, exponent)
    check_grid(exponent, clip=clip, dimension=1, on_grid=scenario.on_grid)


def _check_histogram(scenario: Scenario) -> None:
    """Categories are randomised on each device for itself: no noise to share, no grid, no clip."""
    check_integer("categories", scenario.categories, 1, MOST_CATEGORIES)
    others = [each for each in Randomiser if each != scenario.mechanism]
    if len(others) == len(Randomiser):
        raise ParameterError("mechanism", scenario.mechanism, " or ".join(Randomiser))
    if scenario.beside and scenario.beside not in others:
        raise ParameterError("beside", scenario.beside, " or ".join(others))
    if scenario.categories == 1 and scenario.mechanism != Randomiser.KRR:
        raise ParameterError("mechanism", scenario.mechanism, "krr where there is one category")
    if scenario.categories == 1 and scenario.beside:
        raise ParameterError("beside", scenario.beside, "left out where there is one category")
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
    if not scenario.presence.all_take_part:
        # A device that misses a round tells a change later; scaling sums up would count it twice.
        expected = "of nobody but late reports where kind is prefix"
        raise ParameterError("presence", "devices come and go", expected)
    _check_possible(scenario, _OF_PREFIXES)
    _check_designs(scenario)
    _check_left_out(scenario, *_OF_CATEGORIES, "clip", "on_grid")


_CHECKS: Mapping[Kind, Callable[[Scenario], None]] = {
    Kind.LINEAR: _check_linear,
    Kind.HISTOGRAM: _check_histogram,
    Kind.PREFIX: _check_prefix,
}


def _check_designs(scenario: Scenario) -> None:
    """Refuse other designs beside what they cannot be compared with: they count a yes or no, locally."""
    if scenario.beside != "":
        check_text("beside", scenario.beside, longest=1000)
    names = names_of(scenario.beside)
    if not names:
        return
    if scenario.window or not scenario.presence.is_whole:
        expected = (
            "left out where there are windows, or devices come and go: these designs know neither"
        )
        raise ParameterError("beside", scenario.beside, expected)
    if scenario.view is not View.LOCAL:
        expected = (
            f"left out where view is {scenario.view}: these designs are for view {View.LOCAL}"
        )
        raise ParameterError("beside", scenario.beside, expected)
    if scenario.kind is Kind.PREFIX:
        return
    for name in names:
        if name is not DesignName.REPEATED_RESPONSE:
            expected = f"{DesignName.REPEATED_RESPONSE} where kind is {scenario.kind}"
            raise ParameterError("beside", str(name), f"{expected}: the others count a state")
    if scenario.feature not in FLAGS or scenario.clip < 1:
        expected = (
            f"left out unless feature is {' or '.join(FLAGS)}, and clip >= 1: it counts yes and no"
        )
        raise ParameterError("beside", scenario.beside, expected)


def _check_possible(scenario: Scenario, possible: Mapping[str, Sequence[StrEnum]]) -> None:
    """Refuse a choice that this kind does not have."""
    for name, choices in possible.items():
        value = getattr(scenario, name)
        if value is not None and value not in choices:
            expected = f"{' or '.join(choices)} where kind is {scenario.kind}"
            raise ParameterError(name, str(value), expected)


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


# A scenario as the TOML file that it could have been read from.

PATHS = ("csv", "histogram")
TABLES = ("data", "presence")


def scenario_text(scenario: Scenario, *, about: Sequence[str] = ()) -> str:
    """TOML that says whatever a scenario says beyond defaults; paths become absolute.

    Args:
        scenario: of any kind.
        about: lines of a comment to begin with.

    >>> print(scenario_text(Scenario(name="rare", budget=3), about=["few answers"]))
    # few answers
    <BLANKLINE>
    name = "rare"
    budget = 3
    <BLANKLINE>
    """
    lines = [f"# {line}" for line in about] + [""] * bool(about)
    plain = Scenario(name=scenario.name)
    for item in fields(scenario):
        value = getattr(scenario, item.name)
        if item.name == "parameters":
            if value:
                lines.append(f"parameters = {_inline(value)}")
        elif item.name == "name" or (
            item.name not in TABLES and value not in (None, getattr(plain, item.name))
        ):
            lines.append(f"{item.name} = {_written(value)}")
    for name in TABLES:
        lines += _table(name, getattr(scenario, name))
    return "\n".join(lines) + "\n"


def _table(title: str, table: Data | Presence) -> list[str]:
    told = {item.name: getattr(table, item.name) for item in fields(table)}
    told = {item.name: told[item.name] for item in fields(table) if told[item.name] != item.default}
    for name in PATHS:
        if name in told:
            told[name] = str(Path(told[name]).resolve())
    written = [f"{name} = {_written(value)}" for name, value in told.items()]
    return ["", f"[{title}]", *written] if written else []


def _inline(table: Any) -> str:
    inside = ", ".join(f"{_written(name)} = {_written(value)}" for name, value in table.items())
    return "{ " + inside + " }"


def _written(value: Any) -> str:
    """A text, number or flag; texts here are printable, and so in JSON what they are in TOML."""
    if isinstance(value, float):
        return repr(value)
    return json.dumps(str(value) if isinstance(value, StrEnum) else value, ensure_ascii=False)
