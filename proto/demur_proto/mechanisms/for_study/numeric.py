"""One number in an interval, on a grid: what the mechanisms for a mean share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import final

import numpy as np

from demur_proto.arrays import Integers, Values, Words
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.samplers.base import Sampler


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


# Graded charges: what a value costs as a share of what the largest one costs, in integers.
#
# The ρ of a value that lies z steps from the reference rises with z, so it may be taken at the far end of a
# part of the range: sound, and a table of a few hundred entries serves millions of people.

FULL_CHARGE = 1 << 30  #: round weights that the largest value costs
PARTS = 256  #: of the range, at most
MOST_STEPS = 1 << 53


@final
@dataclass(frozen=True, slots=True)
class GradedCharges:
    """Charges in round weights of values up to so many steps from the reference.

        ⌈FULL_CHARGE · ρ(z′)/ρ(reach)⌉,   z′ ≥ z the far end of the part in which z lies

    A study that charges FULL_CHARGE of its integer weights for ρ(reach), rounded up, charges no value
    less than its ρ; the reference, z = 0, costs 0. Parts are worked out when a value first needs them;
    threads may share this, for they can only write the same number twice.

    Args:
        reach: the largest distance, steps; 1 to 2^53.
        charge: ρ of a distance from 1 to `reach` steps in nats, rounded up; finite, > 0, and the
            exact ρ rises with the distance.

    Raises:
        ParameterError: an argument is outside its range.

    >>> charges = GradedCharges(4, lambda steps: steps**2 / 2)
    >>> charges.of_steps(np.array([0, -1, 2, 4])).tolist() == [0, 1 << 26, 1 << 28, 1 << 30]
    True
    """

    reach: int
    charge: Callable[[int], float] = field(repr=False)
    whole: Fraction = field(init=False, repr=False)  #: ρ(reach), nats
    table: Integers = field(
        init=False, repr=False
    )  #: round weights, by part; −1 where not yet known

    def __post_init__(self) -> None:
        check_integer("reach", self.reach, 1, MOST_STEPS)
        whole = self.charge(self.reach)
        if not 0 < whole < float("inf"):
            raise ParameterError("charge", whole, "finite and > 0 nats")
        table = np.full(min(PARTS, self.reach) + 1, -1, dtype=np.int64)
        table[0] = 0
        object.__setattr__(self, "whole", Fraction(whole))
        object.__setattr__(self, "table", table)

    def of_steps(self, steps: Integers) -> Integers:
        """Charges [n] of signed distances [n], which must be within reach."""
        places = -(-np.abs(steps) * (len(self.table) - 1) // self.reach)
        charges: Integers = self.table[places]
        new = charges < 0
        if new.any():
            for part in np.unique(places[new]):
                self.table[part] = self._units(int(part))
            charges = self.table[places]
        return charges

    def _units(self, part: int) -> int:
        nats = Fraction(self.charge(part * self.reach // (len(self.table) - 1)))
        # Rounded up on its own, it may be above the largest, which the exact one never is.
        return min(FULL_CHARGE, -(-nats * FULL_CHARGE // self.whole))
