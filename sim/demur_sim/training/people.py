"""From a training scenario to people with examples, a model, and what it is tested on."""

import hashlib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from demur_proto.arrays import Integers, Values, Vector
from demur_proto.errors import DataError, ParameterError
from demur_proto.models.architectures import HiddenLayer, Softmax
from demur_proto.models.base import Model
from demur_proto.models.definition import FEATURES, Architecture, Features, ModelDefinition
from demur_server.training.optimisers import (
    Adam,
    Averaging,
    ExponentialAverage,
    HaltThreshold,
    Last,
    Momentum,
    Optimiser,
    Plateau,
    Rate,
    Sgd,
    TailAverage,
)
from demur_server.training.trainer import Settings
from demur_sim.datasets.digits import load_digits, load_mnist
from demur_sim.datasets.labelled import (
    Array,
    Labelled,
    LabelledData,
    deal_equally,
    deal_skewed,
    read_labelled_csv,
    read_labelled_idx,
    read_labelled_npz,
)
from demur_sim.engine.sampling import Purpose, stream
from demur_sim.people.labelled import LabelledPeople, Learners
from demur_sim.training.scenario import (
    DIGITS,
    MNIST,
    NPZ,
    Average,
    Kind,
    Net,
    Source,
    TrainingScenario,
)
from demur_sim.training.torch_models import module_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """Who learns what, and what it is tested on."""

    people: LabelledPeople = field(repr=False)  #: in the order of the data; not shuffled yet
    architecture: Architecture
    features: Features | None
    inputs: Values = field(repr=False)  #: to test on, as the model sees them [m, inputs]
    labels: Integers = field(repr=False)  #: [m]
    data_sha256: str  #: of all examples to learn from and who owns them
    tests_sha256: str  #: of all examples to test on
    learners: Learners = field(default_factory=Learners, repr=False)

    @property
    def learner(self) -> Model:
        """What computes the gradients."""
        zero = np.zeros(self.architecture.parameters)
        return self.learners.of(
            ModelDefinition(architecture=self.architecture, features=self.features, theta=zero)
        )

    def accuracy(self, theta: Vector) -> float:
        """The share of the examples to test on that a model with these parameters is right about."""
        wrong = self.learner.errors(theta, self.inputs, self.labels)
        return float(np.count_nonzero(~wrong)) / len(wrong)


def task_of(scenario: TrainingScenario) -> Task:
    """Read the data of a scenario, deal them to people, and fit a model to their shape.

    Raises:
        DataError: data cannot be read, are not those whose hash was given, or are not finite.
        ParameterError: the scenario does not fit them, or there is no such module.
        UnsupportedError: its model is a module of torch, which is not installed.
    """
    data = _held_out(_load(scenario.data), scenario.data)
    for name, part in (("train", data.train), ("test", data.test)):
        if part.examples.dtype.kind == "f" and not np.isfinite(part.examples).all():
            raise DataError(f"{data.name}: {name}: expected finite numbers, found others")
        if not part.number:
            raise DataError(f"{data.name}: {name}: expected an example, found none")
    people = _dealt(data.train, scenario.data)
    features = _map_of(scenario, data.train)
    inputs = data.test.inputs(features).astype(np.float64, copy=False)
    if not np.isfinite(inputs).all():
        raise DataError(f"{data.name}: test: expected examples of finite features, found others")
    return Task(
        people=people,
        architecture=_architecture(scenario, inputs=inputs.shape[1], classes=data.classes),
        features=features,
        inputs=inputs,
        labels=data.test.labels,
        data_sha256=_hash_of(people.data, people.labels, people.people),
        tests_sha256=_hash_of(data.test.examples, data.test.labels),
    )


def _load(source: Source) -> LabelledData:
    if source.source == DIGITS:
        return load_digits()
    if source.source == MNIST:
        return load_mnist(source.folder)
    path = Path(source.source)
    if source.sha256 is not None:
        try:
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
        if found != source.sha256:
            raise DataError(f"{path}: expected SHA-256 {source.sha256}, found {found}")
    if source.labels is None and source.source.endswith(NPZ):
        return read_labelled_npz(path)
    train = _read(source, source.source, source.labels)
    if source.test is None:
        return _together(path.stem, train, train.split(0, np.random.default_rng(0))[1])
    return _together(path.stem, train, _read(source, source.test, source.test_labels))


def _read(source: Source, examples: str, labels: str | None) -> Labelled:
    """Examples of a CSV file, or of an IDX file with its labels."""
    if source.is_csv or labels is None:
        return read_labelled_csv(examples, label=source.label)
    return read_labelled_idx(examples, labels)


def _held_out(data: LabelledData, source: Source) -> LabelledData:
    """The data, or the examples to learn from alone, some of which stand for those to test on."""
    if not source.held_out:
        return data
    if source.held_out >= data.train.number:
        expected = f"fewer than the examples, {data.train.number}"
        raise ParameterError("data.held_out", source.held_out, expected)
    train, test = data.train.split(source.held_out, stream(source.seed, Purpose.OWNERS, 1))
    return LabelledData(name=data.name, train=train, test=test, classes=data.classes)


def _together(name: str, train: Labelled, test: Labelled) -> LabelledData:
    try:
        return LabelledData.of(name, train, test)
    except ParameterError as error:
        raise DataError(f"{name}: {error}") from None


def _dealt(train: Labelled, source: Source) -> LabelledPeople:
    rng = stream(source.seed, Purpose.OWNERS, 0)
    if source.alpha:
        deal = deal_skewed(train.labels, per_person=source.per_person, alpha=source.alpha, rng=rng)
    elif source.per_person > 1:
        deal = deal_equally(train.number, per_person=source.per_person, rng=rng)
    else:
        people = LabelledPeople.one_each(train.examples, train.labels)
        return _first(people, source)
    return _first(
        LabelledPeople(
            data=train.examples[deal.order], labels=train.labels[deal.order], people=deal.people
        ),
        source,
    )


def _first(people: LabelledPeople, source: Source) -> LabelledPeople:
    if source.people > people.devices:
        expected = f"at most {people.devices}, all there are"
        raise ParameterError("data.people", source.people, expected)
    return people.part(slice(0, source.people)) if source.people else people


def _map_of(scenario: TrainingScenario, train: Labelled) -> Features | None:
    given: dict[str, Any] = dict(scenario.features)
    images = train.examples.ndim == 3
    if not given:
        if images:
            raise ParameterError("features.map", None, f"{' or '.join(FEATURES)}, for images")
        return None
    if not images:
        raise ParameterError("features.map", given["map"], "left out: examples are no images")
    make = FEATURES[given.pop("map")]
    sizes = dict(zip(("height", "width"), train.examples.shape[1:], strict=True))
    needed = {item.name for item in fields(make)}
    given |= {name: size for name, size in sizes.items() if name in needed}
    try:
        return make(**given)
    except ParameterError as error:
        raise ParameterError(f"features.{error.name}", error.value, error.expected) from None


def _architecture(scenario: TrainingScenario, *, inputs: int, classes: int) -> Architecture:
    if scenario.model.architecture is Net.SOFTMAX:
        return Softmax(inputs=inputs, classes=classes)
    if scenario.model.architecture is Net.MODULE:
        try:
            return module_of(str(scenario.model.module), inputs=inputs, classes=classes)
        except ParameterError as error:
            shown = "model.module" if error.name == "path" else f"{error.name} of model.module"
            raise ParameterError(shown, error.value, error.expected) from None
    return HiddenLayer(inputs=inputs, hidden=scenario.model.hidden, classes=classes)


def _hash_of(data: Array, *integers: Integers) -> str:
    digest = hashlib.sha256(f"{data.dtype.str} {data.shape}".encode())
    for array in (data, *integers):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


# From a training scenario to what the trainer is told.


def settings_of(scenario: TrainingScenario, task: Task) -> Settings:
    """What the trainer is told."""
    counts = scenario.counts
    return Settings(
        architecture=task.architecture,
        features=task.features,
        cohort=task.people.devices,
        steps=scenario.steps,
        optimiser=_optimiser(scenario),
        averaging=_averaging(scenario),
        every=counts.every,
        plateau=Plateau(patience=counts.patience, margin=counts.margin)
        if counts.patience
        else None,
        halt=HaltThreshold(share=counts.most_halts) if counts.most_halts else None,
    )


def _optimiser(scenario: TrainingScenario) -> Optimiser:
    chosen = scenario.optimiser
    rate = Rate(first=chosen.rate, last=chosen.last_rate, steps=scenario.steps)
    if chosen.kind is Kind.SGD:
        return Sgd(rate=rate)
    if chosen.kind is Kind.MOMENTUM:
        return Momentum(rate=rate, momentum=chosen.momentum)
    return Adam(rate=rate, momentum=chosen.momentum, squares=chosen.squares)


def _averaging(scenario: TrainingScenario) -> Averaging:
    chosen = scenario.average
    if chosen.kind is Average.NONE:
        return Last()
    if chosen.kind is Average.EXPONENTIAL:
        return ExponentialAverage(decay=chosen.decay)
    return TailAverage(start=int(chosen.start * scenario.steps) + 1)
