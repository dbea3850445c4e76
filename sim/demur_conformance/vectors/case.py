"""What checking a family of vectors found, and the tally that becomes it."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from demur_proto.errors import DataError, ParameterError

UNDERFLOW = 1e-320  #: numbers up to this are too small to have a relative error


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How this implementation did on one family."""

    cases: int  #: how many cases were checked
    worst: float | None = None  #: worst relative error; None where only exact answers are compared
    failures: tuple[str, ...] = ()  #: one line each: which case, what was expected, what came
    unknown: tuple[str, ...] = ()
    """One line each: a case that this implementation does not know, so that it was not checked, and why."""

    @property
    def holds(self) -> bool:
        """Whether every case was reproduced. A family without cases proves nothing."""
        return self.cases > 0 and not (self.failures or self.unknown)


class Tally:
    """Collects comparisons case by case.

    >>> tally = Tally()
    >>> tally.case("first")
    >>> tally.above("epsilon", 1.0000000000001, 1.0, within=1e-12)
    >>> tally.below("budget", 2.0000000000001, 2.0, within=1e-12)
    >>> tally.same("decision", "HALT", "HALT")
    >>> verdict = tally.verdict()
    >>> verdict.cases, verdict.holds, verdict.failures
    (1, False, ('first: budget 2.0000000000001 is above 2.0',))
    """

    def __init__(self) -> None:
        self._cases = 0
        self._name = ""
        self._worst: float | None = None
        self._failures: list[str] = []
        self._unknown: list[str] = []

    def case(self, name: str) -> None:
        """Begin a case; what follows is about it."""
        self._cases += 1
        self._name = name

    def above(self, what: str, value: float, reference: float, *, within: float) -> None:
        """Expect a value that is not below the reference, and above it by `within` at most.

        A reference of 0 stands for whatever is below the least float as well.
        """
        if reference == 0 and 0 <= value <= UNDERFLOW:
            return
        if self._compared(what, value, reference, within) and value < reference:
            self.fail(f"{what} {value!r} is below {reference!r}")

    def below(self, what: str, value: float, reference: float, *, within: float) -> None:
        """Expect a value that is not above the reference, and below it by `within` at most."""
        if self._compared(what, value, reference, within) and value > reference:
            self.fail(f"{what} {value!r} is above {reference!r}")

    def near(self, what: str, value: float, reference: float, *, within: float) -> None:
        """Expect a value within a relative distance of the reference, on either side."""
        self._compared(what, value, reference, within)

    def same(self, what: str, value: object, reference: object) -> None:
        """Expect exactly this."""
        if value != reference:
            self.fail(f"{what} is {value!r}, expected {reference!r}")

    def fail(self, message: str) -> None:
        """Record that this case does not hold."""
        self._failures.append(f"{self._name}: {message}")

    def unknown(self, message: str) -> None:
        """Record that this case cannot be checked; the message names it."""
        self._cases -= 1
        self._unknown.append(message)

    def verdict(self) -> Verdict:
        """What was found so far."""
        return Verdict(
            cases=self._cases,
            worst=self._worst,
            failures=tuple(self._failures),
            unknown=tuple(self._unknown),
        )

    def _compared(self, what: str, value: float, reference: float, within: float) -> bool:
        """Note how far apart they are, and whether that is near enough to ask for the side."""
        error = relative_error(value, reference)
        self._worst = error if self._worst is None else max(self._worst, error)
        if error <= within:
            return True
        self.fail(f"{what} {value!r} differs from {reference!r} by {error:.2g}, not {within:.2g}")
        return False


def relative_error(value: float, reference: float) -> float:
    """|value − reference| / |reference|; infinite where only one of them is finite, or NaN.

    >>> relative_error(2.5, 2.0), relative_error(0.0, 0.0), relative_error(1.0, 0.0)
    (0.25, 0.0, inf)
    """
    if value == reference:
        return 0.0
    if not (math.isfinite(value) and math.isfinite(reference)) or reference == 0:
        return math.inf
    return abs(value - reference) / abs(reference)


# One case of a vector file: reads its fields, and says which one is not what it should be.

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
