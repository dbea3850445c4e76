"""Frames as the bytes that travel, of which the words are copied once.

Protobuf copies them when they enter a message, when that enters another one, and when both are
serialised. So it serialises what is around the words, and they are put in their place:
https://protobuf.dev/programming-guides/encoding/#structure
"""

from collections.abc import Iterator
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
    round_hash: bytes, report_ids: bytes, words: Payload, *, first_number: int
) -> Iterator[FrameBytes]:
    """The frames of `split_frames`, each as the bytes of its `frame_messages`.

    Args:
        round_hash: the round they answer.
        report_ids: 16 bytes each.
        words: the encoded words of the same reports, in the same order.
        first_number: the first frame's number.

    Raises:
        ParameterError: the lengths do not match, or one report alone is larger than any may be.

    >>> [frame] = frames_in_bytes(bytes(32), bytes(16), bytes(4), first_number=1)
    >>> collector_pb2.SubmitFramesRequest.FromString(frame.messages[0]).frame.words.hex()
    '00000000'
    """
    size, frames = frame_reports(report_ids, words)
    whole = memoryview(words)
    for number, reports in enumerate(frames, start=first_number):
        start, stop = reports.start, reports.stop
        frame = report_pb2.ReportFrame(
            frame_number=number,
            round_hash=round_hash,
            report_ids=report_ids[start * REPORT_ID_BYTES : stop * REPORT_ID_BYTES],
        )
        its_words = whole[start * size : stop * size]
        if size > LARGEST_FRAMED_BYTES:
            frame.words = bytes(its_words)
            chunks = (message.SerializeToString() for message in frame_messages(frame))
            yield FrameBytes(number=number, reports=reports, messages=tuple(chunks))
        else:
            message = _request(frame, its_words)
            yield FrameBytes(number=number, reports=reports, messages=(message,))


def _request(frame: report_pb2.ReportFrame, words: memoryview) -> bytes:
    """What protobuf serialises of a request with a frame that has these words as well.

    Fields follow each other by number, and of those after the words the frame has none.
    """
    before = frame.SerializeToString()
    if not words:  # an empty field is left out
        return collector_pb2.SubmitFramesRequest(frame=frame).SerializeToString()
    length = varint(len(words))
    inside = len(before) + len(_WORDS_KEY) + len(length) + len(words)
    return b"".join((_FRAME_KEY, varint(inside), before, _WORDS_KEY, length, words))
