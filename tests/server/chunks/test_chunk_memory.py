"""Reports larger than a frame take no more memory than there is, and give it back."""

import gc
from collections.abc import Iterator

import anyio
import grpc
import numpy as np
import pytest

from chunk_kit import (
    DIMENSION,
    LARGE,
    MEMORY,
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
from demur_proto.v1 import collector_pb2
from demur_proto.wire.frames import frame_messages, report_messages
from demur_server.collector.collector import Collector
from store_kit import ACCEPTED, TRY_LATER


async def test_where_memory_is_used_up_a_report_waits_for_it(collector: Collector) -> None:
    async with opened(collector, memory_bytes=MEMORY) as (channel, assembler):
        one, two = await visiting(channel), await visiting(channel)
        first, *rest = report_messages(report(1))
        await one.write(first)
        await until(lambda: assembler.space.used == MEMORY)

        async with anyio.create_task_group() as tasks:

            async def late() -> None:
                assert await hand_in(two, report(2)) == ACCEPTED

            tasks.start_soon(late)
            await until(lambda: assembler.space.waiting == 1)
            for message in rest:
                await one.write(message)
            assert (await receipt(one)).disposition == ACCEPTED

        assert assembler.space.used == 0


async def test_who_waited_too_long_for_memory_is_told_to_come_later(collector: Collector) -> None:
    async with opened(collector, memory_bytes=MEMORY, wait_s=0.02) as (channel, assembler):
        one, two = await visiting(channel), await submitting(channel)
        first, *rest = report_messages(report(1))
        await one.write(first)
        await until(lambda: assembler.space.used == MEMORY)

        assert await hand_in_frame(two, frame(2)) == [TRY_LATER]
        for message in rest:
            await one.write(message)
        assert (await receipt(one)).disposition == ACCEPTED
        assert await hand_in_frame(two, frame(2)) == [ACCEPTED]


async def test_many_reports_at_once_in_little_memory_all_arrive(collector: Collector) -> None:
    async with opened(collector, memory_bytes=2 * MEMORY) as (channel, assembler):

        async def one(who: int) -> None:
            assert await hand_in(await visiting(channel), report(who)) == ACCEPTED

        async with anyio.create_task_group() as tasks:
            for who in range(6):
                tasks.start_soon(one, who)
        assert assembler.space.used == 0

    assert (await collector.totals(LARGE.hash)).reports == 6


async def test_a_sender_that_stalls_is_shown_out_and_its_memory_goes_to_the_next(
    collector: Collector,
) -> None:
    async with opened(collector, memory_bytes=MEMORY, stall_s=0.1) as (channel, assembler):
        stalled, other = await visiting(channel), await visiting(channel)
        await stalled.write(next(report_messages(report(1))))
        await until(lambda: assembler.space.used == MEMORY)

        assert await hand_in(other, report(2)) == ACCEPTED
        assert await status(stalled) == (
            grpc.StatusCode.UNAVAILABLE,
            "the next chunk did not come within 0.1 s; send the report again from its start",
        )
        assert assembler.space.used == 0


@pytest.mark.parametrize("while_waiting", [False, True])
async def test_whoever_leaves_in_the_middle_gives_its_memory_back(
    collector: Collector, while_waiting: bool
) -> None:
    async with opened(collector, memory_bytes=MEMORY) as (channel, assembler):
        one, two = await visiting(channel), await submitting(channel)
        await one.write(next(report_messages(report(1))))
        await until(lambda: assembler.space.used == MEMORY)
        if while_waiting:
            await two.write(next(frame_messages(frame(2))))
            await until(lambda: assembler.space.waiting == 1)
            two.cancel()
            await until(lambda: assembler.space.waiting == 0)
            assert assembler.space.used == MEMORY

        one.cancel()

        await until(lambda: assembler.space.used == 0)
        assert await hand_in(await visiting(channel), report(2)) == ACCEPTED
    assert (await collector.totals(LARGE.hash)).reports == 1


@pytest.fixture
def collected_by_hand() -> Iterator[None]:
    """Cycles of objects stay, as they do until the garbage collector happens to look."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("collected_by_hand")
@pytest.mark.parametrize("end", ["stalls", "says something else", "ends", "leaves"])
async def test_a_call_that_fails_keeps_nothing_of_its_report_in_memory(
    collector: Collector, end: str
) -> None:
    async with opened(collector, stall_s=0.2) as (channel, assembler):
        device = await visiting(channel)
        await device.write(next(report_messages(report(1))))
        await until(lambda: assembler.space.used == MEMORY)
        await until(lambda: bool(arrays_of(DIMENSION)))

        if end == "says something else":
            await device.write(collector_pb2.VisitRequest(hello=collector_pb2.Hello()))
        elif end == "ends":
            await device.done_writing()
        elif end == "leaves":
            device.cancel()
        if end != "leaves":
            assert (await status(device))[0] is not grpc.StatusCode.OK

        await until(lambda: assembler.space.used == 0)
        await until(lambda: not arrays_of(DIMENSION))


def arrays_of(length: int) -> list[object]:
    """Objects of the collector that hold an array of this many words."""
    ours = (each for each in gc.get_objects() if str(type(each).__module__).startswith("demur_"))
    rows = (getattr(each, "_rows", None) for each in ours)
    return [each for each in rows if isinstance(each, np.ndarray) and each.size == length]
