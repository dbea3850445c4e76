"""The ranges within which conversions and divergences keep their promises."""

import math
from fractions import Fraction
from numbers import Real

from demur_proto.errors import ParameterError

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
