"""Sums of gradients of a model over people."""

from dataclasses import dataclass
from typing import ClassVar

import numpy.typing as npt

from demur_proto.arrays import Values
from demur_proto.errors import ParameterError
from demur_proto.models.definition import DefinedModel, ModelDefinition
from demur_proto.models.gradients import person_gradient
from demur_proto.queries.base import GaussianQuery, ModelQuery
from demur_proto.v1 import round_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient(ModelQuery):
    """The sum over people of clipped gradients of a model, at the parameters that are published.

    A person's value is the gradient of the mean loss over all of their examples; without any it is
    nothing. Devices fetch the model by its hash. `Gradient.about` makes one of a model.

    Raises:
        ParameterError: a field is outside its range, or the grid is too coarse.
    """

    wire_name: ClassVar[str] = "gradient"
    label: ClassVar[str] = "gradient"
    size_field: ClassVar[str] = "dimension"
    dimension: int  #: how many parameters the model has; >= 1
    clip: float = 1.0  #: ℓ₂ radius of one person's gradient, data units; > 0

    def __post_init__(self) -> None:
        self._check_model()
        self._check_noise()

    @classmethod
    def about(
        cls,
        model: ModelDefinition | DefinedModel,
        *,
        clip: float = 1.0,
        sigma: float | None = None,
        grid_exponent: int | None = None,
    ) -> "Gradient":
        """Of this model, which becomes public.

        Raises:
            ParameterError: as `Gradient`.
        """
        return cls._about(model, clip=clip, sigma=sigma, grid_exponent=grid_exponent)

    @property
    def parameters(self) -> int:
        """How many parameters the model has."""
        return self.dimension

    @property
    def on_grid(self) -> bool:
        """Gradients are never multiples of a grid step by nature."""
        return False

    @property
    def value_length(self) -> int:
        """Numbers in one person's value."""
        return self.dimension

    def value_of(
        self, model: ModelDefinition, data: npt.ArrayLike, labels: npt.ArrayLike
    ) -> Values:
        """One person's value, as `person_gradient` gives it."""
        return person_gradient(model, data, labels)

    def write(self, message: round_pb2.Round) -> None:
        """Put it into the message of a round."""
        GaussianQuery.write(self, message)
        message.gradient.model_hash = self.model_hash

    @classmethod
    def read(cls, message: round_pb2.Round) -> "Gradient":
        """From the message of a round."""
        if message.on_grid:
            raise ParameterError("on_grid", True, "unset in a gradient round")
        return cls(
            model_hash=message.gradient.model_hash,
            dimension=message.dimension,
            clip=message.clip,
            sigma=message.sigma,
            grid_exponent=message.grid_exponent,
        )
