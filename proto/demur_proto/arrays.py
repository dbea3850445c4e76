"""Names for the arrays that cross module borders."""

import numpy as np

Integers = np.ndarray[tuple[int], np.dtype[np.int64]]  # shape [n]
Words = np.ndarray[tuple[int, int], np.dtype[np.int64]]  # shape [n, d], in grid steps
Values = np.ndarray[tuple[int, int], np.dtype[np.float64]]  # shape [n, d], data units
Vector = np.ndarray[tuple[int], np.dtype[np.float64]]  # shape [d], data units
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]  # shape [n]
Bits = np.ndarray[tuple[int], np.dtype[np.uint64]]  # shape [n], uniform words
