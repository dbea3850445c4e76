"""Rounded Laplace: its threshold against 130 digits, its bits one by one, its law as a whole."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tests.proto.samplers import oracle

from demur_proto.arrays import Bits
from demur_proto.errors import ParameterError
from demur_proto.samplers.laplace import DiscreteLaplaceSampler, RoundedLaplaceSampler
from demur_sim.engine.sampling import SeededBits

SCALES = [0.01, 0.5, 1.0, 8.0, 100.5, 2.0**20, 2.0**56]


@pytest.mark.parametrize("scale", SCALES)
def test_a_size_is_above_zero_as_often_as_the_law_says_to_2_to_the_minus_127(scale: float) -> None:
    truth = Fraction(oracle.exp(-1 / (2 * Fraction(scale))))

    given = RoundedLaplaceSampler(scale).above.probability

    assert 0 <= truth - given < Fraction(1, 1 << 127)


class Replayed:
    """The words of one seeded source, told to whoever asks."""

    def __init__(self, seed: int) -> None:
        self._bits = SeededBits(np.random.Generator(np.random.SFC64(seed)))
        self.told: list[Bits] = []

    def words(self, count: int) -> Bits:
        self.told.append(self._bits.words(count))
        return self.told[-1].copy()


class Told:
    def __init__(self, words: list[Bits]) -> None:
        self._words = words

    def words(self, count: int) -> Bits:
        words = self._words.pop(0)
        assert len(words) == count
        return words.copy()


def test_a_value_is_a_geometric_size_with_a_fair_sign_or_zero() -> None:
    sampler, source, n = RoundedLaplaceSampler(8.0), Replayed(1), 5_000

    drawn = sampler.draw(n, source)

    again = Told(source.told)
    above = sampler.above.draw(again, n)
    inner = DiscreteLaplaceSampler(8.0).draw(n, again)
    negative = again.words(n) >= 1 << 63
    expected = np.where(above, np.where(inner >= 0, inner, -1 - inner) + 1, 0)
    assert drawn.tolist() == np.where(negative, -expected, expected).tolist()


@pytest.mark.parametrize("scale", [0.3, 1.0, 8.0])
def test_values_come_as_often_as_the_integral_of_the_density_says(scale: float) -> None:
    n = 400_000
    drawn = RoundedLaplaceSampler(scale).draw(n, Replayed(2))

    tail = 1.0
    for size in range(math.ceil(9 * scale)):  # the last expects 0.5 e^(−9) n, or 25
        next_tail = math.exp(-(size + 0.5) / scale)
        share, tail = tail - next_tail, next_tail
        error = math.sqrt(share * (1 - share) / n)
        assert abs((np.abs(drawn) == size).mean() - share) < 5 * error
    assert abs((np.abs(drawn) >= math.ceil(9 * scale)).mean() - tail) < 5 * math.sqrt(tail / n)
    away = drawn[drawn != 0]
    assert abs((away > 0).mean() - 0.5) < 4 * 0.5 / math.sqrt(len(away))


def test_the_smallest_scale_gives_zeros_and_the_largest_fits_64_bits() -> None:
    assert not RoundedLaplaceSampler(5e-324).draw(100, Replayed(3)).any()
    drawn = RoundedLaplaceSampler(2.0**56).draw(1000, Replayed(4))
    assert np.abs(drawn).max() < 92 * 2**56
    assert abs(np.abs(drawn).mean() / 2**56 - 1) < 4 / math.sqrt(1000)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 2.0**57, True, "1", None])
def test_what_is_no_scale_is_refused(scale: Any) -> None:
    with pytest.raises(ParameterError, match=r"^scale [^\n]*$"):
        RoundedLaplaceSampler(scale)


@pytest.mark.parametrize("count", [-1, 1.0, True])
def test_what_is_no_count_is_refused(count: Any) -> None:
    with pytest.raises(ParameterError, match=r"^count [^\n]*$"):
        RoundedLaplaceSampler(1.0).draw(count, Replayed(5))
