"""The chain of a ledger's changes: none can be altered, lost or put elsewhere without being noticed.

    link_n = SHA-256("demur.ledger.v1" ‖ 0 ‖ link_{n−1} ‖ n ‖ cover_n)
    cover_n = SHA-256(salt_n ‖ kind_n ‖ 0 ‖ body_n)

A change can be emptied, salt and body both, and the chain still holds: what is left of it is a cover
from which, without the salt, nothing can be guessed. The last link stands for all that came before.
"""

import hashlib
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from demur_client.ledger.counter import Mark
from demur_client.ledger.records import Change, Made, read_change, write_change

TAG = b"demur.ledger.v1\x00"
SALT_BYTES = 16
EMPTIED = "emptied"  #: the kind of what was emptied


class Broken(Exception):
    """What was read is not what was once kept. Never leaves the ledger."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Row:
    """A change as it is kept."""

    number: int  #: consecutive
    kind: str
    salt: bytes | None  #: None once it is emptied
    body: bytes | None  #: None once it is emptied
    cover: bytes
    link: bytes

    @property
    def mark(self) -> Mark:
        """What a counter is told once this is kept."""
        return Mark(number=self.number, digest=self.link)


def link_of(previous: bytes, number: int, cover: bytes) -> bytes:
    """The next link of a chain.

    >>> link_of(bytes(32), 1, bytes(32)).hex()[:16]
    '511bd54b554eceb1'
    """
    return hashlib.sha256(TAG + previous + number.to_bytes(8, "big") + cover).digest()


def cover_of(salt: bytes, kind: str, body: bytes) -> bytes:
    """What a link says of a change."""
    return hashlib.sha256(salt + kind.encode() + b"\x00" + body).digest()


def row_of(change: Change, *, after: Mark) -> Row:
    """A change, written down as the one that follows."""
    kind, body = write_change(change)
    salt = secrets.token_bytes(SALT_BYTES)
    cover, number = cover_of(salt, kind, body), after.number + 1
    link = link_of(after.digest, number, cover)
    return Row(number=number, kind=kind, salt=salt, body=body, cover=cover, link=link)


def follow(rows: Iterable[Row]) -> Iterator[tuple[Row, Change | None]]:
    """Rows with their changes, None for those that were emptied, as long as the chain holds.

    Raises:
        Broken: it does not.
    """
    after: Mark | None = None
    for row in rows:
        change = _change_of(row)
        if after is None:
            if not isinstance(change, Made):
                raise Broken("it does not begin as ledgers do")
            after = Mark(number=row.number - 1, digest=change.start)
        link = link_of(after.digest, row.number, row.cover)
        if row.number != after.number + 1 or row.link != link:
            raise Broken("a link does not follow the one before it")
        after = row.mark
        yield row, change


def _change_of(row: Row) -> Change | None:
    if row.kind == EMPTIED and row.salt is None and row.body is None:
        return None
    if row.salt is None or row.body is None:
        raise Broken("half of a change is missing")
    if cover_of(row.salt, row.kind, row.body) != row.cover:
        raise Broken("a change is not the one that was linked")
    try:
        return read_change(row.kind, row.body)
    except ValueError as error:
        raise Broken("a change says nothing") from error
