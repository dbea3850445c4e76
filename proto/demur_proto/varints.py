"""Numbers as protobuf writes them, for messages that are put together by hand."""


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
