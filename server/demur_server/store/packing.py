"""What one commit keeps of the reports it counted, as bytes, and the checksums over it.

Databases find torn pages of their own, but not every flipped bit inside a blob; a checksum that
covers where a blob belongs finds those and swapped rows too. It is no defence against a person.
"""

import struct
import zlib
from collections.abc import Iterable

RECORD_BYTES = 48  #: report id, payload digest and device id, 16 bytes each


def pack_records(
    report_ids: Iterable[bytes], digests: Iterable[bytes], devices: Iterable[bytes]
) -> bytes:
    """Records sorted by report id: the order in which reports came is not kept.

    >>> pack_records([b"b" * 16, b"a" * 16], [b"1" * 16, b"2" * 16], [b"x" * 16, b"y" * 16])[:32]
    b'aaaaaaaaaaaaaaaa2222222222222222'
    """
    return b"".join(sorted(map(b"".join, zip(report_ids, digests, devices, strict=True))))


def unpack_records(records: bytes) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Report ids, digests and devices.

    >>> unpack_records(b"a" * 16 + b"1" * 16 + b"x" * 16)[2]
    [b'xxxxxxxxxxxxxxxx']
    """
    ends = range(RECORD_BYTES, len(records) + 1, RECORD_BYTES)
    return (
        [records[end - 48 : end - 32] for end in ends],
        [records[end - 32 : end - 16] for end in ends],
        [records[end - 16 : end] for end in ends],
    )


def checksum(content: bytes, *place: int) -> int:
    """CRC-32 over where something belongs and what it is; -1, which is none, if a number is none.

    A damaged row of SQLite may hold anything anywhere.

    >>> checksum(b"", 1) != checksum(b"", 2)
    True
    """
    try:
        return zlib.crc32(content, zlib.crc32(struct.pack(f"<{len(place)}q", *place)))
    except (struct.error, TypeError):
        return -1
