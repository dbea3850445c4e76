"""An owner's data in a folder of CSV or Parquet files, asked like tables of a database."""

import csv
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

from demur_client.sources.sql import Limits, check_features, guard, query_of, select_numbers
from demur_proto.arrays import Values
from demur_proto.errors import DataError, UnsupportedError
from demur_proto.queries import Feature

LARGEST_FILE = 64 << 20  #: bytes
MOST_FILES = 100
MOST_COLUMNS = 1000
SUFFIXES = (".csv", ".parquet")

Cell = float | int | str | bytes | None


class FolderSource:
    """Maps the name of a feature to one SELECT over the files of a folder.

    `visits.csv` is the table `visits`; its first line names the columns. Cells that look like
    numbers are numbers, empty ones are NULL. The files are read anew for each evaluation, into
    memory. Parquet files need pyarrow.

    Args:
        folder: the files; those with other suffixes are passed over. It need not be there yet.
        features: what may be asked, and the query for each.
        limits: of one evaluation, once the files are read.

    Raises:
        ParameterError: a query is not one SELECT that only reads.
    """

    def __init__(
        self, folder: Path, features: Mapping[str, str], *, limits: Limits | None = None
    ) -> None:
        self._folder = folder
        self._features = check_features(features)
        self._limits = limits or Limits()

    def evaluate(self, feature: Feature) -> Values:
        """The feature's value [1, d].

        Raises:
            DataError: the owner's policy does not name it, or the data give no such value.
            UnsupportedError: there is a Parquet file, and no pyarrow.
            OSError, sqlite3.Error, sqlite3.Warning, ValueError: a file cannot be read, or SQLite
                refuses.
        """
        sql = query_of(self._features, feature)
        with closing(sqlite3.connect(":memory:")) as connection:
            for path in self._files():
                _fill(connection, path)
            guard(connection, self._limits)
            return select_numbers(connection, sql, feature.parameters, self._limits)

    def _files(self) -> list[Path]:
        found = [path for path in sorted(self._folder.iterdir()) if path.suffix in SUFFIXES]
        if len(found) > MOST_FILES:
            raise DataError(f"{self._folder} holds more than {MOST_FILES} files")
        for path in found:
            if not path.is_file() or path.stat().st_size > LARGEST_FILE:
                raise DataError(f"{path} is no file of at most {LARGEST_FILE >> 20} MiB")
        return found


def _fill(connection: sqlite3.Connection, path: Path) -> None:
    """Make a table of a file."""
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file, strict=True)
            columns = next(rows, [])
            _insert(connection, path, columns, _checked(path, columns, rows))
    else:
        columns, cells = _parquet(path)
        _insert(connection, path, columns, cells)


def _checked(
    path: Path, columns: Sequence[str], rows: Iterable[list[str]]
) -> Iterator[list[str | None]]:
    count = 0
    try:
        for count, row in enumerate(rows, start=1):
            if len(row) != len(columns):
                raise DataError(f"{path}, row {count}: {len(columns)} cells, got {len(row)}")
            yield [cell or None for cell in row]
    except csv.Error as error:
        raise DataError(f"{path}, after row {count}: {error}") from None


def _parquet(path: Path) -> tuple[list[str], Iterable[Sequence[Cell]]]:
    try:
        from pyarrow import parquet  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise UnsupportedError(
            f"{path} needs pyarrow; install it with: pip install pyarrow, or export CSV"
        ) from None
    table = parquet.read_table(path)
    columns = [[_plain(cell) for cell in column.to_pylist()] for column in table.columns]
    return list(table.column_names), zip(*columns, strict=True)


def _plain(cell: object) -> Cell:
    """What SQLite has a type for; the text of anything else."""
    return cell if cell is None or isinstance(cell, int | float | str | bytes) else str(cell)


def _insert(
    connection: sqlite3.Connection,
    path: Path,
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
) -> None:
    if not 1 <= len(columns) <= MOST_COLUMNS:
        raise DataError(f"{path} has {len(columns)} columns, and 1 to {MOST_COLUMNS} are expected")
    table = _quoted(path.stem)
    # NUMERIC makes a number of a text that looks like one, and of no other.
    declared = ", ".join(f"{_quoted(column)} NUMERIC" for column in columns)
    connection.execute(f"CREATE TABLE {table} ({declared})")
    marks = ", ".join("?" * len(columns))
    statement, iterator = f"INSERT INTO {table} VALUES ({marks})", iter(rows)
    while batch := list(islice(iterator, 1000)):
        connection.executemany(statement, batch)
    connection.commit()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
