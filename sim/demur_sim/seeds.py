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


def stream(seed: int, purpose: Purpose, *indices: int) -> np.random.Generator:
    """The generator for a purpose and, where it has several, for one of them.

    >>> stream(7, Purpose.NOISE, 1, 2).bytes(8) == stream(7, Purpose.NOISE, 1, 2).bytes(8)
    True
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(purpose, *indices))
    return np.random.Generator(np.random.SFC64(sequence))
