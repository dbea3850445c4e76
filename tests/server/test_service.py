"""The devices' side over real gRPC on loopback."""

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
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from demur_client.agent import fetch_study
from demur_client.connection import connected
from demur_proto.calls import calling
from demur_proto.definition import Defined, read_round
from demur_proto.errors import ConnectionLost, DemurError, ParameterError, StateError
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.mechanisms.of_round import mechanism_for
from demur_proto.round import Feature, Round
from demur_proto.study import Study
from demur_proto.v1 import collector_pb2, collector_pb2_grpc, report_pb2
from demur_proto.words import encode_words
from demur_server.collector import Collector
from demur_server.interceptor import Requests
from demur_server.serving import Ports, served
from demur_server.store.memory import MemoryStore

ACCEPTED = report_pb2.DISPOSITION_ACCEPTED
DUPLICATE = report_pb2.DISPOSITION_DUPLICATE
CONFLICT = report_pb2.DISPOSITION_CONFLICT
ROUND_CLOSED = report_pb2.DISPOSITION_ROUND_CLOSED
INVALID = report_pb2.DISPOSITION_INVALID

DEADLINE_S = 10.0

Ask = Callable[..., Defined[Round]]
Devices = "collector_pb2_grpc.CollectorAsyncStub"
VisitCall = grpc.aio.StreamStreamCall[collector_pb2.VisitRequest, collector_pb2.VisitResponse]
FramesCall = grpc.aio.StreamStreamCall[
    collector_pb2.SubmitFramesRequest, collector_pb2.SubmitFramesResponse
]


def gaussian_for(study: Study, asked: Round) -> GaussianLinear:
    mechanism = mechanism_for(study, asked)
    assert isinstance(mechanism, GaussianLinear)
    return mechanism


def hello(study: Defined[Study], **changes: int) -> collector_pb2.Hello:
    fields: dict[str, Any] = {"protocol_version": 1, **changes}
    return collector_pb2.Hello(study_hash=study.hash, **fields)


def report(asked: Defined[Round], who: int, *words: int) -> report_pb2.Report:
    return report_pb2.Report(
        round_hash=asked.hash,
        report_id=who.to_bytes(16, "big"),
        words=encode_words(np.array([words]), asked.value.word_type),
    )


def frame(
    asked: Defined[Round], who: list[int], words: list[int], *, number: int = 1
) -> report_pb2.ReportFrame:
    return report_pb2.ReportFrame(
        frame_number=number,
        round_hash=asked.hash,
        report_ids=b"".join(one.to_bytes(16, "big") for one in who),
        words=encode_words(np.array(words).reshape(-1, 1), asked.value.word_type),
    )


async def visiting(devices: Any, study: Defined[Study], **changes: int) -> VisitCall:
    """A visit that has been welcomed."""
    call: VisitCall = devices.Visit(timeout=DEADLINE_S)
    await call.write(collector_pb2.VisitRequest(hello=hello(study, **changes)))
    assert kind(await call.read()) == "welcome"
    return call


async def submitting(devices: Any, study: Defined[Study], **changes: int) -> FramesCall:
    """A framed stream that has been welcomed."""
    call: FramesCall = devices.SubmitFrames(timeout=DEADLINE_S)
    await call.write(collector_pb2.SubmitFramesRequest(hello=hello(study, **changes)))
    assert kind(await call.read()) == "welcome"
    return call


def kind(message: Any) -> str:
    which: str = message.WhichOneof("message")
    return which


async def pushed(call: Any, study: Defined[Study]) -> int:
    """The number of the next round, which must be what comes next."""
    message = await call.read()
    assert kind(message) == "opened_round"
    return read_round(message.opened_round.definition, study=study).value.number


async def receipt(call: Any) -> Any:
    """The next receipt; rounds on the way are passed over."""
    while kind(message := await call.read()) != "receipt":
        pass
    return message.receipt


async def hand_in(call: VisitCall, one: report_pb2.Report) -> int:
    await call.write(collector_pb2.VisitRequest(report=one))
    got = await receipt(call)
    assert got.report_id == one.report_id
    return int(got.disposition)


async def hand_in_frame(call: FramesCall, one: report_pb2.ReportFrame) -> list[int]:
    await call.write(collector_pb2.SubmitFramesRequest(frame=one))
    got = await receipt(call)
    assert got.frame_number == one.frame_number
    return list(got.dispositions)


async def status(call: Any) -> tuple[grpc.StatusCode, str]:
    """How a stream ends; whatever comes before is passed over."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


# ---- studies ---------------------------------------------------------------------------------


async def test_a_device_can_fetch_the_study_before_it_agrees(
    channel: grpc.aio.Channel, study: Defined[Study]
) -> None:
    assert await fetch_study(channel) == study
    assert await fetch_study(channel, study_hash=study.hash) == study


async def test_an_unknown_study_is_not_found(devices: Any, study: Defined[Study]) -> None:
    unknown = collector_pb2.GetStudyRequest(protocol_version=1, study_hash=bytes(32))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await devices.GetStudy(unknown, timeout=DEADLINE_S)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND

    for call, request in streams(devices):
        await call.write(request(collector_pb2.Hello(protocol_version=1, study_hash=bytes(32))))
        assert (await status(call))[0] is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("version", [0, 2, 4_000_000_000])
async def test_an_unsupported_protocol_version_is_refused_with_the_supported_range(
    devices: Any, study: Defined[Study], version: int
) -> None:
    expected = (
        grpc.StatusCode.FAILED_PRECONDITION,
        f"protocol version {version} is not supported; this side speaks 1 to 1",
    )

    request = collector_pb2.GetStudyRequest(protocol_version=version)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await devices.GetStudy(request, timeout=DEADLINE_S)
    assert (caught.value.code(), caught.value.details()) == expected

    for call, request in streams(devices):
        await call.write(request(hello(study, protocol_version=version)))
        assert await status(call) == expected


# ---- streams ---------------------------------------------------------------------------------


def streams(devices: Any) -> list[tuple[Any, Any]]:
    """Both kinds of streams, with what puts a hello into their messages."""
    return [
        (
            devices.Visit(timeout=DEADLINE_S),
            lambda greeting: collector_pb2.VisitRequest(hello=greeting),
        ),
        (
            devices.SubmitFrames(timeout=DEADLINE_S),
            lambda greeting: collector_pb2.SubmitFramesRequest(hello=greeting),
        ),
    ]


async def test_the_welcome_comes_first_and_says_how_many_rounds_there_were(
    devices: Any, collector: Collector, study: Defined[Study], ask: Ask
) -> None:
    for number in (1, 2):
        await collector.open_round(ask(number).definition)
    await collector.close_round(ask(1).hash)

    for call, request in streams(devices):
        await call.write(request(hello(study)))
        first = await call.read()

        assert kind(first) == "welcome"
        assert (first.welcome.protocol_version, first.welcome.rounds) == (1, 2)


async def test_a_visit_is_pushed_what_is_open_and_then_what_opens(
    devices: Any, collector: Collector, study: Defined[Study], ask: Ask
) -> None:
    for number in (1, 2, 3):
        await collector.open_round(ask(number).definition)
    await collector.close_round(ask(2).hash)

    everything = await visiting(devices, study)
    news = await visiting(devices, study, after_round=3)
    gateway = await submitting(devices, study, after_round=1)
    await collector.open_round(ask(4).definition)

    assert [await pushed(everything, study) for _ in range(3)] == [1, 3, 4]
    assert [await pushed(news, study) for _ in range(1)] == [4]
    assert [await pushed(gateway, study) for _ in range(2)] == [3, 4]


async def test_a_round_travels_as_the_bytes_the_analyst_wrote(
    devices: Any, collector: Collector, study: Defined[Study], ask: Ask
) -> None:
    definition = ask(1).definition + b"\x10\x01"  # says its number twice; few writers would
    await collector.open_round(definition)

    call = await visiting(devices, study)

    message: Any = await call.read()
    assert message.opened_round.definition == definition


async def test_every_report_gets_its_own_receipt(
    devices: Any, collector: Collector, study: Defined[Study], ask: Ask
) -> None:
    asked = await collector.open_round(ask(1).definition)
    call = await visiting(devices, study)

    assert await hand_in(call, report(asked, 1, 5)) == ACCEPTED
    assert await hand_in(call, report(asked, 1, 5)) == DUPLICATE
    assert await hand_in(call, report(asked, 1, 6)) == CONFLICT
    assert await hand_in(call, report(asked, 2, 1 << 30)) == INVALID
    assert await hand_in(call, report(asked, 2, 7)) == ACCEPTED
    release = await collector.close_round(asked.hash)
    assert await hand_in(call, report(asked, 1, 5)) == ROUND_CLOSED
    assert release.sums.tolist() == [12]


async def test_one_bad_report_never_fails_its_frame(
    devices: Any, collector: Collector, study: Defined[Study], ask: Ask
) -> None:
    asked = await collector.open_round(ask(1).definition)
    limit = gaussian_for(study.value, asked.value).word_limit
    call = await submitting(devices, study)

    dispositions = await hand_in_frame(
        call, frame(asked, [1, 2, 3, 1, 1], [5, limit + 1, limit, 5, 6], number=77)
    )

    assert dispositions == [ACCEPTED, INVALID, ACCEPTED, DUPLICATE, CONFLICT]
    assert (await collector.totals(asked.hash)).sums.tolist() == [5 + limit]


async def test_a_frame_of_the_largest_size_is_taken(
    devices: Any, collector: Collector, study: Defined[Study], ask: Ask
) -> None:
    asked = await collector.open_round(ask(1, dimension=60).definition)
    words = encode_words(np.ones((4096, 60), dtype=np.int64), asked.value.word_type)
    full = report_pb2.ReportFrame(
        round_hash=asked.hash,
        report_ids=b"".join(who.to_bytes(16, "big") for who in range(4096)),
        words=words,
    )
    assert len(full.report_ids) + len(full.words) == 1 << 20
    call = await submitting(devices, study)

    assert await hand_in_frame(call, full) == [ACCEPTED] * 4096


@pytest.mark.parametrize(
    ("report_ids", "words", "complaint"),
    [
        (15, 4, "16 bytes each"),
        (16, 3, "take 4 bytes, got 3"),
        (32, 4, "take 8 bytes, got 4"),
        (16 * 4097, 4 * 4097, "at most 4096 reports and 1048576 bytes, got 4097"),
        (16, (1 << 20) - 15, "at most 4096 reports and 1048576 bytes"),
    ],
)
async def test_a_frame_of_the_wrong_size_is_refused_whole(
    devices: Any,
    collector: Collector,
    study: Defined[Study],
    ask: Ask,
    report_ids: int,
    words: int,
    complaint: str,
) -> None:
    asked = await collector.open_round(ask(1).definition)
    call = await submitting(devices, study)

    wrong = report_pb2.ReportFrame(
        round_hash=asked.hash, report_ids=bytes(report_ids), words=bytes(words)
    )
    await call.write(collector_pb2.SubmitFramesRequest(frame=wrong))
    code, details = await status(call)

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert complaint in details
    assert (await collector.totals(asked.hash)).reports == 0


async def test_a_message_far_beyond_a_frame_is_refused_before_it_is_read(
    devices: Any, study: Defined[Study]
) -> None:
    call = await submitting(devices, study)
    bomb = collector_pb2.SubmitFramesRequest(
        frame=report_pb2.ReportFrame(words=bytes((1 << 20) + (1 << 17)))
    )

    await call.write(bomb)

    assert (await status(call))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("length", [0, 15, 17, 32])
async def test_a_report_id_is_16_bytes(
    devices: Any, collector: Collector, study: Defined[Study], ask: Ask, length: int
) -> None:
    asked = await collector.open_round(ask(1).definition)
    wrong = report(asked, 1, 5)
    wrong.report_id = bytes(length)
    call = await visiting(devices, study)

    await call.write(collector_pb2.VisitRequest(report=wrong))

    expected = (grpc.StatusCode.INVALID_ARGUMENT, f"a report id is 16 bytes, got {length}")
    assert await status(call) == expected


async def test_reports_to_an_unknown_round_are_not_found(
    devices: Any, study: Defined[Study], ask: Ask
) -> None:
    visit = await visiting(devices, study)
    await visit.write(collector_pb2.VisitRequest(report=report(ask(1), 1, 5)))
    assert (await status(visit))[0] is grpc.StatusCode.NOT_FOUND

    gateway = await submitting(devices, study)
    await gateway.write(collector_pb2.SubmitFramesRequest(frame=frame(ask(1), [1], [5])))
    assert (await status(gateway))[0] is grpc.StatusCode.NOT_FOUND


async def test_the_first_message_is_a_hello(devices: Any, ask: Ask) -> None:
    expected = (grpc.StatusCode.INVALID_ARGUMENT, "the first message of a stream is a hello")

    for first in (
        collector_pb2.VisitRequest(report=report(ask(1), 1, 5)),
        collector_pb2.VisitRequest(),
    ):
        visit = devices.Visit(timeout=DEADLINE_S)
        await visit.write(first)
        assert await status(visit) == expected
    gateway = devices.SubmitFrames(timeout=DEADLINE_S)
    await gateway.write(collector_pb2.SubmitFramesRequest(frame=frame(ask(1), [1], [5])))
    assert await status(gateway) == expected
    for call, _ in streams(devices):
        await call.done_writing()
        assert await status(call) == expected


async def test_there_is_no_second_hello(devices: Any, study: Defined[Study]) -> None:
    for call, request in streams(devices):
        await call.write(request(hello(study)))
        await call.write(request(hello(study)))

        code, details = await status(call)

        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "after its hello a" in details


async def test_an_empty_message_is_refused(devices: Any, study: Defined[Study]) -> None:
    call = await visiting(devices, study)

    await call.write(collector_pb2.VisitRequest())

    assert (await status(call))[0] is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("method", ["Visit", "SubmitFrames"])
async def test_bytes_that_do_not_parse_are_refused(
    channel: grpc.aio.Channel, study: Defined[Study], method: str
) -> None:
    raw: Any = channel.stream_stream(f"/demur_proto.v1.Collector/{method}")
    greeting = collector_pb2.VisitRequest(hello=hello(study)).SerializeToString()
    expected = (grpc.StatusCode.INVALID_ARGUMENT, "the message does not parse")

    at_once = raw(timeout=DEADLINE_S)
    await at_once.write(b"\xff\xff")
    assert await status(at_once) == expected
    later = raw(timeout=DEADLINE_S)
    await later.write(greeting)
    await later.write(b"\x12\x7fx")
    assert await status(later) == expected


async def test_a_stream_whose_sender_has_finished_ends_well(
    devices: Any, collector: Collector, study: Defined[Study], ask: Ask
) -> None:
    asked = await collector.open_round(ask(1).definition)
    call = await visiting(devices, study)
    await call.write(collector_pb2.VisitRequest(report=report(asked, 1, 5)))

    await call.done_writing()
    assert (await receipt(call)).disposition == ACCEPTED
    while await call.read() is not grpc.aio.EOF:
        pass

    assert await call.code() is grpc.StatusCode.OK


# ---- many at once ----------------------------------------------------------------------------


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


# ---- coming and going ------------------------------------------------------------------------


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


async def test_devices_do_not_reach_the_analysts_side(
    channel: grpc.aio.Channel, study: Defined[Study]
) -> None:
    raw: Any = channel.unary_unary("/demur_proto.v1.Analyst/CloseRound")

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await raw(b"", timeout=DEADLINE_S)

    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_no_word_of_a_report_appears_in_the_logs_of_a_served_collector(
    devices: Any,
    collector: Collector,
    study: Defined[Study],
    ask: Ask,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    asked = await collector.open_round(ask(1).definition)
    call = await visiting(devices, study)
    one, other = report(asked, 1, 7117), report(asked, 1, 7118)

    await hand_in(call, one)
    await hand_in(call, other)
    await call.write(collector_pb2.VisitRequest(report=report(asked, 2, 7119, 7120)))
    await status(call)
    await collector.close_round(asked.hash)

    assert "conflicting reports" in caplog.text
    for word in ("7117", "7118", "7119", "7120", one.words.hex(), repr(one.words)[2:-1]):
        assert word not in caplog.text


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
