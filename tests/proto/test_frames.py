from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.errors import ParameterError, WireError
from demur_proto.v1 import report_pb2
from demur_proto.wire.frames import (
    MAXIMUM_FRAME_BYTES,
    MAXIMUM_FRAME_REPORTS,
    MAXIMUM_PROVEN_BYTES,
    check_frame,
    split_frames,
)

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


def test_reports_larger_than_a_frame_get_one_each() -> None:
    size = (1 << 20) - 15

    frames = list(split_frames(HASH, bytes(32), bytes(2 * size), first_number=5))

    assert [(frame.frame_number, len(frame.words)) for frame in frames] == [(5, size), (6, size)]


def test_a_report_larger_than_any_may_be_is_refused() -> None:
    with pytest.raises(ParameterError, match=f"at most {1 << 27}"):
        list(split_frames(HASH, bytes(16), bytes((1 << 27) + 1), first_number=1))


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


@given(
    reports=st.one_of(st.integers(0, 30), st.integers(4090, 8200)), size=st.sampled_from([4, 400])
)
def test_devices_and_proofs_stay_with_their_reports(reports: int, size: int) -> None:
    ids = b"".join(n.to_bytes(16, "big") for n in range(reports))
    devices = b"".join(n.to_bytes(16, "little") for n in range(reports))
    proofs = ids[::-1]

    frames = list(
        split_frames(
            HASH, ids, bytes(size * reports), first_number=1, device_ids=devices, proofs=proofs
        )
    )

    assert b"".join(frame.report_ids for frame in frames) == ids
    assert b"".join(frame.device_ids for frame in frames) == devices
    assert b"".join(frame.proofs for frame in frames) == proofs
    for frame in frames:
        assert len(frame.device_ids) == len(frame.proofs) == 16 * check_frame(frame)
        assert len(frame.device_ids) + len(frame.proofs) <= MAXIMUM_PROVEN_BYTES == 1 << 17


@pytest.mark.parametrize("name", ["device_ids", "proofs"])
@pytest.mark.parametrize("length", [1, 16, 31, 33, 48])
def test_devices_and_proofs_are_16_bytes_for_each_report_or_absent(name: str, length: int) -> None:
    changed: dict[str, Any] = {name: bytes(length)}

    with pytest.raises(ParameterError, match=name):
        list(split_frames(HASH, bytes(32), bytes(8), first_number=1, **changed))
    with pytest.raises(WireError, match="are 16 bytes for each of 2 reports"):
        check_frame(report_pb2.ReportFrame(report_ids=bytes(32), words=bytes(8), **changed))
