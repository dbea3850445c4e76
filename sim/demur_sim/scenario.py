"""What to simulate: one question put to one population, with everything said explicitly."""

import datetime as dt
import difflib
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from demur_proto.checks import check_integer, check_positive, check_text
from demur_proto.errors import DataError, ParameterError
from demur_proto.grid import EXPONENT_LIMIT, squared_radius
from demur_proto.round import Feature, check_grid
from demur_proto.study import Measure, Policy, View
from demur_sim.datasets.cdnow import load_cdnow
from demur_sim.datasets.events import check_days, read_events
from demur_sim.populations import FLAGS, MOST_DEVICES, Population


class Refusal(StrEnum):
    """What a device sends when an answer no longer fits its budget."""

    COVER = "cover"  #: a report around the reference, which looks like any other
    SILENT = "silent"  #: nothing, which shows: in simulation only, to study the leak


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """A CSV file of events, or the shipped CDNOW customers where `csv` is None.

    Raises:
        ParameterError: a field is outside its range, or describes a file that is not given.
    """

    csv: str | None = None  #: path of the file, plain or gzipped
    person: str = "customer_id"  #: column with whose event it is
    date: str = "date"  #: column with its day
    amount: str | None = None  #: column with its amount; None: events have none
    start: str | None = None  #: day of period 1, yyyy-mm-dd; None: the earliest in the file
    end: str | None = None  #: day of the last period, yyyy-mm-dd; None: the latest in the file

    def __post_init__(self) -> None:
        for item in fields(self):
            name, value = f"data.{item.name}", getattr(self, item.name)
            if value is not None or item.default is not None:
                check_text(name, value, longest=4096)
            if self.csv is None and value != item.default:
                raise ParameterError(name, value, "left out where there is no data.csv")
        try:
            check_days(self.start, self.end)
        except ParameterError as error:
            raise ParameterError(f"data.{error.name}", error.value, error.expected) from None


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
    epsilon: float = 1.0  #: of the guarantee, nats; > 0
    delta: float = 1e-6  #: of the guarantee; in (0, 1)
    measure: Measure = Measure.GDP  #: currency of charges and budget
    budget: int = 15  #: answers at the full clip that one device can afford; >= 1
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
        squared_radius(self.clip, self.grid_exponent)
        check_grid(self.grid_exponent, clip=self.clip, dimension=1, on_grid=self.on_grid)
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


_CHOICES: Mapping[str, type[StrEnum]] = {
    "measure": Measure,
    "view": View,
    "policy": Policy,
    "refusal": Refusal,
}
_NUMERIC = [item.name for item in fields(Scenario) if isinstance(item.default, int | float)]
_KEYS = [item.name for item in fields(Scenario) if item.name not in ("parameters", "data")]
_DATA_KEYS = [f"data.{item.name}" for item in fields(Data)]


def list_scenarios() -> list[tuple[str, str]]:
    """Name and title of every shipped scenario, by name."""
    return [(name, load_scenario(name).title) for name in _shipped()]


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
    table = _flat(_read(name_or_path), where=str(name_or_path))
    if isinstance(table.get("data.csv"), str):
        table["data.csv"] = str(Path(name_or_path).parent / table["data.csv"])
    replaced: dict[str, Any] = {}
    for override in overrides:
        replaced |= _flat(_override(override), where="--set")
    table |= replaced
    try:
        if "name" not in table:
            raise ParameterError("name", None, "given")
        return Scenario(
            **{key: value for key, value in table.items() if "." not in key},
            parameters=_inside("parameters", table),
            data=Data(**_inside("data", table)),
        )
    except ParameterError as error:
        where = "--set" if error.name in replaced else name_or_path
        raise ParameterError(f"{error.name} in {where}", error.value, error.expected) from None


def population_of(scenario: Scenario) -> Population:
    """The people of a scenario, in the order of their ids and not shuffled yet.

    Raises:
        DataError: the file with their data cannot be read.
        ParameterError: they do not have the scenario's feature, or not with these parameters, or
            its values break the promise of `on_grid`.
    """
    data = scenario.data
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
    asked = Feature(name=scenario.feature, parameters={**scenario.parameters, "period": 1})
    log.evaluate(asked, slice(0, 0))  # refuses what no round could ask
    if scenario.on_grid:
        _check_promise(scenario)
    return log


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


def _shipped() -> dict[str, Traversable]:
    folder = resources.files("demur_sim") / "scenarios"
    files = {Path(file.name).stem: file for file in folder.iterdir() if file.name.endswith(".toml")}
    return dict(sorted(files.items()))


def _read(name_or_path: str | Path) -> dict[str, Any]:
    """The TOML of a scenario, as it is."""
    shipped = _shipped()
    path = Path(name_or_path)
    file: Path | Traversable
    if isinstance(name_or_path, str) and name_or_path in shipped:
        file = shipped[name_or_path]
    elif isinstance(name_or_path, Path) or path.suffix == ".toml" or name_or_path != path.name:
        file = path
    else:
        expected = f"{_one_of([*shipped], name_or_path)}, or the path of a TOML file"
        raise ParameterError("scenario", name_or_path, expected)
    try:
        return tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # of UTF-8, of TOML, of Python's own limits
        raise DataError(f"{path}: expected TOML: {error}") from None


def _override(text: str) -> dict[str, Any]:
    """The key and the value of a text `key=value`."""
    key, equals, value = map(str.strip, text.partition("="))
    if not equals:
        raise ParameterError("--set", text, "key=value")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError):
        return {key: value}  # a text without quotes
    of_text = key.split(".")[0] not in (*_NUMERIC, "parameters")
    plain = parsed.keys() != {"value"} or (of_text and not isinstance(parsed["value"], str | dict))
    return {key: value if plain else parsed["value"]}


def _flat(table: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Dotted keys to values; every key is one that there is."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if key not in ("parameters", "data"):
            flat[key] = value
        elif isinstance(value, Mapping):
            flat |= {f"{key}.{name}": each for name, each in value.items()}
        else:
            raise ParameterError(f"{key} in {where}", value, "a table")
    for key, value in flat.items():
        if key not in _KEYS + _DATA_KEYS and not key.startswith("parameters."):
            known = [*_KEYS, "parameters.*", *_DATA_KEYS]
            raise ParameterError(f"key in {where}", key, _one_of(known, key))
        if key in ("data.start", "data.end") and type(value) is dt.date:
            flat[key] = value.isoformat()
    return flat


def _inside(name: str, flat: Mapping[str, Any]) -> dict[str, Any]:
    """What the flat table has inside one of its tables."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): flat[key] for key in flat if key.startswith(prefix)}


def _one_of(known: Sequence[str], key: str) -> str:
    """What was expected instead of this key."""
    similar = [name for name in known if name.endswith(f".{key}")]
    similar += difflib.get_close_matches(key.lower(), known, n=1)
    return f"one of {', '.join(known)}" + (f" (did you mean {similar[0]}?)" if similar else "")
