from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.errors import ParameterError, WireError
from demur_proto.words import WordType, decode_words, encode_words, word_type_for

LIMITS = {WordType.INT32: (1 << 31) - 1, WordType.INT64: (1 << 63) - 1}


@given(st.sampled_from(WordType), st.integers(1, 4), st.data())
def test_words_survive_the_wire(word_type: WordType, dimension: int, data: st.DataObject) -> None:
    limit = LIMITS[word_type]
    row = st.lists(st.integers(-limit, limit), min_size=dimension, max_size=dimension)
    rows = data.draw(st.lists(row, min_size=1, max_size=5))
    words = np.array(rows, dtype=np.int64)

    encoded = encode_words(words, word_type)
    decoded = decode_words(encoded, word_type, reports=len(rows), dimension=dimension)

    # An independent encoding: Python's own, row by row.
    size = word_type.size_bytes
    assert encoded == b"".join(x.to_bytes(size, "little", signed=True) for r in rows for x in r)
    assert decoded.dtype == np.int64
    assert decoded.tolist() == rows


@pytest.mark.parametrize("word", [1 << 31, -(1 << 31) - 1, 1 << 32, 1 << 62])
def test_a_word_that_does_not_fit_is_refused_and_never_saturates(word: int) -> None:
    with pytest.raises(ParameterError) as caught:
        encode_words(np.array([[0, word]]), WordType.INT32)

    assert str(word) not in str(caught.value)  # it may be a person's


def test_words_in_any_memory_order_are_written_row_by_row() -> None:
    words = np.array([[1, 2, 3], [4, 5, 6]])

    for word_type in WordType:
        assert encode_words(np.asfortranarray(words), word_type) == encode_words(words, word_type)


@given(st.binary(max_size=40), st.sampled_from(WordType), st.integers(0, 5), st.integers(1, 5))
def test_bytes_of_another_length_are_refused(
    data: bytes, word_type: WordType, reports: int, dimension: int
) -> None:
    if len(data) == reports * dimension * word_type.size_bytes:
        words = decode_words(data, word_type, reports=reports, dimension=dimension)
        assert words.shape == (reports, dimension)
    else:
        with pytest.raises(WireError, match="bytes"):
            decode_words(data, word_type, reports=reports, dimension=dimension)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (0, WordType.INT32),
        ((1 << 31) - 1, WordType.INT32),
        (1 << 31, WordType.INT64),
        ((1 << 63) - 1, WordType.INT64),
    ],
)
def test_the_smallest_type_that_holds_the_limit_is_taken(limit: int, expected: WordType) -> None:
    assert word_type_for(limit) is expected
    assert limit <= expected.limit == LIMITS[expected]


def test_limits_of_more_than_63_bits_are_refused() -> None:
    with pytest.raises(ParameterError):
        word_type_for(1 << 63)


def test_decoded_words_may_be_changed_without_changing_the_message() -> None:
    data: Any = bytes(8)

    words = decode_words(data, WordType.INT64, reports=1, dimension=1)
    words += 1

    assert data == bytes(8)
