"""Memory that a device shares with one evaluation: the value comes back through it, and nothing else.

It is looked at, never waited for. Whatever stands in it is read in the same steps.

| bytes | what |
|---|---|
| 0 | 0 nothing yet, 1 a value, 2 no value |
| 1 | 1 once the report was acknowledged |
| 2 to 3 | length of the note, bytes, little-endian |
| 4 to 4095 | the note, UTF-8 |
| from 4096 | the value, doubles |
"""

import mmap
import os
import sys
import tempfile
from typing import Self, final

import numpy as np

from demur_proto.arrays import Values

STATE, ACKNOWLEDGED, NOTE_LENGTH, NOTE, VALUE = 0, 1, 2, 4, 4096
FOUND, FAILED = 1, 2
if sys.platform == "linux":
    import fcntl

    SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
NOT_DONE = "the evaluation was ended: it took too long or too much memory, or its process died"
DOUBLE = np.dtype(np.float64)


@final
class Board:
    """One evaluation's memory. Secret.

    Args:
        handle: of a file as long as `size_of`; the caller closes it.
        length: how many numbers the value has.
    """

    def __init__(self, handle: int, *, length: int) -> None:
        self._length = length
        self._memory = mmap.mmap(handle, size_of(length))

    def __repr__(self) -> str:
        return "Board(secret)"

    @classmethod
    def made(cls, *, length: int) -> tuple[Self, int]:
        """A new one, every page of it in memory already, and the handle of its file.

        Raises:
            OSError: there is no memory for it.
        """
        handle = anonymous_file(size_of(length))
        try:
            board = cls(handle, length=length)
        except BaseException:
            os.close(handle)
            raise
        board._memory[VALUE:] = bytes(DOUBLE.itemsize * length)
        return board, handle

    def put(self, value: Values | None, note: str) -> None:
        """Write what became of the evaluation: the state last, so that half a value is none."""
        said = note.encode(errors="replace")[: VALUE - NOTE]
        self._memory[NOTE : NOTE + len(said)] = said
        self._memory[NOTE_LENGTH:NOTE] = len(said).to_bytes(2, "little")
        if value is not None:
            self._memory[VALUE:] = value.astype(DOUBLE).tobytes()
        self._memory[STATE] = FAILED if value is None else FOUND

    def content(self) -> bytes:
        """All that is on it. Secret."""
        return self._memory[:]

    @property
    def acknowledged(self) -> bool:
        """Whether the collector has answered the report. Public."""
        return self._memory[ACKNOWLEDGED] != 0

    def acknowledge(self) -> None:
        """Say that the collector has answered the report."""
        self._memory[ACKNOWLEDGED] = 1


def size_of(length: int) -> int:
    """Bytes of the memory for a value of so many numbers."""
    return VALUE + DOUBLE.itemsize * length


def anonymous_file(size: int) -> int:
    """The handle of a new file without a name: in memory where the system has such files.

    Raises:
        OSError: there is no room for it.
    """
    if sys.platform == "linux":  # on a disk, somebody else's writes could slow the sender
        handle = os.memfd_create("demur", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(handle, size)
        # Whoever made it shorter would end every process that reads it.
        fcntl.fcntl(handle, fcntl.F_ADD_SEALS, SEALS)
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
        os.ftruncate(handle, size)
    return handle


def taken(content: bytes, *, length: int) -> tuple[Values | None, str]:
    """The value [1, v] that an evaluation has left, None where it left none, and a note. Secret, both.

    Args:
        content: of its board, as far as it is there: the same steps, whatever it is.
        length: how many numbers the value has, v.
    """
    content = content.ljust(size_of(length), b"\0")[: size_of(length)]
    said = int.from_bytes(content[NOTE_LENGTH:NOTE], "little")
    note = content[NOTE : min(NOTE + said, VALUE)].decode(errors="replace")
    value: Values = np.frombuffer(content, dtype=DOUBLE, offset=VALUE).reshape(1, length)
    state = content[STATE]
    return (value if state == FOUND else None), (note if state else NOT_DONE)
