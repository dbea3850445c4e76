"""The discrete Gaussian P(z) ∝ e^(−z²/(2σ²)): its variance, and what a shift of it costs.

With c the distance of αm to the nearest integer and E over the law itself,

    D_α = ( αm² − c²/(α−1) )/(2σ²) + ln( 1 + E[cosh(Zc/σ²) − 1] )/(α − 1),

from completing the square: Σ e^(−(z−αm)²/(2σ²)) depends on c alone. Both parts are positive. The whole is
αm²/(2σ²), as for the continuous law, where αm is an integer, and less elsewhere: by Poisson
summation ln(Σ e^(−z²/(2σ²)) / Σ e^(−(z−c)²/(2σ²))) is at most 5 π² c² e^(−2π²σ²) once σ ≥ 1, which at σ = 2 is
nothing to 30 digits.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from demur_proto.checks import check_integer, check_positive
from demur_proto.outward import ceil_float, up
from demur_proto.ranges import check_order

MOST_STEPS = 1 << 53
WIDE = 2.0  #: σ from which the discrete law is the continuous one to 30 digits

_TERMS = 80  # z up to 40σ for σ < 2


def discrete_gaussian_renyi(steps: int, *, sigma: float, order: float) -> float:
    """Rényi divergence of two discrete Gaussians whose centres lie so many steps apart.

    Args:
        steps: m, integers apart; 0 to 2^53.
        sigma: σ, grid steps; finite, > 0.
        order: Rényi order α; 1 (KL) ≤ α ≤ 1e15, or infinite.

    Returns:
        The divergence in nats, rounded up; never above αm²/(2σ²), rounded up; infinite at an infinite
        order.

    Raises:
        ParameterError: an argument is outside its range.

    Source: the formula at the top of this file; Canonne, Kamath & Steinke 2020, arXiv:2004.00010,
    Proposition 5, for the bound. At α = 2, m = 1, σ = 1 it is attained:

    >>> discrete_gaussian_renyi(1, sigma=1.0, order=2.0)
    1.0
    """
    check_integer("steps", steps, 0, MOST_STEPS)
    check_positive("sigma", sigma)
    order = check_order("order", order, kl=True)
    if steps == 0:
        return 0.0
    if order == math.inf:
        return math.inf
    alpha, variance = Fraction(order), Fraction(sigma) ** 2
    bound = alpha * steps**2 / (2 * variance)
    away = abs(alpha * steps - round(alpha * steps))
    if away == 0 or sigma >= WIDE:
        return ceil_float(bound)
    beta = alpha - 1
    squares = (alpha * steps**2 - away**2 / beta) / (2 * variance)
    tilt = _mean(
        [_half_square(z * z / (2 * variance), z * away / variance) for z in range(1, _TERMS)],
        sigma,
    )
    return min(ceil_float(bound), up(ceil_float(squares) + math.log1p(tilt) / float(beta)))


def discrete_gaussian_zcdp(squared_norm: int, *, sigma: float) -> float:
    """The least ρ for which two discrete Gaussians are ρ-zCDP, in any number of dimensions.

        ρ = ‖m‖²/(2σ²), attained at α = 2

    Args:
        squared_norm: ‖m‖² of the distance of their centres, grid steps²; 0 to 2^62.
        sigma: σ, grid steps; finite, > 0.

    Returns:
        ρ in nats: the least float that is not below it.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Canonne, Kamath & Steinke 2020, arXiv:2004.00010, Theorem 4.

    >>> discrete_gaussian_zcdp(9, sigma=3.0)
    0.5
    """
    check_integer("squared_norm", squared_norm, 0, 1 << 62)
    check_positive("sigma", sigma)
    return ceil_float(Fraction(squared_norm) / (2 * Fraction(sigma) ** 2))


def discrete_gaussian_variance(sigma: float) -> float:
    """Variance of the discrete Gaussian, grid steps²: below σ², and from σ = 2 on the same float.

    Args:
        sigma: σ, grid steps; finite, > 0.

    Raises:
        ParameterError: it is not.

    Source: the sum over the integers. At σ² = 1/(2 ln 2), P(z) ∝ 2^(−z²):

    >>> weights = [2.0 ** -(z * z) for z in range(10)]
    >>> direct = sum(2 * z * z * w for z, w in enumerate(weights)) / (2 * sum(weights) - 1)
    >>> round(discrete_gaussian_variance(math.sqrt(0.5 / math.log(2))) - direct, 12)
    0.0
    """
    check_positive("sigma", sigma)
    if sigma >= WIDE:
        return sigma * sigma  # not a power, which overflows with an error
    return _mean([z * z * _weight(z, sigma) for z in range(1, _TERMS)], sigma)


def _mean(halves: Sequence[float], sigma: float) -> float:
    """E of an even function, given its weighted values at z = 1, 2, … and that it is 0 at z = 0."""
    whole = 1 + 2 * math.fsum(_weight(z, sigma) for z in range(1, _TERMS))
    return 2 * math.fsum(halves) / whole


def _weight(z: int, sigma: float) -> float:
    # The variance is exact and floored, or its inverse could leave the floats; e^(−z²/(2σ²)) is 0 then.
    exponent = Fraction(z * z) / (2 * Fraction(sigma) ** 2)
    return math.exp(-float(exponent)) if exponent < 800 else 0.0


def _half_square(drop: Fraction, rise: Fraction) -> float:
    """e^(−x) (cosh(y) − 1) for 0 ≤ y ≤ x, as ½ ( e^((y−x)/2) (1 − e^(−y)) )²."""
    if drop - rise >= 800:
        return 0.0
    return (
        math.exp(float(rise - drop) / 2) * -math.expm1(-float(min(rise, Fraction(800))))
    ) ** 2 / 2
