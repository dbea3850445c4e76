"""What computes with a model in a simulation: what devices have, and modules of torch."""

import threading
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from demur_proto.arrays import Integers, Values
from demur_proto.errors import ParameterError
from demur_proto.models.base import Examples, Model, check_people
from demur_proto.models.definition import Features, ModelDefinition, Module
from demur_proto.models.gradients import inputs_of, model_of
from demur_proto.queries import Feature
from demur_sim.people.populations import bounds
from demur_sim.training.torch_models import TorchModel


@final
class Learners:
    """Finds it by a model's definition. A module of torch is imported once; safe under threads."""

    def __init__(self) -> None:
        self._modules: dict[Module, TorchModel] = {}
        self._lock = threading.Lock()

    def of(self, definition: ModelDefinition) -> Model:
        """What can compute gradients and errors of it.

        Raises:
            UnsupportedError: it is a module of torch, which is not installed.
            ParameterError: there is no such module.
        """
        module = definition.architecture
        if not isinstance(module, Module):
            return model_of(definition)
        with self._lock:
            if module not in self._modules:
                self._modules[module] = TorchModel(module=module)
            return self._modules[module]


# People who own labelled examples: what gradients are taken of.


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LabelledPeople:
    """People with examples, which no feature tells about: they answer gradient rounds only.

    Raises:
        ParameterError: the arrays do not fit together.

    >>> two = LabelledPeople(
    ...     data=np.zeros((3, 4)), labels=np.array([1, 0, 1]), people=np.array([0, 1, 3]))
    >>> two.examples(None, slice(1, 2)).labels.tolist()
    [0, 1]
    """

    data: npt.NDArray[np.generic]  #: [m, inputs], or images [m, height, width]
    labels: Integers  #: [m], 0 to classes − 1
    people: Integers  #: [n + 1]: person i owns the examples from people[i] to people[i + 1]

    def __post_init__(self) -> None:
        if self.data.ndim not in (2, 3) or self.data.dtype.kind not in "uif":
            shown = f"{self.data.dtype} {self.data.shape}"
            raise ParameterError(
                "data", shown, "numbers of shape [m, inputs] or [m, height, width]"
            )
        rows = len(self.data)
        if self.labels.shape != (rows,) or self.labels.dtype != np.int64:
            shown = f"{self.labels.dtype} {self.labels.shape}"
            raise ParameterError("labels", shown, f"int64 of shape [{rows}], one for each example")
        check_people(self.people, rows)

    def __repr__(self) -> str:
        return f"LabelledPeople(devices={self.devices})"

    @classmethod
    def one_each(cls, data: npt.NDArray[np.generic], labels: Integers) -> "LabelledPeople":
        """One example for each person."""
        return cls(data=data, labels=labels, people=np.arange(len(data) + 1))

    @property
    def devices(self) -> int:
        """How many devices there are, those without an example included."""
        return len(self.people) - 1

    @property
    def periods(self) -> int:
        """One: examples do not change."""
        return 1

    @property
    def features(self) -> tuple[str, ...]:
        """None."""
        return ()

    def evaluate(self, feature: Feature, devices: slice) -> Values:
        """Refuse.

        Raises:
            ParameterError: always.
        """
        raise ParameterError("feature", feature.name, "asked of other people: these have examples")

    def examples(self, features: Features | None, devices: slice) -> Examples:
        """What a block of people can learn from, through a feature map.

        Raises:
            ParameterError: the examples do not fit the map.
        """
        first, stop = bounds(devices, self.devices)
        people = self.people[first : stop + 1]
        rows = slice(int(people[0]), int(people[-1]))
        return Examples(
            inputs=inputs_of(features, self.data[rows]),
            labels=self.labels[rows],
            people=people - people[0],
        )

    def part(self, devices: slice) -> "LabelledPeople":
        """A piece with only these devices, numbered from 0 again."""
        first, stop = bounds(devices, self.devices)
        people = self.people[first : stop + 1]
        rows = slice(int(people[0]), int(people[-1]))
        return LabelledPeople(
            data=self.data[rows], labels=self.labels[rows], people=people - people[0]
        )

    def shuffled(self, rng: np.random.Generator) -> "LabelledPeople":
        """The same people, dealt to the devices in random order."""
        owner = np.argsort(rng.permutation(self.devices), kind="stable")  # of each device
        sizes = np.diff(self.people)[owner]
        people = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        offset = np.arange(len(self.data)) - np.repeat(people[:-1], sizes)
        rows = np.repeat(self.people[:-1][owner], sizes) + offset
        return LabelledPeople(data=self.data[rows], labels=self.labels[rows], people=people)


@final
class PersonExamples:
    """One of these people, as a real device's example source."""

    def __init__(self, people: LabelledPeople, index: int) -> None:
        self._one = people.part(slice(index, index + 1))

    def examples(self) -> tuple[npt.NDArray[np.generic], Integers]:
        """All that this person owns."""
        return self._one.data, self._one.labels
