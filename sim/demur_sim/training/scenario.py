"""What to train, of whose examples, and under which promise: everything but seed and processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from demur_proto.checks import check_integer, check_positive, check_text
from demur_proto.errors import ParameterError
from demur_proto.models.definition import FEATURES
from demur_proto.study import Measure, Policy, View
from demur_server.training.optimisers import MOST_STEPS
from demur_sim.populations import MOST_DEVICES
from demur_sim.sampling import Noise
from demur_sim.scenario_tables import (
    TRAINING,
    flattened,
    inside,
    overridden,
    placed,
    read_table,
    shipped_of,
)
from demur_sim.training.scenario_parts import (
    DIGITS,
    MNIST,
    Algorithm,
    Arithmetic,
    Averages,
    Counts,
    Descent,
    Learner,
    Source,
    choose,
)

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
