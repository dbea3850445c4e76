"""Range checks shared by every value that must be valid from birth."""

import sys
from collections.abc import Mapping
from typing import TypeVar

from demur_proto.errors import ParameterError, UnsupportedError

Key = TypeVar("Key")


def check_positive(name: str, value: float) -> None:
    """Refuse what is not a finite number above zero that a float holds exactly; NaN too.

    Definitions travel as floats: an integer that rounds on the way would change the contract.
    """
    inside = type(value) is not bool and isinstance(value, int | float)
    if not (inside and 0 < value <= sys.float_info.max and float(value) == value):
        raise ParameterError(name, value, "a finite number > 0")


def check_integer(name: str, value: int, low: int, high: int | None = None) -> None:
    """Refuse what is not an integer in [low, high]; booleans are not integers here."""
    inside = type(value) is int and value >= low and (high is None or value <= high)
    if not inside:
        upper = "" if high is None else f" and <= {high}"
        raise ParameterError(name, value, f"an integer >= {low}{upper}")


def check_text(name: str, value: str, *, longest: int) -> None:
    """Refuse what is not a printable text of 1 to `longest` characters."""
    if not isinstance(value, str) or not 1 <= len(value) <= longest or not value.isprintable():
        raise ParameterError(name, value, f"1 to {longest} printable characters")


def check_hash(name: str, value: bytes) -> None:
    """Refuse what is not 32 bytes."""
    if not isinstance(value, bytes) or len(value) != 32:
        raise ParameterError(name, value, "a SHA-256 hash of 32 bytes")


def named(names: Mapping[Key, int], stated: int, field: str) -> Key:
    """What a number of the schema stands for.

    Raises:
        UnsupportedError: nothing that this version knows.
    """
    for value, number in names.items():
        if number == stated:
            return value
    raise UnsupportedError(f"{field} {stated} is not supported by this version")
