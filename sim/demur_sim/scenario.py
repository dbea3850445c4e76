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
from demur_proto.study import CATEGORICAL, Measure, Policy, View, check_target_delta
from demur_sim.baselines.by_name import DesignName, names_of
from demur_sim.populations import FLAGS, MOST_DEVICES
from demur_sim.presence import Presence
from demur_sim.scenario_data import Data
from demur_sim.scenario_tables import (
    TRAINING,
    flattened,
    inside,
    overridden,
    placed,
    read_table,
    shipped_of,
)

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
