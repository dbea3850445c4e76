from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from demur_server.store import worker as clerk
from demur_server.store.durable import DurableStore
from fault_kit import with_round
from store_kit import PostgresPlace, PostgresServer, SqlitePlace


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long between attempts to get a database back."""
    monkeypatch.setattr(clerk, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(clerk, "LAST_RETRY_S", 0.02)


@pytest.fixture
def sqlite_place(tmp_path: Path) -> SqlitePlace:
    return SqlitePlace(tmp_path)


@pytest.fixture(scope="module")
def postgres_place(postgres: PostgresServer) -> PostgresPlace:
    return PostgresPlace(postgres)


@pytest.fixture
async def store(sqlite_place: SqlitePlace) -> AsyncIterator[DurableStore]:
    made = await with_round(await sqlite_place.open())
    yield made
    await made.close()
