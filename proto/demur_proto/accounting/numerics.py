"""Rounding to the safe side, and the root finder whose errors it covers."""

import math
from collections.abc import Callable, Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from fractions import Fraction
from numbers import Real

from demur_proto.errors import ParameterError

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


# The ranges within which conversions and divergences keep their promises.

LARGEST = 1e15  #: of every ε, μ, ρ, distance and finite order
LEAST_DELTA = 1e-300


def check_amount(name: str, value: float | Fraction) -> float:
    """An ε, μ, ρ or distance as a float; refuse what is not in [0, 1e15], NaN too.

    >>> check_amount("epsilon", 2)
    2.0
    """
    if not (_is_number(value) and 0 <= value <= LARGEST):
        raise ParameterError(name, value, "at least 0 and at most 1e15")
    return float(value)


def check_delta(name: str, value: float) -> float:
    """A δ that a conversion can aim at, as a float; refuse what is not in [1e-300, 1).

    >>> check_delta("delta", 0.25)
    0.25
    """
    if not (_is_number(value) and LEAST_DELTA <= value < 1):
        raise ParameterError(name, value, "at least 1e-300 and below 1")
    return float(value)


def check_order(name: str, value: float, *, kl: bool = False) -> float:
    """A Rényi order as a float; refuse what is neither in (1, 1e15] nor infinite.

    Args:
        name: what to call it.
        value: the order α.
        kl: accept 1 as well, the Kullback-Leibler divergence.

    >>> check_order("order", math.inf)
    inf
    """
    low = _is_number(value) and (value >= 1 if kl else value > 1)
    if not (low and (value <= LARGEST or value == math.inf)):
        raise ParameterError(
            name, value, f"{'at least' if kl else 'above'} 1 and at most 1e15, or infinite"
        )
    return float(value)


def _is_number(value: object) -> bool:
    """Whether it is a number at all, numpy's scalars included; booleans are not numbers here."""
    return isinstance(value, Real) and not isinstance(value, bool)


# Tails of the normal law, right to a few units in the last place however small they are.
#
#     φ(x) = e^(−x²/2) / √(2π),   R(x) = Φ(−x) / φ(x)   (the Mills ratio)
#
# Telling N(μ, 1) from N(0, 1) at ε nats leaves, with a = ε/μ − μ/2 and b = ε/μ + μ/2,
#
#     δ = Φ(−a) − e^ε Φ(−b) = φ(a) (R(a) − R(b)),   1 − δ = φ(a) (R(−a) + R(b)),
#
# because e^ε φ(b) = φ(a). The density, which may be 1e-300, is taken at an exact rational exponent;
# the ratios are integrals of positive functions: nothing cancels anywhere.

_ROOT_2PI = math.sqrt(2 * math.pi)


def mills(x: float) -> float:
    """Mills ratio of the normal law.

        R(x) = Φ(−x) / φ(x) = ∫₀^∞ e^(−xs − s²/2) ds

    Args:
        x: standard deviations from the mean; ≥ −1, not checked.

    Returns:
        The ratio, dimensionless, within 1e-15 relative.

    Source: substitute y = x + s in Φ(−x) = ∫_x^∞ φ(y) dy.

    >>> round(mills(0.0) ** 2, 9) == round(math.pi / 2, 9)
    True
    """
    scale = _scale(x)
    return scale * math.fsum(
        weight * math.exp(-scale * s * (x + scale * s / 2)) for s, weight in _NODES
    )


def mills_drop(x: float, step: float) -> tuple[float, float]:
    """How much the Mills ratio falls over a step, and what is left of it.

        R(x) − R(x + h) = ∫₀^∞ e^(−xs − s²/2) (1 − e^(−hs)) ds

    Args:
        x: standard deviations from the mean; ≥ −1, not checked.
        step: the step h in standard deviations; > 0, not checked.

    Returns:
        R(x) − R(x + h) and R(x + h), dimensionless, each within 1e-15 relative: also the first,
        which as a difference of two ratios would lose every digit for small h.

    Source: as `mills`.

    >>> drop, rest = mills_drop(0.0, 1.0)
    >>> round(drop + rest, 9) == round(mills(0.0), 9)
    True
    """
    if step > max(1.0, x):  # the ratios differ by a factor, so their difference is safe
        rest = mills(x + step)
        return mills(x) - rest, rest
    scale = _scale(x)
    fallen, left = [], []
    for node, weight in _NODES:
        s = scale * node
        mass = weight * math.exp(-s * (x + s / 2))
        lost = -math.expm1(-step * s)
        fallen.append(mass * lost)
        left.append(mass * (1 - lost))
    return scale * math.fsum(fallen), scale * math.fsum(left)


def tails(mu: float, epsilon: float) -> tuple[float, float]:
    """δ and 1 − δ as at the top of this file.

    Args:
        mu: distance of the two means, standard deviations; > 0, not checked.
        epsilon: ε in nats; ≥ 0, not checked.

    Returns:
        Two probabilities. The smaller is within 2e-15 relative, or 1e-323 absolute.

    Source: Balle & Wang 2018, arXiv:1805.06530, Theorem 8.

    >>> [round(p, 4) for p in tails(2.0, 0.0)]
    [0.6827, 0.3173]
    """
    rough = epsilon / mu - mu / 2
    if abs(rough) > 40:  # φ(40) = 4e-349
        return (0.0, 1.0) if rough > 0 else (1.0, 0.0)
    e, m = Fraction(epsilon), Fraction(mu)
    low, high = e / m - m / 2, e / m + m / 2
    a, b = float(low), float(high)
    density = exp_exact(-low * low / 2) / _ROOT_2PI
    if a > -0.7:  # else δ > ½
        delta = density * mills_drop(a, mu)[0]
        if delta < 0.5:
            return delta, 1 - delta
    rest = density * (mills(-a) + mills(b))
    return 1 - rest, rest


def log_tail(mu: float, epsilon: float, *, small: bool) -> tuple[float, float, float]:
    """Ln δ, or ln(1 − δ) if δ is not `small`, with its derivatives in ε and in μ.

    All three are safe from underflow. They serve to find a root; `tails` then judges it.
    """
    a = epsilon / mu - mu / 2
    if small:
        drop, rest = mills_drop(a, mu)
        return math.log(drop / _ROOT_2PI) - a * a / 2, -rest / drop, 1 / drop
    rest = mills(a + mu)
    both = mills(-a) + rest
    return math.log(both / _ROOT_2PI) - a * a / 2, rest / both, -1 / both


def exp_exact(exponent: Fraction) -> float:
    """E to an exact power, within 4e-16 relative.

    A float near −700 is known to 1e-13 only, and so would be its exponential.

    >>> exp_exact(Fraction(0))
    1.0
    """
    rounded = float(exponent)
    return math.exp(rounded) * (1 + float(exponent - Fraction(rounded)))


def _scale(x: float) -> float:
    """The length over which e^(−xs − s²/2) decays: 1 at x = 0, near 1/x for large x."""
    return 2 / (x + math.hypot(x, 2))


def _double_exponential(step: float) -> Iterator[tuple[float, float]]:
    """Nodes and weights of ∫₀^∞ f(s) ds for f that decays like e^(−s).

    The trapezoid rule after s = e^(u − e^(−u)); at step 0.1 it errs by 3e-16 on the integrals
    above. Source: Takahasi & Mori 1974, Publ. RIMS 9, 721-741.
    """
    for k in range(-36, 38):
        u = k * step
        s = math.exp(u - math.exp(-u))
        yield s, step * s * (1 + math.exp(-u))


_NODES = tuple(_double_exponential(0.1))
