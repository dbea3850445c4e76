"""Seeded randomness for simulations. It certifies nothing, and no device can import it."""

from typing import final

import numpy as np

from demur_proto.arrays import Bits, Values, Words
from demur_proto.checks import check_integer


@final
class SeededBits:
    """Bits from a seeded generator: exact laws, but nothing that an adversary could not redraw.

    >>> SeededBits(np.random.default_rng(1)).words(3).shape
    (3,)
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def words(self, count: int) -> Bits:
        """The next `count` words [count]."""
        check_integer("count", count, 0)
        return self._rng.integers(0, (1 << 64) - 1, size=count, dtype=np.uint64, endpoint=True)


class FastSampler:
    """Seeded floating-point noise and seeded bits. For simulation only: it certifies nothing.

    >>> FastSampler(np.random.default_rng(1)).gaussian(16.0, reports=1, dimension=3).shape
    (1, 3)
    """

    name = "fast"

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._bits = SeededBits(rng)

    def gaussian(self, steps: float, *, reports: int, dimension: int) -> Words:
        """Rounded Gaussian noise [reports, dimension]."""
        noise = self._rng.standard_normal((reports, dimension))
        noise *= steps
        return np.rint(noise, out=noise).astype(np.int64)

    def uniform(self, *, reports: int, dimension: int) -> Values:
        """Coins [reports, dimension]."""
        return self._rng.random((reports, dimension))

    def words(self, count: int) -> Bits:
        """The next `count` words [count]."""
        return self._bits.words(count)
