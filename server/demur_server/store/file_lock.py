"""A lock that the operating system takes back when its process ends, however it ends."""

import os
import sys
from pathlib import Path

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


class FileLock:
    """Holds a file from birth to `release`. The file stays: removing it would let two hold it.

    Raises:
        BlockingIOError: somebody else holds it.
        OSError: it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._handle: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(self._handle)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let others have it; again, nothing happens."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
