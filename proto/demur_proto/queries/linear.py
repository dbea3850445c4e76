"""Sums of features over people, weighted or as they are."""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

import numpy as np

from demur_proto.arrays import Values
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.queries.base import Feature, GaussianQuery, Reads, check_feature
from demur_proto.v1 import round_pb2

MOST_WEIGHTS = 1 << 12  #: of one question, so that every device can read its definition


@dataclass(frozen=True, slots=True)
class Weights:
    """W, a matrix: a person's value is z = W·x, where x are the numbers that the features give.

    Raises:
        ParameterError: there are none or more than 4,096, rows differ in length, or a weight is not
            finite.

    >>> Weights(((1.0, 2.0), (0.0, -1.0))).apply(np.array([[3.0, 4.0]]))
    array([[11., -4.]])
    """

    rows: tuple[tuple[float, ...], ...]  #: [d][v]

    def __post_init__(self) -> None:
        lengths = {len(row) for row in self.rows}
        if len(lengths) != 1 or lengths == {0}:
            raise ParameterError("weights", sorted(lengths), "rows of one length, at least 1")
        if self.dimension * self.inputs > MOST_WEIGHTS:
            count = self.dimension * self.inputs
            raise ParameterError("weights", f"{count} of them", f"at most {MOST_WEIGHTS}")
        for weight in (each for row in self.rows for each in row):
            if type(weight) is not float or not math.isfinite(weight):
                raise ParameterError("weights", weight, "finite numbers")

    @classmethod
    def of(cls, rows: Sequence[Sequence[float]]) -> "Weights":
        """From rows of numbers, an array [d, v] for one.

        Raises:
            ParameterError: they are none.
        """
        try:
            return cls(tuple(tuple(_number(each) for each in row) for row in rows))
        except TypeError:
            raise ParameterError("weights", rows, "rows of finite numbers") from None

    @classmethod
    def unpacked(cls, numbers: Sequence[float], *, dimension: int) -> "Weights | None":
        """From the numbers of a message, row after row; None where there are none.

        Raises:
            ParameterError: they do not make so many rows.
        """
        if not numbers:
            return None
        if not dimension or len(numbers) % dimension:
            raise ParameterError("weights", f"{len(numbers)} of them", f"{dimension} rows")
        width = len(numbers) // dimension
        return cls(tuple(tuple(numbers[at : at + width]) for at in range(0, len(numbers), width)))

    @property
    def dimension(self) -> int:
        """Coordinates of the value: d."""
        return len(self.rows)

    @property
    def inputs(self) -> int:
        """Numbers that the features give: v."""
        return len(self.rows[0])

    @property
    def packed(self) -> list[float]:
        """All of them, row after row."""
        return [each for row in self.rows for each in row]

    def apply(self, values: Values) -> Values:
        """W·x of every person, added up in one order, so that every machine gets the same bits.

        Args:
            values: [n, v]; NaN where a feature gives no number, and then z is none either.

        Returns:
            [n, d].

        Raises:
            ParameterError: the features give more or fewer numbers.
        """
        if values.shape[1] != self.inputs:
            raise ParameterError(
                "weights", f"rows of {self.inputs}", f"rows of {values.shape[1]}, as features give"
            )
        columns = np.array(self.rows).T
        weighted: Values = np.zeros((len(values), self.dimension))
        with np.errstate(all="ignore"):
            for column, weights in zip(values.T, columns, strict=True):
                weighted += column[:, None] * weights
        return weighted


def _number(value: object) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(
        value, int | float | np.floating | np.integer
    ):
        raise ParameterError("weights", value, "finite numbers")
    try:
        return float(value)
    except OverflowError:
        raise ParameterError("weights", value, "finite numbers") from None


@dataclass(frozen=True, slots=True)
class Linear(GaussianQuery):
    """The sum over people of a vector: the features' values one after the other, or weighted.

    Raises:
        ParameterError: a field is outside its range, or the grid is too coarse.

    >>> Linear([Feature("steps"), Feature("minutes")], clip=2.0).dimension
    2
    """

    wire_name: ClassVar[str] = "linear"
    label: ClassVar[str] = "linear"
    reads: ClassVar[Reads] = Reads.FEATURES
    features: Sequence[Feature]  #: at least one; kept as a tuple
    _: KW_ONLY
    dimension: int = 0
    """Coordinates of all features together; 0: one each, or one for each row of weights."""
    clip: float = 1.0  #: ℓ₂ radius of one person's value, weighted, data units; > 0
    on_grid: bool = False  #: every possible value is a multiple of the grid step
    weights: Weights | None = (
        None  #: [d, v], of the v numbers that features give; None: as they are
    )

    def __post_init__(self) -> None:
        if isinstance(self.features, Feature | str) or not isinstance(self.features, Sequence):
            raise ParameterError("features", self.features, "a list of Feature(name, parameters)")
        for each in self.features:
            check_feature(each)
        if not self.features:
            raise ParameterError("features", self.features, "at least one feature")
        object.__setattr__(self, "features", tuple(self.features))
        if self.weights is not None and not isinstance(self.weights, Weights):
            raise ParameterError("weights", type(self.weights).__name__, "Weights.of(rows)")
        if self.dimension == 0:
            own = len(self.features) if self.weights is None else self.weights.dimension
            object.__setattr__(self, "dimension", own)
        check_integer("dimension", self.dimension, 1, (1 << 31) - 1)
        if self.weights is not None and self.weights.dimension != self.dimension:
            raise ParameterError("dimension", self.dimension, f"{self.weights.dimension} weighted")
        given = self.dimension if self.weights is None else self.weights.inputs
        if len(self.features) > given:
            raise ParameterError("dimension", given, "at least one for each feature")
        self._check_noise()

    @property
    def value_length(self) -> int:
        """Numbers in one person's value."""
        return self.dimension

    def fitted(self, given: int) -> "Linear":
        """With as many coordinates as the features give numbers, where it has weights for none."""
        if self.weights is not None:
            return self
        if self.dimension not in {given, len(self.features)}:
            raise ParameterError("dimension", self.dimension, f"{given}, as features give")
        return replace(self, dimension=given)

    def weighted(self, values: Values) -> Values:
        """W·x of every person, or x itself."""
        return values if self.weights is None else self.weights.apply(values)

    def write(self, message: round_pb2.Round) -> None:
        """Put it into the message of a round."""
        GaussianQuery.write(self, message)
        message.linear.features.extend(each.message() for each in self.features)
        message.linear.weights.extend([] if self.weights is None else self.weights.packed)

    @classmethod
    def read(cls, message: round_pb2.Round) -> "Linear":
        """From the message of a round."""
        return cls(
            [Feature.read(each) for each in message.linear.features],
            weights=Weights.unpacked(message.linear.weights, dimension=message.dimension),
            dimension=message.dimension,
            clip=message.clip,
            sigma=message.sigma,
            grid_exponent=message.grid_exponent,
            on_grid=message.on_grid,
        )
