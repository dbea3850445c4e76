"""A person's gradient of a model: what a device computes of its own examples."""

from typing import Any

import numpy as np
import numpy.typing as npt

from demur_proto.arrays import Values
from demur_proto.errors import ParameterError, UnsupportedError, WireError
from demur_proto.models.base import Model
from demur_proto.models.definition import DefinedModel, Features, ModelDefinition, Module
from demur_proto.models.examples import Examples, Inputs
from demur_proto.round import Gradient


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


def check_model(model: DefinedModel, query: Gradient) -> None:
    """Refuse a model that is not what a round names.

    Raises:
        WireError: it has another hash, or another number of parameters than the round says.
    """
    if model.hash != query.model_hash:
        raise WireError("this is another model than the one that the round names")
    dimension = dimension_of(model)
    if dimension != query.dimension:
        raise WireError(
            f"not a valid round: dimension must be {dimension}, the number of the model's "
            f"parameters, got {query.dimension}"
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
    answers = np.asarray(labels)
    if answers.ndim != 1 or (answers.size and answers.dtype.kind not in "iu"):
        raise ParameterError("labels", "another array", "one integer for each example")
    if not len(answers):
        return np.zeros((1, model.parameters))
    inputs = inputs_of(definition.features, data)
    people = np.array([0, len(answers)], dtype=np.int64)
    mine = Examples(inputs=inputs, labels=answers.astype(np.int64), people=people)
    return model.gradients(definition.theta, mine)
