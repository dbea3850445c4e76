"""Divergences between shifted Laplace laws, continuous and discrete, which have one form.

A shift by m on the grid with scale s is t = m/s. With y = 1/(2s), k = 2α − 1, β = α − 1 and
r = tanh(y)/tanh(ky),

    E_Q[(P/Q)^α] = (1 + r)/2 e^(βt) + (1 − r)/2 e^(−αt),

since the three geometric sums, left of both centres, right of them and between, add up to
e^(−t/2) (cosh(kt/2) + r sinh(kt/2)). For s → ∞ at the same t it is the continuous law's r = 1/k. Less 1,
and with g(x) = e^x − 1 − x, it is

    (1 + r)/2 g(βt) + (1 − r)/2 g(−αt) + (t/2)(rk − 1),

three terms that are not negative. With T = tanh(y) and D = tanh(2βy), so that tanh(ky) = (T + D)/(1 + TD),

    (1 − r)/2 = D(1 − T²)/(2(T + D)),   rk − 1 = ( (2βy − D) − 2β(y − T) + kT²D )/(T + D),

and what is subtracted is at most a third of the last term while y is small.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from demur_proto.accounting.divergences import blur, curvature, laplace_renyi, zcdp_supremum
from demur_proto.accounting.numerics import LARGEST, ceil_float, check_amount, check_order, up
from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import ParameterError

MOST_STEPS = 1 << 53

_LARGEST_EXPONENT = 640.0
_FLAT = 18.0  # of y; beyond, 1 − tanh(y) is less than 1e-15


def discrete_laplace_renyi(steps: int, *, scale: float, order: float) -> float:
    """Rényi divergence of two discrete Laplace laws whose centres lie so many steps apart.

        P(z) ∝ e^(−|z − m|/s) against m = 0; the formula at the top of this file
        D_∞ = m/s

    It is more than the continuous law's: for m = 1 it is that of binary randomised response with ε = 1/s.

    Args:
        steps: m, integers apart; 0 to 2^53.
        scale: s, grid steps; finite, > 0.
        order: Rényi order α; 1 (KL) ≤ α ≤ 1e15, or infinite (pure ε).

    Returns:
        The divergence in nats, rounded up; infinite where m/s is above 1e15.

    Raises:
        ParameterError: an argument is outside its range.

    Source: the sum over all integers. With m = 1, e^(1/s) = 3 and α = 2 it is ln(7/3):

    >>> round(math.exp(discrete_laplace_renyi(1, scale=1 / math.log(3), order=2.0)) * 3, 9)
    7.0
    """
    check_integer("steps", steps, 0, MOST_STEPS)
    check_positive("scale", scale)
    order = check_order("order", order, kl=True)
    if steps == 0:
        return 0.0
    shift = steps / scale
    if shift > LARGEST:
        return math.inf
    pure = up(shift)
    return pure if order == math.inf else min(pure, _discrete(shift, 0.5 / scale, order - 1))


def laplace_zcdp(distance: float, *, scale: float) -> float:
    """The least ρ for which two Laplace laws are ρ-zCDP.

    Args:
        distance: |m − m′|, data units; 0 ≤ distance ≤ 1e15.
        scale: b, data units; finite, > 0.

    Returns:
        ρ in nats, rounded up by at most 1e-9, relative; the ε tanh(ε/2) of `pure_rho` where ε, the
        distance over the scale, is not from 1e-11 to 1e3.

    Raises:
        ParameterError: an argument is outside its range, or distance/scale is above 1e15.

    Source: `laplace_renyi` and `zcdp_supremum`. Never more than ½t², t = distance/scale:

    >>> laplace_zcdp(0.0, scale=1.0), round(laplace_zcdp(1.0, scale=4.0) * 2 * 16, 2)
    (0.0, 0.92)
    """
    pure = _pure(check_amount("distance", distance), scale)
    if distance == 0:
        return 0.0
    return zcdp_supremum(
        [lambda order: laplace_renyi(distance, scale=scale, order=order)], pure=pure
    )


def discrete_laplace_zcdp(steps: int, *, scale: float) -> float:
    """The least ρ for which two discrete Laplace laws are ρ-zCDP.

    Args:
        steps: m, integers apart; 0 to 2^53.
        scale: s, grid steps; finite, > 0.

    Returns:
        ρ in nats, as in `laplace_zcdp`.

    Raises:
        ParameterError: an argument is outside its range, or steps/scale is above 1e15.

    Source: `discrete_laplace_renyi` and `zcdp_supremum`. With m = 1 and e^(1/s) = 3, half of ln 3:

    >>> round(discrete_laplace_zcdp(1, scale=1 / math.log(3)) / math.log(3), 8)
    0.5
    """
    check_integer("steps", steps, 0, MOST_STEPS)
    pure = _pure(steps, scale)
    if steps == 0:
        return 0.0
    shift, half_step = steps / scale, 0.5 / scale
    return zcdp_supremum([lambda order: _discrete(shift, half_step, order - 1)], pure=pure)


def _pure(distance: float, scale: float) -> float:
    check_positive("scale", scale)
    if not distance / scale <= LARGEST:
        raise ParameterError("scale", scale, f"at least distance/1e15, where it is {distance}")
    return up(distance / scale)


def _discrete(t: float, y: float, beta: float) -> float:
    """D_α for a shift of t > 0 at y = 1/(2s), β = α − 1; rounded up."""
    share, extra = _shares(y, beta)  # (1 − r)/2 and rk − 1, each over β
    if beta * t > _LARGEST_EXPONENT:
        exponent = beta * t
        return up((exponent + math.log1p(-beta * share) + blur(exponent)) / beta)
    bend = curvature(beta * t) * (1 + blur(beta * t)) / beta if beta else 0.0
    rest = share * curvature(-(1 + beta) * t) + t / 2 * extra
    moment = (1 - beta * share) * bend + rest * (1 + blur(0.0))
    return up(math.log1p(beta * moment) / beta if beta * moment else moment)


def _shares(y: float, beta: float) -> tuple[float, float]:
    """((1 − r)/2)/β and (rk − 1)/β, in the limit for β = 0."""
    if y > _FLAT:
        return 0.0, 2.0
    tanh = math.tanh(y)
    rate = math.tanh(2 * beta * y) / beta if beta else 2 * y  # D/β
    whole = tanh + beta * rate
    share = rate * _sech_squared(y) / (2 * whole)
    bent = _tanh_deficit(2 * beta * y) / beta if beta else 0.0
    gain = math.fsum((bent, -2 * _tanh_deficit(y), (1 + 2 * beta) * tanh * tanh * rate))
    return share, gain / whole


def _sech_squared(y: float) -> float:
    """1 − tanh²(y)."""
    return 1 / math.cosh(y) ** 2 if y < 300 else 0.0


def _tanh_deficit(x: float) -> float:
    """The excess x − tanh(x) for x ≥ 0: (x cosh(x) − sinh(x))/cosh(x), in a series for small x."""
    if x > 1:
        return x - math.tanh(x)
    term = total = x**3 / 3
    n = 1
    while term > 1e-18 * total:
        term *= x * x / (2 * n * (2 * n + 3))
        n += 1
        total += term
    return total / math.cosh(x)


# The discrete Gaussian P(z) ∝ e^(−z²/(2σ²)): its variance, and what a shift of it costs.
#
# With c the distance of αm to the nearest integer and E over the law itself,
#
#     D_α = ( αm² − c²/(α−1) )/(2σ²) + ln( 1 + E[cosh(Zc/σ²) − 1] )/(α − 1),
#
# from completing the square: Σ e^(−(z−αm)²/(2σ²)) depends on c alone. Both parts are positive. The whole is
# αm²/(2σ²), as for the continuous law, where αm is an integer, and less elsewhere: by Poisson
# summation ln(Σ e^(−z²/(2σ²)) / Σ e^(−(z−c)²/(2σ²))) is at most 5 π² c² e^(−2π²σ²) once σ ≥ 1, which at σ = 2 is
# nothing to 30 digits.

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


# How much of a sphere lies in a cap: the law of one coordinate of a random direction.

MOST_DIMENSIONS = 1 << 24


def cap_share(height: float, *, dimension: int) -> float:
    """The probability that a uniform direction in R^d has a first coordinate of at least `height`.

        P(U_1 ≥ h) = ½ I_(1−h²)((d − 1)/2, ½),   I the regularised incomplete beta function

    Args:
        height: h; 0 ≤ h < 1.
        dimension: d; 2 to 2^24.

    Returns:
        The share, within `share_error` relative.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Li 2011, Asian J. Math. Stat. 4, 66-70; the continued fraction: Abramowitz & Stegun 1964,
    26.5.8.

    >>> cap_share(0.0, dimension=5)
    0.5
    >>> round(cap_share(0.5, dimension=3), 12)  # Archimedes: (1 - h)/2
    0.25
    """
    check_height(height)
    check_dimension(dimension)
    a = (dimension - 1) / 2
    square = height * height
    if height == 0:
        return 0.5
    # ln of (1 − h²)^a h / B(a, ½), which both forms share.
    front = math.exp(a * math.log1p(-square)) * height * gamma_ratio(a) / math.sqrt(math.pi)
    if square * (a + 2.5) > 1.5:  # 1 − h² < (a + 1)/(a + 2.5): the fraction converges fast
        return 0.5 * front / a / _fraction(1 - square, a, 0.5)
    return 0.5 * (1 - 2 * front / _fraction(square, 0.5, a))


def share_error(dimension: int) -> float:
    """How much `cap_share` may be wrong by, relative: the continued fraction cancels near 1.

    The worst seen, at h near 1.8/√d, is a third of it: 6e-10 in ten million dimensions.

    >>> share_error(1000) < 3e-13
    True
    """
    check_dimension(dimension)
    return 1e-13 + dimension * 2.0**-53


def cap_density(height: float, *, dimension: int) -> float:
    """Density of the first coordinate, integrated against itself from `height` to 1.

        E[U_1; U_1 ≥ h] = (1 − h²)^((d−1)/2)/((d − 1) B((d − 1)/2, ½))

    >>> round(cap_density(0.0, dimension=3), 12)
    0.25
    """
    check_height(height)
    check_dimension(dimension)
    a = (dimension - 1) / 2
    power = math.exp(a * math.log1p(-height * height))
    return power * gamma_ratio(a) / (2 * a * math.sqrt(math.pi))


def gamma_ratio(a: float) -> float:
    """Γ(a + ½)/Γ(a) for a ≥ ½, within 1e-15 a step or so.

    The asymptotic series, from 32 or more, taken down by Γ(a + 1) = a Γ(a).

    >>> round(gamma_ratio(0.5) * math.sqrt(math.pi), 13)
    1.0
    """
    factor = 1.0
    while a < 32:
        factor *= a / (a + 0.5)
        a += 1
    x = 1 / a
    series = 1 + x * (
        -1 / 8 + x * (1 / 128 + x * (5 / 1024 + x * (-21 / 32768 + x * (-399 / 262144))))
    )
    series += x**6 * (869 / 4194304 + x * 39325 / 33554432)
    return factor * math.sqrt(a) * series


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of I_x(a, b), 1 + d_1/(1 + d_2/(1 + …)), from its far end."""
    terms = 2000
    value = 1.0
    for n in range(terms, 0, -1):
        m = n // 2
        if n % 2:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        value = 1 + d / value
    return value


def check_height(height: float) -> None:
    """Refuse what is no height of a cap; NaN too."""
    inside = isinstance(height, float | int) and not isinstance(height, bool)
    if not (inside and 0 <= height < 1):
        raise ParameterError("height", height, ">= 0 and < 1")


def check_dimension(dimension: int) -> None:
    """Refuse what is no dimension of a sphere's space."""
    check_integer("dimension", dimension, 2, MOST_DIMENSIONS)
