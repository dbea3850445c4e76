"""Names for the arrays that cross module borders."""

import zipfile
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = np.ndarray[tuple[int], np.dtype[np.int64]]  # shape [n]
Words = np.ndarray[tuple[int, int], np.dtype[np.int64]]  # shape [n, d], in grid steps
Values = np.ndarray[tuple[int, int], np.dtype[np.float64]]  # shape [n, d], data units
Vector = np.ndarray[tuple[int], np.dtype[np.float64]]  # shape [d], data units
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]  # shape [n]
Bits = np.ndarray[tuple[int], np.dtype[np.uint64]]  # shape [n], uniform words

DAMAGE: tuple[type[Exception], ...] = (
    *(ValueError, EOFError, zipfile.BadZipFile, zlib.error),
    *(RuntimeError, OverflowError, MemoryError),
)
"""What NumPy raises of an archive that holds other bytes than were written.

The last three come of a few bytes that claim encryption, a compression nobody has, or a size.
"""


def fixed_integers(values: npt.ArrayLike) -> Integers:
    """Integers [n] that nobody can change; a copy, unless nobody could before.

    >>> fixed_integers((1, 2)).flags.writeable
    False
    """
    fixed: Integers = _fixed(values, np.dtype(np.int64))
    return fixed


def fixed_floats(values: npt.ArrayLike) -> Vector:
    """Floats [n], likewise."""
    fixed: Vector = _fixed(values, np.dtype(np.float64))
    return fixed


def same_floats(one: npt.ArrayLike, other: npt.ArrayLike) -> bool:
    """Whether two arrays hold the same numbers; here NaN is the same as NaN.

    >>> same_floats([1.0, np.nan], [1.0, np.nan]), same_floats([1.0], [1.0, 1.0])
    (True, False)
    """
    return np.array_equal(one, other, equal_nan=True)


def _fixed(values: npt.ArrayLike, dtype: np.dtype[Any]) -> Any:
    if isinstance(values, np.ndarray) and values.dtype == dtype and _is_fixed(values):
        return values
    fixed = np.array(values, dtype=dtype)
    fixed.flags.writeable = False
    return fixed


def _is_fixed(values: Any) -> bool:
    """Whether neither an array nor what it is a view of can be written."""
    while isinstance(values, np.ndarray):
        if values.flags.writeable:
            return False
        values = values.base
    return values is None or isinstance(values, bytes)
