"""Bytes of frames that are put together by hand are those that protobuf makes."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.errors import ParameterError
from demur_proto.wire.frames import (
    CHUNK_BYTES,
    LARGEST_FRAMED_BYTES,
    frame_messages,
    frames_in_bytes,
    split_frames,
)
from demur_proto.wire.words import varint

HASH = bytes(range(32))


@given(
    reports=st.one_of(st.integers(0, 30), st.integers(4090, 8200)),
    size=st.sampled_from([0, 1, 4, 127, 128, 400, 100_000, LARGEST_FRAMED_BYTES]),
    first=st.integers(1, (1 << 64) - 1 - 8200),
    cuts=st.lists(st.integers(0, 3_000_000), max_size=3),
)
def test_a_frame_has_the_bytes_that_protobuf_serialises(
    reports: int, size: int, first: int, cuts: list[int]
) -> None:
    reports = min(reports, max(3, 3_000_000 // max(1, size)))
    rng = np.random.default_rng(reports)
    ids, words = rng.bytes(16 * reports), rng.bytes(size * reports)
    frames = list(split_frames(HASH, ids, words, first_number=first))

    ends = [*sorted(cuts), len(words)]
    pieces = [memoryview(words)[start:stop] for start, stop in pairwise([0, *ends])]

    made = list(frames_in_bytes(HASH, ids, pieces, first_number=first))

    assert [each.number for each in made] == [frame.frame_number for frame in frames]
    assert [ids[16 * each.reports.start : 16 * each.reports.stop] for each in made] == [
        frame.report_ids for frame in frames
    ]
    assert [each.messages for each in made] == [
        tuple(message.SerializeToString() for message in frame_messages(frame)) for frame in frames
    ]


def test_a_report_that_is_too_large_for_a_frame_comes_in_the_same_chunks() -> None:
    size = CHUNK_BYTES + 4
    words = np.random.default_rng(1).bytes(2 * size)

    made = list(frames_in_bytes(HASH, bytes(range(32)), [words], first_number=5))

    frames = list(split_frames(HASH, bytes(range(32)), words, first_number=5))
    assert [len(each.messages) for each in made] == [2, 2]
    assert [each.messages for each in made] == [
        tuple(message.SerializeToString() for message in frame_messages(frame)) for frame in frames
    ]


@pytest.mark.parametrize(
    ("ids", "words"),
    [(bytes(15), b""), (bytes(17), bytes(4)), (bytes(48), bytes(8)), (b"", bytes(4))],
)
def test_lengths_that_do_not_match_are_refused(ids: bytes, words: bytes) -> None:
    with pytest.raises(ParameterError):
        list(frames_in_bytes(HASH, ids, [words], first_number=1))


@pytest.mark.parametrize(
    ("number", "written"),
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (1 << 20, "808040")],
)
def test_numbers_are_written_seven_bits_at_a_time(number: int, written: str) -> None:
    assert varint(number).hex() == written
