"""Bits that were written down beforehand, and the sources that give them out again."""

from collections.abc import Iterable
from hashlib import shake_128

import numpy as np

from demur_proto.arrays import Bits

WORD = 1 << 64


class Replay:
    """Gives out recorded bytes in order, and fails when they run out."""

    def __init__(self, recorded: bytes) -> None:
        self._words = np.frombuffer(recorded, dtype="<u8")
        self.used = 0

    def words(self, count: int) -> Bits:
        assert count <= self.left, "the recording has run out"
        self.used += count
        return self._words[self.used - count : self.used].copy()

    @property
    def left(self) -> int:
        return len(self._words) - self.used


class Extreme:
    """Replays words that are shifted towards one end: all of them lie in the last 2⁻¹⁶."""

    def __init__(self, replay: Replay, *, upper: bool) -> None:
        self._replay = replay
        self._upper = upper

    def words(self, count: int) -> Bits:
        low: Bits = self._replay.words(count) >> np.uint64(16)
        return np.invert(low) if self._upper else low


def recorded(label: str, *, words: int) -> Replay:
    """As many words as wanted, the same on every machine: the SHAKE-128 of a label."""
    return Replay(shake_128(label.encode()).digest(8 * words))


def crafted(words: Iterable[int]) -> Replay:
    """These words."""
    return Replay(np.array(list(words), dtype="<u8").tobytes())


def digits(bits: int) -> list[int]:
    """The three words of an integer of 192 digits."""
    return [bits >> 128, bits >> 64 & WORD - 1, bits & WORD - 1]
