from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from demur_client.connection import connected
from demur_proto.queries import Feature, Linear
from demur_proto.round import Round, round_of
from demur_proto.study import Study, design_study
from demur_proto.v1 import analyst_pb2_grpc, collector_pb2_grpc
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_server.analyst import Analyst
from demur_server.collector.collector import Collector
from demur_server.grpc.serving import Ports, served
from demur_server.store.memory import MemoryStore
from store_kit import PostgresServer, postgres_server, quick_folder

Ask = Callable[..., Defined[Round]]


@pytest.fixture
def study() -> Defined[Study]:
    """A contract under which two reports make a release; words up to about 26,000 grid steps."""
    return define_study(
        design_study(
            name="test",
            epsilon=1.0,
            delta=1e-6,
            answers=3,
            minimum_cohort=2,
            grid_exponent=-7,
            maximum_dimension=1 << 20,
        )
    )


@pytest.fixture
def ask(study: Defined[Study]) -> Ask:
    """A round of the study: its number, what `Linear` takes, and when it closes."""

    def asked(number: int, *, close_unix_ms: int = 0, **changes: Any) -> Defined[Round]:
        query = Linear(**{"features": [Feature(name="x")], "on_grid": True, **changes})
        return define_round(round_of(study, query, number=number, close_unix_ms=close_unix_ms))

    return asked


@pytest.fixture
async def collector(study: Defined[Study]) -> Collector:
    """A collector that has the study."""
    made = Collector(MemoryStore(), open_access=True)
    await made.create_study(study.definition)
    return made


@pytest.fixture
async def ports(collector: Collector) -> AsyncIterator[Ports]:
    """The collector on loopback."""
    async with served(collector, drain_s=0.1) as listening:
        yield listening


@pytest.fixture
async def channel(ports: Ports) -> AsyncIterator[grpc.aio.Channel]:
    """To the devices' port."""
    async with connected(f"127.0.0.1:{ports.collector}") as made:
        yield made


@pytest.fixture
def devices(channel: grpc.aio.Channel) -> "collector_pb2_grpc.CollectorAsyncStub":
    """The devices' stub."""
    return collector_pb2_grpc.CollectorStub(channel)


@pytest.fixture
async def analysts(ports: Ports) -> "AsyncIterator[analyst_pb2_grpc.AnalystAsyncStub]":
    """The analysts' stub."""
    async with connected(f"127.0.0.1:{ports.analyst}") as made:
        yield analyst_pb2_grpc.AnalystStub(made)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def quick_path() -> Iterator[Path]:
    """Like `tmp_path`, where a sync costs nothing if the machine has such a place."""
    with quick_folder() as folder:
        yield folder


@pytest.fixture
async def analyst(ports: Ports, study: Defined[Study]) -> AsyncIterator[Analyst]:
    async with Analyst.create(f"127.0.0.1:{ports.analyst}", study.value, answer_after_ms=0) as made:
        yield made
