"""Weights of a linear question: what is added up of features is a public matrix times them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from demur_proto.arrays import Values
from demur_proto.errors import ParameterError

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
