"""Periods of a person's that are spread evenly: every set of so many is equally likely."""

import numpy as np
import numpy.typing as npt

from demur_proto.arrays import Integers

AT_ONCE = 1 << 24  #: people times periods that are sorted in one go


def spread(
    often: Integers, *, periods: int, rng: np.random.Generator, few: int | None = None
) -> Integers:
    """So many distinct periods for each person, every set of them equally likely.

    Args:
        often: how many each person has [n]; 0 to `periods`.
        periods: T.
        rng: which ones.
        few: up to how many are drawn one by one, which takes long where hardly a period is left to
            draw; by default half of all. It is part of what a seed means.

    Returns:
        The keys i·T + t − 1 of person i, from 0, and each of their periods t, from 1; ascending [k].

    >>> spread(np.array([2, 0, 1]), periods=2, rng=np.random.default_rng(1)) // 2
    array([0, 0, 2])
    """
    devices = len(often)
    few = periods // 2 if few is None else few
    some = np.where(often > few, 0, often)
    keys: Integers = np.zeros(0, dtype=np.int64)
    missing = some
    while missing.any():  # periods that came twice are drawn again
        who = np.repeat(np.arange(devices), missing)
        drawn = who * periods + rng.integers(0, periods, size=len(who))
        keys = np.unique(np.concatenate([keys, drawn]))
        missing = some - np.bincount(keys // periods, minlength=devices)
    many = np.flatnonzero(often > few)
    if many.size:
        keys = np.sort(np.concatenate([keys, *_first_of_all(many, often, periods, rng)]))
    return keys


def _first_of_all(
    many: Integers, often: Integers, periods: int, rng: np.random.Generator
) -> list[npt.NDArray[np.int64]]:
    """The keys of people with many periods: the first of all in an order of each person's own."""
    step = max(1, AT_ONCE // periods)
    found = []
    for start in range(0, len(many), step):
        who = many[start : start + step]
        order = rng.random((len(who), periods)).argsort(axis=1)
        row, place = np.nonzero(np.arange(periods) < often[who][:, None])
        found.append(who[row] * periods + order[row, place])
    return found
