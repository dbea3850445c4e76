"""IDX files, the form in which MNIST and its relatives are published."""

import gzip
import hashlib
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from demur_proto.errors import DataError
from demur_sim.datasets.labelled import Array

LARGEST_FILE = 1 << 30  #: bytes, unzipped

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | Path, *, sha256: str | None = None) -> Array:
    """Read the array of one IDX file, plain or gzipped.

    The file has two zero bytes, one for the type of its numbers, one for how many dimensions there are,
    each dimension as a 32-bit integer, and the numbers; all of it big-endian.

    Args:
        path: the file; its first bytes, not its name, say whether it is gzipped.
        sha256: hash of the unzipped file in hexadecimal digits, which is checked; None for any.

    Raises:
        DataError: the file cannot be read, is not as described, or has another hash. One line that
            names the file and what was expected.

    Source: LeCun, Cortes & Burges, The MNIST database of handwritten digits, yann.lecun.com/exdb/mnist.
    """
    content = _unzipped(path)
    if sha256 is not None and (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise DataError(f"{path}: expected a file of SHA-256 {sha256}, unzipped, got {found}")
    dimensions = content[3] if len(content) >= 4 else 0
    start = 4 + 4 * dimensions
    if content[:2] != b"\0\0" or not dimensions or content[2] not in _TYPES or len(content) < start:
        raise DataError(f"{path}: expected an IDX file, found other bytes")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    kind = np.dtype(_TYPES[content[2]])
    if len(content) - start != math.prod(shape) * kind.itemsize:
        raise DataError(
            f"{path}: expected {math.prod(shape)} numbers of {kind.itemsize} bytes after the first "
            f"{start} bytes, found {len(content) - start} bytes"
        )
    try:
        array: Array = np.frombuffer(content, dtype=kind, offset=start).reshape(shape)
    except ValueError:
        found = f"{dimensions} dimensions of up to {max(shape)}"
        raise DataError(f"{path}: expected the shape of an array, found {found}") from None
    return array.astype(kind.newbyteorder("="), copy=False)


def idx_bytes(array: Array) -> bytes:
    """An array of bytes as an IDX file holds it.

    >>> idx_bytes(np.array([[7, 8]], dtype=np.uint8)).hex(" ")
    '00 00 08 02 00 00 00 01 00 00 00 02 07 08'
    """
    if array.dtype != np.uint8:
        raise DataError(f"expected an array of bytes, got {array.dtype}")
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def _unzipped(path: str | Path) -> bytes:
    try:
        with Path(path).open("rb") as file:
            zipped = file.peek(2)[:2] == b"\x1f\x8b"
            raw = gzip.GzipFile(fileobj=file) if zipped else file
            content = raw.read(LARGEST_FILE + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise DataError(f"{path}: expected a whole gzip file, found damage") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(content) > LARGEST_FILE:
        raise DataError(f"{path}: expected at most {LARGEST_FILE} bytes, unzipped")
    return content
