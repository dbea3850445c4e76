"""A memory beside the ledger that only ever moves on, so that an old copy of a ledger is known as one.

Whoever puts an old ledger back brings back what it had left to spend. Nothing inside the file can
show that, since the file was true once; something outside has to remember how far it had come.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, final

from demur_proto.errors import StorageError

DIGEST_BYTES = 32
NUMBER_BYTES = 8
SLOT_BYTES = 4096  #: so that a write that is torn spares the other slot
MAGIC = b"demur.counter.1\x00"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How far a ledger had come."""

    number: int  #: how many changes
    digest: bytes  #: 32 bytes: the last link of its chain

    @classmethod
    def first(cls) -> "Mark":
        """What the first change of all follows.

        >>> Mark.first().number
        0
        """
        return cls(number=0, digest=bytes(DIGEST_BYTES))


class Counter(Protocol):
    """Remembers the last mark, and only takes later ones.

    What it is worth is how hard it is to set back. The counter of a TPM or of a secure element
    cannot be set back at all; it needs a place for the digest beside it, which is written first.
    """

    def read(self) -> Mark | None:
        """The last mark; None before the first.

        Raises:
            StorageError: it cannot be read.
        """

    def advance(self, mark: Mark) -> None:
        """Remember a later mark, for good when this returns.

        Raises:
            StorageError: it cannot be kept; the one before may or may not be the last.
        """


@final
class FileCounter:
    """A counter in a file, for tests and for machines without anything better.

    It protects against a ledger that is put back alone: a restored backup, a copied folder. It
    protects against nobody who puts this file back as well, so it belongs elsewhere than the
    ledger, where no backup of the ledger takes it along.

    Args:
        path: of the file; made at the first mark.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Mark | None:
        """As `Counter.read`."""
        return max(self._slots().values(), key=lambda mark: mark.number, default=None)

    def advance(self, mark: Mark) -> None:
        """As `Counter.advance`."""
        slots = self._slots()
        with _storing(self._path):
            if not slots:
                self._make(mark)
                return
            newest = max(slots, key=lambda slot: slots[slot].number)
            if mark.number <= slots[newest].number:
                raise StorageError(f"the counter {self._path} cannot go back")
            # Into the other slot, so that one of them is always whole.
            with self._path.open("r+b", buffering=0) as file:
                file.seek(SLOT_BYTES * (1 - newest))
                file.write(_slot(mark))
                os.fsync(file.fileno())

    def _slots(self) -> dict[int, Mark]:
        """The marks that are whole, by their slots; none where there is no file."""
        with _storing(self._path):
            try:
                content = self._path.read_bytes()
            except FileNotFoundError:
                return {}
        read = {slot: _mark(content[SLOT_BYTES * slot :][:SLOT_BYTES]) for slot in (0, 1)}
        marks = {slot: mark for slot, mark in read.items() if mark is not None}
        if not marks:
            raise StorageError(f"the counter {self._path} is damaged; restore it, or start anew")
        return marks

    def _make(self, mark: Mark) -> None:
        """All of the file, or nothing."""
        temporary = self._path.with_name(f"{self._path.name}.new")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(handle, "wb", buffering=0) as file:
            file.write(_slot(mark).ljust(2 * SLOT_BYTES, b"\x00"))
            os.fsync(file.fileno())
        os.replace(temporary, self._path)
        sync_folder(self._path.parent)


def sync_folder(folder: Path) -> None:
    """Let the names in a folder outlast a loss of power, where the system can do that."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _slot(mark: Mark) -> bytes:
    content = MAGIC + mark.number.to_bytes(NUMBER_BYTES, "big") + mark.digest
    return content + hashlib.sha256(content).digest()


def _mark(slot: bytes) -> Mark | None:
    """The mark in a slot; None where there is none that is whole."""
    length = len(MAGIC) + NUMBER_BYTES + DIGEST_BYTES
    content, check = slot[:length], slot[length : length + DIGEST_BYTES]
    if not content.startswith(MAGIC) or hashlib.sha256(content).digest() != check:
        return None
    number = int.from_bytes(content[len(MAGIC) : len(MAGIC) + NUMBER_BYTES], "big")
    return Mark(number=number, digest=content[len(MAGIC) + NUMBER_BYTES :])


@contextmanager
def _storing(path: Path) -> Iterator[None]:
    """Say of what the system refuses that nothing is kept."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"the counter {path}: {error.strerror or error}") from error
