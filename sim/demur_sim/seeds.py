"""Which random stream is for what: everything a run draws follows from its seed."""

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream is for; streams of different purposes are independent."""

    NOISE = 1  #: devices' noise and rounding coins, per round and block
    SECRETS = 2  #: devices' secrets, per block
    DEALING = 3  #: which person gets which device
    WORST_CASE = 4  #: the noise drawn for the worst-case alternative in the picture
    SUMMED_NOISE = 6  #: all devices' noise in one, per round
    PEOPLE = 5  #: who made-up people are and what they do, per period; of a seed of their own
    START = 7  #: the parameters that a training starts from
    OWNERS = 8  #: who owns which examples; of a seed of its own
    BESIDE = 12  #: other designs beside a scenario's, per design and block of people
    COUNTS = 9  #: whole studies beside a training, each with streams of its own
    PRESENCE = 10  #: who enrols and leaves, per block; who misses a round or is late, per round too
    WINDOWS = 11  #: whole studies of the windows of a run, each with streams of its own


def stream(seed: int, purpose: Purpose, *indices: int) -> np.random.Generator:
    """The generator for a purpose and, where it has several, for one of them.

    >>> stream(7, Purpose.NOISE, 1, 2).bytes(8) == stream(7, Purpose.NOISE, 1, 2).bytes(8)
    True
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(purpose, *indices))
    return np.random.Generator(np.random.SFC64(sequence))


def seed_of(seed: int, purpose: Purpose, *indices: int) -> int:
    """A seed of its own for a whole study beside another, so that no noise is drawn for both.

    >>> seed_of(7, Purpose.COUNTS, 1) == seed_of(7, Purpose.COUNTS, 2)
    False
    """
    return int.from_bytes(stream(seed, purpose, *indices).bytes(16), "little")
