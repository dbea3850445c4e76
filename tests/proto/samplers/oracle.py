"""The true laws, to 130 digits: by another library than the code's, and by other formulas.

The code adds a positive series on Python's integers; here the alternating series of the error
function and the exponential of `decimal` are added up. Probabilities come as exact fractions of
what `decimal` gives; ERROR bounds how far they are from the truth.
"""

from collections.abc import Callable, Mapping
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import count, takewhile

PRECISE = Context(prec=130)
ERROR = Fraction(1, 10**80)  #: the alternating series cancels 44 digits at FAR
FAR = 200  #: x²/σ² up to which Gaussian laws are computed
BEYOND = Fraction(1, 1 << 143)  #: what lies further out is less: 2e⁻¹⁰⁰ + 2φ(√200)/√200
Masses = Mapping[int, Fraction]


def decimal_of(value: Fraction) -> Decimal:
    return PRECISE.divide(Decimal(value.numerator), Decimal(value.denominator))


@lru_cache(maxsize=1)
def pi() -> Decimal:
    """π by the arithmetic-geometric mean (Gauss and Legendre)."""
    with localcontext(PRECISE):
        a, b, t, p = Decimal(1), 1 / Decimal(2).sqrt(), Decimal(1) / 4, Decimal(1)
        for _ in range(8):
            a, b, previous = (a + b) / 2, (a * b).sqrt(), a
            t -= p * (previous - a) ** 2
            p *= 2
        return (a + b) ** 2 / (4 * t)


def exp(value: Fraction) -> Decimal:
    return PRECISE.exp(decimal_of(value))


def normal_tail(square: Fraction) -> Fraction:
    """1 − Φ(√square): ½ − Σ (−1)ⁿ x^(2n+1)/(2ⁿ n! (2n + 1))/√(2π)."""
    with localcontext(PRECISE):
        half = decimal_of(square / 2)
        term, total, n = Decimal(1), Decimal(1), 0
        while abs(term) > Decimal("1e-110"):
            n += 1
            term = -term * half / n
            total += term / (2 * n + 1)
        slope = (decimal_of(square) / (2 * pi())).sqrt()
        return Fraction(Decimal("0.5") - total * slope)


@lru_cache(maxsize=16)
def rounded_tails(variance: Fraction) -> tuple[Fraction, ...]:
    """P(Z > 0), P(Z > 1), … of a normal variable rounded, as far as FAR."""
    squares = ((2 * k + 1) ** 2 / (4 * variance) for k in count())
    return tuple(normal_tail(square) for square in takewhile(lambda x: x <= FAR, squares))


@lru_cache(maxsize=16)
def discrete_tails(variance: Fraction) -> tuple[Fraction, ...]:
    """P(Z > 0), P(Z > 1), … of the discrete Gaussian, as far as FAR."""
    weights = [exp(-(z**2) / (2 * variance)) for z in range(int(16 * float(variance) ** 0.5) + 3)]
    with localcontext(PRECISE):
        total = 2 * sum(weights) - weights[0]
        tails, above = [], Decimal(0)
        for weight in reversed(weights[1:]):
            above += weight
            tails.append(Fraction(above / total))
    tails.reverse()
    return tuple(tail for z, tail in enumerate(tails) if (z + 1) ** 2 <= FAR * variance)


def laplace_masses(scale: Fraction, *, unit: int, count: int) -> Masses:
    """P(z // unit = h) of P(z) = (1 − q)/(1 + q) q^|z|, q = exp(−1/scale), for −count ≤ h < count.

    Of negative z the mirror image is meant: −1 − z from unit·h′ to unit·h′ + unit − 1 for h = −1 − h′.
    """
    powers = [Fraction(exp(-unit * h / scale)) for h in range(count + 1)]
    q = Fraction(exp(-1 / scale))
    upper = {h: (powers[h] - powers[h + 1]) / (1 + q) for h in range(count)}
    return {**upper, **{-1 - h: mass * q for h, mass in upper.items()}}


def masses_of(tails: tuple[Fraction, ...]) -> Masses:
    """P(Z = z) of a symmetric law; what lies beyond FAR counts with the last value."""
    ends = (*tails, Fraction(0))
    upper = {z: ends[z - 1] - ends[z] for z in range(1, len(ends))}
    return {0: 1 - 2 * ends[0], **upper, **{-z: mass for z, mass in upper.items()}}


TailsOf = Callable[[Fraction], tuple[Fraction, ...]]
