"""Which proof turns a bound on divergences into (ε, δ)."""

from typing import Literal

from demur_proto.errors import ParameterError

Grade = Literal["simple", "improved"]
"""Bun & Steinke's and Mironov's proof, or that of Canonne, Kamath & Steinke."""


def is_simple(grade: Grade) -> bool:
    """Whether it is the simple one; anything but the two grades is refused.

    >>> is_simple("improved")
    False
    """
    if grade not in ("simple", "improved"):
        raise ParameterError("grade", grade, '"simple" or "improved"')
    return grade == "simple"
