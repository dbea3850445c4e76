"""Rounding to the safe side, and the root finder whose errors it covers."""

import math
from collections.abc import Callable
from fractions import Fraction

SLACK = 2.0**-48
"""Relative size of the step outward: 16 units in the last place, four times the worst error seen."""

_TINY = 4 * math.ulp(0.0)  # the same for numbers too small to have a relative precision


def up(value: float) -> float:
    """A number that is not below the one which `value` ≥ 0 approximates; never 0."""
    return value * (1 + SLACK) + _TINY


def down(value: float) -> float:
    """A number that is not above the one which `value` ≥ 0 approximates; never negative."""
    return max(0.0, value * (1 - SLACK) - _TINY)


def root_up(square: Fraction) -> float:
    """The smallest float whose exact square is at least `square` > 0.

    Raises:
        OverflowError: no float is so large.

    >>> root_up(Fraction(9, 4))
    1.5
    """
    shift = (square.numerator.bit_length() - square.denominator.bit_length()) // 2
    root = math.ldexp(math.sqrt(square / Fraction(4) ** shift), shift)
    while Fraction(root) ** 2 >= square:
        root = math.nextafter(root, 0)
    while Fraction(root) ** 2 < square:
        root = math.nextafter(root, math.inf)
    return root


def newton(f: Callable[[float], tuple[float, float]], start: float) -> float:
    """Root of a function that returns its value and its slope.

    For functions that are monotone and bend one way only, started on the side from which a step
    cannot overshoot: such a search needs no bracket.

    >>> newton(lambda x: (x * x - 4, 2 * x), 3.0)
    2.0
    """
    x = start
    for _ in range(200):
        value, slope = f(x)
        step = value / slope
        x -= step
        if abs(step) <= 1e-9 * abs(x):
            break  # convergence is quadratic: the next step would be near 1e-18
    return x
