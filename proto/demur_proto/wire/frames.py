"""Many devices' reports in one message."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError, WireError
from demur_proto.models.definition import LARGEST_MODEL_BYTES
from demur_proto.transport.credentials import DEVICE_ID_BYTES, PROOF_BYTES
from demur_proto.v1 import collector_pb2, report_pb2
from demur_proto.wire.definition import LARGEST_REPORT_BYTES, REPORT_ID_BYTES
from demur_proto.wire.words import Payload, varint

MAXIMUM_FRAME_REPORTS = 4096
MAXIMUM_FRAME_BYTES = 1 << 20  #: of ids and words
LARGEST_FRAMED_BYTES = MAXIMUM_FRAME_BYTES - REPORT_ID_BYTES  #: of one report; others need chunks
MAXIMUM_PROVEN_BYTES = MAXIMUM_FRAME_REPORTS * (DEVICE_ID_BYTES + PROOF_BYTES)  #: beside them


def split_frames(
    round_hash: bytes,
    report_ids: bytes,
    words: bytes,
    *,
    first_number: int,
    device_ids: bytes = b"",
    proofs: bytes = b"",
) -> Iterator[report_pb2.ReportFrame]:
    """Frames of at most 4,096 reports and 1 MiB, numbered from `first_number`.

    Where one report alone is larger than that, every report gets a frame of its own, which
    `chunks.frame_messages` sends in parts.

    Args:
        round_hash: the round they answer.
        report_ids: 16 bytes each.
        words: the encoded words of the same reports, in the same order.
        first_number: the first frame's number.
        device_ids: who made each report, 16 bytes each; empty under open access.
        proofs: that they did, 16 bytes each; empty under open access.

    Raises:
        ParameterError: the lengths do not match, or one report alone is larger than any may be.

    >>> [len(f.report_ids) // 16 for f in split_frames(bytes(32), bytes(16 * 5000), bytes(20000),
    ...                                                first_number=1)]
    [4096, 904]
    """
    for name, each in (("device_ids", device_ids), ("proofs", proofs)):
        if each and len(each) != len(report_ids):
            raise ParameterError(name, len(each), "16 bytes for each report")
    size, frames = frame_reports(report_ids, len(words))
    for number, reports in enumerate(frames, start=first_number):
        start, stop = reports.start, reports.stop
        yield report_pb2.ReportFrame(
            frame_number=number,
            round_hash=round_hash,
            report_ids=report_ids[start * REPORT_ID_BYTES : stop * REPORT_ID_BYTES],
            words=words[start * size : stop * size],
            device_ids=device_ids[start * DEVICE_ID_BYTES : stop * DEVICE_ID_BYTES],
            proofs=proofs[start * PROOF_BYTES : stop * PROOF_BYTES],
        )


def frame_reports(report_ids: bytes, words_bytes: int) -> tuple[int, list[slice]]:
    """Bytes of each report's words, and which reports each frame of `split_frames` holds.

    Args:
        report_ids: 16 bytes each.
        words_bytes: how many bytes the encoded words of these reports take, in all.

    Raises:
        ParameterError: as there.

    >>> frame_reports(bytes(16 * 5000), 20000)
    (4, [slice(0, 4096, None), slice(4096, 5000, None)])
    """
    reports, rest = divmod(len(report_ids), REPORT_ID_BYTES)
    if rest or (words_bytes % reports if reports else words_bytes):
        raise ParameterError("report_ids", len(report_ids), "16 bytes for each report")
    size = words_bytes // reports if reports else 0
    if size > LARGEST_REPORT_BYTES:
        raise ParameterError("words", f"{size} bytes a report", f"at most {LARGEST_REPORT_BYTES}")
    fit = min(MAXIMUM_FRAME_REPORTS, MAXIMUM_FRAME_BYTES // (size + REPORT_ID_BYTES))
    fit = max(1, fit)
    return size, [slice(start, min(start + fit, reports)) for start in range(0, reports, fit)]


def check_frame(frame: report_pb2.ReportFrame, *, words: Payload | None = None) -> int:
    """The number of reports in a frame.

    Args:
        frame: the frame.
        words: those of the frame, if the caller has read them; each reading copies them.

    Raises:
        WireError: the frame is larger than allowed, or its ids or proofs are not 16 bytes each.

    >>> check_frame(report_pb2.ReportFrame(report_ids=bytes(32)))
    2
    """
    reports, rest = divmod(len(frame.report_ids), REPORT_ID_BYTES)
    if rest:
        raise WireError(f"report ids are 16 bytes each, got {len(frame.report_ids)} in all")
    for name, each in (("device ids", frame.device_ids), ("proofs", frame.proofs)):
        if each and len(each) != len(frame.report_ids):
            raise WireError(f"{name} are 16 bytes for each of {reports} reports, got {len(each)}")
    size = len(frame.report_ids) + len(frame.words if words is None else words)
    if reports > MAXIMUM_FRAME_REPORTS or size > MAXIMUM_FRAME_BYTES:
        raise WireError(
            f"a frame holds at most {MAXIMUM_FRAME_REPORTS} reports and {MAXIMUM_FRAME_BYTES} "
            f"bytes, got {reports} and {size}"
        )
    return reports


# One report in many messages, where it is too large for a frame.

CHUNK_BYTES = 1 << 20  #: of words in every chunk but the last; whole words, whatever their type


def report_messages(report: report_pb2.Report) -> Iterator[collector_pb2.VisitRequest]:
    """What a device sends to hand in a report: one message, or chunks if it is too large for that.

    How many they are, and how large, follows from the length of the words, which the round gives.

    >>> report = report_pb2.Report(words=bytes(CHUNK_BYTES + 4))
    >>> [(m.chunk.offset, len(m.chunk.words)) for m in report_messages(report)]
    [(0, 1048576), (1048576, 4)]
    """
    words = report.words  # a copy, each time it is asked for
    if len(words) <= LARGEST_FRAMED_BYTES:
        yield collector_pb2.VisitRequest(report=report)
        return
    for offset in range(0, len(words), CHUNK_BYTES):
        chunk = report_pb2.ReportChunk(
            round_hash=report.round_hash,
            report_id=report.report_id,
            offset=offset,
            words=words[offset : offset + CHUNK_BYTES],
        )
        yield collector_pb2.VisitRequest(chunk=chunk)


def frame_messages(frame: report_pb2.ReportFrame) -> Iterator[collector_pb2.SubmitFramesRequest]:
    """What a gateway sends to hand in a frame of `split_frames`: itself, or its report in chunks.

    >>> frame = report_pb2.ReportFrame(report_ids=bytes(16), words=bytes(CHUNK_BYTES))
    >>> [len(m.chunk.words) for m in frame_messages(frame)]
    [1048576]
    """
    # Words are copied each time they are asked for; several reports fit a frame, or they would not share it.
    several = len(frame.report_ids) > REPORT_ID_BYTES
    words = b"" if several else frame.words
    if len(words) <= LARGEST_FRAMED_BYTES:
        yield collector_pb2.SubmitFramesRequest(frame=frame)
        return
    for offset in range(0, len(words), CHUNK_BYTES):
        chunk = report_pb2.ReportChunk(
            round_hash=frame.round_hash,
            report_id=frame.report_ids,
            offset=offset,
            words=words[offset : offset + CHUNK_BYTES],
            frame_number=frame.frame_number,
            device_id=frame.device_ids,
            proof=frame.proofs,
        )
        yield collector_pb2.SubmitFramesRequest(chunk=chunk)


class ChunkOrder:
    """Sees that the chunks of one report are what they must be, one after the other.

    Args:
        first: the first chunk; it is looked at like the others by `take`.
        size: bytes of a report to its round.
        from_gateway: it comes in a stream of frames.

    Raises:
        WireError: such a report does not travel in chunks, or ids are of the wrong length.
    """

    def __init__(self, first: report_pb2.ReportChunk, *, size: int, from_gateway: bool) -> None:
        if size <= LARGEST_FRAMED_BYTES:
            raise WireError(f"a report of {size} bytes fits one message, and comes in no chunks")
        if len(first.report_id) != REPORT_ID_BYTES:
            raise WireError(f"a report id is 16 bytes, got {len(first.report_id)}")
        for name, each, length in (
            ("device id", first.device_id, DEVICE_ID_BYTES),
            ("proof", first.proof, PROOF_BYTES),
        ):
            if each and len(each) != length:
                raise WireError(f"a {name} is {length} bytes, got {len(each)}")
        if not from_gateway and (first.frame_number or first.device_id or first.proof):
            raise WireError("a device's own chunks name no frame, no device and no proof")
        self._head = _head(first)
        self._size = size
        self._received = 0

    @property
    def complete(self) -> bool:
        """Whether the last chunk was taken."""
        return self._received == self._size

    def take(self, chunk: report_pb2.ReportChunk) -> bytes:
        """The words of the next chunk.

        Raises:
            WireError: it is not the one that comes next.

        >>> order = ChunkOrder(report_pb2.ReportChunk(report_id=bytes(16)), size=CHUNK_BYTES,
        ...                    from_gateway=False)
        >>> words = order.take(report_pb2.ReportChunk(report_id=bytes(16), words=bytes(CHUNK_BYTES)))
        >>> order.complete
        True
        """
        if _head(chunk) != self._head:
            raise WireError("a report's chunks must all come, and be alike, before another report")
        if chunk.offset != self._received:
            raise WireError(f"the next chunk starts at byte {self._received}, got {chunk.offset}")
        words = chunk.words
        expected = min(CHUNK_BYTES, self._size - self._received)
        if len(words) != expected:
            raise WireError(
                f"the chunk at byte {chunk.offset} of {self._size} has {expected} bytes of words, "
                f"got {len(words)}"
            )
        self._received += expected
        return words

    def broken_off(self) -> WireError:
        """The error for a stream that goes on with something else, or ends."""
        return WireError(
            f"a report must be whole before anything else: {self._received} of {self._size} bytes "
            "came"
        )


def _head(chunk: report_pb2.ReportChunk) -> tuple[object, ...]:
    """What is the same in all chunks of a report."""
    return (
        chunk.round_hash,
        chunk.report_id,
        chunk.frame_number,
        chunk.device_id,
        chunk.proof,
    )


# Frames as the bytes that travel, of which the words are copied once.
#
# Protobuf copies them when they enter a message, when that enters another one, and when both are
# serialised. So it serialises what is around the words, and they are put in their place:
# https://protobuf.dev/programming-guides/encoding/#structure

_FRAME_KEY = b"\x12"  # field 2 of a request, with a length
_WORDS_KEY = b"\x22"  # field 4 of a frame, likewise


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FrameBytes:
    """A frame, ready to be sent."""

    number: int
    reports: slice  #: which of the reports it holds
    messages: tuple[bytes, ...]  #: a `SubmitFramesRequest` each: the frame, or its report in chunks


def frames_in_bytes(
    round_hash: bytes, report_ids: bytes, words: Sequence[Payload], *, first_number: int
) -> Iterator[FrameBytes]:
    """The frames of `split_frames`, each as the bytes of its `frame_messages`.

    Args:
        round_hash: the round they answer.
        report_ids: 16 bytes each.
        words: the encoded words of the same reports, in the same order, in as many pieces as they lie in.
        first_number: the first frame's number.

    Raises:
        ParameterError: the lengths do not match, or one report alone is larger than any may be.

    >>> [frame] = frames_in_bytes(bytes(32), bytes(16), [bytes(4)], first_number=1)
    >>> collector_pb2.SubmitFramesRequest.FromString(frame.messages[0]).frame.words.hex()
    '00000000'
    """
    size, frames = frame_reports(report_ids, sum(map(len, words)))
    pieces = [memoryview(piece) for piece in words]
    for number, reports in enumerate(frames, start=first_number):
        start, stop = reports.start, reports.stop
        frame = report_pb2.ReportFrame(
            frame_number=number,
            round_hash=round_hash,
            report_ids=report_ids[start * REPORT_ID_BYTES : stop * REPORT_ID_BYTES],
        )
        its_words = _between(pieces, start * size, stop * size)
        if size > LARGEST_FRAMED_BYTES:
            frame.words = b"".join(its_words)
            chunks = (message.SerializeToString() for message in frame_messages(frame))
            yield FrameBytes(number=number, reports=reports, messages=tuple(chunks))
        else:
            message = _request(frame, its_words)
            yield FrameBytes(number=number, reports=reports, messages=(message,))


def _between(pieces: Sequence[memoryview], start: int, stop: int) -> list[memoryview]:
    """What lies between two places of the pieces, one after the other; nothing is copied."""
    found = []
    for piece in pieces:
        if start < len(piece) and stop > 0:
            found.append(piece[max(0, start) : stop])
        start, stop = start - len(piece), stop - len(piece)
    return found


def _request(frame: report_pb2.ReportFrame, words: Sequence[memoryview]) -> bytes:
    """What protobuf serialises of a request with a frame that has these words as well.

    Fields follow each other by number, and of those after the words the frame has none.
    """
    before = frame.SerializeToString()
    size = sum(map(len, words))
    if not size:  # an empty field is left out
        return collector_pb2.SubmitFramesRequest(frame=frame).SerializeToString()
    length = varint(size)
    inside = len(before) + len(_WORDS_KEY) + len(length) + size
    return b"".join((_FRAME_KEY, varint(inside), before, _WORDS_KEY, length, *words))


# A model's definition on its way: too long for one message, it travels in pieces.

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
