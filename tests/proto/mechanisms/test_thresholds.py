import math
import random
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.proto.mechanisms.recorded import RecordedBits, halves_of, words_of

from demur_proto.arrays import Bits
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.thresholds import (
    BITS,
    WHOLE,
    Threshold,
    exp_below,
    halves,
    keep_threshold,
    narrow_below,
    uniform_below,
)
from demur_sim.engine.sampling import SeededBits

EPSILONS = [1e-9, 1e-6, 0.1, 1.0, 4.0, 15.0, 17.0, 50.0]


def seeded(seed: int) -> SeededBits:
    return SeededBits(np.random.Generator(np.random.SFC64(seed)))


@given(exponent=st.floats(0, 50))
def test_the_rational_bound_is_never_above_the_exponential_and_close_to_it(exponent: float) -> None:
    with localcontext() as context:
        context.prec = 130
        true = Fraction(Decimal(exponent).exp())

    below = exp_below(exponent)

    assert below <= true * (1 + Fraction(1, 10**125))  # the oracle's own last digit
    assert (true - below) / true < Fraction(1, 1 << 250)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("others", [1, 2, 3, 1024])
def test_the_kept_share_is_the_largest_that_keeps_the_ratio(epsilon: float, others: int) -> None:
    odds = exp_below(epsilon)

    t = keep_threshold(epsilon, others=others).numerator

    assert Fraction(t * others, WHOLE - t) <= odds < Fraction((t + 1) * others, WHOLE - t - 1)


def test_a_ratio_of_others_may_be_any_exact_number() -> None:
    odds, others = exp_below(1.0), Fraction(1, 3)

    t = keep_threshold(1.0, others=others).numerator

    assert t * others / (WHOLE - t) <= odds < (t + 1) * others / (WHOLE - t - 1)


def test_a_threshold_and_its_complement_are_certain_together() -> None:
    keep = keep_threshold(1.0, others=1)

    assert keep.probability + keep.complement().probability == 1
    assert Threshold(numerator=0).complement().numerator == WHOLE


def test_a_flag_is_set_exactly_below_the_threshold_however_many_digits_tie() -> None:
    t = (7 << 96) | (9 << 32) | 5
    below, tie, above = 6, 7, 8

    plain = Threshold(numerator=t).draw(RecordedBits(halves_of([below, above])), 2)
    tied = Threshold(numerator=t).draw(
        RecordedBits(halves_of([tie, tie, tie]), words_of([8, 10, 9]), halves_of([4])), 3
    )
    last = Threshold(numerator=t).draw(
        RecordedBits(halves_of([tie] * 3), words_of([9] * 3), halves_of([4, 5, 6])), 3
    )

    assert plain.tolist() == [True, False]
    assert tied.tolist() == [True, False, True]
    assert last.tolist() == [True, False, False]


def test_certain_and_impossible_flags_are_just_that() -> None:
    assert Threshold(numerator=WHOLE).draw(seeded(1), 100).all()
    assert not Threshold(numerator=0).draw(seeded(1), 100).any()
    assert (Threshold(numerator=WHOLE).draw_bits(seeded(1), 3) == ~np.uint64(0)).all()
    assert (Threshold(numerator=0).draw_bits(seeded(1), 3) == 0).all()


def test_packed_bits_compare_binary_digits_from_the_highest() -> None:
    # t is binary .101: u is below it for the digits 0, 100, and nothing else.
    t = Threshold(numerator=5 << 125)
    digits = [0b0000_1111, 0b0011_0011, 0b0101_0101]  # of the lowest eight bits' u, by column
    first, second, third = (words_of([digit]) for digit in digits)

    drawn = t.draw_bits(RecordedBits(first, second, third), 1)

    expected = 0
    for column in range(8):
        u = "".join(str(digit >> column & 1) for digit in digits)
        expected |= (int(u, 2) < 5) << column
    assert int(drawn[0]) & 0xFF == expected


class DigitsOf:
    """The binary digits of the integers u [rows][64], each row as long as it is asked for.

    Rows are asked for while one of their bits is open, as any reader of the digits can work out.
    """

    def __init__(self, numbers: list[list[int]], *, against: int) -> None:
        self._numbers, self._t = numbers, against
        self._rows = list(range(len(numbers)))
        self.digit = 0

    def words(self, count: int) -> Bits:
        if count != len(self._rows):
            self._rows = [row for row in self._rows if self._is_open(row)]
        assert count == len(self._rows)
        self.digit += 1
        at = BITS - self.digit
        return words_of(
            [sum((u >> at & 1) << i for i, u in enumerate(self._numbers[r])) for r in self._rows]
        )

    def _is_open(self, row: int) -> bool:
        left = BITS - self.digit
        return any(u >> left == self._t >> left for u in self._numbers[row])


@pytest.mark.parametrize("t", [keep_threshold(e, others=9).numerator for e in (0.1, 17.0, 50.0)])
def test_packed_bits_agree_with_comparing_whole_integers(t: int) -> None:
    rng = random.Random(7)
    # Rows that are done at once, with the digit 8, 9, 40, or only with the last one, in any order.
    close = [t ^ 1 << BITS - digit for digit in (1, 8, 9, 40, 1, 127, 9)]
    numbers = [
        [u, t ^ 1 << 127, *(rng.getrandbits(BITS) for _ in range(62))]
        for u in (*close, t - 1, t, t + 1)
    ]
    source = DigitsOf(numbers, against=t)

    drawn = Threshold(numerator=t).draw_bits(source, len(numbers))

    bits = [[int(word) >> i & 1 for i in range(64)] for word in drawn]
    assert bits == [[int(u < t) for u in row] for row in numbers]
    assert source.digit > 100


@pytest.mark.parametrize("share", [0.5, 0.25, 0.26894142, 0.001, 0.999])
def test_packed_bits_are_set_as_often_as_the_threshold_says(share: float) -> None:
    count = 20_000
    threshold = Threshold(numerator=int(Fraction(share) * WHOLE))

    bits = np.unpackbits(threshold.draw_bits(seeded(2), count).view(np.uint8)).reshape(count, 64)

    error = math.sqrt(share * (1 - share) / count)
    # 64 columns, each normal to three digits: all within 4.5 errors but for 4e-4.
    assert np.abs(bits.mean(axis=0) - share).max() < 4.5 * error
    whole = math.sqrt(share * (1 - share) / bits.size)
    assert abs(bits.mean() - share) < 4 * whole
    # Neighbouring bits are independent: their products' mean has this error at most.
    both = (bits[:, :-1] & bits[:, 1:]).mean()
    assert abs(both - share**2) < 4 * math.sqrt(3 * share**2 / bits.size)


@given(bound=st.integers(1, 5000), seed=st.integers(0, 99))
def test_uniform_integers_stay_below_their_bound(bound: int, seed: int) -> None:
    drawn = uniform_below(bound, seeded(seed), 50)

    assert drawn.dtype == np.int64
    assert drawn.min() >= 0
    assert drawn.max() < bound


@pytest.mark.parametrize("bound", [3, 5, 7, 1000, 1025, (1 << 31) - 1])
def test_every_integer_below_a_bound_comes_from_equally_many_draws(bound: int) -> None:
    # Of the 2³² half words, those whose product has a low half under 2³² mod b are drawn again.
    least = (1 << 32) % bound
    for result in {0, 1, bound // 2, bound - 2, bound - 1}:
        start = -(-(result << 32) // bound)  # the first word that leads to it
        stop = -(-((result + 1) << 32) // bound)
        kept = [u for u in (start, start + 1, stop - 1) if (u * bound) % (1 << 32) >= least]
        # A run of words steps by b in the low half, so at most its first one is under `least` < b.
        first = start if (start * bound) % (1 << 32) >= least else start + 1

        drawn = narrow_below(bound, RecordedBits(halves_of(kept)), len(kept))

        assert (drawn == result).all()
        assert stop - first == (1 << 32) // bound


def test_draws_that_would_favour_an_integer_are_drawn_again() -> None:
    source = RecordedBits(halves_of([0, 1 << 31]), halves_of([(1 << 32) - 1]))

    drawn = uniform_below(3, source, 2)  # 2³² mod 3 = 1, and 0·3 has the low half 0 < 1

    assert drawn.tolist() == [2, 1]
    assert source.left == 0


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 51.0, True, "1"])
def test_absurd_epsilons_are_refused_in_one_line(epsilon: float) -> None:
    with pytest.raises(ParameterError, match=r"^epsilon .*nats"):
        keep_threshold(epsilon, others=1)


@pytest.mark.parametrize("others", [0, -1, 1.0, math.nan, True, (1 << 31) + 1, Fraction(-1, 2)])
def test_no_others_or_inexactly_many_are_refused(others: int) -> None:
    with pytest.raises(ParameterError, match=r"^others "):
        keep_threshold(1.0, others=others)


@pytest.mark.parametrize("count", [-1, -2, 1.0, True, math.nan, "1"])
def test_less_than_no_draws_or_a_broken_number_are_refused(count: int) -> None:
    threshold = Threshold(numerator=WHOLE // 3)

    for draw in (threshold.draw, threshold.draw_bits, halves):
        with pytest.raises(ParameterError, match=r"^count "):
            draw(seeded(1), count)
    with pytest.raises(ParameterError, match=r"^count "):
        uniform_below(3, seeded(1), count)


@pytest.mark.parametrize("bound", [0, -1, 1.0, True, math.nan, (1 << 31) + 1])
def test_a_bound_that_is_none_is_refused(bound: int) -> None:
    with pytest.raises(ParameterError, match=r"^bound "):
        uniform_below(bound, seeded(1), 1)
