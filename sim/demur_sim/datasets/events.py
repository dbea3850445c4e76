"""Lines of text files, and what is wrong with one of them."""

import csv
import datetime as dt
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TypeVar

import numpy as np

from demur_proto.checks import check_integer
from demur_proto.errors import DataError, ParameterError
from demur_sim.people.populations import LARGEST_AMOUNT, EventLog

LONGEST_LINE = 1 << 16  #: bytes
SHOWN = 40  #: characters of a cell and columns of a header that a message repeats


class Lines:
    """The lines of a text file, plain or gzipped, and the number of the one read last.

    Args:
        path: the file; its first bytes, not its name, say whether it is gzipped.
    """

    def __init__(self, path: str | Path) -> None:
        self.number = 0
        self._path = path

    def __iter__(self) -> Iterator[str]:
        try:
            with Path(self._path).open("rb") as file:
                zipped = file.peek(2)[:2] == b"\x1f\x8b"
                raw = io.BufferedReader(gzip.GzipFile(fileobj=file)) if zipped else file
                while line := raw.readline(LONGEST_LINE + 1):
                    self.number += 1
                    if len(line) > LONGEST_LINE:
                        raise self.fault(f"lines of at most {LONGEST_LINE} bytes")
                    yield line.decode("utf-8-sig" if self.number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise self.fault("text in UTF-8, found other bytes") from None
        except (EOFError, zlib.error, gzip.BadGzipFile):
            # What was unpacked together with the damage is lost: at most one buffer.
            after = self.number + 1
            raise self.fault("a whole gzip file, found damage soon after", line=after) from None
        except OSError as error:
            raise DataError(f"{self._path}: cannot be read: {error.strerror or error}") from None

    def fault(self, expected: str, *, line: int | None = None) -> DataError:
        """What is wrong with this line, or with the line read last."""
        return DataError(
            f"{self._path}:{self.number if line is None else line}: expected {expected}"
        )


def shown(cell: str) -> str:
    """A cell as a message repeats it: the beginning of a long one.

    >>> shown("x" * 50)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…'"
    """
    return repr(cell if len(cell) <= SHOWN else cell[:SHOWN] + "…")


# Populations from a CSV file with one line for each event.

MOST_DAYS = 100_000  #: from the first day to the last; more is a mistyped year
MOST_PERIOD_DAYS = 366

_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_PERSON = re.compile(r"[0-9]{1,18}")
_AMOUNT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")

T = TypeVar("T")


def read_events(
    path: str | Path,
    *,
    person: str = "customer_id",
    date: str = "date",
    amount: str | None = None,
    start: str | None = None,
    end: str | None = None,
    period_days: int = 1,
) -> EventLog:
    """Read events from a CSV file, plain or gzipped, in UTF-8, with a header line.

    A period is a day, or several: somebody with events on more than one day of it is active in it
    once. If the last period has fewer days than the others, it stays shorter. People become devices in the order of their ids, and the ids are dropped.
    Somebody without any event cannot be in such a file, so every device has at least one.

    Args:
        path: the file; its first bytes, not its name, say whether it is gzipped.
        person: column with whose event it is, an integer of 1 to 18 digits.
        date: column with its day, yyyy-mm-dd.
        amount: column with its amount, a number within ±1e100; None for events without.
        start: first day of period 1, yyyy-mm-dd; None for the earliest day in the file.
        end: last day of the last period, yyyy-mm-dd; None for the latest day in the file.
        period_days: how many days a period has; from 1 to 366.

    Raises:
        DataError: the file cannot be read, or is not as described; an event before `start` or
            after `end` is such a fault too. One line that names file, line and what was expected.
        ParameterError: `start` or `end` is not a day, or they are in the wrong order; or
            `period_days` is outside its range.
    """
    first, last = check_days(start, end)
    check_integer("period_days", period_days, 1, MOST_PERIOD_DAYS)
    lines = Lines(path)
    rows = csv.reader(lines, strict=True)
    try:
        header = next(rows, None)
        if header is None:
            raise lines.fault("a header line, found an empty file", line=1)
        person_of = _column(lines, header, person, _person)
        day_of = _column(lines, header, date, _Days(start, end))
        amount_of = None if amount is None else _column(lines, header, amount, _amount)
        people: list[int] = []
        days: list[int] = []
        amounts: list[float] = []
        for row in rows:
            if len(row) != len(header):
                if not row:
                    continue  # an empty line holds no event
                raise lines.fault(f"{len(header)} fields as in the header, got {len(row)}")
            people.append(person_of(row))
            days.append(day_of(row))
            if amount_of is not None:
                amounts.append(amount_of(row))
    except csv.Error as error:
        raise lines.fault(f"well-formed CSV: {error}") from None
    if not people:
        raise lines.fault("an event after the header, found none", line=lines.number + 1)
    first = min(days) if first is None else first
    last = max(days) if last is None else last
    ids, device = np.unique(np.array(people), return_inverse=True)
    return EventLog.of(
        devices=len(ids),
        periods=(last - first) // period_days + 1,
        device=device,
        period=(np.array(days) - first) // period_days + 1,
        amount=None if amount is None else np.array(amounts),
    )


def check_days(start: str | None, end: str | None) -> tuple[int | None, int | None]:
    """The first and the last day as ordinals, None where there is none.

    Raises:
        ParameterError: one is not a day as yyyy-mm-dd, or they are in the wrong order, or 100,000
            days apart or more.

    >>> check_days("1970-01-01", None)
    (719163, None)
    """
    ordinals: list[int | None] = []
    for name, text in (("start", start), ("end", end)):
        try:
            ordinals.append(None if text is None else _day(text))
        except (TypeError, ValueError):
            raise ParameterError(name, text, "a day as yyyy-mm-dd") from None
    first, last = ordinals
    if first is not None and last is not None and not 0 <= last - first < MOST_DAYS:
        raise ParameterError("end", end, f"0 to {MOST_DAYS - 1:,} days after start {start}")
    return first, last


def _column(
    lines: Lines, header: list[str], name: str, parse: Callable[[str], T]
) -> Callable[[list[str]], T]:
    """What takes a row to the value in one of its columns.

    Few cells differ from all before them, so each text is parsed only once. A ValueError of `parse`
    says what was expected.
    """
    if header.count(name) != 1:
        found = ", ".join(shown(each) for each in header[:SHOWN]) or "none"
        raise lines.fault(f"one column {name!r}, found the columns {found}")
    at = header.index(name)

    @cache
    def value_of(cell: str) -> T:
        try:
            return parse(cell)
        except ValueError as expected:
            raise lines.fault(f"{expected} in column {name!r}, got {shown(cell)}") from None

    return lambda row: value_of(row[at])


class _Days:
    """Parses days of a study: between its ends, where it has them, and not too far apart."""

    def __init__(self, start: str | None, end: str | None) -> None:
        self._first, self._last = check_days(start, end)
        ends = [f"from {start}"] if start else []
        self._span = " ".join(["a day", *ends, *([f"to {end}"] if end else [])])
        self._earliest, self._latest = self._first, self._last

    def __call__(self, text: str) -> int:
        day = _day(text)
        if (self._first is not None and day < self._first) or (
            self._last is not None and day > self._last
        ):
            raise ValueError(self._span)
        self._earliest = day if self._earliest is None else min(day, self._earliest)
        self._latest = day if self._latest is None else max(day, self._latest)
        if self._latest - self._earliest >= MOST_DAYS:
            raise ValueError(f"a day less than {MOST_DAYS:,} days from the others")
        return day


def _day(text: str) -> int:
    try:
        if _DAY.fullmatch(text):
            return dt.date.fromisoformat(text).toordinal()
    except ValueError:
        pass
    raise ValueError("a day as yyyy-mm-dd")


def _person(text: str) -> int:
    if not _PERSON.fullmatch(text):
        raise ValueError("an integer of 1 to 18 digits")
    return int(text)


def _amount(text: str) -> float:
    if not (_AMOUNT.fullmatch(text) and abs(float(text)) <= LARGEST_AMOUNT):
        raise ValueError("a number within ±1e100")
    return float(text)


# The CDNOW customers: who bought music when, from the shipped file.


def load_cdnow(*, period_days: int = 1) -> EventLog:
    """The purchases of 23,570 people over 546 days, 1997-01-01 to 1998-06-30.

    All of them bought for the first time in the first three months. Amounts are in US dollars.

    Args:
        period_days: how many days a period has, see `read_events`; 7 make 78 weeks.

    Source: CDNOW customer transactions, the public teaching data of Peter Fader and Bruce Hardie,
    brucehardie.com/datasets.
    """
    file = resources.files("demur_sim.datasets") / "cdnow.csv.gz"
    with resources.as_file(file) as path:
        return read_events(
            path,
            amount="amount_usd",
            start="1997-01-01",
            end="1998-06-30",
            period_days=period_days,
        )
