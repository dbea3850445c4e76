"""What one commit keeps of the reports it counted, as bytes, and the checksums over it.

Databases find torn pages of their own, but not every flipped bit inside a blob; a checksum that
covers where a blob belongs finds those and swapped rows too. It is no defence against a person.
"""

import struct
import zlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import sqlalchemy as sa

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


# What differs between databases, and nothing else.


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Change:
    """What one commit changes in one round."""

    round_id: int
    seq: int  #: the shard's number for this commit; without records, that of the last one
    records: bytes  #: `pack_records` of what it counts; empty when it counts conflicts only
    reports: int  #: of the round on this shard, from now on
    conflicts: int  #: likewise
    sums: bytes  #: likewise, int64 little-endian


class Link(Protocol):
    """A connection to a database, for one thread; the only one that writes for its shard.

    Any error that is in `trouble` leaves it open what happened: the link is then closed and made
    anew, and everything in memory is read again.
    """

    sql: sa.Connection  #: the same connection, for everything that is not hot; never commit on it
    shard: int  #: which part of the devices is counted here
    shards: int  #: how many parts there are
    trouble: tuple[type[Exception], ...]  #: what the driver raises

    def transaction(self) -> AbstractContextManager[None]:
        """All of the block or nothing, durable when it ends."""

    def count(self, changes: Sequence[Change]) -> set[int]:
        """Keep changes in one durable transaction, except those of closed rounds.

        Returns:
            The ids of rounds that turned out to be closed.

        Raises:
            StorageError: the database is not as this shard left it.
        """

    def closed_among(self, round_ids: Sequence[int]) -> set[int]:
        """Which of these rounds somebody else has closed."""

    def commits(self, round_id: int) -> Iterable[tuple[int, bytes, int]]:
        """Number, records and checksum of this shard's commits to a round, in order."""

    def lock_round(self, round_id: int) -> None:
        """Wait out every commit to a round, and keep more from starting until the block ends."""

    def scrub(self) -> bool:
        """Make what was deleted unreadable, as far as this database can; False: not yet."""

    def explain(self, error: Exception) -> str:
        """One line about an error in `trouble`, without any value it was raised over."""

    def close(self) -> None:
        """Let go of the connection."""


class Database(Protocol):
    """Where links lead."""

    name: str  #: for messages; it has no password

    def connect(self) -> Link:
        """Make a link, and bring the schema up to date.

        Raises:
            StorageError: it cannot be reached, read or written.
            StateError: somebody else writes for this shard.
            UnsupportedError: its schema is newer than this version.
        """

    def close(self) -> None:
        """Let others have it."""
