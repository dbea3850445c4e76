"""Bits that a test wrote down beforehand."""

from collections.abc import Sequence

import numpy as np

from demur_proto.arrays import Bits


class RecordedBits:
    """Gives each caller the next recorded draw, which must be as long as what it asks for."""

    def __init__(self, *draws: Bits) -> None:
        self._draws = list(draws)

    def words(self, count: int) -> Bits:
        draw = self._draws.pop(0)
        assert len(draw) == count, f"asked for {count} words where {len(draw)} are recorded"
        return draw.copy()

    @property
    def left(self) -> int:
        return len(self._draws)


def halves_of(values: Sequence[int]) -> Bits:
    """Words that hold these half words, one after the other."""
    padded = [*values, 0] if len(values) % 2 else list(values)
    return np.array(padded, dtype=np.uint32).view(np.uint64)


def words_of(values: Sequence[int]) -> Bits:
    return np.array(values, dtype=np.uint64)
