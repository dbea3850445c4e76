"""Nobody keeps others out: not by many calls, nor by silence, nor at the end."""

import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import grpc
import pytest
from grpc_health.v1 import health_pb2

from access_kit import DEADLINE_S, OK, House, Outcome, opened, outcome, reached, shown
from demur_client.agent import fetch_study
from demur_proto.errors import ConnectionLost, ParameterError
from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.transport.credentials import DeviceCredential, NamedSecret
from demur_proto.v1 import analyst_pb2, collector_pb2, report_pb2
from demur_proto.wire.definition import Defined
from demur_server.grpc.access import ANYBODY, Caller, MetadataItems, OpenAccess
from demur_server.grpc.interceptor import Door, Limits
from demur_server.store.base import Role

BUSY: Outcome = (grpc.StatusCode.UNAVAILABLE, "too many calls at once; try again later")
VISIT = "/demur_proto.v1.Collector/Visit"
FRAMES = "/demur_proto.v1.Collector/SubmitFrames"
GET_STUDY = "/demur_proto.v1.Collector/GetStudy"
ENROL = "/demur_proto.v1.Collector/Enrol"
CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/demur_proto.v1.Analyst/WatchReleases"
STUDY_REQUEST = collector_pb2.GetStudyRequest(protocol_version=1).SerializeToString()
HEALTH_REQUEST = health_pb2.HealthCheckRequest().SerializeToString()

Ask = Callable[..., Defined[Round]]
Who = DeviceCredential | NamedSecret


def greeting(study: Defined[Study]) -> bytes:
    """A hello; of both kinds of streams, since the field is the same."""
    hello = collector_pb2.Hello(protocol_version=1, study_hash=study.hash)
    return collector_pb2.VisitRequest(hello=hello).SerializeToString()


def begun(channel: grpc.aio.Channel, path: str, who: Who | None) -> Any:
    """A call that has said nothing yet."""
    raw: Any = channel.stream_stream(path)
    return raw(metadata=tuple(shown(who) if who else ()), timeout=DEADLINE_S)


async def ended(call: Any) -> Outcome:
    """The status of a stream; whatever comes before is passed over."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return OK


@asynccontextmanager
async def staying(
    channel: grpc.aio.Channel, study: Defined[Study], who: Who, *, path: str = VISIT, calls: int = 1
) -> AsyncIterator[list[Any]]:
    """Streams that have been welcomed and stay open."""
    made = [begun(channel, path, who) for _ in range(calls)]
    try:
        for call in made:
            await call.write(greeting(study))
            await call.read()
        yield made
    finally:
        for call in made:
            call.cancel()


async def until(settled: Callable[[], Any]) -> None:
    with anyio.fail_after(DEADLINE_S):
        while not await settled():  # noqa: ASYNC110  gRPC's own tasks tell nobody
            await anyio.sleep(0.01)


# ---- many calls ------------------------------------------------------------------------------


async def test_a_device_that_opens_many_calls_keeps_out_nobody_but_itself(
    study: Defined[Study],
) -> None:
    async with (
        opened(study, limits=Limits(each_device=3)) as house,
        reached(house.ports.collector) as channel,
    ):
        greedy, other = await house.device(), await house.device()

        async with staying(channel, study, greedy, calls=3):
            assert await outcome(channel, VISIT, greeting(study), shown(greedy)) == BUSY
            assert await outcome(channel, GET_STUDY, STUDY_REQUEST, shown(greedy)) == BUSY
            async with staying(channel, study, other, calls=3):
                pass
            watch = "/grpc.health.v1.Health/Watch"  # it stays open, so it counts
            assert await outcome(channel, watch, HEALTH_REQUEST, shown(greedy)) == BUSY
            with pytest.raises(ConnectionLost, match="too many calls at once; try again later"):
                await fetch_study(channel, credential=greedy)

        async def let_in() -> bool:
            return await outcome(channel, VISIT, greeting(study), shown(greedy)) == OK

        await until(let_in)


async def test_a_gateway_and_an_analyst_have_limits_of_their_own(study: Defined[Study]) -> None:
    async with (
        opened(study, limits=Limits(each_named=2)) as house,
        reached(house.ports.collector) as channel,
    ):
        first = await house.named("gateway", Role.GATEWAY)
        second = await house.named("other", Role.GATEWAY)

        async with (
            staying(channel, study, first, path=FRAMES, calls=2),
            staying(channel, study, second, path=FRAMES, calls=2),
        ):
            for gateway in (first, second):
                got = await outcome(channel, FRAMES, greeting(study), shown(gateway))
                assert got == BUSY


async def test_every_open_stream_counts_until_it_is_over_however_it_ends(
    study: Defined[Study],
) -> None:
    most = 6
    async with (
        opened(study, limits=Limits(all_calls=most, each_device=most), patience_s=0.3) as house,
        reached(house.ports.collector) as channel,
    ):
        device, late = await house.device(), await house.device()
        refusals: set[Outcome] = set()

        async def all_of_them() -> bool:
            """Whether there is room for as many as there may be, and for no more."""
            async with AsyncExitStack() as stack:
                try:
                    await stack.enter_async_context(staying(channel, study, device, calls=most))
                except grpc.aio.AioRpcError as error:
                    refusals.add((error.code(), error.details() or ""))
                    return False
                assert await outcome(channel, VISIT, greeting(study), shown(late)) == BUSY
                assert await outcome(channel, CHECK, HEALTH_REQUEST) == OK
                return True

        await until(all_of_them)
        for request in (None, b"", b"\xff", greeting(study), STUDY_REQUEST):
            for path in (VISIT, FRAMES, GET_STUDY, ENROL, CHECK, "/demur_proto.v1.Collector/No"):
                for who in (device, None):
                    await outcome(channel, path, request, shown(who) if who else ())
        await until(all_of_them)
        async with reached(house.ports.collector) as vanishing:
            for path in (VISIT, GET_STUDY, ENROL):
                for _ in range(2):
                    begun(vanishing, path, device)
            async with staying(vanishing, study, late, calls=0):
                await anyio.sleep(0.05)
        await until(all_of_them)

    assert refusals <= {BUSY}


async def test_who_has_no_credential_cannot_take_the_room_of_those_who_have(
    study: Defined[Study],
) -> None:
    async with (
        opened(study, limits=Limits(anybody=2)) as house,
        reached(house.ports.collector) as channel,
    ):
        device = await house.device()
        silent = [begun(channel, ENROL, None) for _ in range(2)]
        await anyio.sleep(0.05)

        assert await outcome(channel, ENROL, b"") == BUSY
        assert await outcome(channel, CHECK, HEALTH_REQUEST) == OK
        assert await fetch_study(channel, credential=device) == study
        for call in silent:
            call.cancel()


def test_limits_are_integers_above_zero() -> None:
    for name in ("all_calls", "each_device", "each_named", "anybody"):
        for wrong in (0, -1, 1.5, True):
            with pytest.raises(ParameterError, match=name):
                Limits(**{name: wrong})  # type: ignore[arg-type]


async def test_a_call_counts_as_long_as_its_task_lives() -> None:
    class Everything(OpenAccess):
        def admit(self, method: str, metadata: MetadataItems) -> Caller:
            return ANYBODY

    door = Door(Everything(), limits=Limits())

    async def attend() -> None:
        door.enter("/any", [])
        await anyio.sleep(DEADLINE_S)

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(attend)
        await anyio.wait_all_tasks_blocked()
        assert door.open_calls == 4
        tasks.cancel_scope.cancel()
    await anyio.lowlevel.checkpoint()

    assert door.open_calls == 0


# ---- silence ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [VISIT, FRAMES, GET_STUDY, ENROL])
async def test_who_says_nothing_is_not_waited_for(study: Defined[Study], path: str) -> None:
    async with (
        opened(study, patience_s=0.1) as house,
        reached(house.ports.collector) as channel,
    ):
        gateway = await house.named("gateway", Role.GATEWAY)
        who = gateway if path in (FRAMES, GET_STUDY) else await house.device()

        call = begun(channel, path, who)

        assert await ended(call) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "the first message did not come within 0.1 s",
        )


async def test_who_was_welcomed_may_stay_silent(study: Defined[Study], ask: Ask) -> None:
    async with (
        opened(study, patience_s=0.05) as house,
        reached(house.ports.collector) as channel,
        staying(channel, study, await house.device()) as [call],
    ):
        await anyio.sleep(0.2)
        await house.collector.open_round(ask(1).definition)

        message = collector_pb2.VisitResponse.FromString(await call.read())
        assert message.WhichOneof("message") == "opened_round"


async def test_a_request_that_never_comes_is_missed(study: Defined[Study]) -> None:
    async with opened(study) as house, reached(house.ports.collector) as channel:
        call = begun(channel, GET_STUDY, await house.device())
        await call.done_writing()

        assert await ended(call) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "the request is missing",
        )


async def test_connections_that_say_nothing_keep_nobody_waiting(study: Defined[Study]) -> None:
    async with opened(study) as house:
        device = await house.device()
        with anyio.fail_after(DEADLINE_S):
            silent = []
            for _ in range(50):
                silent.append(socket.create_connection(("127.0.0.1", house.ports.collector)))
            started = time.monotonic()
            async with reached(house.ports.collector) as channel:
                assert await fetch_study(channel, credential=device) == study
            assert time.monotonic() - started < 2.0
            for each in silent:
                each.close()


# ---- the end ---------------------------------------------------------------------------------


async def test_a_server_that_stops_waits_for_nobody_longer_than_it_said(
    study: Defined[Study], ask: Ask
) -> None:
    """Callers of every kind, none of whom is about to leave."""
    async with AsyncExitStack() as channels, anyio.create_task_group() as tasks:
        async with opened(study, drain_s=0.3) as house:
            asked = await house.collector.open_round(ask(1).definition)
            await house.collector.close_round(asked.hash)
            devices = await channels.enter_async_context(reached(house.ports.collector))
            analysts = await channels.enter_async_context(reached(house.ports.analyst))
            gateway = await house.named("gateway", Role.GATEWAY)
            analyst = await house.named("analyst", Role.ANALYST)
            waiting = []
            for _ in range(20):
                device = await house.device()
                stack = staying(devices, study, device)
                waiting += await channels.enter_async_context(stack)
                waiting.append(begun(devices, VISIT, device))  # says nothing
            request = analyst_pb2.WatchReleasesRequest(study_hash=study.hash)
            watching = begun(analysts, WATCH, analyst)
            await watching.write(request.SerializeToString())
            [unread] = await channels.enter_async_context(
                staying(devices, study, gateway, path=FRAMES)
            )
            frame = collector_pb2.SubmitFramesRequest(
                frame=report_pb2.ReportFrame(
                    round_hash=asked.hash,
                    report_ids=bytes(16 * 4096),
                    words=bytes(4 * 4096),
                    device_ids=bytes(16 * 4096),
                    proofs=bytes(16 * 4096),
                )
            ).SerializeToString()

            async def flood() -> None:
                while True:  # receipts that nobody reads
                    await unread.write(frame)

            async def flooding() -> None:
                with pytest.raises((grpc.aio.AioRpcError, anyio.get_cancelled_exc_class())):
                    await flood()

            tasks.start_soon(flooding)
            await anyio.sleep(0.2)
            started = time.monotonic()
        took = time.monotonic() - started
        tasks.cancel_scope.cancel()

    assert took < 2.0  # of the ten seconds that a process has


async def test_a_house_can_be_opened_and_left_many_times(study: Defined[Study]) -> None:
    ports: set[int] = set()
    for _ in range(5):
        async with opened(study) as house, reached(house.ports.collector) as channel:
            assert isinstance(house, House)
            assert await fetch_study(channel, credential=await house.device()) == study
            ports |= {house.ports.collector, house.ports.analyst}

    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
