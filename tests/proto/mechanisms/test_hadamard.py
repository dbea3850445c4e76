"""The transform and the halves; charges and estimates are in the tests of all mechanisms."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.errors import ParameterError
from demur_proto.mechanisms.hadamard import HadamardResponse, walsh_hadamard
from demur_sim.engine.sampling import SeededBits


def sign(row: int, index: int) -> int:
    """H[row, index] of Sylvester's matrix."""
    return -1 if (row & index).bit_count() % 2 else 1


def seeded(seed: int) -> SeededBits:
    return SeededBits(np.random.Generator(np.random.SFC64(seed)))


@given(digits=st.integers(0, 6), data=st.data())
def test_the_fast_transform_is_the_matrix(digits: int, data: st.DataObject) -> None:
    size = 1 << digits
    counts = data.draw(st.lists(st.integers(0, 1 << 53), min_size=size, max_size=size))

    fast = walsh_hadamard(np.array(counts, dtype=np.int64))

    assert fast.tolist() == [
        sum(sign(row, at) * count for at, count in enumerate(counts)) for row in range(size)
    ]


@pytest.mark.parametrize(
    ("categories", "size"), [(2, 4), (3, 4), (4, 8), (1023, 1024), (1024, 2048)]
)
def test_there_are_more_indices_than_categories_so_that_null_has_a_row(
    categories: int, size: int
) -> None:
    assert HadamardResponse(categories=categories, epsilon=1.0).sums_length == size


@pytest.mark.parametrize("categories", [2, 3, 5, 8])
def test_what_supports_one_category_supports_half_of_the_others_and_half_of_null(
    categories: int,
) -> None:
    size = HadamardResponse(categories=categories, epsilon=1.0).sums_length

    for row in range(1, categories + 1):
        for other in range(size):
            both = sum(sign(row, at) == sign(other, at) == 1 for at in range(size))
            assert both * (2 if other == 0 else 4) == (size * 2 if other == row else size)


@pytest.mark.parametrize("categories", [2, 5, 11])
def test_estimates_come_from_counting_support_index_by_index(categories: int) -> None:
    mechanism = HadamardResponse(categories=categories, epsilon=1.0)
    reports = mechanism.randomise(np.arange(200)[:, None] % (categories + 1), seeded(1))

    answer = mechanism.estimate(mechanism.tally(reports), reports=200)

    own, half = mechanism.keep.probability, Fraction(1, 2)
    for at in range(categories):
        support = sum(sign(at + 1, int(index)) == 1 for index in reports[:, 0])
        exact = (support - 200 * half) / (own - half)
        assert answer.estimate[at] == pytest.approx(float(exact), rel=1e-12, abs=1e-12)


def test_null_takes_as_many_random_bits_as_a_category() -> None:
    mechanism = HadamardResponse(categories=9, epsilon=1.0)
    after = []
    for symbol in (0, 9):
        source = seeded(4)
        mechanism.draw(np.full(50, symbol, dtype=np.int32), source)
        after.append(source.words(1)[0])

    assert after[0] == after[1]


@given(people=st.integers(0, 40), seed=st.integers(0, 99))
def test_narrow_indices_are_the_reports(people: int, seed: int) -> None:
    mechanism = HadamardResponse(categories=9, epsilon=1.0)
    symbols = np.random.default_rng(seed).integers(0, 10, people)

    narrow = mechanism.draw(symbols.astype(np.int32), seeded(seed))
    reports = mechanism.randomise(symbols[:, None], seeded(seed))

    assert np.array_equal(narrow, reports[:, 0])
    assert narrow.dtype == np.int32
    assert reports.dtype == np.int64


def test_reports_of_another_size_or_kind_are_not_valid_and_not_counted() -> None:
    mechanism = HadamardResponse(categories=4, epsilon=1.0)

    wide = np.zeros((2, 2), dtype=np.int64)
    assert mechanism.valid(wide).tolist() == [False, False]
    assert not mechanism.valid(np.full((1, 1), math.nan)).any()
    assert mechanism.valid(np.array([[7], [8], [-1]])).tolist() == [True, False, False]
    for reports in (wide, np.array([[8]]), np.array([[-1]]), np.array([[0.5]])):
        with pytest.raises(ParameterError, match=r"^reports "):
            mechanism.tally(reports)


def test_sums_that_do_not_add_up_to_the_reports_are_refused() -> None:
    mechanism = HadamardResponse(categories=2, epsilon=1.0)

    with pytest.raises(ParameterError, match=r"^sums .*3 in all"):
        mechanism.estimate(np.array([1, 0, 1, 0]), reports=3)
    with pytest.raises(ParameterError, match=r"^sums "):
        mechanism.estimate(np.array([4, -1, 0, 0]), reports=3)
    with pytest.raises(ParameterError, match=r"^sums "):
        mechanism.estimate(np.array([1.5, 1.5, 0, 0]), reports=3)
