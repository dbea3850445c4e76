"""One owner for one ledger: a lock beside the file, which also remembers that there was one."""

import os
import sys
from pathlib import Path

from demur_proto.errors import StateError, StorageError

if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> None:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            raise BlockingIOError from None
else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


MADE = "a ledger was made here\n"


class Owner:
    """Holds a ledger for one process, from birth to `release`, and to the process's end at the latest.

    Its file stays: removing it would let two own one ledger, and would forget that it was made.

    Args:
        path: of the ledger.

    Raises:
        StateError: another process has it.
        StorageError: the file of the lock cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(f"{path.name}.lock")
        try:
            self._handle: int | None = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StorageError(f"{self._path}: {error.strerror}") from error
        try:
            _lock(self._handle)
        except BlockingIOError:
            self.release()
            raise StateError(
                f"the ledger {path} is in use by another process; a device runs once at a time"
            ) from None
        except OSError as error:
            self.release()
            raise StorageError(f"{self._path}: {error.strerror}") from error
        self._noted = os.read(self._handle, 1000).decode(errors="replace")

    @property
    def made(self) -> bool:
        """Whether there was a ledger once."""
        return bool(self._noted)

    @property
    def doubt(self) -> str:
        """Why the ledger is not to be trusted; empty where nothing was said."""
        return self._noted.removeprefix(MADE).strip()

    def remember(self, doubt: str = "") -> None:
        """There is a ledger now, and it may be in doubt; for good when this returns.

        Raises:
            StorageError: it cannot be kept.
        """
        text = MADE + doubt
        if self._handle is None or self.doubt or text == self._noted:
            return
        try:
            os.lseek(self._handle, 0, os.SEEK_SET)
            os.write(self._handle, text.encode())
            os.fsync(self._handle)
        except OSError as error:
            raise StorageError(f"{self._path}: {error.strerror}") from error
        self._noted = text

    def release(self) -> None:
        """Let others have it; again, nothing happens."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
