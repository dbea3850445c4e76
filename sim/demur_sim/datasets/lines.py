"""Lines of text files, and what is wrong with one of them."""

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path

from demur_proto.errors import DataError

LONGEST_LINE = 1 << 16  #: bytes
SHOWN = 40  #: characters of a cell and columns of a header that a message repeats


class Lines:
    """The lines of a text file, plain or gzipped, and the number of the one read last.

    Args:
        path: the file; its first bytes, not its name, say whether it is gzipped.
    """

    def __init__(self, path: str | Path) -> None:
        self.number = 0
        self._path = path

    def __iter__(self) -> Iterator[str]:
        try:
            with Path(self._path).open("rb") as file:
                zipped = file.peek(2)[:2] == b"\x1f\x8b"
                raw = io.BufferedReader(gzip.GzipFile(fileobj=file)) if zipped else file
                while line := raw.readline(LONGEST_LINE + 1):
                    self.number += 1
                    if len(line) > LONGEST_LINE:
                        raise self.fault(f"lines of at most {LONGEST_LINE} bytes")
                    yield line.decode("utf-8-sig" if self.number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise self.fault("text in UTF-8, found other bytes") from None
        except (EOFError, zlib.error, gzip.BadGzipFile):
            # What was unpacked together with the damage is lost: at most one buffer.
            after = self.number + 1
            raise self.fault("a whole gzip file, found damage soon after", line=after) from None
        except OSError as error:
            raise DataError(f"{self._path}: cannot be read: {error.strerror or error}") from None

    def fault(self, expected: str, *, line: int | None = None) -> DataError:
        """What is wrong with this line, or with the line read last."""
        return DataError(
            f"{self._path}:{self.number if line is None else line}: expected {expected}"
        )


def shown(cell: str) -> str:
    """A cell as a message repeats it: the beginning of a long one.

    >>> shown("x" * 50)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…'"
    """
    return repr(cell if len(cell) <= SHOWN else cell[:SHOWN] + "…")
