"""For how many people a model is wrong."""

from dataclasses import dataclass
from typing import ClassVar

import numpy.typing as npt

from demur_proto.arrays import Values
from demur_proto.errors import ParameterError
from demur_proto.models.definition import DefinedModel, ModelDefinition
from demur_proto.models.gradients import person_error_share
from demur_proto.queries.base import GaussianQuery, ModelQuery
from demur_proto.study import Purpose
from demur_proto.v1 import round_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCount(ModelQuery):
    """For how many people a model is wrong, at the parameters that are published.

    A person's value is the share of their own examples that the model labels wrongly, 0 to 1; without
    any it is nothing. Devices fetch the model by its hash. `ErrorCount.about` makes one of a model.

    Raises:
        ParameterError: a field is outside its range, or the grid is too coarse.
    """

    wire_name: ClassVar[str] = "error_count"
    label: ClassVar[str] = "error count"
    purpose: ClassVar[Purpose] = Purpose.ERRORS
    parameters: int  #: how many the model has; >= 1
    on_grid: bool = False
    """Every possible share is a multiple of the grid step, as where nobody has more than one example. On
    a device of which that is not true, a share counts as nothing."""

    def __post_init__(self) -> None:
        self._check_model()
        self._check_noise()

    @classmethod
    def about(
        cls,
        model: ModelDefinition | DefinedModel,
        *,
        on_grid: bool = False,
        sigma: float | None = None,
        grid_exponent: int | None = None,
    ) -> "ErrorCount":
        """Of this model, which becomes public.

        Raises:
            ParameterError: as `ErrorCount`.
        """
        return cls._about(model, on_grid=on_grid, sigma=sigma, grid_exponent=grid_exponent)

    @property
    def dimension(self) -> int:
        """One number is asked for."""
        return 1

    @property
    def clip(self) -> float:
        """Nobody is more than one person."""
        return 1.0

    @property
    def value_length(self) -> int:
        """Numbers in one person's value."""
        return 1

    def value_of(
        self, model: ModelDefinition, data: npt.ArrayLike, labels: npt.ArrayLike
    ) -> Values:
        """One person's value, as `person_error_share` gives it."""
        return person_error_share(model, data, labels)

    def write(self, message: round_pb2.Round) -> None:
        """Put it into the message of a round."""
        GaussianQuery.write(self, message)
        message.error_count.model_hash = self.model_hash
        message.error_count.parameters = self.parameters

    @classmethod
    def read(cls, message: round_pb2.Round) -> "ErrorCount":
        """From the message of a round."""
        if message.clip != 1:
            raise ParameterError("clip", message.clip, "1.0 in an error count")
        return cls(
            model_hash=message.error_count.model_hash,
            parameters=message.error_count.parameters,
            sigma=message.sigma,
            grid_exponent=message.grid_exponent,
            on_grid=message.on_grid,
        )
