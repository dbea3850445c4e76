"""Words taken out of messages without a copy."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.v1 import collector_pb2, report_pb2
from demur_server.grpc.services import WORTH_BYTES, lift, lifting

VISIT, FRAMES = collector_pb2.VisitRequest, collector_pb2.SubmitFramesRequest

texts = st.binary(max_size=200)
numbers = st.integers(0, (1 << 64) - 1)
reports = st.builds(report_pb2.Report, round_hash=texts, report_id=texts, words=texts)
frames = st.builds(
    report_pb2.ReportFrame,
    frame_number=numbers,
    round_hash=texts,
    report_ids=texts,
    words=texts,
    device_ids=texts,
    proofs=texts,
)


@given(reports)
def test_what_is_lifted_and_what_is_left_are_the_report(report: report_pb2.Report) -> None:
    data = VISIT(report=report).SerializeToString()

    lifted = lift(data, 2, 3)

    if not report.words:  # then the field is not there
        assert lifted is None
        return
    assert lifted is not None
    rest, words = VISIT.FromString(lifted[0]), lifted[1]
    assert (bytes(words), rest.report.words) == (report.words, b"")
    rest.report.words = bytes(words)
    assert rest == VISIT(report=report)


@given(frames)
def test_what_is_lifted_and_what_is_left_are_the_frame(frame: report_pb2.ReportFrame) -> None:
    lifted = lift(FRAMES(frame=frame).SerializeToString(), 2, 4)

    assert (lifted is None) == (not frame.words)
    if lifted is not None:
        rest = FRAMES.FromString(lifted[0])
        assert rest.frame.words == b""
        rest.frame.words = bytes(lifted[1])
        assert rest == FRAMES(frame=frame)


fields = st.one_of(
    st.builds(lambda n, text: bytes([n << 3 | 2, len(text)]) + text, st.integers(0, 15), texts),
    st.builds(lambda n, low: bytes([n << 3, low & 0x7F]), st.integers(0, 15), st.integers(0, 127)),
    st.binary(max_size=6),
)


@given(st.lists(fields, max_size=6).map(b"".join), st.binary(max_size=2), st.booleans())
def test_whatever_the_bytes_are_nothing_is_read_that_protobuf_would_read_otherwise(
    inner: bytes, after: bytes, long: bool
) -> None:
    size = len(inner)
    length = [size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80 * long, *([0] if long else [])]
    data = bytes([2 << 3 | 2, *length]) + inner + after

    lifted = lift(data, 2, 3)

    if lifted is None:
        return  # protobuf reads all of it
    try:
        whole = VISIT.FromString(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            VISIT.FromString(lifted[0])
        return
    rest = VISIT.FromString(lifted[0])
    assert rest.report.words == b""
    rest.report.words = bytes(lifted[1])
    assert rest.SerializeToString(deterministic=True) == whole.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x12",
        b"\x12\x80",
        b"\x12\x03\x1a\x01",  # shorter than it says
        b"\x12\x02\x1a\x01a",  # longer
        b"\x12\x03\x1a\x02a",  # the field is
        b"\x12\x06\x1a\x01a\x1a\x01b",  # twice: the last counts
        b"\x12\x03\x1a\x01a\x12\x02\x0a\x00",  # two reports: they are merged
        b"\x12\x04\x1a\x01a\x02",  # a key without a number
        b"\x12\x08\x1a\x01a\x0d\x00\x00\x00\x00",  # another wire type
        b"\x0a\x03\x1a\x01a",  # another message
        b"\x12\x82\x80\x80\x80\x80\x00\x1a\x00",  # a length of six bytes
    ],
)
def test_everything_unusual_is_left_to_protobuf(data: bytes) -> None:
    assert lift(data, 2, 3) is None


def test_lifted_words_are_no_copy() -> None:
    data = VISIT(report=report_pb2.Report(words=bytes(WORTH_BYTES))).SerializeToString()

    _, words = lifting(VISIT, field=2, inner=3)(data)

    assert words is not None
    assert words.obj is data


def test_small_messages_are_parsed_as_ever() -> None:
    visit = VISIT(report=report_pb2.Report(words=b"abc"))

    assert lifting(VISIT, field=2, inner=3)(visit.SerializeToString()) == (visit, None)
