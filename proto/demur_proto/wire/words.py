"""Numbers as protobuf writes them, for messages that are put together by hand."""

from enum import StrEnum
from typing import Any, cast

import numpy as np

from demur_proto.arrays import Flags, Words
from demur_proto.errors import ParameterError, WireError


def varint(value: int) -> bytes:
    """A number as protobuf writes it: seven bits a byte, the lowest first.

    >>> varint(300).hex()
    'ac02'
    """
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


# Integer words ↔ bytes.

Payload = bytes | memoryview  #: encoded words, which may lie within a message


class WordType(StrEnum):
    """How the words of a report are encoded.

    Integers are signed and little-endian. Bits are packed, the first word of a report into the
    lowest bit of its first byte; a report fills whole bytes, and the bits left over are zero.
    """

    BIT = "bit"
    INT32 = "int32"
    INT64 = "int64"

    @property
    def limit(self) -> int:
        """Largest magnitude that this type is used for. Bits have no sign."""
        return (1 << (_BITS[self] - 1)) - 1 if self is not WordType.BIT else 1

    def report_bytes(self, dimension: int) -> int:
        """Bytes of a report of this many words.

        >>> WordType.BIT.report_bytes(9), WordType.INT32.report_bytes(9)
        (2, 36)
        """
        return -(-dimension * _BITS[self] // 8)


_BITS = {WordType.BIT: 1, WordType.INT32: 32, WordType.INT64: 64}


def word_type_for(limit: int) -> WordType:
    """The smallest signed type that holds every word of magnitude up to `limit`.

    >>> word_type_for(70_000).value, word_type_for(1 << 31).value
    ('int32', 'int64')
    """
    if limit > WordType.INT64.limit:
        raise ParameterError("limit", limit, "below 2^63: take a coarser grid or less noise")
    return WordType.INT32 if limit <= WordType.INT32.limit else WordType.INT64


def encode_words(words: Words, word_type: WordType) -> bytes:
    """Words [n, d] to bytes, report by report.

    Raises:
        ParameterError: a word does not fit; nothing saturates.

    >>> encode_words(np.array([[1, -2]]), WordType.INT32).hex()
    '01000000feffffff'
    >>> encode_words(np.array([[1, 0, 0, 1, 0, 0, 0, 0, 1]]), WordType.BIT).hex()
    '0901'
    """
    return bytes(encoded_words(words, word_type))


def encoded_words(words: Words, word_type: WordType) -> memoryview:
    """`encode_words` without its last copy, for whoever puts the bytes elsewhere anyway.

    Of words that are encoded as they are, it is their own memory: they must not change meanwhile.

    Raises:
        ParameterError: a word does not fit; nothing saturates.

    >>> encoded_words(np.array([[1, -2]]), WordType.INT32).hex()
    '01000000feffffff'
    """
    if word_type is WordType.BIT:
        if not ((words == 0) | (words == 1)).all():
            raise ParameterError("words", "another word", "0 or 1")
        return _bytes_of(np.packbits(words.astype(np.bool_), axis=1, bitorder="little"))
    if word_type is WordType.INT32:
        narrow = np.can_cast(words.dtype, np.int32)  # then every word fits
        if not narrow and words.size and not -(1 << 31) <= words.min() <= words.max() < 1 << 31:
            raise ParameterError("words", "a larger word", "within 32 bits")
        return _bytes_of(words.astype("<i4", copy=False))
    return _bytes_of(words.astype("<i8", copy=False))


def _bytes_of(encoded: np.ndarray[Any, Any]) -> memoryview:
    """An array's memory, row by row."""
    flat: Any = np.ascontiguousarray(encoded).reshape(-1).view(np.uint8)
    return memoryview(flat)


def decode_words(
    data: Payload, word_type: WordType, *, reports: int, dimension: int, widen: bool = True
) -> tuple[Words, Flags]:
    """Bytes to words [reports, dimension], and which reports are well formed [reports].

    Args:
        data: the encoded words, report by report.
        word_type: how they are encoded.
        reports: how many reports there are.
        dimension: words in each.
        widen: make integers 64 bits wide. Otherwise they stay as wide as they came and are not
            copied: whoever asks for that must not write them, nor compute beyond their width.

    Returns:
        The words, which may be written if they are widened; bits come in one byte each, since eight would be too many.
        A report is ill formed if the bits that its last byte has left over are not zero: two texts
        must never mean the same report.

    Raises:
        WireError: the length is not that of so many reports.

    >>> decode_words(bytes.fromhex("01000000feffffff"), WordType.INT32, reports=2, dimension=1)
    (array([[ 1],
           [-2]]), array([ True,  True]))
    >>> decode_words(bytes.fromhex("0109"), WordType.BIT, reports=2, dimension=3)[1]
    array([ True, False])
    """
    size = word_type.report_bytes(dimension)
    if len(data) != reports * size:
        raise WireError(
            f"{reports} reports of {dimension} {word_type} words take {reports * size} bytes, "
            f"got {len(data)}"
        )
    if word_type is WordType.BIT:
        packed = np.frombuffer(data, dtype=np.uint8).reshape(reports, size)
        bits = np.unpackbits(packed, axis=1, count=dimension, bitorder="little")
        spare = packed[:, -1] >> ((dimension - 1) % 8 + 1) if dimension % 8 else None
        sound = np.ones(reports, dtype=np.bool_) if spare is None else spare == 0
        return cast(Words, bits.view(np.int8)), sound
    narrow = np.frombuffer(data, dtype="<i4" if word_type is WordType.INT32 else "<i8")
    integers = narrow.astype(np.int64) if widen else narrow
    words = cast(Words, integers.reshape(reports, dimension))
    return words, np.ones(reports, dtype=np.bool_)
