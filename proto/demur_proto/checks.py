"""Range checks shared by every value that must be valid from birth."""

import sys
from collections.abc import Iterable, Mapping
from typing import TypeVar

from demur_proto.errors import ParameterError, UnsupportedError

Key = TypeVar("Key")
FEW = 10  #: names that a message may list


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


def expected_name(known: Iterable[str], given: str) -> str:
    """What was expected instead of an unknown name: the nearest one, and all of them where they are few.

    >>> expected_name(["epsilon", "delta"], "epsilom")
    'one of epsilon, delta (did you mean epsilon?)'
    >>> expected_name([f"data.key_{number}" for number in range(44)], "key_7")
    'one of the 44 known names (did you mean data.key_7?)'
    """
    import difflib  # takes milliseconds, which no device needs to spend

    names = list(known)
    similar = [name for name in names if name.endswith(f".{given}")]
    similar += difflib.get_close_matches(given.lower(), names, n=1)
    hint = f" (did you mean {similar[0]}?)" if similar else ""
    listed = ", ".join(names) if len(names) <= FEW else f"the {len(names)} known names"
    return f"one of {listed}{hint}"
