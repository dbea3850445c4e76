"""Frames as the bytes that travel, of which the words are copied once.

Protobuf copies them when they enter a message, when that enters another one, and when both are
serialised. So it serialises what is around the words, and they are put in their place:
https://protobuf.dev/programming-guides/encoding/#structure
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from demur_proto.chunks import frame_messages
from demur_proto.definition import REPORT_ID_BYTES
from demur_proto.frames import LARGEST_FRAMED_BYTES, frame_reports
from demur_proto.v1 import collector_pb2, report_pb2
from demur_proto.varints import varint
from demur_proto.words import Payload

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
