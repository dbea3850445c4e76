"""From the rows of a file to what they add up to, and what can be saved where they do not."""

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from demur_client.ledger import schema
from demur_client.ledger.chain import Broken, follow
from demur_client.ledger.counter import Mark
from demur_client.ledger.kept import KeptLedger
from demur_client.ledger.records import Agreed, Begun, Change, Forgot, Identified, Made
from demur_client.ledger.schema import connect, reading, report_at, rows_of
from demur_client.ledger.scope import LifetimeCap
from demur_client.ledger.state import Book, Entry
from demur_proto.errors import DemurError, NotFoundError, StateError, StorageError, UnsupportedError


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Found:
    """A file's book, and where its chain begins and ends."""

    book: Book
    start: Mark  #: what the first change follows
    previous: Mark  #: the last but one
    head: Mark  #: the last

    def agrees(self, mark: Mark | None) -> bool:
        """Whether no later ledger than this was ever confirmed to a counter.

        A counter may be one change behind, whose report has not left; and a new one knows nothing.
        """
        return (
            mark is None
            or mark in (self.head, self.previous)
            or (mark.digest == self.start.digest and mark.number <= self.start.number)
        )


def replay(connection: sqlite3.Connection, caps: Iterable[LifetimeCap]) -> Found:
    """Add up all rows of a file.

    Raises:
        Broken: they are not what was once kept.
        DemurError: a study is of a kind that this version does not do.
    """
    book = Book(caps)
    emptied: set[int] = set()
    start = previous = head = None
    for row, change in follow(rows_of(connection)):
        if isinstance(change, Made) and start is None:
            start = head = Mark(number=row.number - 1, digest=change.start)
        previous, head = head, row.mark
        if change is None:
            emptied.add(row.number)
            continue
        try:
            book.apply(row.number, change)
        except ValueError as error:
            raise Broken("a change does not follow those before it") from error
    if start is None or previous is None or head is None:
        raise Broken("it is empty")
    if not emptied <= book.erased:
        raise Broken("changes were emptied that nobody forgot")
    for entry in book.unsettled():
        sealed = report_at(connection, entry.at)
        if sealed is None or hashlib.sha256(sealed).digest() != entry.report_digest:
            raise Broken("a sealed report is not what it was")
    return Found(book=book, start=start, previous=previous, head=head)


@dataclass(slots=True, kw_only=True, repr=False)
class Saved:
    """What of a ledger outlives it: who the device is, and what it took part in."""

    secret: bytes | None = None
    head: Mark = field(default_factory=Mark.first)  #: how far it could be read
    changes: list[Change] = field(default_factory=list)  #: to go on with


def salvage(path: Path) -> Saved:
    """Save what still can be read of a file, whatever has become of it."""
    saved, book = Saved(), Book()
    connection: sqlite3.Connection | None = None
    with suppress(Broken, DemurError, ValueError), reading(path):
        connection = connect(path, read_only=True)
        for row, change in follow(rows_of(connection)):
            if change is not None:
                book.apply(row.number, change)
            saved.head = row.mark
    if connection is not None:
        connection.close()
    saved.secret = book.secret or None
    if book.identity is not None:
        saved.changes.append(Identified(identity=book.identity))
    saved.changes += [Agreed(definition=study.definition) for study in book.studies()]
    saved.changes += [
        Begun(study_hash=study_hash, number=number, round_hash=round_hash)
        for study_hash, member in book.members()
        for number, round_hash in member.begun.items()
    ]
    gone = [(each, member.declared) for each, member in book.members() if member.study is None]
    if gone:
        saved.changes.append(Forgot(studies=tuple(gone), erased=(), identity=False))
    return saved


# Looking into the ledger of a device that may be running, for its owner.


@final
class LedgerCopy(KeptLedger):
    """What a ledger's file held at one moment. It cannot be changed, and no report is in it.

    Whether it is the newest is not known here: only its owner asks the counter.

    Args:
        path: of the file.
        caps: over all studies together.

    Raises:
        NotFoundError: there is no such file, or nothing in it yet.
        StateError: the file is another database.
        UnsupportedError: another version has written it.
        StorageError: it cannot be read, or is damaged.
    """

    def __init__(self, path: Path, *, caps: Iterable[LifetimeCap] = ()) -> None:
        super().__init__()
        if not path.exists():
            raise NotFoundError(f"there is no ledger {path}")
        connection = None
        try:
            with schema.reading(path):
                connection = schema.connect(path, read_only=True)
                connection.execute("BEGIN")  # all of it at one moment
                self._check(schema.version_of(connection, path), path)
                self._book = replay(connection, caps).book
                rows = follow(schema.rows_of(connection))
                self._kept = [change for _, change in rows if change is not None]
        except Broken as error:
            raise StorageError(
                f"the ledger {path} is damaged; a device that starts with it takes all for spent"
            ) from error
        finally:
            if connection is not None:
                connection.close()

    @staticmethod
    def _check(version: int, path: Path) -> None:
        if version == 0:
            raise NotFoundError(f"there is nothing in the ledger {path} yet")
        if version < len(schema.STEPS):
            raise UnsupportedError(
                f"an older demur has written the ledger {path}; start the device once"
            )

    def _read(self) -> Book:
        return self._book

    def _keep(
        self,
        change: Change,
        *,
        sealed: bytes | None = None,
        dropped: Sequence[int] = (),
        erased: Sequence[int] = (),
    ) -> None:
        raise StateError("this is a copy of a ledger, which cannot be changed")

    def _bytes(self, entry: Entry) -> bytes:
        raise StateError("this is a copy of a ledger, which holds no reports")

    def _changes(self) -> Iterator[Change]:
        return iter(self._kept)
