"""Labelled data: what a classifier learns from, and what it is tested on."""

from dataclasses import dataclass, field

import numpy as np

from demur_proto.arrays import Integers
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.models.base import MOST_CLASSES
from demur_proto.models.examples import Inputs
from demur_proto.models.features import FeatureMap

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Labelled:
    """Some examples with their labels.

    Raises:
        ParameterError: the arrays do not fit together.

    >>> Labelled(examples=np.zeros((3, 28, 28)), labels=np.array([5, 0, 4])).number
    3
    """

    examples: Array = field(repr=False)  #: flat inputs [m, inputs], or images [m, height, width]
    labels: Integers = field(repr=False)  #: [m], 0 or above

    def __post_init__(self) -> None:
        if self.examples.ndim not in (2, 3) or self.examples.dtype.kind not in "uif":
            shown = (str(self.examples.dtype), self.examples.shape)
            raise ParameterError("examples", shown, "numbers of shape [m, inputs] or [m, h, w]")
        if self.labels.shape != (len(self.examples),) or self.labels.dtype != np.int64:
            shown = (str(self.labels.dtype), self.labels.shape)
            raise ParameterError("labels", shown, f"int64 of shape [{len(self.examples)}]")
        low = int(self.labels.min(initial=0))
        if low < 0:
            raise ParameterError("labels", low, "0 or above")

    @classmethod
    def of(cls, examples: Array, labels: Array) -> "Labelled":
        """With labels of any type of integers.

        Raises:
            ParameterError: the labels are no integers, or the arrays do not fit together.

        >>> Labelled.of(np.zeros((1, 2)), np.array([3], dtype=np.uint8)).labels
        array([3])
        """
        if labels.dtype.kind not in "ui" or labels.ndim != 1:
            raise ParameterError("labels", (str(labels.dtype), labels.shape), "integers [m]")
        flat: Integers = labels.reshape(-1).astype(np.int64)
        return cls(examples=examples, labels=flat)

    @property
    def number(self) -> int:
        """How many examples there are, m."""
        return len(self.examples)

    def inputs(self, features: FeatureMap | None = None) -> Inputs:
        """What a model sees of them [m, inputs]: features of images, or flat inputs as they are.

        Raises:
            ParameterError: images without a feature map, or a map for others.

        >>> flat = Labelled(examples=np.array([[1, 2]]), labels=np.array([0]))
        >>> flat.inputs()
        array([[1., 2.]])
        """
        if features is not None:
            return features.of(self.examples)  # type: ignore[arg-type]  # the map looks itself
        if self.examples.ndim != 2:
            raise ParameterError("features", features, "a feature map, for images")
        kept = np.float32 if self.examples.dtype == np.float32 else np.float64
        inputs: Inputs = self.examples.astype(kept, copy=False)  # type: ignore[assignment]
        return inputs

    def split(self, held_out: int, rng: np.random.Generator) -> tuple["Labelled", "Labelled"]:
        """All but so many of them, and those, drawn at random; each part in the order they came.

        Raises:
            ParameterError: there are fewer.

        >>> all_of_it = Labelled(examples=np.eye(3), labels=np.array([0, 1, 2]))
        >>> [part.number for part in all_of_it.split(1, np.random.default_rng(1))]
        [2, 1]
        """
        check_integer("held_out", held_out, 0, self.number)
        out = np.zeros(self.number, dtype=bool)
        out[rng.permutation(self.number)[:held_out]] = True
        kept, held = (
            Labelled(examples=self.examples[which], labels=self.labels[which])
            for which in (~out, out)
        )
        return kept, held


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelledData:
    """Examples to learn from and examples to test on. No label of either is outside the classes.

    Raises:
        ParameterError: the two do not fit together, or a label is out of range.
    """

    name: str
    train: Labelled
    test: Labelled
    classes: int  #: labels, 0 to classes − 1; 2 to 2^12

    def __post_init__(self) -> None:
        check_integer("classes", self.classes, 2, MOST_CLASSES)
        if self.train.examples.shape[1:] != self.test.examples.shape[1:]:
            shape = list(self.train.examples.shape[1:])
            raise ParameterError(
                "test", list(self.test.examples.shape[1:]), f"examples of shape {shape} as in train"
            )
        for name, part in (("train", self.train), ("test", self.test)):
            high = int(part.labels.max(initial=0))
            if high >= self.classes:
                expected = f"from 0 to {self.classes - 1}"
                raise ParameterError(f"labels of {name}", high, expected)

    @classmethod
    def of(cls, name: str, train: Labelled, test: Labelled) -> "LabelledData":
        """With as many classes as the labels to learn from need.

        >>> some = Labelled(examples=np.zeros((2, 3)), labels=np.array([0, 4]))
        >>> LabelledData.of("mine", some, some).classes
        5
        """
        classes = int(train.labels.max(initial=1)) + 1
        return cls(name=name, train=train, test=test, classes=classes)
