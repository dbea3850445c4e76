"""Matrix products whose every bit is the same for any number of threads.

A linear algebra library cuts a large product into one piece for each thread, and where it cuts decides in
which order terms are added and thus how the sum is rounded. A product of at most 2^18 multiplications
is one piece: from there on OpenBLAS, which numpy's wheels hold, uses more than one thread
(SMP_THRESHOLD_MIN times GEMM_MULTITHREAD_THRESHOLD in its interface/gemm.c). So products are cut here, by
their shapes alone, into pieces not larger than that. A caller that wants two cores gives them two blocks
of people, which costs less than two threads for one product.
"""

import numpy as np

from demur_proto.arrays import Values, Vector

MOST_MULTIPLICATIONS = 1 << 18  #: in one piece
ROWS = 64  #: the most in one piece


def rows_times(rows: Values, matrix: Values) -> Values:
    """Rows [m, k] times a matrix [k, c] to [m, c]; pieces are whole rows, all of one shape.

    The last piece is filled up with zeros, so what one row gives does not depend on how many follow it.

    >>> rows_times(np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]]))
    array([[11.]])
    """
    height, inner = rows.shape
    width = matrix.shape[1]
    columns = min(width, max(1, MOST_MULTIPLICATIONS // max(1, 8 * inner)))
    piece = min(ROWS, max(1, MOST_MULTIPLICATIONS // max(1, inner * columns)))
    whole = height - height % piece
    out: Values = np.empty((height, width))
    last: Values = np.zeros((piece, inner))
    last[: height - whole] = rows[whole:]
    for start in range(0, width, columns):
        part = slice(start, start + columns)
        stacked = rows[:whole].reshape(-1, piece, inner) @ matrix[:, part]
        out[:whole, part] = stacked.reshape(whole, stacked.shape[2])
        if whole < height:
            out[whole:, part] = (last @ matrix[:, part])[: height - whole]
    return out


def sum_of_products(left: Values, right: Values) -> Values:
    """Σ_i left_i right_iᵀ over the rows of left [m, k] and right [m, c], to [k, c].

    Pieces are added in the order of the rows.

    >>> sum_of_products(np.array([[1.0], [2.0]]), np.array([[3.0, 4.0], [5.0, 6.0]]))
    array([[13., 16.]])
    """
    height, inner = left.shape
    width = right.shape[1]
    columns = min(width, MOST_MULTIPLICATIONS // (ROWS * 8))
    part = max(1, MOST_MULTIPLICATIONS // (ROWS * columns))
    total: Values = np.zeros((inner, width))
    for top in range(0, height, ROWS):
        rows = slice(top, top + ROWS)
        for start in range(0, inner, part):
            some = slice(start, start + part)
            for first in range(0, width, columns):
                across = slice(first, first + columns)
                total[some, across] += left[rows, some].T @ right[rows, across]
    return total


def squared_lengths(rows: Values) -> Vector:
    """‖row‖² of every row [m].

    >>> squared_lengths(np.array([[3.0, 4.0]]))
    array([25.])
    """
    lengths: Vector = np.einsum("mk,mk->m", rows, rows)
    return lengths
