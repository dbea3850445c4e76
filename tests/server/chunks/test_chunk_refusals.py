"""What is not a report in chunks ends its call, and what comes too late takes no memory."""

from typing import Any

import grpc
import pytest

from chunk_kit import (
    LARGE,
    SIZE,
    a_round,
    frame,
    hand_in,
    hand_in_frame,
    opened,
    receipt,
    report,
    status,
    submitting,
    until,
    visiting,
)
from demur_proto.v1 import collector_pb2, report_pb2
from demur_proto.wire.frames import CHUNK_BYTES, LARGEST_FRAMED_BYTES, report_messages
from demur_server.collector.collector import Collector
from store_kit import ACCEPTED, ROUND_CLOSED

# ---- what is not a report in chunks ----------------------------------------------------------


def chunk(at: int, length: int | None = None, *, who: int = 1, **changes: Any) -> Any:
    """Bytes `at` to `at + length` of a report; by default the chunk that starts there."""
    words = report(who).words
    length = CHUNK_BYTES if length is None else length
    return report_pb2.ReportChunk(
        **{
            "round_hash": LARGE.hash,
            "report_id": who.to_bytes(16, "big"),
            "offset": at,
            "words": words[at : at + length],
            **changes,
        }
    )


MIB = CHUNK_BYTES
SMALL = report_pb2.Report(round_hash=LARGE.hash, report_id=bytes(16), words=bytes(4))
BROKEN = {
    "a gap": ([chunk(0), chunk(2 * MIB)], "the next chunk starts at byte 1048576, got 2097152"),
    "an overlap": ([chunk(0), chunk(MIB - 4)], "the next chunk starts at byte 1048576, got 1048572"),
    "twice": ([chunk(0), chunk(0)], "the next chunk starts at byte 1048576, got 0"),
    "not from its start": ([chunk(MIB)], "the next chunk starts at byte 0, got 1048576"),
    "another report in between": (
        [chunk(0), chunk(MIB, who=2)],
        "a report's chunks must all come, and be alike, before another report",
    ),
    "another round in between": (
        [chunk(0), chunk(MIB, round_hash=bytes(32))],
        "a report's chunks must all come, and be alike, before another report",
    ),
    "a whole report in between": (
        [chunk(0), SMALL],
        "a report must be whole before anything else: 1048576 of 2400004 bytes came",
    ),
    "too small": (
        [chunk(0), chunk(MIB, 4)],
        "the chunk at byte 1048576 of 2400004 has 1048576 bytes of words, got 4",
    ),
    "empty": (
        [chunk(0), chunk(MIB, 0)],
        "the chunk at byte 1048576 of 2400004 has 1048576 bytes of words, got 0",
    ),
    "too large": (
        [chunk(0, MIB + 4)],
        "the chunk at byte 0 of 2400004 has 1048576 bytes of words, got 1048580",
    ),
    "too many bytes": (
        [chunk(0), chunk(MIB), chunk(2 * MIB, words=bytes(SIZE - 2 * MIB + 4))],
        "the chunk at byte 2097152 of 2400004 has 302852 bytes of words, got 302856",
    ),
    "too few bytes": (
        [chunk(0), chunk(MIB), chunk(2 * MIB, words=bytes(4))],
        "the chunk at byte 2097152 of 2400004 has 302852 bytes of words, got 4",
    ),
    "a broken id": ([chunk(0, report_id=bytes(15))], "a report id is 16 bytes, got 15"),
    "the end": (
        [chunk(0), chunk(MIB), None],
        "a report must be whole before anything else: 2097152 of 2400004 bytes came",
    ),
}  # fmt: skip


@pytest.mark.parametrize("stream", ["visit", "frames"])
@pytest.mark.parametrize("name", BROKEN)
async def test_chunks_that_are_not_one_report_in_order_end_the_call_and_count_nothing(
    collector: Collector, name: str, stream: str
) -> None:
    messages, text = BROKEN[name]
    async with opened(collector) as (channel, assembler):
        call = await (visiting if stream == "visit" else submitting)(channel)
        for message in messages:
            if message is None:
                await call.done_writing()
            elif isinstance(message, report_pb2.ReportChunk):
                kind = collector_pb2.VisitRequest if stream == "visit" else SUBMIT
                await call.write(kind(chunk=message))
            elif stream == "visit":
                await call.write(collector_pb2.VisitRequest(report=message))
            else:
                await call.write(SUBMIT(frame=report_pb2.ReportFrame()))

        assert await status(call) == (grpc.StatusCode.INVALID_ARGUMENT, text)
        await until(lambda: assembler.space.used == 0)
    assert (await collector.totals(LARGE.hash)).reports == 0


SUBMIT = collector_pb2.SubmitFramesRequest


async def test_a_report_that_fits_one_message_comes_in_no_chunks_and_the_reverse(
    collector: Collector,
) -> None:
    edge = LARGEST_FRAMED_BYTES // 4
    fits = await collector.open_round(a_round(2, dimension=edge).definition)
    just_not = await collector.open_round(a_round(3, dimension=edge + 1).definition)
    one = report_pb2.Report(round_hash=fits.hash, report_id=bytes(16), words=bytes(4 * edge))
    other = report_pb2.Report(
        round_hash=just_not.hash, report_id=bytes(16), words=bytes(4 * edge + 4)
    )

    async with opened(collector) as (channel, _):
        device = await visiting(channel)
        assert await hand_in(device, one) == ACCEPTED
        assert await hand_in(device, other) == ACCEPTED

        await device.write(
            collector_pb2.VisitRequest(
                chunk=report_pb2.ReportChunk(
                    round_hash=fits.hash, report_id=bytes(16), words=one.words
                )
            )
        )
        assert await status(device) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "a report of 1048560 bytes fits one message, and comes in no chunks",
        )
        device = await visiting(channel)
        await device.write(collector_pb2.VisitRequest(report=other))
        assert await status(device) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "a report of 1048564 bytes comes in chunks: one message holds 1048560",
        )


async def test_an_unknown_round_and_a_chunk_with_too_much_in_it_end_the_call_at_once(
    collector: Collector,
) -> None:
    async with opened(collector) as (channel, _):
        device = await visiting(channel)
        await device.write(collector_pb2.VisitRequest(chunk=chunk(0, round_hash=bytes(32))))
        assert (await status(device))[0] is grpc.StatusCode.NOT_FOUND

        device = await visiting(channel)
        await device.write(collector_pb2.VisitRequest(chunk=chunk(0, device_id=bytes(16))))
        assert (await status(device))[0] is grpc.StatusCode.INVALID_ARGUMENT


# ---- reports that need not be looked at ------------------------------------------------------


async def test_reports_to_a_closed_round_take_no_memory_and_are_told_so(
    collector: Collector,
) -> None:
    await collector.close_round(LARGE.hash)
    async with (
        opened(collector, memory_bytes=1) as (channel, assembler),
        assembler.space.taken(1),
    ):
        device, gateway = await visiting(channel), await submitting(channel)

        assert await hand_in(device, report(1)) == ROUND_CLOSED
        assert await hand_in_frame(gateway, frame(1)) == [ROUND_CLOSED]


async def test_a_round_that_closes_while_a_report_is_on_its_way_does_not_count_it(
    collector: Collector,
) -> None:
    async with opened(collector) as (channel, assembler):
        device = await visiting(channel)
        first, *rest = report_messages(report(1))
        await device.write(first)
        await until(lambda: assembler.space.used > 0)

        await collector.close_round(LARGE.hash)
        for message in rest:
            await device.write(message)

        assert (await receipt(device)).disposition == ROUND_CLOSED
    assert (await collector.totals(LARGE.hash)).reports == 0
