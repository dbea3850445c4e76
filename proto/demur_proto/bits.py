"""Random bits: where every exact sampler starts.

A mechanism whose law is exact given uniform bits takes a `BitSource`. On a device that is
`SystemBits`; a simulation has a seeded one of its own, which nothing below it can import.
"""

import os
from typing import Protocol, final

import numpy as np

from demur_proto.arrays import Bits
from demur_proto.checks import check_integer


class BitSource(Protocol):
    """Independent uniform bits, 64 at a time."""

    def words(self, count: int) -> Bits:
        """The next `count` words [count], each uniform on 0 to 2⁶⁴ − 1. The caller may write it."""


@final
class SystemBits:
    """The operating system's cryptographic source. It cannot be seeded.

    >>> SystemBits().words(3).shape
    (3,)
    """

    def words(self, count: int) -> Bits:
        """The next `count` words [count]."""
        check_integer("count", count, 0)
        return np.frombuffer(bytearray(os.urandom(8 * count)), dtype="<u8")
