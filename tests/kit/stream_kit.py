"""What the tests of streams share: messages, and calls of devices and gateways."""

from collections.abc import Callable
from typing import Any

import grpc
import numpy as np

from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.v1 import collector_pb2, report_pb2
from demur_proto.wire.definition import Defined, read_round
from demur_proto.wire.words import encode_words

DEADLINE_S = 10.0

Ask = Callable[..., Defined[Round]]
VisitCall = grpc.aio.StreamStreamCall[collector_pb2.VisitRequest, collector_pb2.VisitResponse]
FramesCall = grpc.aio.StreamStreamCall[
    collector_pb2.SubmitFramesRequest, collector_pb2.SubmitFramesResponse
]


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
