"""One number in an interval, on a grid: what the mechanisms for a mean share."""

import numpy as np

from demur_proto.arrays import Integers, Values, Words
from demur_proto.errors import ParameterError
from demur_proto.noise import Sampler


def to_steps(
    values: Values, sampler: Sampler, *, exponent: int, reach: int, clipped: bool = False
) -> Words:
    """Values [n, 1] to integer steps of 2^exponent [n, 1], rounded up or down at random.

    Without bias but for the coins, multiples of 2⁻⁵³: the mean is off by less than 2⁻⁵³ steps. A
    value on the grid stays as it is. Coins are drawn for all values, whatever they are.

    Args:
        values: data units. What is not finite becomes 0, the reference.
        sampler: of the coins.
        exponent: of the grid step.
        reach: the largest magnitude of a step; below 2^53.
        clipped: whether values further out count as the nearest end, or else as 0 too.

    Raises:
        ParameterError: the values are not of shape [n, 1].
    """
    if values.ndim != 2 or values.shape[1] != 1:
        raise ParameterError("values", values.shape, "of shape [n, 1]")
    coins = sampler.uniform(reports=len(values), dimension=1)
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.ldexp(values, -exponent)
        inside = np.abs(steps) <= reach
    if clipped:
        steps = np.clip(steps, -reach, reach)
        inside = np.isfinite(values)
    steps = np.where(inside, steps, 0.0)
    low = np.floor(steps)
    words: Words = low.astype(np.int64) + (coins < steps - low)
    return words


def check_steps(words: Words, *, reach: int) -> Integers:
    """The steps [n] of words [n, 1].

    Raises:
        ParameterError: the words are not of that shape, or out of reach. Without the values, which
            are secret.
    """
    if words.ndim != 2 or words.shape[1] != 1 or words.dtype.kind not in "iu":
        raise ParameterError("words", f"{words.dtype} {words.shape}", "integers of shape [n, 1]")
    if words.size and not (words.min() >= -reach and words.max() <= reach):
        raise ParameterError("words", "another value", f"steps from {-reach} to {reach}")
    steps: Integers = words[:, 0]
    return steps


def check_squares(squares: float, *, reports: int) -> None:
    """Refuse what is no sum of squares of so many values in [−1, 1]; NaN too."""
    number = isinstance(squares, int | float) and not isinstance(squares, bool)
    if not (number and 0 <= squares <= reports):
        raise ParameterError("squares", squares, f"a number from 0 to {reports}")


def check_value(value: float) -> float:
    """A value in [−1, 1] as a float; refuse any other, NaN too, without showing it."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and -1 <= value <= 1):
        raise ParameterError("value", "another one", "a number from -1 to 1")
    return float(value)
