"""One SELECT over an owner's data, and nothing else.

Four fences, each enough for most of what could be tried: the file is opened for reading only, an
authoriser refuses everything but SELECT, reading columns and harmless functions, SQLite's own limits
are low, and time and rows run out.
"""

import math
import re
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demur_proto.arrays import Values
from demur_proto.checks import check_integer, check_positive, check_text
from demur_proto.errors import DataError, ParameterError
from demur_proto.queries import Feature

LONGEST_SQL = 10_000  #: characters
LONGEST_CELL = 1 << 16  #: bytes of a text on the way to a number
STEPS_BETWEEN_LOOKS = 1000  #: of SQLite's machine, between looks at the clock; well below 1 ms
FUNCTIONS = frozenset(
    [
        "abs", "acos", "asin", "atan", "atan2", "avg", "ceil", "ceiling", "coalesce",
        "cos", "count", "cume_dist", "date", "datetime", "dense_rank", "exp",
        "first_value", "floor", "glob", "ifnull", "iif", "instr", "julianday", "lag",
        "last_value", "lead", "length", "like", "ln", "log", "log10", "log2", "lower",
        "ltrim", "max", "min", "mod", "nth_value", "ntile", "nullif", "percent_rank",
        "pow", "power", "rank", "round", "row_number", "rtrim", "sign", "sin", "sqrt",
        "strftime", "substr", "substring", "sum", "tan", "time", "total", "trim", "trunc",
        "typeof", "unicode", "unixepoch", "upper",
    ]
)  # fmt: skip
"""What may be called: nothing that draws at random, makes long texts or reaches outside."""

_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: LONGEST_CELL,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 4 * LONGEST_SQL,
    sqlite3.SQLITE_LIMIT_COLUMN: 2000,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 20,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_QUOTED = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/""", re.DOTALL)
_WRITING = re.compile(r"\b(insert|update|delete|replace)\b", re.IGNORECASE)  # words of SQL's own
_UNKNOWN_HERE = ("no such table", "no such column")  # what only the owner's data can tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much one evaluation may take.

    Raises:
        ParameterError: a field is outside its range.
    """

    time_limit_s: float = 0.7  #: seconds; > 0; below four fifths of the usual slot
    most_rows: int = 4096  #: of a result
    most_numbers: int = 1 << 20  #: of a result, all rows together

    def __post_init__(self) -> None:
        check_positive("time_limit_s", self.time_limit_s)
        check_integer("most_rows", self.most_rows, 1, 1 << 24)
        check_integer("most_numbers", self.most_numbers, 1, 1 << 24)


def check_select(name: str, sql: str) -> None:
    """Refuse, without any data, what is not one SELECT that reads and no more.

    Tables and columns are not known here: a statement that is wrong about them passes, and fails
    when it is evaluated.

    Raises:
        ParameterError: it is refused, and why.

    >>> check_select("features.active", "SELECT count(*) > 0 FROM visits WHERE day = :period")
    """
    if not isinstance(sql, str) or len(sql) > LONGEST_SQL:
        raise ParameterError(
            name, "something else", f"a SELECT of at most {LONGEST_SQL} characters"
        )
    if not re.match(r"\s*(select|with|values)\b", sql, re.IGNORECASE):
        raise ParameterError(name, sql[:40], "one statement that begins with SELECT or WITH")
    if writing := _WRITING.search(_QUOTED.sub(" ", sql)):  # where an unknown table hides it below
        raise ParameterError(name, writing[0], "one SELECT that only reads")
    try:
        with closing(sqlite3.connect(":memory:")) as nothing:
            guard(nothing, Limits())
            nothing.execute(f"EXPLAIN {sql}", _Anything())
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        if not str(error).startswith(_UNKNOWN_HERE):
            raise ParameterError(name, str(error), "one SELECT that only reads") from None


def guard(connection: sqlite3.Connection, limits: Limits) -> None:
    """Leave a connection no way to do anything but read, for so long."""
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA temp_store = MEMORY")  # sorting leaves no copy of data on the disk
    for limit, value in _LIMITS.items():
        connection.setlimit(limit, value)
    end = time.monotonic() + limits.time_limit_s
    connection.set_progress_handler(lambda: time.monotonic() > end, STEPS_BETWEEN_LOOKS)
    connection.set_authorizer(_authorise)  # last: it refuses the lines above


def select_numbers(
    connection: sqlite3.Connection, sql: str, parameters: Mapping[str, float], limits: Limits
) -> Values:
    """The numbers [1, d] that a guarded connection gives, row by row.

    Args:
        connection: guarded.
        sql: one SELECT.
        parameters: for its `:name`s; whole numbers are bound as integers.
        limits: as in `guard`.

    Raises:
        DataError: there is no row, or too many, or something that is no finite number; or it took too long.
        sqlite3.Error, sqlite3.Warning, ValueError: SQLite refuses.
    """
    bound = {name: _bound(value) for name, value in parameters.items()}
    numbers: list[float] = []
    try:
        with closing(connection.execute(sql, bound)) as cursor:
            for count, row in enumerate(cursor, start=1):
                if count > limits.most_rows or len(numbers) + len(row) > limits.most_numbers:
                    raise DataError(
                        f"the query gives more than {limits.most_rows} rows, or than "
                        f"{limits.most_numbers} numbers"
                    )
                numbers += map(_number, row)  # one by one: texts are never gathered
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        raise DataError(
            f"the query took longer than time_limit_s ({limits.time_limit_s:g} s)"
        ) from None
    if not numbers:
        raise DataError("the query gives no row")
    return np.array([numbers], dtype=np.float64)


def _number(cell: object) -> float:
    if type(cell) in (int, float) and isinstance(cell, int | float) and math.isfinite(cell):
        return float(cell)
    kind = "nothing (NULL)" if cell is None else f"a {type(cell).__name__}"
    raise DataError(f"the query gives {kind} where a finite number belongs")


def _bound(value: float) -> float:
    return int(value) if value.is_integer() and abs(value) <= 2.0**53 else value


def _authorise(
    action: int, one: str | None, other: str | None, database: str | None, trigger: str | None
) -> int:
    if action == sqlite3.SQLITE_SELECT:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_READ:
        internal = (one or "").lower().startswith(("sqlite_", "pragma_"))
        return sqlite3.SQLITE_DENY if internal else sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and (other or "").lower() in FUNCTIONS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


class _Anything(dict[str, None]):
    """A value for every parameter."""

    def __missing__(self, name: str) -> None:
        check_text("parameter", name, longest=100)


# An owner's data in a SQLite database, asked with the queries of the owner's policy.

BUSY_S = 0.5  #: how long a database that is being written to is waited for


def check_features(features: Mapping[str, str]) -> Mapping[str, str]:
    """Features and their queries, each of which only reads.

    Raises:
        ParameterError: one of them is no such query; without any data looked at.
    """
    for name, sql in features.items():
        check_text("feature", name, longest=100)
        check_select(f"features.{name}", sql)
    return dict(features)


class TableSource:
    """Maps the name of a feature to one SELECT over a SQLite database.

    Parameters of the feature are bound as `:name`. The result is one row, or several one after the
    other, of finite numbers. The database is opened for each evaluation, for reading only.

    Args:
        path: the database; it need not be there yet.
        features: what may be asked, and the query for each.
        limits: of one evaluation.

    Raises:
        ParameterError: a query is not one SELECT that only reads.
    """

    def __init__(
        self, path: Path, features: Mapping[str, str], *, limits: Limits | None = None
    ) -> None:
        self._path = path
        self._features = check_features(features)
        self._limits = limits or Limits()

    def evaluate(self, feature: Feature) -> Values:
        """The feature's value [1, d].

        Raises:
            DataError: the owner's policy does not name it, or the data give no such value.
            sqlite3.Error, sqlite3.Warning, ValueError: SQLite refuses.
        """
        sql = query_of(self._features, feature)
        if not self._path.is_file():  # a pipe would never end
            raise DataError(f"{self._path} is no file")
        address = f"{self._path.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=BUSY_S)) as connection:
            guard(connection, self._limits)
            return select_numbers(connection, sql, feature.parameters, self._limits)


def query_of(features: Mapping[str, str], feature: Feature) -> str:
    """The query of a feature.

    Raises:
        DataError: there is none.
    """
    try:
        return features[feature.name]
    except KeyError:
        raise DataError(f"the policy names no feature {feature.name!r}") from None
