"""Codes, packed and not; that charges and estimates are right is in the tests of all mechanisms."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.proto.mechanisms.recorded import RecordedBits, halves_of, words_of

from demur_proto.errors import ParameterError
from demur_proto.mechanisms import unary
from demur_proto.mechanisms.thresholds import BITS
from demur_proto.mechanisms.unary import Flip, UnaryEncoding, bit_counts, unpacked
from demur_proto.wire.words import WordType, encode_words
from demur_sim.engine.sampling import SeededBits


def seeded(seed: int) -> SeededBits:
    return SeededBits(np.random.Generator(np.random.SFC64(seed)))


@given(
    categories=st.integers(2, 200),
    flip=st.sampled_from(Flip),
    people=st.integers(0, 40),
    seed=st.integers(0, 99),
)
def test_packed_codes_are_the_reports_in_64_bits_to_a_word(
    categories: int, flip: Flip, people: int, seed: int
) -> None:
    mechanism = UnaryEncoding(categories=categories, epsilon=1.0, flip=flip)
    symbols = np.random.default_rng(seed).integers(0, categories + 1, people)

    codes = mechanism.draw(symbols, seeded(seed))
    reports = mechanism.randomise(symbols[:, None], seeded(seed))

    assert codes.shape == (people, -(-categories // 64))
    bits = [[int(row[c // 64]) >> (c % 64) & 1 for c in range(categories)] for row in codes]
    assert reports.tolist() == bits
    assert reports.dtype == np.int64
    assert all(int(row[-1]) >> (categories - 1) % 64 < 2 for row in codes)  # no bit past the last
    assert mechanism.valid(reports).all()
    assert np.array_equal(mechanism.tally_codes(codes), mechanism.tally(reports))


def test_packed_codes_are_the_bytes_that_travel() -> None:
    mechanism = UnaryEncoding(categories=70, epsilon=1.0)

    codes = mechanism.draw(np.arange(5), seeded(1))

    travelling = codes.astype("<u8").view(np.uint8)[:, : WordType.BIT.report_bytes(70)]
    words = unpacked(codes, categories=70)
    assert travelling.tobytes() == encode_words(words, WordType.BIT)


def test_sums_of_many_codes_do_not_overflow_their_bytes() -> None:
    codes = np.full((1000, 1), 0b101, dtype=np.uint64)

    assert bit_counts(codes, categories=3).tolist() == [1000, 0, 1000]
    assert UnaryEncoding(categories=3, epsilon=1.0).tally_codes(codes).tolist() == [1000, 0, 1000]


def test_blocks_of_people_get_their_own_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unary, "WORDS", 4)
    mechanism = UnaryEncoding(categories=70, epsilon=50.0, flip=Flip.SYMMETRIC)
    symbols = np.array([3, 0, 70, 65, 1])

    reports = mechanism.randomise(symbols[:, None], seeded(3))

    # At ε = 50 a bit changes once in 7e10 times.
    expected = [[int(symbol - 1 == at) for at in range(70)] for symbol in symbols]
    assert reports.tolist() == expected


@pytest.mark.parametrize("flip", Flip)
@pytest.mark.parametrize("symbol", [0, 2])
@pytest.mark.parametrize("step", [-1, 0])
def test_a_bit_is_set_just_below_its_threshold_and_one_is_decided_apart(
    flip: Flip, symbol: int, step: int
) -> None:
    mechanism = UnaryEncoding(categories=3, epsilon=1.0, flip=flip)
    # Every bit of the code draws q's numerator or one less; one's own is then drawn anew: for p.
    t = mechanism.zero.numerator
    last = (t & -t).bit_length() - 1  # after its last one nothing more needs to be drawn
    digits = [words_of([-(t + step >> at & 1) % (1 << 64)]) for at in range(BITS - 1, last - 1, -1)]
    own = halves_of([(mechanism.one.numerator >> 96) - 1])
    source = RecordedBits(*digits, own)

    code = mechanism.draw(np.array([symbol]), source)

    zero = int(step < 0)
    assert source.left == 0
    assert unpacked(code, categories=3).tolist() == [[zero, 1 if symbol else zero, zero]]


@pytest.mark.parametrize("flip", Flip)
def test_null_takes_as_many_random_bits_as_a_category(flip: Flip) -> None:
    mechanism = UnaryEncoding(categories=9, epsilon=1.0, flip=flip)
    after = []
    for symbol in (0, 9):
        source = seeded(4)
        mechanism.draw(np.full(50, symbol), source)
        after.append(source.words(1)[0])

    assert after[0] == after[1]


def test_reports_of_another_size_or_kind_are_not_valid_and_not_counted() -> None:
    mechanism = UnaryEncoding(categories=4, epsilon=1.0)

    for reports in (np.zeros((2, 3), dtype=np.int64), np.zeros((2, 5), dtype=np.int64)):
        assert mechanism.valid(reports).tolist() == [False, False]
        with pytest.raises(ParameterError, match=r"^reports "):
            mechanism.tally(reports)
    assert not mechanism.valid(np.full((1, 4), 2)).any()
    assert not mechanism.valid(np.full((1, 4), math.nan)).any()


def test_bits_that_come_as_bytes_are_counted_without_overflow() -> None:
    mechanism = UnaryEncoding(categories=2, epsilon=1.0)

    sums = mechanism.tally(np.ones((1000, 2), dtype=np.int8))

    assert sums.tolist() == [1000, 1000]
    assert sums.dtype == np.int64
