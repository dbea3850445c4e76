import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.errors import ParameterError, WireError
from demur_proto.frames import (
    MAXIMUM_FRAME_BYTES,
    MAXIMUM_FRAME_REPORTS,
    check_frame,
    split_frames,
)
from demur_proto.v1 import report_pb2

HASH = bytes(range(32))


@given(
    reports=st.one_of(st.integers(0, 30), st.integers(4090, 8200)),
    size=st.sampled_from([4, 8, 12, 400, 100_000, (1 << 20) - 16]),
    first=st.integers(1, 1 << 40),
)
def test_frames_hold_every_report_once_in_order_within_the_limits(
    reports: int, size: int, first: int
) -> None:
    reports = min(reports, max(3, 3_000_000 // size))
    ids = b"".join(n.to_bytes(16, "big") for n in range(reports))
    words = b"".join(n.to_bytes(4, "big").ljust(size, b"\x01") for n in range(reports))

    frames = list(split_frames(HASH, ids, words, first_number=first))

    assert b"".join(frame.report_ids for frame in frames) == ids
    assert b"".join(frame.words for frame in frames) == words
    assert [frame.frame_number for frame in frames] == list(range(first, first + len(frames)))
    assert sum(map(check_frame, frames)) == reports
    for frame in frames:
        assert frame.round_hash == HASH
        assert len(frame.words) == size * check_frame(frame)
        assert check_frame(frame) <= MAXIMUM_FRAME_REPORTS == 4096
        assert len(frame.report_ids) + len(frame.words) <= MAXIMUM_FRAME_BYTES == 1 << 20


@pytest.mark.parametrize(
    ("ids", "words"),
    [(bytes(15), b""), (bytes(17), bytes(4)), (bytes(48), bytes(8)), (b"", bytes(4))],
)
def test_lengths_that_do_not_match_are_refused(ids: bytes, words: bytes) -> None:
    with pytest.raises(ParameterError):
        list(split_frames(HASH, ids, words, first_number=1))


def test_a_report_larger_than_a_frame_is_refused() -> None:
    with pytest.raises(ParameterError, match="1 MiB"):
        list(split_frames(HASH, bytes(16), bytes((1 << 20) - 15), first_number=1))


@pytest.mark.parametrize(
    ("ids", "words"),
    [(bytes(15), b""), (bytes(16 * 4097), b""), (bytes(16), bytes((1 << 20) - 15))],
    ids=["broken id", "too many", "too large"],
)
def test_frames_outside_the_limits_are_refused(ids: bytes, words: bytes) -> None:
    with pytest.raises(WireError):
        check_frame(report_pb2.ReportFrame(report_ids=ids, words=words))


def test_an_empty_frame_holds_no_report() -> None:
    assert check_frame(report_pb2.ReportFrame()) == 0
