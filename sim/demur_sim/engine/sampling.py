"""Which random stream is for what: everything a run draws follows from its seed."""

import math
from enum import IntEnum, StrEnum
from typing import Any, cast, final

import numpy as np

from demur_proto.arrays import Bits, Integers, Values, Words
from demur_proto.checks import check_integer
from demur_proto.mechanisms.gaussian import GaussianLinear


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


# Seeded randomness for simulations. It certifies nothing, and no device can import it.

# numpy's ziggurat gives at most r + 53 ln 2 / r with r = 3.654, which is 13.8: below 2^30 steps here, so
# that a value of up to 2^26 steps may still be added.
NARROW_STEPS = 1 << 26  #: noise of so many steps surely fits words of 32 bits
PIECE_WORDS = 1 << 15  #: drawn at once, so that they stay in a processor's cache


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


class Noise(StrEnum):
    """How a simulation draws the noise of a sum."""

    SHARES = "shares"  #: every device its own, as deployed
    SUMMED = "summed"  #: all of them in one draw of nearly the same law


def summed_noise(rng: np.random.Generator, mechanism: GaussianLinear, *, reports: int) -> Integers:
    """Noise of so many reports at once [d], grid steps.

        round(N(0, n(σ_i/γ)² + (n − 1)/12))

    A sum of n rounded shares is this but for n − 1 uniforms that it takes for a Gaussian: within total
    variation 1e-7 of it, by the design of the shares. So it stands for the real one where only the
    accuracy of sums is looked at, and no report exists.

    >>> mechanism = GaussianLinear(
    ...     dimension=3, clip=1.0, grid_exponent=-14, sigma=1.0, shares=4, on_grid=False)
    >>> summed_noise(np.random.default_rng(1), mechanism, reports=0).tolist()
    [0, 0, 0]
    """
    check_integer("reports", reports, 0, 1 << 53)
    variance = reports * mechanism.noise_steps**2 + max(0, reports - 1) / 12
    drawn = rng.standard_normal(mechanism.dimension) * math.sqrt(variance)
    return np.rint(drawn).astype(np.int64)


class FastSampler:
    """Seeded floating-point noise and seeded bits. For simulation only: it certifies nothing.

    Args:
        rng: where everything comes from.
        widen: make noise 64 bits wide. Otherwise it has 32 where it surely fits: whoever asks for that
            must not compute beyond their width.

    >>> FastSampler(np.random.default_rng(1)).gaussian(16.0, reports=1, dimension=3).shape
    (1, 3)
    """

    name = "fast"

    def __init__(self, rng: np.random.Generator, *, widen: bool = True) -> None:
        self._rng = rng
        self._bits = SeededBits(rng)
        self._widen = widen

    def gaussian(self, steps: float, *, reports: int, dimension: int) -> Words:
        """Rounded Gaussian noise [reports, dimension]."""
        wide = self._widen or steps > NARROW_STEPS
        noise: Any = np.empty(reports * dimension, dtype=np.int64 if wide else np.int32)
        buffer = np.empty(min(len(noise), PIECE_WORDS))
        for at in range(0, len(noise), PIECE_WORDS):
            piece = buffer[: len(noise) - at]
            self._rng.standard_normal(out=piece)
            piece *= steps
            noise[at : at + PIECE_WORDS] = np.rint(piece, out=piece)
        return cast(Words, noise.reshape(reports, dimension))

    def uniform(self, *, reports: int, dimension: int) -> Values:
        """Coins [reports, dimension]."""
        return self._rng.random((reports, dimension))

    def words(self, count: int) -> Bits:
        """The next `count` words [count]."""
        return self._bits.words(count)
