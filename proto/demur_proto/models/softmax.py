"""Softmax regression: a linear classifier."""

from dataclasses import dataclass

import numpy as np

from demur_proto.arrays import Flags, Integers, Values, Vector
from demur_proto.models.base import as_doubles, check_sizes
from demur_proto.models.cross_entropy import best, slopes, wrong
from demur_proto.models.examples import Examples, Inputs
from demur_proto.models.layers import Layer, affine, clipped_gradient_sum, gradient_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax:
    """Scores xW + b, with W [inputs, classes] and b [classes].

    θ is W row by row, then b. Learning starts from zero: the loss is convex.

    Raises:
        ParameterError: a field is outside its range, or there are more than 2^18 parameters.

    At θ = 0 both classes are equally likely, so the slopes are (½, −½) for an example of class 1:

    >>> model = Softmax(inputs=2, classes=2)
    >>> one = Examples.one_each(np.array([[3.0, 1.0]]), np.array([1]))
    >>> model.gradients(np.zeros(6), one)
    array([[ 1.5, -1.5,  0.5, -0.5,  0.5, -0.5]])
    """

    inputs: int  #: numbers of one example; 1 to 2^15
    classes: int  #: labels; 2 to 2^12

    def __post_init__(self) -> None:
        check_sizes(1, inputs=self.inputs, classes=self.classes)
        check_sizes(self.parameters, inputs=self.inputs, classes=self.classes)

    @property
    def parameters(self) -> int:
        """How many numbers θ is, (inputs + 1) classes."""
        return (self.inputs + 1) * self.classes

    @property
    def bytes_each(self) -> int:
        """The most bytes that `gradients` and `errors` take for one example of one person.

        The input in double precision and once more in its owner's order, scores or slopes at most four
        times, and what says whose example it is.
        """
        return 8 * (2 * self.inputs + 4 * self.classes + 16)

    def initial(self, rng: np.random.Generator) -> Vector:
        """θ to start from, zero; nothing is drawn."""
        return np.zeros(self.parameters)

    def gradients(self, theta: Vector, examples: Examples) -> Values:
        """Every person's gradient [n, d]; see `Model`."""
        with np.errstate(all="ignore"):
            return gradient_rows(self._layers(theta, examples), examples.people)

    def clipped_sum(
        self, theta: Vector, examples: Examples, radii: Vector
    ) -> tuple[Vector, Vector, Vector]:
        """The sum of clipped gradients [d], their norms [n], before and after; see `Model`."""
        return clipped_gradient_sum(self._layers(theta, examples), examples.people, radii)

    def predict(self, theta: Vector, inputs: Inputs) -> Integers:
        """The likeliest class of every example [m]."""
        return best(self._scores(theta, as_doubles(self, theta, inputs)))

    def errors(self, theta: Vector, inputs: Inputs, labels: Integers) -> Flags:
        """Which examples are predicted wrongly [m]."""
        return wrong(self._scores(theta, as_doubles(self, theta, inputs)), labels)

    def _layers(self, theta: Vector, examples: Examples) -> list[Layer]:
        inputs = as_doubles(self, theta, examples.inputs)
        return [Layer(inputs, slopes(self._scores(theta, inputs), examples.labels))]

    def _scores(self, theta: Vector, inputs: Values) -> Values:
        with np.errstate(all="ignore"):
            return affine(theta, inputs, outputs=self.classes)
