import pytest

from chunk_kit import LARGE, STUDY
from demur_server.collector.collector import Collector
from demur_server.store.memory import MemoryStore


@pytest.fixture
async def collector() -> Collector:
    made = Collector(MemoryStore(), open_access=True)
    await made.create_study(STUDY.definition)
    await made.open_round(LARGE.definition)
    return made
