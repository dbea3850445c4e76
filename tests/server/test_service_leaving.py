"""Devices, gateways and collectors come and go, and leave nothing behind."""

import asyncio
import gc
import logging
import socket
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import AsyncGeneratorType
from typing import Any

import anyio
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from demur_client.agent import fetch_study
from demur_client.connection import connected
from demur_proto.errors import ConnectionLost, DemurError, ParameterError, StateError
from demur_proto.study import Study
from demur_proto.transport.calls import calling
from demur_proto.v1 import collector_pb2, collector_pb2_grpc
from demur_proto.wire.definition import Defined
from demur_server.collector.collector import Collector
from demur_server.grpc.interceptor import Requests
from demur_server.grpc.serving import Ports, served
from demur_server.store.memory import MemoryStore
from store_kit import ACCEPTED
from stream_kit import DEADLINE_S, Ask, VisitCall, frame, hand_in, report, submitting, visiting


def servicers_at_work() -> int:
    """How many of the two things that each stream has at the server still exist."""
    return sum(
        isinstance(each, Requests)
        or (isinstance(each, AsyncGeneratorType) and each.ag_code.co_name == "open_rounds")
        for each in gc.get_objects()
    )


async def until(settled: Callable[[], bool]) -> None:
    with anyio.fail_after(DEADLINE_S):
        while not settled():  # noqa: ASYNC110  gRPC's own tasks tell nobody
            await anyio.sleep(0.01)


async def test_clients_that_vanish_leave_no_task_and_no_memory_behind(
    ports: Ports,
    collector: Collector,
    study: Defined[Study],
    ask: Ask,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = await collector.open_round(ask(1).definition)
    async with connected(f"127.0.0.1:{ports.collector}") as channel:
        await fetch_study(channel)
    await anyio.wait_all_tasks_blocked()
    baseline = len(asyncio.all_tasks())
    gc.collect()
    assert servicers_at_work() == 0

    for how in ("cancelled", "disconnected", "cancelled while writing"):
        async with connected(f"127.0.0.1:{ports.collector}") as channel:
            devices = collector_pb2_grpc.CollectorStub(channel)
            visits = [await visiting(devices, study) for _ in range(10)]
            gateways = [await submitting(devices, study) for _ in range(10)]
            await until(lambda: servicers_at_work() == 40)
            if how == "cancelled while writing":
                for number, gateway in enumerate(gateways):
                    one = frame(asked, [number], [1])
                    await gateway.write(collector_pb2.SubmitFramesRequest(frame=one))
            if how != "disconnected":
                for call in visits:
                    call.cancel()
                for call_of_many in gateways:
                    call_of_many.cancel()
            del visits, gateways, devices
        await until(lambda: len(asyncio.all_tasks()) <= baseline)
        gc.collect()

        assert servicers_at_work() == 0, how
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_server_that_stops_takes_less_than_two_seconds_and_its_clients_lose_it(
    study: Defined[Study],
) -> None:
    collector = Collector(MemoryStore(), open_access=True)
    await collector.create_study(study.definition)
    lost: list[str] = []

    async def stay(call: Any) -> None:
        try:
            async with calling("the collector"):
                await call.read()
        except ConnectionLost as error:
            lost.append(str(error))

    async with AsyncExitStack() as channels:  # they outlive the server
        async with anyio.create_task_group() as tasks, served(collector) as ports:
            for _ in range(3):
                channel = connected(f"127.0.0.1:{ports.collector}")
                devices = collector_pb2_grpc.CollectorStub(
                    await channels.enter_async_context(channel)
                )
                for _ in range(5):
                    tasks.start_soon(stay, await visiting(devices, study))
            started = time.monotonic()
        elapsed = time.monotonic() - started

    assert elapsed < 2.0
    assert len(lost) == 15
    assert all(text.startswith("lost the collector: ") and "\n" not in text for text in lost)


async def test_a_visit_that_is_under_way_may_finish_while_the_server_stops(
    study: Defined[Study], ask: Ask
) -> None:
    collector = Collector(MemoryStore(), open_access=True)
    await collector.create_study(study.definition)
    asked = await collector.open_round(ask(1).definition)
    codes = []

    async def finish(call: VisitCall) -> None:
        await anyio.sleep(0.1)  # the server is stopping by now
        assert await hand_in(call, report(asked, 1, 5)) == ACCEPTED
        await call.done_writing()
        codes.append(await call.code())

    async with (
        AsyncExitStack() as channels,
        anyio.create_task_group() as tasks,
        served(collector) as ports,
    ):
        channel = connected(f"127.0.0.1:{ports.collector}")
        devices = collector_pb2_grpc.CollectorStub(await channels.enter_async_context(channel))
        tasks.start_soon(finish, await visiting(devices, study))
        started = time.monotonic()

    assert time.monotonic() - started < 0.9  # the drain ends when the last call does
    assert codes == [grpc.StatusCode.OK]


async def test_two_collectors_cannot_share_a_port(ports: Ports) -> None:
    for taken in (ports.collector, ports.analyst):
        with pytest.raises(StateError, match=f"port {taken} on 127.0.0.1 is in use; choose"):
            async with served(Collector(MemoryStore(), open_access=True), collector_port=taken):
                pass


async def test_a_collector_that_fails_to_start_gives_back_the_port_it_had(ports: Ports) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]

    with pytest.raises(StateError, match=f"port {ports.analyst} "):
        async with served(
            Collector(MemoryStore(), open_access=True),
            collector_port=free,
            analyst_port=ports.analyst,
        ):
            pass

    async with served(Collector(MemoryStore(), open_access=True), collector_port=free) as again:
        assert again.collector == free


async def test_no_server_is_ever_left_to_be_freed_while_it_runs(ports: Ports) -> None:
    """gRPC says so at level DEBUG, in a record that crashes the process where a handler keeps it."""
    words: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            words.append(record.getMessage())  # the words and not the record

    loudspeaker = logging.getLogger("grpc._cython.cygrpc")
    listener, level, propagate = Listener(), loudspeaker.level, loudspeaker.propagate
    loudspeaker.addHandler(listener)
    loudspeaker.setLevel(logging.DEBUG)
    loudspeaker.propagate = False
    try:
        for collector_port, analyst_port in [(ports.analyst, 0), (0, ports.analyst)]:
            with pytest.raises(StateError):
                async with served(
                    Collector(MemoryStore(), open_access=True),
                    collector_port=collector_port,
                    analyst_port=analyst_port,
                ):
                    pass
        async with served(Collector(MemoryStore(), open_access=True), drain_s=0.0):
            pass
        gc.collect()
    finally:
        loudspeaker.removeHandler(listener)
        loudspeaker.setLevel(level)
        loudspeaker.propagate = propagate

    assert not [word for word in words if "__dealloc__" in word]


@pytest.mark.parametrize("port", [-1, 65536, True])
async def test_a_port_is_a_number_from_0_to_65535(port: int) -> None:
    with pytest.raises(ParameterError, match="port must be an integer >= 0 and <= 65535"):
        async with served(Collector(MemoryStore(), open_access=True), analyst_port=port):
            pass


async def test_what_the_served_block_raises_comes_out_as_it_is(study: Defined[Study]) -> None:
    class Mine(Exception):
        pass

    with pytest.raises(Mine):
        async with served(Collector(MemoryStore(), open_access=True)):
            raise Mine


async def test_a_served_block_can_be_cancelled(study: Defined[Study]) -> None:
    with anyio.fail_after(DEADLINE_S), anyio.move_on_after(0.05) as scope:
        async with served(Collector(MemoryStore(), open_access=True)):
            await anyio.sleep(DEADLINE_S)

    assert scope.cancelled_caught


async def test_both_ports_say_that_they_are_healthy(ports: Ports) -> None:
    for port in (ports.collector, ports.analyst):
        async with connected(f"127.0.0.1:{port}") as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE_S)

        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_closed_channels_under_a_call_are_a_lost_connection(
    ports: Ports, study: Defined[Study]
) -> None:
    async with connected(f"127.0.0.1:{ports.collector}") as channel:
        call = await visiting(collector_pb2_grpc.CollectorStub(channel), study)
        lost: list[DemurError] = []

        async def stay() -> None:
            try:
                async with calling("the collector"):
                    await call.read()
            except DemurError as error:
                lost.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stay)
            await anyio.wait_all_tasks_blocked()
            await channel.close()

    assert [type(error) for error in lost] == [ConnectionLost]
