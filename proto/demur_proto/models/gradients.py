"""A person's gradient of a model, and their share of its errors: what a device computes of its examples.

Examples are worked through in batches, whose size follows from the model alone. So the memory that an
evaluation takes has a bound that is public, `working_set`, however many examples a person has.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from demur_proto.arrays import Values, Vector
from demur_proto.errors import ParameterError, UnsupportedError
from demur_proto.models.architectures import HiddenLayer, Softmax
from demur_proto.models.base import Examples, Inputs, Model
from demur_proto.models.definition import Features, ModelDefinition, Module
from demur_proto.models.features import pieces
from demur_proto.models.layers import MOST_MULTIPLICATIONS

BATCH_BYTES = 1 << 25  #: 32 MiB, what is made of the examples of a batch, unless one takes more

_DOUBLE = 8  # bytes
_SINGLE = 4  # bytes
_SMALL = 1 << 18  # bytes; objects, small arrays and the interpreter's own


def model_of(definition: ModelDefinition) -> Softmax | HiddenLayer:
    """What can compute gradients.

    Raises:
        UnsupportedError: a module by its path, of which this version computes none.
    """
    if isinstance(definition.architecture, Module):
        raise UnsupportedError(
            f"the module {definition.architecture.path} is not supported by this version"
        )
    return definition.architecture


def inputs_of(features: Features | None, data: npt.ArrayLike) -> Inputs:
    """Examples as the model wants them [k, inputs]: images through its feature map, others as given.

    >>> inputs_of(None, [[1, 2], [3, 4]]).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    given: Any = np.asarray(data)
    if features is not None:
        return features.of(given)
    flat: Inputs = given if given.dtype == np.float32 else given.astype(np.float64, copy=False)
    return flat


def person_gradient(
    definition: ModelDefinition, data: npt.ArrayLike, labels: npt.ArrayLike
) -> Values:
    """The gradient [1, d] of the mean loss over one person's examples; zero without any.

    Args:
        definition: the model at its parameters.
        data: the examples [k, …], as `inputs_of` takes them.
        labels: [k] integers, 0 to classes − 1. One that is no class makes the gradient NaN.

    Raises:
        ParameterError: the examples do not fit the model.
        UnsupportedError: as `model_of`.

    >>> even = ModelDefinition(architecture=Softmax(inputs=1, classes=2), theta=np.zeros(4))
    >>> person_gradient(even, [[2.0]], [1]).tolist()
    [[1.0, -1.0, 0.5, -0.5]]
    """
    model = model_of(definition)
    given, answers = _checked(definition, model, data, labels)
    number, size = len(answers), _examples_at_once(definition, model)
    if 0 < number <= size:
        return model.gradients(definition.theta, _owned(definition, given, answers))
    gradient: Values = np.zeros((1, model.parameters))
    for some in pieces(number, size):
        mine = _owned(definition, given[some], answers[some])
        with np.errstate(all="ignore"):
            gradient += model.gradients(definition.theta, mine) * (len(mine.labels) / number)
    return gradient


def person_error_share(
    definition: ModelDefinition, data: npt.ArrayLike, labels: npt.ArrayLike
) -> Values:
    """The share [1, 1] of one person's examples that a model labels wrongly; zero without any.

    Args:
        definition: the model at its parameters.
        data: the examples [k, …], as `inputs_of` takes them.
        labels: [k] integers, 0 to classes − 1. A model is wrong about one that is no class, and
            about an example that has no prediction.

    Raises:
        ParameterError: the examples do not fit the model.
        UnsupportedError: as `model_of`.

    >>> first = ModelDefinition(
    ...     architecture=Softmax(inputs=1, classes=2), theta=np.array([0.0, 0.0, 1.0, 0.0]))
    >>> person_error_share(first, [[2.0], [3.0], [0.5], [4.0]], [0, 0, 1, 0]).tolist()
    [[0.25]]
    """
    model = model_of(definition)
    given, answers = _checked(definition, model, data, labels)
    wrong = 0
    for some in pieces(len(answers), _examples_at_once(definition, model)):
        mine = _owned(definition, given[some], answers[some])
        wrong += int(np.count_nonzero(model.errors(definition.theta, mine.inputs, mine.labels)))
    return np.array([[wrong / max(1, len(answers))]])


def error_shares(model: Model, theta: Vector, examples: Examples) -> Values:
    """Of each person's examples, the share that a model labels wrongly [n, 1]; zero without any.

    Raises:
        ParameterError: θ or the examples are those of a model of another size.
    """
    wrong = model.errors(theta, examples.inputs, examples.labels)
    before = np.concatenate([[0], np.cumsum(wrong)])
    shares: Values = np.diff(before[examples.people]) / np.maximum(examples.sizes, 1)
    return shares[:, None]


def working_set(definition: ModelDefinition) -> int:
    """The most bytes that a round about a model takes to evaluate, whatever a person's examples are.

    `person_gradient`, `person_error_share` and `prepare` never hold more at once, for any number of
    examples of any kind and shape. It is public: it follows from the architecture and the feature map
    alone. Counted is what they ask of the allocator for

        one batch: its features and what the architecture makes of them, `examples_at_once` of them;
        the feature map: what it makes of a few images at once, its fit, and what it keeps of that;
        five gradients, two pieces of a product of matrices, and small things.

    Not counted is what is there before: the interpreter with its libraries and their own
    buffers, the definition, fits of other maps, of which a process keeps up to three, and
    the examples themselves as arrays of numbers. Examples given as lists become arrays first.

    Raises:
        UnsupportedError: as `model_of`.

    >>> digits = Softmax(inputs=784, classes=10)
    >>> working_set(ModelDefinition(architecture=digits, theta=np.zeros(7850))) >> 20  # MiB
    36
    """
    model = model_of(definition)
    batch = examples_at_once(definition) * _bytes_each(definition, model)
    mapped = 0 if definition.features is None else definition.features.working_set
    pieces_of_products = 2 * MOST_MULTIPLICATIONS
    return batch + mapped + _DOUBLE * (5 * model.parameters + pieces_of_products) + _SMALL


def examples_at_once(definition: ModelDefinition) -> int:
    """How many examples are a batch: as many as fit 32 MiB, at least 1. Public, as `working_set`.

    Raises:
        UnsupportedError: as `model_of`.

    >>> wide = HiddenLayer(inputs=1, hidden=65_000, classes=2)
    >>> examples_at_once(ModelDefinition(architecture=wide, theta=np.zeros(wide.parameters)))
    12
    """
    return _examples_at_once(definition, model_of(definition))


def prepare(definition: ModelDefinition) -> None:
    """Do all of an evaluation that needs no examples: fit the feature map, where it has to be fitted.

    The process keeps the fits of the last four maps. An evaluation prepares its model itself, whether the
    person has examples or not. So what a process keeps never tells, and a device that has
    prepared a model fits nothing while it evaluates it.
    """
    if definition.features is not None:
        definition.features.prepare()


def _examples_at_once(definition: ModelDefinition, model: Softmax | HiddenLayer) -> int:
    return max(1, BATCH_BYTES // _bytes_each(definition, model))


def _bytes_each(definition: ModelDefinition, model: Softmax | HiddenLayer) -> int:
    """What one example of a batch takes, its features included."""
    features = 0 if definition.features is None else _SINGLE * definition.features.length
    return features + model.bytes_each


def _checked(
    definition: ModelDefinition,
    model: Softmax | HiddenLayer,
    data: npt.ArrayLike,
    labels: npt.ArrayLike,
) -> tuple[Any, Any]:
    """One person's examples and labels as arrays that fit the model, once it is prepared.

    Where there are no labels, examples are not looked at. The size of images is the feature map's to check.
    """
    prepare(definition)
    answers = np.asarray(labels)
    if answers.ndim != 1 or (answers.size and answers.dtype.kind not in "iu"):
        raise ParameterError("labels", "another array", "one integer for each example")
    number = len(answers)
    if not number:
        return None, answers
    given = np.asarray(data)
    if given.shape[:1] != (number,):
        raise ParameterError("data", given.shape, f"one example for each of {number} labels")
    if definition.features is None and given.shape[1:] != (model.inputs,):
        raise ParameterError("inputs", given.shape, f"of shape [m, {model.inputs}]")
    return given, answers


def _owned(definition: ModelDefinition, given: Any, answers: Any) -> Examples:
    """A batch of one person's examples as the model sees them."""
    return Examples(
        inputs=inputs_of(definition.features, given),
        labels=answers.astype(np.int64),
        people=np.array([0, len(answers)], dtype=np.int64),
    )
