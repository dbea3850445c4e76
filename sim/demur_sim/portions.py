"""How many people a round takes at a time: blocks, and the portions of a block where it is wide.

Both are part of what a seed means, since what is drawn is drawn for one after the other.
"""

from demur_proto.round import Gradient, Query

BLOCK = 4096  #: people in a block; part of what a seed means
PORTION_WORDS = 1 << 17  #: worked on at once in a wide round, so that they fit a cache; likewise


def block_count(devices: int) -> int:
    """How many blocks this many devices make.

    >>> block_count(23_570)
    6
    """
    return -(-devices // BLOCK)


def portions(query: Query, devices: int) -> list[slice]:
    """How a block of so many devices goes through a round: a whole, or in portions that fit memory.

    What is drawn is drawn portion by portion, so where they begin is part of what a seed means.
    """
    step = devices
    if isinstance(query, Gradient):
        step = max(1, min(BLOCK, PORTION_WORDS // query.dimension))
    return [slice(at, min(at + step, devices)) for at in range(0, devices, step)]
