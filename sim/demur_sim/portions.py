"""How many people a round takes at a time: blocks, and the portions of a block where it is wide.

Both are part of what a seed means, since what is drawn is drawn for one after the other.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from demur_proto.mechanisms.base import Mechanism
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.noise import Sampler
from demur_proto.round import Gradient, Query, Round
from demur_proto.study import Policy, Study
from demur_sim.ahead import Draw, drawn_ahead

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


@contextmanager
def ahead_if_wide(
    sampler: Sampler, asked: Round, mechanism: Mechanism, study: Study, devices: int
) -> Iterator[Sampler]:
    """A block's sampler in a round: of a wide round, one that draws ahead.

    Args:
        sampler: the block's own.
        asked: the round.
        mechanism: its mechanism.
        study: of the round.
        devices: how many the block has.
    """
    if not (isinstance(asked.query, Gradient) and isinstance(mechanism, GaussianLinear)):
        yield sampler
        return
    steps: list[float | None] = [mechanism.noise_steps]
    if study.policy is Policy.CLIP or not mechanism.on_grid:
        steps = [None, *steps]
    draws = [
        Draw(reports=people.stop - people.start, dimension=mechanism.dimension, steps=each)
        for people in portions(asked.query, devices)
        for each in steps
    ]
    with drawn_ahead(sampler, draws) as ahead:
        yield ahead
