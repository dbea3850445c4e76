"""One report in many messages, where it is too large for a frame."""

from collections.abc import Iterator

from demur_proto.credentials import DEVICE_ID_BYTES, PROOF_BYTES
from demur_proto.definition import REPORT_ID_BYTES
from demur_proto.errors import WireError
from demur_proto.frames import LARGEST_FRAMED_BYTES
from demur_proto.v1 import collector_pb2, report_pb2

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
