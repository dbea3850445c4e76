"""Labelled data from a CSV file with one line for each example."""

import csv
import math
import re
from itertools import chain
from pathlib import Path

import numpy as np

from demur_proto.models.base import MOST_CLASSES
from demur_sim.datasets.labelled import Labelled
from demur_sim.datasets.lines import SHOWN, Lines, shown

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LABEL = re.compile(r"[0-9]{1,9}(\.0*)?")


def read_labelled_csv(path: str | Path, *, label: str | None = None) -> Labelled:
    """Read examples from a CSV file, plain or gzipped, in UTF-8.

    All columns but one are inputs, finite numbers in the order in which they stand. The first line is a
    header if a cell of it is no number.

    Args:
        path: the file; its first bytes, not its name, say whether it is gzipped.
        label: column with the label, an integer from 0 to 4095; None for the last one.

    Raises:
        DataError: the file cannot be read, or is not as described. One line that names file, line
            and what was expected.
    """
    lines = Lines(path)
    rows = csv.reader(lines, strict=True)
    inputs: list[list[float]] = []
    labels: list[int] = []
    try:
        first = next(rows, None)
        if first is None:
            raise lines.fault("a line, found an empty file", line=1)
        if len(first) < 2:
            raise lines.fault("an input and a label at least", line=1)
        header = first if any(_number(cell) is None for cell in first) else None
        columns = len(first)
        at = _label_column(lines, header, label, columns=columns)
        for row in rows if header else chain([first], rows):
            if not row:
                continue  # an empty line holds no example
            if len(row) != columns:
                raise lines.fault(f"{columns} fields as in the first line, got {len(row)}")
            cell = row.pop(at)
            if not (_LABEL.fullmatch(cell) and float(cell) < MOST_CLASSES):
                raise lines.fault(
                    f"a label, an integer from 0 to {MOST_CLASSES - 1}, got {shown(cell)}"
                )
            labels.append(int(float(cell)))
            inputs.append([_finite(lines, cell) for cell in row])
    except csv.Error as error:
        raise lines.fault(f"well-formed CSV: {error}") from None
    if not labels:
        raise lines.fault("an example after the header, found none", line=lines.number + 1)
    return Labelled(examples=np.array(inputs), labels=np.array(labels))


def _label_column(
    lines: Lines, header: list[str] | None, label: str | None, *, columns: int
) -> int:
    if label is None:
        return columns - 1
    if header is None:
        raise lines.fault(f"a header with one column {label!r}, found numbers", line=1)
    if header.count(label) != 1:
        found = ", ".join(shown(each) for each in header[:SHOWN])
        raise lines.fault(f"one column {label!r}, found the columns {found}", line=1)
    return header.index(label)


def _number(cell: str) -> float | None:
    if not _NUMBER.fullmatch(cell):
        return None
    number = float(cell)
    return number if math.isfinite(number) else None


def _finite(lines: Lines, cell: str) -> float:
    number = _number(cell)
    if number is None:
        raise lines.fault(f"a finite number, got {shown(cell)}")
    return number
