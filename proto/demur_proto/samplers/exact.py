"""The sampler of a deployed device: exact laws, bits from the operating system."""

from functools import lru_cache
from typing import final

import numpy as np

from demur_proto.arrays import Bits, Values, Words
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.samplers.base import SystemBits
from demur_proto.samplers.gaussian import RoundedGaussianSampler

KEPT = 8  #: widths whose tables are kept, a megabyte or two each


@final
class ExactSampler:
    """Certified noise that nobody can replay: it takes no seed, and keeps no bits.

    Every draw asks the operating system anew. That costs less than a buffer would be worth, and
    so neither a fork nor a copy of the process's memory holds a bit that is still to be used.

    Raises:
        ParameterError: it was given a seed, or anything else.

    >>> ExactSampler().gaussian(16.0, reports=2, dimension=3).shape
    (2, 3)
    >>> ExactSampler(seed=1)
    Traceback (most recent call last):
    demur_proto.errors.ParameterError: seed must be left out: exact noise cannot be replayed, got one
    """

    __slots__ = ("_bits", "_gaussian")

    name = "exact"

    def __init__(self, *seed: object, **named: object) -> None:
        if seed or named:
            what = next(iter(named), "seed")
            raise ParameterError(what, _ONE, "left out: exact noise cannot be replayed")
        self._bits = SystemBits()
        # Typed, or True would pass for a 1.0 that has been here before.
        self._gaussian = lru_cache(maxsize=KEPT, typed=True)(RoundedGaussianSampler)

    def gaussian(self, steps: float, *, reports: int, dimension: int) -> Words:
        """Rounded Gaussian noise [reports, dimension], within total variation 2⁻¹²³ a coordinate.

        Args:
            steps: standard deviation in grid steps; > 0 and at most 2⁵⁸.
            reports: how many rows; >= 0.
            dimension: of each; >= 0.

        Raises:
            ParameterError: an argument is out of range.
        """
        check_integer("reports", reports, 0)
        check_integer("dimension", dimension, 0)
        noise = self._gaussian(steps).draw(reports * dimension, self._bits)
        return noise.reshape(reports, dimension)

    def uniform(self, *, reports: int, dimension: int) -> Values:
        """Coins [reports, dimension], uniform on the multiples of 2⁻⁵³ in [0, 1)."""
        check_integer("reports", reports, 0)
        check_integer("dimension", dimension, 0)
        coins = np.ldexp((self.words(reports * dimension) >> 11).astype(np.float64), -53)
        return coins.reshape(reports, dimension)

    def words(self, count: int) -> Bits:
        """The next `count` words [count]."""
        return self._bits.words(count)


class _One:
    """What an error shows in place of a seed, which is nobody's business."""

    def __repr__(self) -> str:
        return "one"


_ONE = _One()
