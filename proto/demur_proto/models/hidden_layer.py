"""A network with one hidden layer."""

from dataclasses import dataclass

import numpy as np

from demur_proto.arrays import Flags, Integers, Values, Vector
from demur_proto.checks import check_integer
from demur_proto.models.base import MOST_PARAMETERS, as_doubles, check_sizes
from demur_proto.models.cross_entropy import best, slopes, wrong
from demur_proto.models.examples import Examples, Inputs
from demur_proto.models.layers import Layer, affine, clipped_gradient_sum, gradient_rows
from demur_proto.models.products import rows_times


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenLayer:
    """Scores tanh(xW + b)V + c, with W [inputs, hidden] and V [hidden, classes].

    θ is W row by row, then b, V row by row, then c.

    Raises:
        ParameterError: a field is outside its range, or there are more than 2^18 parameters.

    >>> model = HiddenLayer(inputs=784, hidden=32, classes=10)
    >>> model.parameters
    25450

    With V = 0 both classes are equally likely, nothing reaches W, and V's part is tanh(1)(½, −½):

    >>> tiny = HiddenLayer(inputs=1, hidden=1, classes=2)
    >>> one = Examples.one_each(np.array([[1.0]]), np.array([1]))
    >>> tiny.gradients(np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0]), one).round(4)
    array([[ 0.    ,  0.    ,  0.3808, -0.3808,  0.5   , -0.5   ]])
    """

    inputs: int  #: numbers of one example; 1 to 2^15
    hidden: int  #: units of the hidden layer; >= 1
    classes: int  #: labels; 2 to 2^12

    def __post_init__(self) -> None:
        check_sizes(1, inputs=self.inputs, classes=self.classes)
        check_integer("hidden", self.hidden, 1, MOST_PARAMETERS)
        check_sizes(self.parameters, inputs=self.inputs, classes=self.classes)

    @property
    def parameters(self) -> int:
        """How many numbers θ is."""
        return self._first + (self.hidden + 1) * self.classes

    @property
    def bytes_each(self) -> int:
        """The most bytes that `gradients` and `errors` take for one example of one person.

        The input in double precision and once more in its owner's order, hidden units and what comes
        back to them at most five times, scores or slopes four times, and what says whose example it is.
        """
        return 8 * (2 * self.inputs + 5 * self.hidden + 4 * self.classes + 16)

    def initial(self, rng: np.random.Generator) -> Vector:
        """θ to start from: W from N(0, 1/inputs) and V from N(0, 1/hidden), b and c zero. Public.

        So the hidden units differ, and none saturates on inputs around 1.
        """
        parts = []
        for inputs, outputs in ((self.inputs, self.hidden), (self.hidden, self.classes)):
            parts += [rng.normal(scale=inputs**-0.5, size=inputs * outputs), np.zeros(outputs)]
        return np.concatenate(parts)

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
        return best(self._scores(theta, as_doubles(self, theta, inputs))[1])

    def errors(self, theta: Vector, inputs: Inputs, labels: Integers) -> Flags:
        """Which examples are predicted wrongly [m]."""
        return wrong(self._scores(theta, as_doubles(self, theta, inputs))[1], labels)

    @property
    def _first(self) -> int:
        """Parameters of the first layer."""
        return (self.inputs + 1) * self.hidden

    def _layers(self, theta: Vector, examples: Examples) -> list[Layer]:
        inputs = as_doubles(self, theta, examples.inputs)
        units, scores = self._scores(theta, inputs)
        back = slopes(scores, examples.labels)
        weights = theta[self._first : -self.classes].reshape(self.hidden, self.classes)
        with np.errstate(all="ignore"):
            # tanh′ = 1 − tanh²
            through = rows_times(back, weights.T) * (1 - units * units)
        return [Layer(inputs, through), Layer(units, back)]

    def _scores(self, theta: Vector, inputs: Values) -> tuple[Values, Values]:
        """What the hidden units say [m, hidden], and the scores [m, classes]."""
        with np.errstate(all="ignore"):
            units = np.tanh(affine(theta[: self._first], inputs, outputs=self.hidden))
            return units, affine(theta[self._first :], units, outputs=self.classes)
