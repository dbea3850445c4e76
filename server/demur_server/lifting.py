"""Words taken out of a message's bytes without a copy.

Protobuf copies a field twice, when it parses a message and when it is asked for the field. The words of
large reports stay where gRPC has put them instead, and only what is around them is parsed.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

from demur_proto.varints import varint

WORTH_BYTES = 1 << 15  #: of a message; in a smaller one, words are copied as quickly

_VARINT, _LENGTH = 0, 2  # wire types: https://protobuf.dev/programming-guides/encoding/#structure
_LONGEST = {_VARINT: 10, _LENGTH: 5}  # bytes that a number takes, or a length

Message_co = TypeVar("Message_co", covariant=True)


class Kind(Protocol[Message_co]):
    """A class of messages."""

    def FromString(self, data: bytes, /) -> Message_co:
        """Parse one."""


def lifting(
    kind: Kind[Message_co], *, field: int, inner: int
) -> Callable[[bytes], tuple[Message_co, memoryview | None]]:
    """Something that parses messages, and lifts a field out of large ones.

    Args:
        kind: of messages.
        field: see `lift`.
        inner: likewise.

    Returns:
        What makes of a message's bytes the message, and the field that it now lacks; None: it has all.
    """

    def decode(data: bytes) -> tuple[Message_co, memoryview | None]:
        found = lift(data, field, inner) if len(data) >= WORTH_BYTES else None
        if found is None:
            return kind.FromString(data), None
        return kind.FromString(found[0]), found[1]

    return decode


def lift(data: bytes, field: int, inner: int) -> tuple[bytes, memoryview] | None:
    """Take one field of a message within a message out of it.

    Args:
        data: a message that holds nothing but another one.
        field: the number of that other one, below 16.
        inner: the number of its field of bytes, below 16.

    Returns:
        The message without the field, and the field's bytes, a part of `data`. None unless `data` is
        of just this form, with the field in it once; what it means is then for protobuf to say.

    >>> rest, lifted = lift(bytes.fromhex("12060a01aa1a01bb"), 2, 3)
    >>> rest.hex(), lifted.hex()
    ('12030a01aa', 'bb')
    """
    if not data or data[0] != field << 3 | _LENGTH:
        return None
    start, size = _number(data, 1, _LONGEST[_LENGTH])
    if start + size != len(data):
        return None
    at, lifted = start, None
    while at < len(data):
        begin, key = at, data[at]
        longest = _LONGEST.get(key & 7)
        if not 8 <= key < 0x80 or longest is None:
            return None
        first, size = _number(data, at + 1, longest)
        at = first + size if key & 7 == _LENGTH else first
        if not first or at > len(data):
            return None
        if key == inner << 3 | _LENGTH:
            if lifted is not None:
                return None
            lifted = begin, first, at
    if lifted is None:
        return None
    begin, first, end = lifted
    rest = data[start:begin] + data[end:]
    return data[:1] + varint(len(rest)) + rest, memoryview(data)[first:end]


def _number(data: bytes, at: int, longest: int) -> tuple[int, int]:
    """Where the number at this place ends, and the number; 0 and 0: it is too long or broken off."""
    value = 0
    for shift, byte in enumerate(data[at : at + longest]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return at + shift + 1, value
    return 0, 0
