from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.errors import WireError
from demur_proto.v1 import report_pb2
from demur_proto.wire.frames import (
    CHUNK_BYTES,
    LARGEST_FRAMED_BYTES,
    ChunkOrder,
    frame_messages,
    report_messages,
    split_frames,
)

HASH = bytes(range(32))
MIB = 1 << 20

sizes = st.one_of(
    st.integers(0, 40),
    st.integers(LARGEST_FRAMED_BYTES - 3, MIB + 3),
    st.integers(1, 4).flatmap(lambda n: st.integers(n * MIB - 3, n * MIB + 3)),
    st.integers(0, 5 * MIB),
)


def some_bytes(size: int) -> bytes:
    """Bytes in which no place looks like another: their position, four bytes each."""
    return b"".join(at.to_bytes(4, "big") for at in range(size // 4 + 1))[:size]


LONG = some_bytes(6 * MIB)


@given(size=sizes, start=st.integers(0, 1000))
def test_a_report_comes_out_of_its_chunks_as_it_went_in(size: int, start: int) -> None:
    words = LONG[start : start + size]
    report = report_pb2.Report(round_hash=HASH, report_id=bytes(16), words=words)

    messages = list(report_messages(report))

    if size <= LARGEST_FRAMED_BYTES:
        assert [message.report for message in messages] == [report]
        return
    chunks = [message.chunk for message in messages]
    assert b"".join(chunk.words for chunk in chunks) == words
    order = ChunkOrder(chunks[0], size=size, from_gateway=False)
    for chunk in chunks:
        assert not order.complete
        order.take(chunk)
    assert order.complete
    assert all(len(chunk.words) == CHUNK_BYTES for chunk in chunks[:-1])
    assert {(chunk.round_hash, chunk.report_id) for chunk in chunks} == {(HASH, bytes(16))}


@given(
    reports=st.integers(0, 3),
    size=st.one_of(st.just(4), st.integers(LARGEST_FRAMED_BYTES - 3, 2 * MIB + 3)),
)
def test_frames_of_any_size_of_report_arrive_whole_and_in_order(reports: int, size: int) -> None:
    ids, words = LONG[: 16 * reports], LONG[-size * reports :] if reports else b""
    devices, proofs = ids[::-1], bytes(len(ids))

    messages = [
        message
        for frame in split_frames(
            HASH, ids, words, first_number=7, device_ids=devices, proofs=proofs
        )
        for message in frame_messages(frame)
    ]

    if size <= LARGEST_FRAMED_BYTES:
        assert all(message.WhichOneof("message") == "frame" for message in messages)
        assert b"".join(message.frame.words for message in messages) == words
        return
    chunks = [message.chunk for message in messages]
    assert b"".join(chunk.words for chunk in chunks) == words
    starts = [chunk for chunk in chunks if chunk.offset == 0]
    assert b"".join(chunk.report_id for chunk in starts) == ids
    assert b"".join(chunk.device_id for chunk in starts) == devices
    assert b"".join(chunk.proof for chunk in starts) == proofs
    assert [chunk.frame_number for chunk in starts] == list(range(7, 7 + reports))


def test_how_many_messages_a_report_takes_and_how_large_they_are_follows_from_its_length() -> None:
    def shape(fill: bytes) -> list[int]:
        report = report_pb2.Report(round_hash=HASH, report_id=16 * fill, words=3_000_000 * fill)
        return [message.ByteSize() for message in report_messages(report)]

    assert shape(b"\x00") == shape(b"\xff")
    assert len(shape(b"\x01")) == 3


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"report_id": bytes(15)}, "a report id is 16 bytes"),
        ({"device_id": bytes(15)}, "a device id is 16 bytes"),
        ({"proof": bytes(17)}, "a proof is 16 bytes"),
        ({"offset": MIB, "words": bytes(4)}, "starts at byte 0"),
        ({"words": bytes(MIB - 4)}, "has 1048576 bytes of words, got 1048572"),
        ({"words": bytes(MIB + 4)}, "has 1048576 bytes of words, got 1048580"),
    ],
    ids=["id", "device", "proof", "not the first", "too short", "too long"],
)
def test_a_first_chunk_that_is_none_is_refused(changed: dict[str, Any], text: str) -> None:
    chunk = report_pb2.ReportChunk(**{"report_id": bytes(16), "words": bytes(MIB), **changed})

    with pytest.raises(WireError, match=text):
        ChunkOrder(chunk, size=MIB + 4, from_gateway=True).take(chunk)


@pytest.mark.parametrize(
    "changed", [{"frame_number": 1}, {"device_id": bytes(16)}, {"proof": bytes(16)}]
)
def test_a_device_speaks_for_itself_alone(changed: dict[str, Any]) -> None:
    chunk = report_pb2.ReportChunk(report_id=bytes(16), words=bytes(MIB), **changed)

    with pytest.raises(WireError, match="name no frame, no device and no proof"):
        ChunkOrder(chunk, size=MIB, from_gateway=False)


@pytest.mark.parametrize("size", [4, LARGEST_FRAMED_BYTES])
def test_what_fits_one_message_comes_in_one(size: int) -> None:
    chunk = report_pb2.ReportChunk(report_id=bytes(16), words=bytes(size))

    with pytest.raises(WireError, match="fits one message"):
        ChunkOrder(chunk, size=size, from_gateway=False)
