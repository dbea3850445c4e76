"""Cross-entropy of scores, the loss of every classifier here."""

from dataclasses import dataclass

import numpy as np

from demur_proto.arrays import Flags, Integers, Values, Vector
from demur_proto.checks import check_integer
from demur_proto.models.base import MOST_PARAMETERS, Examples, Inputs, as_doubles, check_sizes
from demur_proto.models.layers import Layer, affine, clipped_gradient_sum, gradient_rows, rows_times


def slopes(scores: Values, labels: Integers) -> Values:
    """The derivative of each example's loss by its scores [m, classes].

        loss = −ln p_label,  p = softmax(scores),  ∂loss/∂scores = p − e_label

    Examples whose label is no class have no loss: their rows are NaN.

    Args:
        scores: [m, classes]; any.
        labels: [m]; any.

    >>> slopes(np.zeros((2, 2)), np.array([1, 7]))
    array([[ 0.5, -0.5],
           [ nan,  nan]])
    """
    with np.errstate(all="ignore"):
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        found: Values = powers / powers.sum(axis=1, keepdims=True)
    known = np.flatnonzero((labels >= 0) & (labels < scores.shape[1]))
    found[known, labels[known]] -= 1
    found[(labels < 0) | (labels >= scores.shape[1])] = np.nan
    return found


def best(scores: Values) -> Integers:
    """The class with the highest score [m], the first of equals.

    >>> best(np.array([[0.0, 2.0, 2.0]]))
    array([1])
    """
    classes: Integers = np.argmax(scores, axis=1)
    return classes


def wrong(scores: Values, labels: Integers) -> Flags:
    """Whether the label of an example is not its best class [m]; where a score is NaN, it is not.

    >>> wrong(np.array([[0.0, 2.0], [0.0, 2.0], [np.nan, 0.0]]), np.array([1, 0, 0]))
    array([False,  True,  True])
    """
    flags: Flags = (best(scores) != labels) | np.isnan(scores).any(axis=1)
    return flags


# Softmax regression: a linear classifier.


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


# A network with one hidden layer.


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
