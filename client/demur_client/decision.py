"""Contribute or cover: what a device puts into its report.

Works on rows, so one device (one row) and a cohort (many) share it.
"""

from demur_proto.arrays import Flags, Words


def covered(words: Words, given: Flags) -> Words:
    """The words [n, d] of rows that may be given, and the reference, zero, for the others.

    A device that stopped answering would reveal that it answered before, so a refusal is answered
    like everything else: same length, same slot, freshly randomised. Zero is the reference in every
    mechanism: no amount, or the symbol of no category.

    >>> import numpy as np
    >>> covered(np.array([[5, 6], [7, 8]]), np.array([True, False]))
    array([[5, 6],
           [0, 0]])
    """
    return words * given[:, None]
