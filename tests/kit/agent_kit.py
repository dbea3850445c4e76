"""What the tests of visits share: devices, a watcher, and a collector that does as it is told."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import grpc
import numpy as np

from demur_client import agent
from demur_client.connection import connected
from demur_client.device import Device
from demur_client.sources.base import DataSource
from demur_proto.arrays import Bits, Values, Words
from demur_proto.queries import Feature, Linear
from demur_proto.round import Round, round_of
from demur_proto.study import Study, design_study
from demur_proto.v1 import collector_pb2, collector_pb2_grpc, report_pb2
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_sim.engine.devices import InProcessEvaluator

ACCEPTED = report_pb2.DISPOSITION_ACCEPTED
DUPLICATE = report_pb2.DISPOSITION_DUPLICATE
ROUND_CLOSED = report_pb2.DISPOSITION_ROUND_CLOSED
TRY_LATER = report_pb2.DISPOSITION_TRY_LATER

DEADLINE_S = 10.0
TOLERANCE_S = 0.15  # between devices that send in the same slot, on a busy machine
ONE = 128  # the value 1.0 in grid steps

VisitCall = grpc.aio.StreamStreamCall[collector_pb2.VisitRequest, collector_pb2.VisitResponse]


async def visit(device: Device, channel: grpc.aio.Channel, **options: Any) -> None:
    """A visit of a device whose data are made up: it evaluates them in this process."""
    options.setdefault("evaluator", InProcessEvaluator(device.source))
    await agent.visit(device, channel, **options)


class NoNoise:
    """A sampler that draws nothing, so that reports show what went into them."""

    name = "none"

    def words(self, count: int) -> Bits:
        raise AssertionError("a linear round asks for no bits")

    def gaussian(self, steps: float, *, reports: int, dimension: int) -> Words:
        return np.zeros((reports, dimension), dtype=np.int64)

    def uniform(self, *, reports: int, dimension: int) -> Values:
        return np.zeros((reports, dimension))


class Always:
    """A source with one value, after a while."""

    def __init__(self, value: float, *, takes_s: float = 0.0) -> None:
        self.value = value
        self.takes_s = takes_s
        self.asked: list[str] = []

    def evaluate(self, feature: Feature) -> Values:
        self.asked.append(feature.name)
        if self.takes_s:
            time.sleep(self.takes_s)
        return np.array([[self.value]])


class Failing:
    """A source that cannot answer."""

    def evaluate(self, feature: Feature) -> Values:
        raise LookupError("no such column")


@dataclass
class Seen:
    """What a watcher was told, with its own clock."""

    received_at: dict[int, float] = field(default_factory=dict)
    sent_at: dict[int, float] = field(default_factory=dict)
    events: list[tuple[object, ...]] = field(default_factory=list)
    arrived: anyio.Event = field(default_factory=anyio.Event)  # the first round

    def received(self, round_number: int) -> None:
        self.arrived.set()
        self.received_at[round_number] = time.monotonic()
        self.events.append(("received", round_number))

    def sent(self, round_number: int, *, size_bytes: int) -> None:
        self.sent_at[round_number] = time.monotonic()
        self.events.append(("sent", round_number, size_bytes))

    def answered(self, round_number: int, *, disposition: int) -> None:
        self.events.append(("answered", round_number, disposition))

    @property
    def sizes(self) -> set[object]:
        return {event[2] for event in self.events if event[0] == "sent"}

    @property
    def dispositions(self) -> list[object]:
        return [event[2] for event in self.events if event[0] == "answered"]


STUDY = define_study(
    design_study(
        name="agent", epsilon=1.0, delta=1e-6, answers=3, minimum_cohort=1, grid_exponent=-7
    )
)


def asking(number: int, **changes: int) -> Defined[Round]:
    changed: dict[str, Any] = changes
    query = Linear([Feature(name=f"x{number}")], on_grid=True)
    return define_round(round_of(STUDY, query, number=number, **changed))


def a_device(source: DataSource, *, study: Defined[Study] = STUDY) -> Device:
    return Device(study, source, NoNoise())


def remaining(device: Device) -> int:
    return device.ledger.remaining_units(device.study.hash)


Behaviour = Callable[[AsyncIterator[collector_pb2.VisitRequest], Any], Awaitable[None]]


class Scripted(collector_pb2_grpc.CollectorServicer):
    """A collector whose visits are up to the test."""

    def __init__(
        self, behaviour: Behaviour, *, study: Defined[Study], fetch_takes_s: float
    ) -> None:
        self.behaviour = behaviour
        self.study = study
        self.fetch_takes_s = fetch_takes_s

    async def Enrol(self, request: collector_pb2.EnrolRequest, context: Any) -> Any:
        raise NotImplementedError

    async def GetStudy(self, request: collector_pb2.GetStudyRequest, context: Any) -> Any:
        await anyio.sleep(self.fetch_takes_s)
        return collector_pb2.GetStudyResponse(definition=self.study.definition)

    def GetModel(self, request: collector_pb2.GetModelRequest, context: Any) -> Any:
        raise NotImplementedError

    async def Visit(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        hello = await anext(request_iterator)
        assert hello.WhichOneof("message") == "hello"
        await context.write(
            collector_pb2.VisitResponse(welcome=collector_pb2.Welcome(protocol_version=1))
        )
        await self.behaviour(request_iterator, context)

    async def SubmitFrames(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        raise NotImplementedError


@asynccontextmanager
async def scripted(
    behaviour: Behaviour, *, study: Defined[Study] = STUDY, fetch_takes_s: float = 0.0
) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server()
    servicer = Scripted(behaviour, study=study, fetch_takes_s=fetch_takes_s)
    collector_pb2_grpc.add_CollectorServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with connected(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(None)


def opened(asked: Defined[Round]) -> collector_pb2.VisitResponse:
    return collector_pb2.VisitResponse(
        opened_round=collector_pb2.OpenedRound(definition=asked.definition)
    )


def receipt(report_id: bytes, disposition: int) -> collector_pb2.VisitResponse:
    return collector_pb2.VisitResponse(
        receipt=report_pb2.Receipt(
            report_id=report_id, disposition=report_pb2.Disposition.ValueType(disposition)
        )
    )
