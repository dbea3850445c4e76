"""Fixed-point numbers with proven errors, on Python's integers: what the tables are made from.

A number x is held as an integer near x·2^PLACES. One unit is 2^−PLACES. Every function says by how
many units it may be wrong; `docs/samplers.md` has the proofs.
"""

import math
from collections.abc import Iterator
from fractions import Fraction

PLACES = 448  #: 192 are kept, 174 may be lost on the way, the rest is slack
ONE = 1 << PLACES


def exp_minus(x: Fraction) -> int:
    """e^(−x) for x ≥ 0, within 2²⁴ units.

    The series of e^(−x/2^h), with x/2^h < 2⁻⁸, squared h times. Each squaring may double the error.

    >>> exp_minus(Fraction(0)) == ONE, exp_minus(Fraction(10**9))
    (True, 0)
    >>> exp_minus(Fraction(1, 3)) / ONE == math.exp(-1 / 3)
    True
    """
    if x >= PLACES:
        return 0  # e^(−PLACES) is less than one unit
    halvings = max(0, (x.numerator // x.denominator).bit_length() + 8)
    part = (x.numerator << PLACES) // (x.denominator << halvings)
    term, total, number = ONE, ONE, 0
    while term:
        number += 1
        term = (term * part >> PLACES) // number
        total += -term if number & 1 else term
    for _ in range(halvings):
        total = total * total >> PLACES
    return total


def gaussian_weights(variance: Fraction, *, start: Fraction) -> Iterator[int]:
    """e^(−x²/(2·variance)) at x = start, start + 1, …, the n-th within 2²⁵(n + 1)² units.

    By the ratio of neighbours, and the constant ratio of neighbouring ratios.

    >>> weights = gaussian_weights(Fraction(2), start=Fraction(0))
    >>> [round(next(weights) / ONE, 6) for _ in range(3)]  # 1, e^(-1/4), e^-1
    [1.0, 0.778801, 0.367879]
    """
    weight = exp_minus(start**2 / (2 * variance))
    ratio = exp_minus((2 * start + 1) / (2 * variance))
    bend = exp_minus(1 / variance)
    while True:
        yield weight
        weight = weight * ratio >> PLACES
        ratio = ratio * bend >> PLACES


def normal_tail(square: Fraction, weight: int) -> int:
    """1 − Φ(x) for x > 0 with x² = `square` ≤ 180.

        ½ − x φ(x) (1 + x²/3 + x⁴/(3·5) + x⁶/(3·5·7) + …)

    Within 2¹²⁸ units, and 2¹²⁹ times the error of the weight.

    Args:
        square: x².
        weight: e^(−x²/2) in units.

    Source: Abramowitz & Stegun 1964, 26.2.11.

    >>> normal_tail(Fraction(1), exp_minus(Fraction(1, 2))) / ONE  # 1 - Φ(1)
    0.15865525393145705
    """
    step = (square.numerator << PLACES) // square.denominator
    term = total = ONE
    odd = 1
    while term:
        odd += 2
        term = (term * step >> PLACES) // odd
        total += term
    # x/√(2π), from its square.
    slope = math.isqrt((square.numerator << 3 * PLACES) // (square.denominator * 2 * PI))
    return (ONE >> 1) - ((total * weight >> PLACES) * slope >> PLACES)


def _arc_tangent_of_inverse(n: int) -> int:
    """arctan(1/n), n ≥ 5, within 2⁹ units."""
    term, total, odd = ONE // n, ONE // n, 1
    while term:
        odd += 2
        term //= -n * n
        total += term // odd
    return total


PI = 16 * _arc_tangent_of_inverse(5) - 4 * _arc_tangent_of_inverse(239)
"""π, within 2¹⁴ units: Machin's formula."""
