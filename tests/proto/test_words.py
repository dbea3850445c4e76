from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.errors import ParameterError, WireError
from demur_proto.wire.words import WordType, decode_words, encode_words, word_type_for

LIMITS = {WordType.INT32: (1 << 31) - 1, WordType.INT64: (1 << 63) - 1}
SIZES = {WordType.INT32: 4, WordType.INT64: 8}


@given(st.sampled_from([*LIMITS]), st.integers(1, 4), st.data())
def test_words_survive_the_wire(word_type: WordType, dimension: int, data: st.DataObject) -> None:
    limit = LIMITS[word_type]
    row = st.lists(st.integers(-limit, limit), min_size=dimension, max_size=dimension)
    rows = data.draw(st.lists(row, min_size=1, max_size=5))
    words = np.array(rows, dtype=np.int64)

    encoded = encode_words(words, word_type)
    decoded, sound = decode_words(encoded, word_type, reports=len(rows), dimension=dimension)

    # An independent encoding: Python's own, row by row.
    size = SIZES[word_type]
    assert encoded == b"".join(x.to_bytes(size, "little", signed=True) for r in rows for x in r)
    assert decoded.dtype == np.int64
    assert decoded.tolist() == rows
    assert sound.tolist() == [True] * len(rows)


@pytest.mark.parametrize("word_type", [*LIMITS])
def test_words_that_are_not_widened_are_the_same_and_cannot_be_written(word_type: WordType) -> None:
    limit = LIMITS[word_type]
    rows = np.array([[limit, -limit], [0, -1]], dtype=np.int64)

    encoded = encode_words(rows, word_type)
    words, _ = decode_words(encoded, word_type, reports=2, dimension=2, widen=False)

    assert words.itemsize == SIZES[word_type]
    assert words.tolist() == rows.tolist()
    assert not words.flags.writeable


@given(st.integers(1, 70), st.integers(1, 5), st.randoms(use_true_random=False))
def test_bits_survive_the_wire_eight_to_a_byte(dimension: int, reports: int, random: Any) -> None:
    rows = [[random.getrandbits(1) for _ in range(dimension)] for _ in range(reports)]

    encoded = encode_words(np.array(rows), WordType.BIT)
    decoded, sound = decode_words(encoded, WordType.BIT, reports=reports, dimension=dimension)

    # An independent encoding: each report is the integer whose binary digits are its words.
    size = -(-dimension // 8)
    numbers = [sum(bit << at for at, bit in enumerate(row)) for row in rows]
    assert encoded == b"".join(number.to_bytes(size, "little") for number in numbers)
    assert decoded.tolist() == rows
    assert decoded.sum(axis=0).dtype == np.int64  # one byte a word must not overflow a sum
    assert sound.tolist() == [True] * reports


@given(st.integers(1, 40), st.binary(min_size=20, max_size=20))
def test_a_report_with_a_bit_set_past_its_last_word_is_ill_formed(
    dimension: int, data: bytes
) -> None:
    size = WordType.BIT.report_bytes(dimension)
    reports = len(data) // size

    words, sound = decode_words(
        data[: reports * size], WordType.BIT, reports=reports, dimension=dimension
    )

    texts = [data[at : at + size] for at in range(0, reports * size, size)]
    clean = [int.from_bytes(text, "little") < 1 << dimension for text in texts]
    assert sound.tolist() == clean
    # Each well-formed report has one text only.
    kept = [text for text, good in zip(texts, clean, strict=True) if good]
    assert encode_words(words[sound].astype(np.int64), WordType.BIT) == b"".join(kept)


@pytest.mark.parametrize("word", [2, -1, 1 << 40, -(1 << 63)])
def test_what_is_no_bit_is_refused(word: int) -> None:
    with pytest.raises(ParameterError) as caught:
        encode_words(np.array([[0, word]]), WordType.BIT)

    assert str(word) not in str(caught.value)


@pytest.mark.parametrize("word", [1 << 31, -(1 << 31) - 1, 1 << 32, 1 << 62])
def test_a_word_that_does_not_fit_is_refused_and_never_saturates(word: int) -> None:
    with pytest.raises(ParameterError) as caught:
        encode_words(np.array([[0, word]]), WordType.INT32)

    assert str(word) not in str(caught.value)  # it may be a person's


def test_words_in_any_memory_order_are_written_row_by_row() -> None:
    words = np.array([[1, 0, 1], [1, 1, 0]])

    for word_type in WordType:
        assert encode_words(np.asfortranarray(words), word_type) == encode_words(words, word_type)


@given(st.binary(max_size=40), st.sampled_from(WordType), st.integers(0, 5), st.integers(1, 20))
def test_bytes_of_another_length_are_refused(
    data: bytes, word_type: WordType, reports: int, dimension: int
) -> None:
    bits = {WordType.BIT: 1, WordType.INT32: 32, WordType.INT64: 64}[word_type]
    if len(data) == reports * ((dimension * bits + 7) // 8):
        words, sound = decode_words(data, word_type, reports=reports, dimension=dimension)
        assert words.shape == (reports, dimension)
        assert sound.shape == (reports,)
    else:
        with pytest.raises(WireError, match="bytes"):
            decode_words(data, word_type, reports=reports, dimension=dimension)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (0, WordType.INT32),
        (1, WordType.INT32),  # a signed one, even if a bit would do
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


@pytest.mark.parametrize("word_type", WordType)
def test_decoded_words_may_be_changed_without_changing_the_message(word_type: WordType) -> None:
    data: Any = bytes(8)

    words, _ = decode_words(
        data, word_type, reports=1, dimension=64 // {"bit": 1, "int32": 32, "int64": 64}[word_type]
    )
    words += 1

    assert data == bytes(8)
