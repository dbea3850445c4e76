"""Integer words ↔ bytes."""

from enum import StrEnum

import numpy as np

from demur_proto.arrays import Words
from demur_proto.errors import ParameterError, WireError


class WordType(StrEnum):
    """How the words of a report are encoded: signed, little-endian."""

    INT32 = "int32"
    INT64 = "int64"

    @property
    def size_bytes(self) -> int:
        """Bytes of one word."""
        return 4 if self is WordType.INT32 else 8

    @property
    def limit(self) -> int:
        """Largest magnitude that this type is used for."""
        return (1 << (8 * self.size_bytes - 1)) - 1


def word_type_for(limit: int) -> WordType:
    """The smallest type that holds every word of magnitude up to `limit`.

    >>> word_type_for(70_000).value, word_type_for(1 << 31).value
    ('int32', 'int64')
    """
    if limit > WordType.INT64.limit:
        raise ParameterError("limit", limit, "below 2^63: take a coarser grid or less noise")
    return WordType.INT32 if limit <= WordType.INT32.limit else WordType.INT64


def encode_words(words: Words, word_type: WordType) -> bytes:
    """Words [n, d] to bytes, row by row.

    Raises:
        ParameterError: a word does not fit; nothing saturates.

    >>> encode_words(np.array([[1, -2]]), WordType.INT32).hex()
    '01000000feffffff'
    """
    if word_type is WordType.INT32:
        narrow = words.astype("<i4")
        if not np.array_equal(narrow, words):
            raise ParameterError("words", "a larger word", "within 32 bits")
        return narrow.tobytes()
    return words.astype("<i8", copy=False).tobytes()


def decode_words(data: bytes, word_type: WordType, *, reports: int, dimension: int) -> Words:
    """Bytes to words [reports, dimension].

    Raises:
        WireError: the length is not reports · dimension · word size.

    >>> decode_words(bytes.fromhex("01000000feffffff"), WordType.INT32, reports=2, dimension=1)
    array([[ 1],
           [-2]])
    """
    expected = reports * dimension * word_type.size_bytes
    if len(data) != expected:
        raise WireError(
            f"{reports} reports of {dimension} {word_type} words take {expected} bytes, "
            f"got {len(data)}"
        )
    narrow = np.frombuffer(data, dtype="<i4" if word_type is WordType.INT32 else "<i8")
    return narrow.astype(np.int64).reshape(reports, dimension)
