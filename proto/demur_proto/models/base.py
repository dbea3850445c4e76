"""What every model is: a description without parameters, and what can be done with parameters θ."""

from typing import Protocol

import numpy as np

from demur_proto.arrays import Flags, Integers, Values, Vector
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.models.examples import Examples, Inputs

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
