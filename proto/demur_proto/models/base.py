"""Labelled examples, and which person owns which of them."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from demur_proto.arrays import Flags, Integers, Values, Vector
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError

Inputs = (
    np.ndarray[tuple[int, int], np.dtype[np.float64]]
    | np.ndarray[tuple[int, int], np.dtype[np.float32]]
)
"""Shape [m, inputs]; single precision halves the memory, and all arithmetic is in double."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Examples:
    """What n people have to learn from: m flat inputs with a label each, person after person.

    Person i owns the rows people[i] to people[i + 1], the latter excluded, and may own none. Numbers
    that are not finite and labels that are no class are not refused here, nor anywhere on a device:
    an error of this kind is a fact about its owner, and becomes a gradient that is not finite.

    Raises:
        ParameterError: the arrays do not fit together.

    >>> two = Examples(
    ...     inputs=np.zeros((3, 4)), labels=np.array([1, 0, 1]), people=np.array([0, 1, 3]))
    >>> two.number_of_people, two.sizes.tolist()
    (2, [1, 2])
    """

    inputs: Inputs = field(repr=False)  #: [m, inputs]
    labels: Integers = field(repr=False)  #: [m], 0 to classes − 1
    people: Integers = field(repr=False)  #: [n + 1], from 0 to m, never falling

    def __post_init__(self) -> None:
        if self.inputs.ndim != 2 or self.inputs.dtype not in (np.float32, np.float64):
            expected = "floats of shape [m, inputs]"
            raise ParameterError("inputs", (str(self.inputs.dtype), self.inputs.shape), expected)
        rows = len(self.inputs)
        if self.labels.shape != (rows,) or self.labels.dtype != np.int64:
            expected = f"int64 of shape [{rows}], one for each input"
            raise ParameterError("labels", (str(self.labels.dtype), self.labels.shape), expected)
        check_people(self.people, rows)

    @classmethod
    def one_each(cls, inputs: Inputs, labels: Integers) -> "Examples":
        """One example for each person.

        >>> Examples.one_each(np.zeros((3, 4)), np.array([1, 0, 1])).sizes.tolist()
        [1, 1, 1]
        """
        return cls(inputs=inputs, labels=labels, people=np.arange(len(inputs) + 1))

    @property
    def number_of_people(self) -> int:
        """How many people there are, n, those without examples included."""
        return len(self.people) - 1

    @property
    def sizes(self) -> Integers:
        """How many examples each person owns [n]. Secret."""
        return np.diff(self.people)

    def of_people(self, start: int, stop: int) -> "Examples":
        """The people start to stop, the latter excluded, with what they own; nothing is copied.

        Raises:
            ParameterError: there are no such people.

        >>> Examples.one_each(np.zeros((3, 4)), np.array([1, 0, 1])).of_people(1, 3).labels
        array([0, 1])
        """
        for name, value, low in (("start", start, 0), ("stop", stop, start)):
            if type(value) is not int or not low <= value <= self.number_of_people:
                expected = f"an integer from {low} to {self.number_of_people}"
                raise ParameterError(name, value, expected)
        people = self.people[start : stop + 1]
        rows = slice(int(people[0]), int(people[-1]))
        return Examples(
            inputs=self.inputs[rows], labels=self.labels[rows], people=people - people[0]
        )


def check_people(people: Integers, rows: int) -> None:
    """Refuse what does not say who owns which of so many rows.

    >>> check_people(np.array([0, 2, 2, 5]), 5)
    """
    fits = people.ndim == 1 and len(people) >= 1 and people.dtype == np.int64
    if not fits or people[0] != 0 or people[-1] != rows or (people[1:] < people[:-1]).any():
        shown = (str(people.dtype), people.shape)
        raise ParameterError("people", shown, f"int64 offsets that rise from 0 to {rows}")


# What every model is: a description without parameters, and what can be done with parameters θ.

MOST_PARAMETERS = 1 << 18  #: d; a report of hardly fewer int32 words fills a message
MOST_INPUTS = 1 << 15  #: of one example
MOST_CLASSES = 1 << 12


class Model(Protocol):
    """A classifier that learns by cross-entropy. Frozen, and the same on both sides.

    Nothing here depends on the number of threads. A row that comes out for one person is of that
    person's examples alone; its last bits may depend on where it stands among the others, so whoever
    wants the same bits twice computes the same blocks of people twice.
    """

    @property
    def parameters(self) -> int:
        """How many numbers θ is, d."""

    @property
    def inputs(self) -> int:
        """How many numbers one example is."""

    @property
    def classes(self) -> int:
        """How many labels there are, 0 to classes − 1."""

    def initial(self, rng: np.random.Generator) -> Vector:
        """θ [d] to start from. Public."""

    def gradients(self, theta: Vector, examples: Examples) -> Values:
        """The gradient of every person's mean loss by θ [n, d]; zero for who has no example.

        A row is not finite where an input or a score is not, or a label is no class.

        Raises:
            ParameterError: θ or the examples are those of a model of another size.
        """

    def clipped_sum(
        self, theta: Vector, examples: Examples, radii: Vector
    ) -> tuple[Vector, Vector, Vector]:
        """Those gradients, each clipped to its own ℓ₂ radius, and added up.

        Args:
            theta: θ [d].
            examples: of n people.
            radii: [n]; ≥ 0, infinite for no clip.

        Returns:
            the sum [d]; the norms [n], rounded upwards; and the norms after clipping [n]. Where a
            squared norm is no finite number nothing is added: the norm is NaN, and 0 after clipping.

        Raises:
            ParameterError: θ or the examples are those of a model of another size; the radii are
                not n numbers ≥ 0.
        """

    def predict(self, theta: Vector, inputs: Inputs) -> Integers:
        """The likeliest class of every example [m].

        Raises:
            ParameterError: θ or the inputs are those of a model of another size.
        """

    def errors(self, theta: Vector, inputs: Inputs, labels: Integers) -> Flags:
        """Which examples are predicted wrongly [m]; all that have no prediction are.

        Raises:
            ParameterError: θ or the inputs are those of a model of another size.
        """


def check_sizes(parameters: int, *, inputs: int, classes: int) -> None:
    """Refuse a model too large to be asked for.

    >>> check_sizes(7850, inputs=784, classes=10)
    """
    check_integer("inputs", inputs, 1, MOST_INPUTS)
    check_integer("classes", classes, 2, MOST_CLASSES)
    check_integer("parameters", parameters, 1, MOST_PARAMETERS)


def as_doubles(model: Model, theta: Vector, inputs: Inputs) -> Values:
    """The inputs [m, inputs] in double precision, once θ and they fit the model.

    Raises:
        ParameterError: one does not.
    """
    if theta.shape != (model.parameters,) or theta.dtype != np.float64:
        shown = (str(theta.dtype), theta.shape)
        raise ParameterError("theta", shown, f"float64 of shape [{model.parameters}]")
    if inputs.ndim != 2 or inputs.shape[1] != model.inputs:
        raise ParameterError("inputs", inputs.shape, f"of shape [m, {model.inputs}]")
    return inputs.astype(np.float64, copy=False)
