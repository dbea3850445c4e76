"""What the tests of reports in chunks share: a round of large ones, and calls that take them."""

import hashlib
import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import grpc
import numpy as np

from access_kit import DEADLINE_S, reached, shown
from demur_proto.arrays import Words
from demur_proto.queries import Feature, Linear
from demur_proto.round import Round, round_of
from demur_proto.study import design_study
from demur_proto.transport.credentials import DeviceCredential
from demur_proto.v1 import collector_pb2, collector_pb2_grpc, report_pb2
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_proto.wire.frames import frame_messages, report_messages, split_frames
from demur_proto.wire.words import encode_words
from demur_server.collector.chunks import Assembler, AssemblyLimits
from demur_server.collector.collector import Collector
from demur_server.grpc.serving import served

DIMENSION = 600_001  # of reports of 2,400,004 bytes: two chunks and 302,852 bytes
MEMORY = 8 * DIMENSION
LIMIT = 1000  # every word below lies well within what the round allows

STUDY = define_study(
    design_study(
        name="large",
        epsilon=1.0,
        delta=1e-6,
        answers=3,
        minimum_cohort=2,
        grid_exponent=-7,
        maximum_dimension=1 << 20,
    )
)


def a_round(number: int = 1, *, dimension: int = DIMENSION) -> Defined[Round]:
    return define_round(
        round_of(
            STUDY, Linear([Feature(name="x")], dimension=dimension, on_grid=True), number=number
        )
    )


LARGE = a_round()
SIZE = LARGE.value.word_type.report_bytes(DIMENSION)


def words_of(seed: int) -> Words:
    drawn = np.random.default_rng(seed).integers(-LIMIT, LIMIT, size=(1, DIMENSION))
    return drawn.astype(np.int64)


def report(
    seed: int, *, asked: Defined[Round] = LARGE, who: int | None = None
) -> report_pb2.Report:
    return report_pb2.Report(
        round_hash=asked.hash,
        report_id=(seed if who is None else who).to_bytes(16, "big"),
        words=encode_words(words_of(seed), LARGE.value.word_type),
    )


def frame(
    seed: int, *, number: int = 1, maker: DeviceCredential | None = None, **changes: Any
) -> report_pb2.ReportFrame:
    one = report(seed)
    proven = {}
    if maker is not None:  # by the words of the schema, and not by our code
        message = b"demur.report\x00" + one.round_hash + one.report_id
        message += hashlib.sha256(one.words).digest()
        proof = hmac.new(maker.secret, message, hashlib.sha256).digest()[:16]
        proven = {"device_ids": maker.device_id, "proofs": proof}
    [made] = split_frames(
        one.round_hash, one.report_id, one.words, first_number=number, **{**proven, **changes}
    )
    return made


# ---- streams ---------------------------------------------------------------------------------


async def visiting(channel: grpc.aio.Channel, *credentials: Any) -> Any:
    stub: Any = collector_pb2_grpc.CollectorStub(channel)
    call = stub.Visit(metadata=shown(*credentials), timeout=DEADLINE_S)
    hello = collector_pb2.Hello(protocol_version=1, study_hash=STUDY.hash)
    await call.write(collector_pb2.VisitRequest(hello=hello))
    await call.read()
    return call


async def submitting(channel: grpc.aio.Channel, *credentials: Any) -> Any:
    stub: Any = collector_pb2_grpc.CollectorStub(channel)
    call = stub.SubmitFrames(metadata=shown(*credentials), timeout=DEADLINE_S)
    hello = collector_pb2.Hello(protocol_version=1, study_hash=STUDY.hash)
    await call.write(collector_pb2.SubmitFramesRequest(hello=hello))
    await call.read()
    return call


async def receipt(call: Any) -> Any:
    while (message := await call.read()).WhichOneof("message") != "receipt":
        pass
    return message.receipt


async def hand_in(call: Any, one: report_pb2.Report) -> int:
    for message in report_messages(one):
        await call.write(message)
    got = await receipt(call)
    assert got.report_id == one.report_id
    return int(got.disposition)


async def hand_in_frame(call: Any, one: report_pb2.ReportFrame) -> list[int]:
    for message in frame_messages(one):
        await call.write(message)
    got = await receipt(call)
    assert got.frame_number == one.frame_number
    return list(got.dispositions)


async def status(call: Any) -> tuple[grpc.StatusCode, str]:
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  what is waited for rings no bell
            await anyio.sleep(0.002)


@asynccontextmanager
async def opened(collector: Collector, **limits: Any) -> AsyncIterator[tuple[Any, Assembler]]:
    """A channel to it, and what puts its reports together."""
    assembler = Assembler(AssemblyLimits(**limits))
    async with (
        served(collector, assembler=assembler, drain_s=0.1) as ports,
        reached(ports.collector) as channel,
    ):
        yield channel, assembler
