"""The interface that every store implements."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from demur_proto.arrays import Integers, Words
from demur_proto.definition import Defined
from demur_proto.release import Release
from demur_proto.round import Round
from demur_proto.study import Study


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Totals:
    """What a round has counted."""

    reports: int
    sums: Integers  #: what the tallies add up to, exactly [s]
    closed: bool


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Batch:
    """Reports of one round that are valid on their own; whether they count is the store's word."""

    report_ids: list[bytes]  #: 16 bytes each
    digests: list[bytes]  #: HMACs of the payloads under the round's key, 16 bytes each
    words: Words  #: of the reports [n, w]
    tally: Callable[[Words], Integers]  #: what some of these rows add to the sums [s]


class Store(Protocol):
    """Keeps what a collector must not forget, and decides which report counts.

    Every method is atomic, and what it returns is durable as far as the store is.
    """

    async def add_study(self, study: Defined[Study]) -> None:
        """Keep a study; again, it changes nothing."""

    async def add_round(self, asked: Defined[Round], *, sums_length: int) -> None:
        """Keep a round, open and empty; again, it changes nothing.

        Args:
            asked: the round.
            sums_length: how many sums it has, s.
        """

    async def admit(self, round_hash: bytes, batch: Batch) -> list[int]:
        """Count each report exactly once; one disposition each, in order.

        ACCEPTED is new. DUPLICATE: this id with this digest was counted before. CONFLICT: this id
        with another digest was. ROUND_CLOSED: too late, for ever.

        Raises:
            NotFoundError: no such round.
        """

    async def totals(self, round_hash: bytes) -> Totals:
        """What a round has counted so far.

        Raises:
            NotFoundError: no such round.
        """

    async def close_round(self, round_hash: bytes) -> Totals:
        """Close a round, for ever, and forget its ids and digests; again, the same totals.

        Raises:
            NotFoundError: no such round.
        """

    async def add_release(self, release: Release) -> Release:
        """Keep a release unless the round has one; what is kept is returned."""

    async def releases(self, study_hash: bytes, *, from_number: int = 1) -> list[Release]:
        """The releases of a study from a round's number on, by number."""
