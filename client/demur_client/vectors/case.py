"""One case of a vector file: reads its fields, and says which one is not what it should be."""

import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from demur_client.vectors.verdict import Tally, Verdict
from demur_proto.errors import DataError, ParameterError

Check = Callable[[list[dict[str, Any]]], Verdict]
"""What a family's entry in the table is: all of its cases in, one verdict out."""

_DECIMAL = re.compile(r"[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,3})?", re.ASCII)
_RATIONAL = re.compile(r"[+-]?\d{1,4000}/\d{1,4000}", re.ASCII)
_HEXADECIMAL = re.compile(r"[+-]?0[xX][0-9a-fA-F.]{1,60}([pP][+-]?\d{1,4})?", re.ASCII)


class Case:
    """The fields of one case.

    >>> case = Case({"budget": "1/3", "delta": 1e-5, "order": "inf"}, where="traces[0]")
    >>> case.exact("budget"), case.number("delta"), case.number("order")
    (Fraction(1, 3), 1e-05, inf)
    """

    def __init__(self, fields: Mapping[str, Any], *, where: str) -> None:
        self._fields = fields
        self.where = where  #: what to call it in a message

    def names(self) -> list[str]:
        """The names of all fields."""
        return list(self._fields)

    def number(self, name: str) -> float:
        """A JSON number, or a number as text; "inf" is one, NaN is not."""
        value = self._field(name)
        if value == "inf":
            return math.inf
        try:
            return float(self._exact(name, value))
        except OverflowError:
            raise self._wrong(name, value, "a number that a double can hold") from None

    def exact(self, name: str) -> Fraction:
        """A finite number, exactly: text as written, a JSON number as the double it reads as."""
        return self._exact(name, self._field(name))

    def integer(self, name: str) -> int:
        """A JSON integer."""
        value = self._field(name)
        if type(value) is not int:
            raise self._wrong(name, value, "an integer")
        return value

    def text(self, name: str) -> str:
        """A text."""
        value = self._field(name)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a text")
        return value

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self._field(name)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def is_null(self, name: str) -> bool:
        """Whether the field is there and null."""
        return self._field(name) is None

    def numbers(self, name: str) -> list[float]:
        """A list of numbers."""
        return [part.number("value") for part in self._parts(name)]

    def exacts(self, name: str) -> list[Fraction]:
        """A list of finite numbers, exactly."""
        return [part.exact("value") for part in self._parts(name)]

    def texts(self, name: str) -> list[str]:
        """A list of texts."""
        return [part.text("value") for part in self._parts(name)]

    def within(self, name: str) -> "Case":
        """An object inside this one."""
        value = self._field(name)
        if not isinstance(value, dict):
            raise self._wrong(name, value, "an object")
        return Case(value, where=f"{self.where}.{name}")

    def cases(self, name: str) -> list["Case"]:
        """A list of objects."""
        return [part.within("value") for part in self._parts(name)]

    def _field(self, name: str) -> Any:
        if name not in self._fields:
            raise DataError(f"{self.where} has no {name!r}")
        return self._fields[name]

    def _parts(self, name: str) -> list["Case"]:
        value = self._field(name)
        if not isinstance(value, list):
            raise self._wrong(name, value, "a list")
        return [
            Case({"value": part}, where=f"{self.where}.{name}[{index}]")
            for index, part in enumerate(value)
        ]

    def _exact(self, name: str, value: Any) -> Fraction:
        if type(value) is int or (type(value) is float and math.isfinite(value)):
            return Fraction(value)
        if isinstance(value, str):
            if _DECIMAL.fullmatch(value):
                return Fraction(value)
            if _RATIONAL.fullmatch(value) and int(value.partition("/")[2]):
                return Fraction(value)
            if _HEXADECIMAL.fullmatch(value):
                try:
                    return Fraction(float.fromhex(value))
                except (ValueError, OverflowError):
                    pass
        raise self._wrong(name, value, "a number")

    def _wrong(self, name: str, value: Any, expected: str) -> DataError:
        shown = repr(value)
        if len(shown) > 60:
            shown = f"{shown[:57]}..."
        return DataError(f"{self.where}.{name} must be {expected}, got {shown}")


def examine(
    family: str, cases: list[dict[str, Any]], check: Callable[[Case, Tally], None]
) -> Verdict:
    """Check case by case. A case that this implementation refuses to compute does not hold.

    One that it does not know, as a field is missing or not what it should be, is noted by its name; all
    others are checked.
    """
    tally = Tally()
    for index, fields in enumerate(cases):
        case = Case(fields, where=f"{family}[{index}]")
        tally.case(case.where)
        try:
            check(case, tally)
        except ParameterError as error:
            tally.fail(str(error))
        except DataError as error:
            tally.unknown(str(error))
    return tally.verdict()
