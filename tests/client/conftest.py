from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from agent_kit import STUDY
from demur_client.connection import connected
from demur_server.collector.collector import Collector
from demur_server.grpc.serving import served
from demur_server.store.memory import MemoryStore
from home_kit import Home


@pytest.fixture
async def collector() -> Collector:
    made = Collector(MemoryStore(), open_access=True)
    await made.create_study(STUDY.definition)
    return made


@pytest.fixture
async def channel(collector: Collector) -> AsyncIterator[grpc.aio.Channel]:
    async with (
        served(collector, drain_s=0.1) as ports,
        connected(f"127.0.0.1:{ports.collector}") as made,
    ):
        yield made


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)
