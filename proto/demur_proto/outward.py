"""Rounding to the safe side, and the root finder whose errors it covers."""

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
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


def ceil_float(exact: Fraction) -> float:
    """The smallest float that is not below `exact` ≥ 0; infinite where none is so large.

    >>> ceil_float(Fraction(1, 2)), Fraction(ceil_float(Fraction(1, 3))) > Fraction(1, 3)
    (0.5, True)
    """
    try:
        value = float(exact)
    except OverflowError:
        return math.inf
    return value if Fraction(value) >= exact else math.nextafter(value, math.inf)


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


def text_up(value: float, *, digits: int = 6) -> str:
    """A number in so many significant digits, rounded up: a promise must hold as it is printed.

    >>> text_up(1.0), text_up(1e-6), text_up(9.41, digits=2)
    ('1', '1e-06', '9.5')
    """
    return _text(value, digits, ROUND_CEILING)


def text_down(value: float, *, digits: int = 6) -> str:
    """A number in so many significant digits, rounded down, for budgets.

    >>> text_down(0.23670438), text_down(9.49, digits=2)
    ('0.236704', '9.4')
    """
    return _text(value, digits, ROUND_FLOOR)


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


def _text(value: float, digits: int, rounding: str) -> str:
    """Rounds the shortest decimal that reads back as this float: 0.1 stays 0.1."""
    outward = Context(prec=digits, rounding=rounding).create_decimal(repr(float(value)))
    return f"{float(outward):.{digits}g}"
