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

from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import ParameterError
from demur_proto.finite_pairs import blur, curvature
from demur_proto.outward import up
from demur_proto.ranges import LARGEST, check_amount, check_order
from demur_proto.renyi import laplace_renyi
from demur_proto.zcdp_supremum import zcdp_supremum

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
