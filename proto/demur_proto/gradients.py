"""A person's gradient of a model, and their share of its errors: what a device computes of its examples."""

from typing import Any

import numpy as np
import numpy.typing as npt

from demur_proto.arrays import Values, Vector
from demur_proto.errors import ParameterError, UnsupportedError, WireError
from demur_proto.models.base import Model
from demur_proto.models.definition import DefinedModel, Features, ModelDefinition, Module
from demur_proto.models.examples import Examples, Inputs
from demur_proto.round import Gradient, ModelQuery


def dimension_of(model: DefinedModel) -> int:
    """How many parameters a model has, which is the length of its gradient."""
    return model.value.architecture.parameters


def model_of(definition: ModelDefinition) -> Model:
    """What can compute gradients.

    Raises:
        UnsupportedError: a module by its path, of which this version computes none.
    """
    if isinstance(definition.architecture, Module):
        raise UnsupportedError(
            f"the module {definition.architecture.path} is not supported by this version"
        )
    return definition.architecture


def check_model(model: DefinedModel, query: ModelQuery) -> None:
    """Refuse a model that is not what a round names.

    Raises:
        WireError: it has another hash, or another number of parameters than the round says.
    """
    if model.hash != query.model_hash:
        raise WireError("this is another model than the one that the round names")
    parameters = dimension_of(model)
    if parameters != query.parameters:
        named = "dimension" if isinstance(query, Gradient) else "parameters"
        raise WireError(
            f"not a valid round: {named} must be {parameters}, the number of the model's "
            f"parameters, got {query.parameters}"
        )


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

    >>> from demur_proto.models.softmax import Softmax
    >>> even = ModelDefinition(architecture=Softmax(inputs=1, classes=2), theta=np.zeros(4))
    >>> person_gradient(even, [[2.0]], [1]).tolist()
    [[1.0, -1.0, 0.5, -0.5]]
    """
    model = model_of(definition)
    mine = _owned(definition, data, labels)
    return (
        np.zeros((1, model.parameters)) if mine is None else model.gradients(definition.theta, mine)
    )


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

    >>> from demur_proto.models.softmax import Softmax
    >>> first = ModelDefinition(
    ...     architecture=Softmax(inputs=1, classes=2), theta=np.array([0.0, 0.0, 1.0, 0.0]))
    >>> person_error_share(first, [[2.0], [3.0], [0.5], [4.0]], [0, 0, 1, 0]).tolist()
    [[0.25]]
    """
    model = model_of(definition)
    mine = _owned(definition, data, labels)
    return np.zeros((1, 1)) if mine is None else error_shares(model, definition.theta, mine)


def error_shares(model: Model, theta: Vector, examples: Examples) -> Values:
    """Of each person's examples, the share that a model labels wrongly [n, 1]; zero without any.

    Raises:
        ParameterError: θ or the examples are those of a model of another size.
    """
    wrong = model.errors(theta, examples.inputs, examples.labels)
    before = np.concatenate([[0], np.cumsum(wrong)])
    shares: Values = np.diff(before[examples.people]) / np.maximum(examples.sizes, 1)
    return shares[:, None]


def _owned(
    definition: ModelDefinition, data: npt.ArrayLike, labels: npt.ArrayLike
) -> Examples | None:
    """One person's examples as the model sees them; None without any."""
    answers = np.asarray(labels)
    if answers.ndim != 1 or (answers.size and answers.dtype.kind not in "iu"):
        raise ParameterError("labels", "another array", "one integer for each example")
    if not len(answers):
        return None
    return Examples(
        inputs=inputs_of(definition.features, data),
        labels=answers.astype(np.int64),
        people=np.array([0, len(answers)], dtype=np.int64),
    )


def working_set(definition: ModelDefinition) -> int:
    """Stub."""
    return 8 * 4 * definition.architecture.parameters


def prepare(definition: ModelDefinition) -> None:
    """Stub."""
    if definition.features is not None and definition.features.name == "whitened_gradients":
        f = definition.features
        f.of(np.zeros((1, f.height, f.width), np.uint8))
