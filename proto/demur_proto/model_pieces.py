"""A model's definition on its way: too long for one message, it travels in pieces."""

from collections.abc import Iterator
from typing import final

from demur_proto.checks import check_integer
from demur_proto.errors import WireError
from demur_proto.models.definition import LARGEST_MODEL_BYTES

PIECE_BYTES = 1 << 20  #: of one message
BESIDE_PARAMETERS = 1024  #: what a definition may hold beside its parameters, bytes


def largest_definition(dimension: int) -> int:
    """Bytes that the definition of a model with this many parameters takes at most.

    Whoever fetches a model that a round names knows its size before, so that nobody can make them
    take more.

    >>> largest_definition(7850) == 8 * 7850 + 1024
    True
    """
    check_integer("dimension", dimension, 1, (1 << 31) - 1)
    return min(LARGEST_MODEL_BYTES, 8 * dimension + BESIDE_PARAMETERS)


def pieces_of(definition: bytes) -> Iterator[bytes]:
    """A definition, piece by piece.

    >>> [len(piece) for piece in pieces_of(bytes(PIECE_BYTES + 3))]
    [1048576, 3]
    """
    for start in range(0, len(definition), PIECE_BYTES):
        yield definition[start : start + PIECE_BYTES]


@final
class Pieces:
    """Pieces that arrive, one after the other.

    Args:
        most_bytes: more than this is refused as soon as it comes.

    >>> pieces = Pieces(most_bytes=10)
    >>> pieces.add(b"one")
    >>> pieces.add(b"two")
    >>> pieces.whole()
    b'onetwo'
    """

    def __init__(self, *, most_bytes: int) -> None:
        check_integer("most_bytes", most_bytes, 1, LARGEST_MODEL_BYTES)
        self._most = most_bytes
        self._pieces: list[bytes] = []
        self._size = 0

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._size

    def add(self, piece: bytes) -> None:
        """Take the next one.

        Raises:
            WireError: it is empty or larger than a piece may be, or all of them are too large.
        """
        if not 1 <= len(piece) <= PIECE_BYTES:
            raise WireError(f"a piece of a model is 1 to {PIECE_BYTES} bytes, got {len(piece)}")
        self._size += len(piece)
        if self._size > self._most:
            raise WireError(f"this model takes at most {self._most} bytes, and more of it came")
        self._pieces.append(piece)

    def whole(self) -> bytes:
        """All of them together."""
        return b"".join(self._pieces)
