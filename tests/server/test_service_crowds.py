"""Many devices and gateways at once: all are served, and who is slow holds up nobody."""

from typing import Any

import anyio
import grpc

from demur_client.agent import fetch_study
from demur_proto.queries import Feature
from demur_proto.study import Study
from demur_proto.v1 import collector_pb2, collector_pb2_grpc
from demur_proto.wire.definition import Defined
from demur_server.collector.collector import Collector
from demur_server.grpc.serving import Ports
from store_kit import ACCEPTED, ROUND_CLOSED
from stream_kit import (
    Ask,
    FramesCall,
    VisitCall,
    frame,
    hand_in,
    hand_in_frame,
    pushed,
    receipt,
    report,
    submitting,
    visiting,
)


async def test_two_hundred_visits_at_once_are_all_served(
    devices: Any, collector: Collector, study: Defined[Study], ask: Ask
) -> None:
    calls = [await visiting(devices, study) for _ in range(200)]
    dispositions = []

    async def answer(who: int, call: VisitCall) -> None:
        for number in (1, 2):
            assert await pushed(call, study) == number
            dispositions.append(await hand_in(call, report(ask(number), who, who)))

    async with anyio.create_task_group() as tasks:
        for who, call in enumerate(calls):
            tasks.start_soon(answer, who, call)
        for number in (1, 2):
            await collector.open_round(ask(number).definition)
            release = await collector.close_round(ask(number).hash, after_reports=200)
            assert release.sums.tolist() == [sum(range(200))]

    assert dispositions == [ACCEPTED] * 400


async def test_a_burst_of_calls_is_answered_and_not_cancelled(channel: grpc.aio.Channel) -> None:
    studies = []

    async def fetch() -> None:
        studies.append(await fetch_study(channel))

    async with anyio.create_task_group() as tasks:
        for _ in range(1500):
            tasks.start_soon(fetch)

    assert len(studies) == 1500


async def test_a_slow_reader_holds_up_nobody_and_misses_nothing(
    devices: Any, collector: Collector, study: Defined[Study], ask: Ask
) -> None:
    features = [Feature(name=f"{number:0100}") for number in range(500)]  # 50 kB a round
    slow = await visiting(devices, study)
    quick = await visiting(devices, study)

    for number in range(1, 31):
        await collector.open_round(ask(number, features=features).definition)
    assert [await pushed(quick, study) for _ in range(30)] == list(range(1, 31))
    assert await hand_in(quick, report(ask(1, features=features), 1, *[0] * 500)) == ACCEPTED

    assert [await pushed(slow, study) for _ in range(30)] == list(range(1, 31))


async def test_a_gateway_may_send_a_thousand_frames_before_it_reads_a_receipt(
    devices: Any, collector: Collector, study: Defined[Study], ask: Ask
) -> None:
    asked = await collector.open_round(ask(1).definition)
    call = await submitting(devices, study)

    for number in range(1000):
        one = frame(asked, [number], [1], number=number)
        await call.write(collector_pb2.SubmitFramesRequest(frame=one))
    numbers = [(await receipt(call)).frame_number for _ in range(1000)]

    assert numbers == list(range(1000))
    assert (await collector.totals(asked.hash)).sums.tolist() == [1000]


async def test_a_gateway_that_never_reads_stalls_itself_and_nobody_else_until_it_reads(
    ports: Ports, devices: Any, collector: Collector, study: Defined[Study], ask: Ask
) -> None:
    """Receipts that nobody reads fill the window of their connection.

    The collector then takes no more frames from that stream: whoever sends many must read at the
    same time. A window grows to megabytes, a thousand full frames; here it is kept small.
    """
    asked = await collector.open_round(ask(1).definition)
    await collector.close_round(asked.hash)  # full receipts for little work
    full = frame(asked, list(range(4096)), [0] * 4096)
    message = collector_pb2.SubmitFramesRequest(frame=full)
    frames = 150
    sent = 0

    async def send(call: FramesCall) -> None:
        nonlocal sent
        for _ in range(frames):
            await call.write(message)
            sent += 1

    async def read(call: FramesCall) -> None:
        for _ in range(frames):
            assert len((await receipt(call)).dispositions) == 4096

    small = (("grpc.http2.bdp_probe", 0), ("grpc.enable_http_proxy", 0))
    target = f"127.0.0.1:{ports.collector}"
    async with (
        grpc.aio.insecure_channel(target, options=small) as channel,
        anyio.create_task_group() as tasks,
    ):
        stalled = await submitting(collector_pb2_grpc.CollectorStub(channel), study)
        tasks.start_soon(send, stalled)
        last = -1
        while sent > last:  # until nothing has moved for a while
            last = sent
            await anyio.sleep(0.2)
        assert 0 < sent < frames

        other = await submitting(devices, study)
        assert await hand_in_frame(other, full) == [ROUND_CLOSED] * 4096

        tasks.start_soon(read, stalled)
    assert sent == frames
