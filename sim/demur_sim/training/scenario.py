"""The tables of a training scenario: data, model, optimiser, average and counts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from demur_proto.checks import check_integer, check_positive, check_text
from demur_proto.errors import ParameterError
from demur_proto.models.definition import FEATURES, check_module_path
from demur_proto.study import Measure, Policy, View
from demur_server.training.optimisers import MOST_STEPS, check_share
from demur_sim.datasets.labelled import LARGEST_ALPHA, LEAST_ALPHA
from demur_sim.engine.sampling import Noise
from demur_sim.people.populations import MOST_DEVICES
from demur_sim.scenario import (
    TRAINING,
    flattened,
    inside,
    overridden,
    placed,
    read_table,
    shipped_of,
)

DIGITS, MNIST = "digits", "mnist"  #: data with a name
NPZ, CSV = (".npz",), (".csv", ".csv.gz")  #: how files of these kinds end


class Algorithm(StrEnum):
    """What a device does of Feldman & Zrnic's two."""

    PRIVATE_GD = "private-gd"  #: no more steps than the budget has full gradients: nobody runs out
    FILTERED_GD = "filtered-gd"  #: everyone pays for what they give, and shrinks the last of it


class Arithmetic(StrEnum):
    """In which numbers the noisy sums are made."""

    GRID = "grid"  #: integers on every device, exactly as deployed
    FLOAT = "float"  #: floating point, in one process: the noise is drawn once for the sum


class Kind(StrEnum):
    """Optimisers, by name."""

    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAM = "adam"


class Average(StrEnum):
    """Averages of iterates, by name."""

    NONE = "none"
    TAIL = "tail"
    EXPONENTIAL = "exponential"


class Net(StrEnum):
    """Architectures, by name."""

    SOFTMAX = "softmax"
    HIDDEN_LAYER = "hidden_layer"
    MODULE = "module"  #: of torch, by its import path


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where examples come from, and who owns which.

    Raises:
        ParameterError: a field is outside its range.
    """

    source: str = DIGITS  #: "digits", "mnist", or the path of a .npz, .csv or IDX file
    folder: str | None = None  #: of MNIST's files; None: what DEMUR_DATA names
    test: str | None = None  #: path of the examples to test on, for a .csv or IDX file
    label: str | None = None  #: column with the label, in a .csv; None: the last
    labels: str | None = None  #: path of the labels, for an IDX file, which is one by that
    test_labels: str | None = None  #: path of the labels to test on, likewise
    sha256: str | None = None  #: of the file `source`; None: any
    people: int = 0  #: only so many, those with the first examples; 0: everyone
    per_person: int = 1  #: examples that each person owns
    alpha: float = 0.0  #: of the Dirichlet law of favourite labels; 0: nobody has any
    held_out: int = 0  #: so many of the examples to learn from stand for those to test on
    seed: int = 0  #: of who owns what, and of what is held out

    def __post_init__(self) -> None:
        for name in ("source", "folder", "test", "label", "labels", "test_labels"):
            if name == "source" or getattr(self, name) is not None:
                check_text(f"data.{name}", getattr(self, name), longest=4096)
        digits = self.sha256
        if digits is not None and not (
            isinstance(digits, str) and len(digits) == 64 and set(digits) <= set("0123456789abcdef")
        ):
            raise ParameterError("data.sha256", digits, "64 hexadecimal digits, small letters")
        check_integer("data.people", self.people, 0, MOST_DEVICES)
        check_integer("data.per_person", self.per_person, 1, MOST_DEVICES)
        check_integer("data.held_out", self.held_out, 0, MOST_DEVICES)
        check_integer("data.seed", self.seed, 0)
        if type(self.alpha) not in (int, float) or not (
            self.alpha == 0 or LEAST_ALPHA <= self.alpha <= LARGEST_ALPHA
        ):
            expected = f"0, or from {LEAST_ALPHA:g} to {LARGEST_ALPHA:g}"
            raise ParameterError("data.alpha", self.alpha, expected)
        self._check_files()

    @property
    def is_csv(self) -> bool:
        """Whether `source` is the path of a CSV file."""
        return self.labels is None and self.source.endswith(CSV)

    def _check_files(self) -> None:
        """Refuse keys that belong to another kind of source, and a source of no kind."""
        named = self.source in (DIGITS, MNIST)
        idx = self.labels is not None
        for name, belongs in (
            ("labels", not named),
            ("folder", self.source == MNIST),
            ("test", idx or self.is_csv),
            ("test_labels", idx and self.test is not None),
            ("label", self.is_csv),
            ("sha256", not named),
        ):
            if getattr(self, name) is not None and not belongs:
                why = " without data.test" if name == "test_labels" and idx else ""
                expected = f"left out for {self.source}{why}"
                raise ParameterError(f"data.{name}", getattr(self, name), expected)
        if not named and not idx and not self.source.endswith((*NPZ, *CSV)):
            expected = (
                "digits, mnist, the path of a .npz or .csv file, or that of an IDX file with its "
                "labels in data.labels"
            )
            raise ParameterError("data.source", self.source, expected)
        if (idx or self.is_csv) and self.test is None and not self.held_out:
            kind = "an IDX file" if idx else "a .csv"
            raise ParameterError("data.test", None, f"given for {kind}, or data.held_out instead")
        if idx and self.test is not None and self.test_labels is None:
            raise ParameterError("data.test_labels", None, "given together with data.test")


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """The model, without its sizes.

    Raises:
        ParameterError: a field is outside its range.
    """

    architecture: Net = Net.SOFTMAX
    hidden: int = 0  #: units of the hidden layer; 0 for others
    module: str | None = None  #: of torch, package.module:name; for `module` alone

    def __post_init__(self) -> None:
        choose(self, "model", "architecture", Net)
        if self.architecture is Net.MODULE:
            check_module_path("model.module", self.module)
        elif self.module is not None:
            expected = "left out, or given with model.architecture = module"
            raise ParameterError("model.module", self.module, expected)
        if self.architecture is Net.HIDDEN_LAYER:
            check_integer("model.hidden", self.hidden, 1, 1 << 18)
        elif self.hidden != 0:
            expected = "left out, or given with model.architecture = hidden_layer"
            raise ParameterError("model.hidden", self.hidden, expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Descent:
    """The optimiser.

    Raises:
        ParameterError: a field is outside its range.
    """

    kind: Kind = Kind.MOMENTUM
    rate: float = 1.0  #: of the first step; > 0
    last_rate: float | None = None  #: of the last step, reached in a straight line; None: as first
    momentum: float = 0.9  #: β of momentum and Adam
    squares: float = 0.999  #: β₂ of Adam

    def __post_init__(self) -> None:
        choose(self, "optimiser", "kind", Kind)
        check_positive("optimiser.rate", self.rate)
        if self.last_rate is not None and self.last_rate != 0:
            check_positive("optimiser.last_rate", self.last_rate)
        check_share("optimiser.momentum", self.momentum)
        check_share("optimiser.squares", self.squares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Averages:
    """Which average of the iterates stands for the model.

    Raises:
        ParameterError: a field is outside its range.
    """

    kind: Average = Average.NONE
    start: float = 0.5  #: of a tail: after which share of all steps it begins
    decay: float = 0.9  #: of an exponential one

    def __post_init__(self) -> None:
        choose(self, "average", "kind", Average)
        check_share("average.start", self.start)
        check_share("average.decay", self.decay)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Noisy counts, each kind on a reserved budget, and the rules that go by them.

    Raises:
        ParameterError: a field is outside its range, or a rule has no budget.
    """

    every: int = 0  #: after each so many steps; 0: none are asked
    errors: float = 0.0  #: share of the promise reserved for counts of errors; 0: none
    patience: int = 0  #: counts without improvement after which to stop; 0: no such rule
    margin: float = 1.0  #: standard errors by which a count must be less to be an improvement
    halts: float = 0.0  #: share of the promise reserved for counts of those who ran out; 0: none
    most_halts: float = 0.0  #: share of people; stop when so many ran out; 0: no such rule

    def __post_init__(self) -> None:
        check_integer("counts.every", self.every, 0, MOST_STEPS)
        check_integer("counts.patience", self.patience, 0, MOST_STEPS)
        for name in ("errors", "halts"):
            check_share(f"counts.{name}", getattr(self, name))
        if not self.errors + self.halts < 1:
            raise ParameterError("counts.halts", self.halts, "such that something is left to train")
        if type(self.margin) not in (int, float) or not 0 <= self.margin < 1e6:
            raise ParameterError("counts.margin", self.margin, "from 0 to 1e6")
        if type(self.most_halts) not in (int, float) or not 0 <= self.most_halts <= 1:
            raise ParameterError("counts.most_halts", self.most_halts, "from 0 to 1")
        if bool(self.every) != bool(self.errors or self.halts):
            expected = "given together with counts.errors or counts.halts, and only then"
            raise ParameterError("counts.every", self.every, expected)
        if self.patience and not self.errors:
            raise ParameterError("counts.errors", self.errors, "above 0, for counts.patience")
        if bool(self.most_halts) != bool(self.halts):
            raise ParameterError("counts.halts", self.halts, "given together with most_halts")


def choose(owner: object, table: str, name: str, choices: type[StrEnum]) -> None:
    """Make a choice of a text; the text alone would compare equal and be something else."""
    value = getattr(owner, name)
    if value not in list(choices):
        shown = f"{table}.{name}" if table else name
        raise ParameterError(shown, value, " or ".join(choices))
    object.__setattr__(owner, name, choices(value))


# What to train, of whose examples, and under which promise: everything but seed and processes.

LEAST_CLIP, LARGEST_CLIP = 1e-250, 1e250  #: such that there is a grid fine enough for it


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingScenario:
    """Everything that a training depends on, except its seed and its processes.

    Raises:
        ParameterError: a field is outside its range.

    >>> TrainingScenario(name="first", budget=40, steps=80).algorithm
    <Algorithm.FILTERED_GD: 'filtered-gd'>
    """

    name: str  #: 1 to 200 printable characters
    kind: str = TRAINING
    title: str = ""  #: one line for a list of scenarios
    algorithm: Algorithm = Algorithm.FILTERED_GD
    epsilon: float = 1.0  #: of the promise, all reserved budgets included; nats, > 0
    delta: float = 1e-5  #: of the promise; in (0, 1)
    measure: Measure = Measure.GDP  #: currency of charges and budget
    view: View = View.AGGREGATE  #: what the adversary of the promise sees
    clip: float = 1.0  #: C, ℓ₂ radius of one person's gradient; 1e-250 to 1e250
    budget: int = 40  #: k: gradients of the length C that one device can afford; >= 1
    steps: int = 40  #: k_max: the most steps; private-gd has at most `budget`
    minimum_cohort: int = 0  #: fewest reports that may be released; 0: everyone's
    dishonest: int = 0  #: how many of those may add no noise
    arithmetic: Arithmetic = Arithmetic.GRID
    noise: Noise = Noise.SHARES  #: every device its own, or all of it in one draw (cohort only)
    shuffle: bool = True  #: people are dealt to devices at random
    data: Source = field(default_factory=Source)
    model: Learner = field(default_factory=Learner)
    features: Mapping[str, Any] = field(default_factory=dict, hash=False)  #: `map` and its fields
    optimiser: Descent = field(default_factory=Descent)
    average: Averages = field(default_factory=Averages)
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        check_text("name", self.name, longest=200)
        if self.title != "":
            check_text("title", self.title, longest=1000)
        if self.kind != TRAINING:
            raise ParameterError("kind", self.kind, "training; demur simulate runs the others")
        for name, choices in _CHOICES.items():
            choose(self, "", name, choices)
        for name in ("epsilon", "clip"):
            check_positive(name, getattr(self, name))
            object.__setattr__(self, name, float(getattr(self, name)))
        if not LEAST_CLIP <= self.clip <= LARGEST_CLIP:
            raise ParameterError("clip", self.clip, f"from {LEAST_CLIP:g} to {LARGEST_CLIP:g}")
        if not isinstance(self.delta, float) or not 0 < self.delta < 1:
            raise ParameterError("delta", self.delta, "between 0 and 1, both excluded")
        check_integer("budget", self.budget, 1, 1 << 53)
        check_integer("steps", self.steps, 1, MOST_STEPS)
        if self.algorithm is Algorithm.PRIVATE_GD and self.steps > self.budget:
            expected = f"at most the budget, {self.budget}, in private-gd"
            raise ParameterError("steps", self.steps, expected)
        check_integer("minimum_cohort", self.minimum_cohort, 0, MOST_DEVICES)
        check_integer("dishonest", self.dishonest, 0, (self.minimum_cohort or MOST_DEVICES) - 1)
        if not isinstance(self.shuffle, bool):
            raise ParameterError("shuffle", self.shuffle, "true or false")
        if self.counts.every > self.steps:
            raise ParameterError("counts.every", self.counts.every, f"at most {self.steps}, steps")
        for name, part in _PARTS.items():
            if not isinstance(getattr(self, name), part):
                raise ParameterError(name, getattr(self, name), f"a {part.__name__}")
        object.__setattr__(self, "features", _features(self.features))

    @property
    def policy(self) -> Policy:
        """Of the filters: private-gd never needs to shrink, filtered-gd shrinks."""
        return Policy.CLIP if self.algorithm is Algorithm.FILTERED_GD else Policy.SKIP

    def settings(self) -> dict[str, str]:
        """All of it as texts by dotted name, for a checkpoint."""
        texts: dict[str, str] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in _PARTS:
                for each in fields(value):
                    texts[f"{item.name}.{each.name}"] = str(getattr(value, each.name))
            elif item.name == "features":
                texts |= {f"features.{name}": str(each) for name, each in value.items()}
            elif item.name != "title":
                texts[item.name] = str(value)
        return texts


_PARTS: Mapping[str, type] = {
    "data": Source,
    "model": Learner,
    "optimiser": Descent,
    "average": Averages,
    "counts": Counts,
}
_CHOICES: Mapping[str, type[StrEnum]] = {
    "algorithm": Algorithm,
    "measure": Measure,
    "view": View,
    "arithmetic": Arithmetic,
    "noise": Noise,
}
_PLAIN = [item for item in fields(TrainingScenario) if item.name not in (*_PARTS, "features")]
_INNER = [(name, item) for name, part in _PARTS.items() for item in fields(part)]
_KEYS = [item.name for item in _PLAIN]
_KEYS += [*(f"{name}.{item.name}" for name, item in _INNER), "features.*"]
_NUMERIC = [item.name for item in _PLAIN if isinstance(item.default, int | float)]
_NUMERIC += [f"{name}.{item.name}" for name, item in _INNER if item.type in (int, float)]
_NUMERIC += ["optimiser.last_rate"]
_PATHS = ("data.source", "data.folder", "data.test", "data.labels", "data.test_labels")


def list_training_scenarios() -> list[tuple[str, str]]:
    """Name and title of every shipped scenario that trains, by name."""
    return [(name, load_training(name).title) for name in shipped_of(training=True)]


def load_training(name_or_path: str | Path, *, overrides: Sequence[str] = ()) -> TrainingScenario:
    """A shipped training scenario by its name, or one's own from a TOML file.

    The file holds the fields of `TrainingScenario` as keys, those of its parts in tables; what it
    leaves out has its default. Relative paths start from the folder of the file.

    Args:
        name_or_path: a name that `list_training_scenarios` knows, or a path.
        overrides: texts `key=value` that replace what the file says, as in `optimiser.rate=2`.
            Relative paths in them start from the current folder.

    Raises:
        ParameterError: there is no such scenario or key, it is of another kind, or a value is
            outside its range.
        DataError: the file cannot be read, or is not TOML.
    """
    written = read_table(name_or_path, training=True)
    if written.get("kind") != TRAINING:
        raise ParameterError(
            f"kind in {name_or_path}",
            written.get("kind", "left out"),
            "training; demur simulate runs the others",
        )
    table = flattened(written, known=_KEYS, where=str(name_or_path))
    for name in _PATHS:
        named = name == "data.source" and table.get(name) in (DIGITS, MNIST)
        if isinstance(table.get(name), str) and not named:
            table[name] = str(Path(name_or_path).parent / table[name])
    replaced = overridden(overrides, known=_KEYS, numeric=_NUMERIC)
    table |= replaced
    with placed(name_or_path, replaced=replaced):
        if "name" not in table:
            raise ParameterError("name", None, "given")
        return TrainingScenario(
            **{key: value for key, value in table.items() if "." not in key},
            features=inside("features", table),
            **{name: part(**inside(name, table)) for name, part in _PARTS.items()},
        )


def _features(given: Mapping[str, Any]) -> dict[str, Any]:
    """A copy, with a known map and fields that it has; their values are the map's to check."""
    if not isinstance(given, Mapping):
        raise ParameterError("features", given, "a table")
    if not given:
        return {}
    name = given.get("map")
    if not isinstance(name, str) or name not in FEATURES:
        raise ParameterError("features.map", name, " or ".join(FEATURES))
    known = {"map", *(item.name for item in fields(FEATURES[name]))} - {"height", "width"}
    for key in given:
        if key not in known:
            raise ParameterError("features", key, f"one of {', '.join(sorted(known))}")
    return dict(given)
