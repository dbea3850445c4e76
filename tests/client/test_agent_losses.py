"""A device's visits to collectors that misbehave, and to some that go away."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import anyio
import grpc
import pytest

from agent_kit import (
    ACCEPTED,
    DEADLINE_S,
    ONE,
    STUDY,
    TRY_LATER,
    Always,
    Seen,
    VisitCall,
    a_device,
    asking,
    opened,
    receipt,
    remaining,
    scripted,
    visit,
)
from cancel_kit import cancelled
from demur_client import agent
from demur_client.agent import fetch_study
from demur_client.connection import connected, send
from demur_proto.errors import ConnectionLost, NotFoundError, ParameterError, StateError, WireError
from demur_proto.study import design_study
from demur_proto.transport.calls import calling
from demur_proto.v1 import collector_pb2, collector_pb2_grpc
from demur_proto.wire.definition import define_study
from demur_server.collector.collector import Collector
from demur_server.grpc.serving import served
from demur_server.store.memory import MemoryStore

# ---- collectors that misbehave ---------------------------------------------------------------


async def test_told_to_try_later_a_device_sends_the_same_bytes_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent, "RETRY_S", 0.1)
    came: list[tuple[bytes, float]] = []

    async def busy(requests: AsyncIterator[collector_pb2.VisitRequest], context: Any) -> None:
        await context.write(opened(asking(1)))
        async for request in requests:
            came.append((request.SerializeToString(), time.monotonic()))
            answer = TRY_LATER if len(came) < 3 else ACCEPTED
            await context.write(receipt(request.report.report_id, answer))

    device, seen = a_device(Always(1.0)), Seen()
    async with scripted(busy) as channel:
        with anyio.fail_after(DEADLINE_S):
            await visit(device, channel, last_round=1, watcher=seen)

    payloads, _ = zip(*came, strict=True)
    assert len(set(payloads)) == 1
    assert len(payloads) == 3
    assert seen.dispositions == [TRY_LATER, TRY_LATER, ACCEPTED]
    size = len(payloads[0])
    assert [event for event in seen.events if event[0] == "sent"] == [("sent", 1, size)] * 3
    assert remaining(device) == STUDY.value.budget_units - ONE**2 * asking(1).value.weight


async def test_a_collector_that_ends_the_visit_early_is_lost_and_one_that_ends_it_in_time_is_not() -> (
    None
):
    async def leave(requests: Any, context: Any) -> None:
        return

    async def leave_with_a_report_on_its_way(requests: Any, context: Any) -> None:
        await context.write(opened(asking(1)))

    for behaviour, last_round in [(leave, 1), (leave_with_a_report_on_its_way, 0)]:
        async with scripted(behaviour) as channel:
            with pytest.raises(ConnectionLost, match="the collector"), anyio.fail_after(DEADLINE_S):
                await visit(a_device(Always(1.0)), channel, last_round=last_round)
    async with scripted(leave) as channel:
        with anyio.fail_after(DEADLINE_S):
            await visit(a_device(Always(1.0)), channel)


async def test_a_receipt_for_what_was_never_sent_breaks_the_protocol() -> None:
    async def invent(requests: Any, context: Any) -> None:
        await context.write(receipt(bytes(16), ACCEPTED))
        await anyio.sleep(DEADLINE_S)

    async with scripted(invent) as channel:
        with pytest.raises(WireError, match="never sent"), anyio.fail_after(DEADLINE_S):
            await visit(a_device(Always(1.0)), channel)


async def test_a_disposition_of_some_later_version_is_noted_and_not_repeated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def unheard_of(requests: Any, context: Any) -> None:
        await context.write(opened(asking(1)))
        request = await anext(requests)
        await context.write(receipt(request.report.report_id, 99))

    async with scripted(unheard_of) as channel:
        with anyio.fail_after(DEADLINE_S):
            await visit(a_device(Always(1.0)), channel, last_round=1)

    assert "round 1: not counted, disposition 99" in caplog.text


async def test_messages_of_some_later_version_are_passed_over() -> None:
    async def chatty(requests: Any, context: Any) -> None:
        await context.write(collector_pb2.VisitResponse())
        await context.write(opened(asking(1)))
        request = await anext(requests)
        await context.write(receipt(request.report.report_id, ACCEPTED))

    seen = Seen()
    async with scripted(chatty) as channel:
        with anyio.fail_after(DEADLINE_S):
            await visit(a_device(Always(1.0)), channel, last_round=1, watcher=seen)

    assert seen.dispositions == [ACCEPTED]


@pytest.mark.parametrize(
    "definition",
    [
        b"\xff",
        b"",
        asking(1).definition.replace(STUDY.hash, bytes(32)),
        asking(1).definition + b"\xa2\x06\x00",  # a field from the future
    ],
)
async def test_a_round_that_breaks_the_contract_is_refused_before_any_data_is_read_and_the_next_is_not(
    definition: bytes,
) -> None:
    sent: list[bytes] = []

    async def push(requests: Any, context: Any) -> None:
        await context.write(
            collector_pb2.VisitResponse(
                opened_round=collector_pb2.OpenedRound(definition=definition)
            )
        )
        await context.write(opened(asking(2)))
        report = (await anext(requests)).report
        sent.append(report.round_hash)
        await context.write(receipt(report.report_id, ACCEPTED))

    source = Always(1.0)
    async with scripted(push) as channel:
        with anyio.fail_after(DEADLINE_S):
            await visit(a_device(source), channel, last_round=2)

    assert sent == [asking(2).hash]
    assert source.asked == ["x2"]


async def test_a_collector_that_pushes_a_round_twice_gets_the_same_bytes_until_it_has_them() -> (
    None
):
    came: list[bytes] = []

    async def repeat(requests: AsyncIterator[collector_pb2.VisitRequest], context: Any) -> None:
        for _ in range(2):
            await context.write(opened(asking(1)))
            request = await anext(requests)
            came.append(request.SerializeToString())
        await context.write(receipt(request.report.report_id, ACCEPTED))
        await context.write(opened(asking(1)))
        await context.write(opened(asking(2)))
        request = await anext(requests)
        came.append(request.SerializeToString())
        await context.write(receipt(request.report.report_id, ACCEPTED))

    async with scripted(repeat) as channel:
        with anyio.fail_after(DEADLINE_S):
            await visit(a_device(Always(1.0)), channel)

    assert len(came) == 3
    assert came[0] == came[1] != came[2]


async def test_another_study_than_the_one_asked_for_is_refused() -> None:
    async def unused(requests: Any, context: Any) -> None:
        return

    other = define_study(
        design_study(name="other", epsilon=2.0, delta=1e-6, answers=1, minimum_cohort=1)
    )
    async with scripted(unused, study=other) as channel:
        with pytest.raises(WireError, match="another study"):
            await fetch_study(channel, study_hash=STUDY.hash)
        assert await fetch_study(channel) == other


# ---- losing each other -----------------------------------------------------------------------


async def test_a_collector_that_is_not_there_is_one_clear_line() -> None:
    async with served(Collector(MemoryStore(), open_access=True)) as ports:
        gone = ports.collector

    async with connected(f"127.0.0.1:{gone}") as channel:
        for attempt in (visit(a_device(Always(1.0)), channel), fetch_study(channel)):
            with pytest.raises(ConnectionLost, match=r"^lost the collector: unavailable") as caught:
                await attempt

            assert "\n" not in str(caught.value)


async def test_a_collector_that_stops_ends_its_visits_with_one_clear_line(
    collector: Collector,
) -> None:
    lost: list[str] = []

    async def stay(channel: grpc.aio.Channel) -> None:
        with pytest.raises(ConnectionLost) as caught:
            await visit(a_device(Always(1.0)), channel)
        lost.append(str(caught.value))

    with anyio.fail_after(DEADLINE_S):
        async with (
            AsyncExitStack() as channels,
            anyio.create_task_group() as tasks,
            served(collector, drain_s=0.05) as ports,
        ):
            target = f"127.0.0.1:{ports.collector}"
            for _ in range(3):
                channel = await channels.enter_async_context(connected(target))
                tasks.start_soon(stay, channel)
            await anyio.sleep(0.05)

    assert len(lost) == 3
    assert all(line.startswith("lost the collector: ") and "\n" not in line for line in lost)


async def test_a_device_whose_collector_stops_during_its_slot_keeps_its_report_for_the_next_visit(
    collector: Collector,
) -> None:
    device, seen = a_device(Always(1.0)), Seen()
    asked = await collector.open_round(asking(1, answer_after_ms=300).definition)

    async def lose(channel: grpc.aio.Channel) -> None:
        with pytest.raises(ConnectionLost):
            await visit(device, channel, last_round=1, watcher=seen)

    with anyio.fail_after(DEADLINE_S):
        async with (
            AsyncExitStack() as channels,
            anyio.create_task_group() as tasks,
            served(collector, drain_s=0.0) as ports,
        ):
            target = f"127.0.0.1:{ports.collector}"
            tasks.start_soon(lose, await channels.enter_async_context(connected(target)))
            await seen.arrived.wait()
        async with (
            served(collector, drain_s=0.1) as ports,
            connected(f"127.0.0.1:{ports.collector}") as channel,
        ):
            await visit(device, channel, last_round=1)

    assert seen.received_at
    totals = await collector.totals(asked.hash)
    assert (totals.reports, totals.sums.tolist()) == (1, [ONE])
    assert remaining(device) == STUDY.value.budget_units - ONE**2 * asked.value.weight


async def test_writing_to_a_stream_that_was_refused_says_why(channel: grpc.aio.Channel) -> None:
    call: VisitCall = collector_pb2_grpc.CollectorStub(channel).Visit(timeout=DEADLINE_S)
    stranger = collector_pb2.Hello(protocol_version=1, study_hash=bytes(32))
    await call.write(collector_pb2.VisitRequest(hello=stranger))
    await call.code()  # it has been refused by now

    with pytest.raises(NotFoundError, match="there is no study"):
        async with calling("the collector"):
            await send(call, collector_pb2.VisitRequest())


async def test_a_device_of_an_unknown_study_is_told(channel: grpc.aio.Channel) -> None:
    other = define_study(
        design_study(name="other", epsilon=2.0, delta=1e-6, answers=1, minimum_cohort=1)
    )

    with pytest.raises(NotFoundError, match="there is no study"), anyio.fail_after(DEADLINE_S):
        await visit(a_device(Always(1.0), study=other), channel)


async def test_an_unsupported_version_is_told(
    channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "PROTOCOL_VERSION", 7)

    for attempt in (visit(a_device(Always(1.0)), channel), fetch_study(channel)):
        with pytest.raises(StateError, match="version 7 is not supported; this side speaks 1 to 1"):
            await attempt


async def test_cancelling_a_visit_cancels_nothing_else(
    collector: Collector, channel: grpc.aio.Channel
) -> None:
    device = a_device(Always(1.0))
    asked = await collector.open_round(asking(1, answer_after_ms=50).definition)

    for wait_s in (0.0, 0.02, 0.1):  # before the first word, in the slot, after the receipt
        await cancelled(wait_s, lambda: visit(device, channel))

    with anyio.fail_after(DEADLINE_S):
        await visit(device, channel, last_round=1)
    totals = await collector.totals(asked.hash)
    assert (totals.reports, totals.sums.tolist()) == (1, [ONE])


async def test_cancelling_a_fetch_cancels_nothing_else() -> None:
    async def unused(requests: Any, context: Any) -> None:
        return

    async with scripted(unused, fetch_takes_s=DEADLINE_S) as channel:
        for wait_s in (0.0, 0.05):
            await cancelled(wait_s, lambda: fetch_study(channel))


async def test_a_channel_closed_under_a_visit_is_a_lost_connection(
    channel: grpc.aio.Channel,
) -> None:
    lost: list[str] = []

    async def stay() -> None:
        with pytest.raises(ConnectionLost) as caught:
            await visit(a_device(Always(1.0)), channel)
        lost.append(str(caught.value))

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stay)
            await anyio.sleep(0.05)
            await channel.close()

    assert lost == ["lost the collector: the channel was closed"]


@pytest.mark.parametrize(
    "target",
    ["10.0.0.1:80", "example.org:443", "127.0.0.1", "127.0.0.1:", "127.0.0.1:http", ":80", ""],
)
async def test_only_collectors_on_this_machine_are_reached(target: str) -> None:
    with pytest.raises(ParameterError, match="a loopback address with a port"):
        async with connected(target):
            pass
