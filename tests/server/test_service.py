"""The devices' side over real gRPC on loopback."""

import logging
from typing import Any

import grpc
import numpy as np
import pytest

from collector_kit import gaussian_for
from demur_client.agent import fetch_study
from demur_proto.study import Study
from demur_proto.v1 import collector_pb2, report_pb2
from demur_proto.wire.definition import Defined
from demur_proto.wire.words import encode_words
from demur_server.collector.collector import Collector
from store_kit import ACCEPTED, CONFLICT, DUPLICATE, INVALID, ROUND_CLOSED
from stream_kit import (
    DEADLINE_S,
    Ask,
    frame,
    hand_in,
    hand_in_frame,
    hello,
    kind,
    pushed,
    receipt,
    report,
    status,
    submitting,
    visiting,
)

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
