"""Models in a store: kept for the rounds that name them, and forgotten."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from demur_proto.errors import NotFoundError, StorageError
from demur_proto.models.definition import DefinedModel
from demur_proto.queries import Feature, Linear
from demur_proto.round import Round, round_of
from demur_proto.wire.definition import Defined, define_round
from demur_server.admin.overview import round_lines
from demur_server.store.base import MOST_WAITING, Store
from demur_server.store.durable import DurableStore
from demur_server.store.inspect import sqlite_door
from demur_server.store.sqlite import SqliteDatabase
from model_kit import COUNTS, MODEL, STUDY, a_model, asking, counting
from store_kit import MemoryPlace, Place, PostgresPlace, PostgresServer, SqlitePlace


async def test_whoever_looks_at_rounds_sees_which_model_they_are_about(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    made = await DurableStore.open(SqliteDatabase(path))
    await made.add_study(STUDY)
    await keep(made, MODEL)
    await made.add_study(COUNTS)
    for asked in (asking(MODEL, 1), counting(MODEL, 1)):
        await made.add_round(asked, sums_length=asked.value.query.dimension)  # type: ignore[attr-defined]
    await made.close()

    with sqlite_door(path) as door, door.looking() as sql:
        lines = round_lines(sql)

    named = MODEL.hash.hex()[:16]
    assert [each.asks for each in lines] == [
        f"gradient: model {named}",
        f"error count: model {named}",
    ]
    assert [each.estimates for each in lines] == [6, 1]


# ---- stores ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def databases(postgres: PostgresServer) -> PostgresPlace:
    """One database for all tests of this module, emptied between them."""
    return PostgresPlace(postgres)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def place(request: pytest.FixtureRequest, quick_path: Path) -> Place:
    if request.param == "postgres":
        database: PostgresPlace = request.getfixturevalue("databases")
        database.clear()
        return database
    return SqlitePlace(quick_path) if request.param == "sqlite" else MemoryPlace()


@pytest.fixture
async def store(place: Place) -> AsyncIterator[Store]:
    made = await place.open()
    for study in (STUDY, COUNTS):
        await made.add_study(study)
    yield made
    await made.close()


async def keep(store: Store, *models: DefinedModel) -> None:
    for model in models:
        await store.add_model(model.hash, model.definition)


async def open_round(store: Store, asked: Defined[Round]) -> None:
    await store.add_round(asked, sums_length=6)


async def kept(store: Store, *models: DefinedModel) -> list[bool]:
    return [await store.model(model.hash) == model.definition for model in models]


async def test_a_model_is_kept_until_the_last_open_round_about_it_closes(store: Store) -> None:
    await keep(store, MODEL, MODEL)
    first, second = asking(MODEL, 1), counting(MODEL, 1)
    await open_round(store, first)
    await open_round(store, second)
    await open_round(store, second)

    await store.close_round(first.hash)
    between = await kept(store, MODEL)
    await store.close_round(second.hash)
    await store.close_round(second.hash)

    assert between == [True]
    assert await store.model(MODEL.hash) is None
    await open_round(store, first)  # again, it changes nothing


async def test_no_round_opens_about_a_model_that_is_not_kept(store: Store) -> None:
    for asked in (asking(MODEL), counting(MODEL)):
        with pytest.raises(
            NotFoundError, match=r"there is no model [0-9a-f]{16}; publish it first"
        ):
            await open_round(store, asked)

    assert await store.rounds() == []


async def test_of_models_without_a_round_the_newest_stay(store: Store) -> None:
    models = [a_model(number) for number in range(MOST_WAITING + 3)]
    await keep(store, models[0])
    await open_round(store, asking(models[0]))

    await keep(store, *models[1:])

    assert await kept(store, *models) == [True, False, False, *[True] * MOST_WAITING]


async def test_a_restart_keeps_the_models_of_open_rounds(place: Place, store: Store) -> None:
    if not place.durable:
        return
    await keep(store, MODEL, a_model(1))
    await open_round(store, asking(MODEL))
    await place.crash(store)

    again = await place.open()
    found = await kept(again, MODEL, a_model(1))
    await again.close_round(asking(MODEL).hash)
    after = await again.model(MODEL.hash)
    await again.close()

    assert found == [True, True]
    assert after is None


async def test_a_store_from_before_there_were_models_goes_on(quick_path: Path) -> None:
    place = SqlitePlace(quick_path)
    store = await place.open()
    await store.add_study(STUDY)
    linear = define_round(round_of(STUDY, Linear([Feature(name="x")]), number=1))
    await store.add_round(linear, sums_length=1)
    await store.close()
    raw = sqlite3.connect(place.path)
    with raw:
        raw.execute("DROP TABLE models")
        raw.execute("ALTER TABLE rounds DROP COLUMN model_hash")
        raw.execute("UPDATE alembic_version SET version_num = '0001'")
    raw.close()

    store = await place.open()
    await keep(store, MODEL)
    await open_round(store, asking(MODEL, 2))
    rounds = [(each.round_hash, each.closed) for each in await store.rounds()]
    await store.close_round(linear.hash)
    found = await kept(store, MODEL)
    await store.close()

    assert rounds == [(linear.hash, False), (asking(MODEL, 2).hash, False)]
    assert found == [True]


async def test_a_damaged_model_is_not_handed_out(quick_path: Path) -> None:
    place = SqlitePlace(quick_path)
    store = await place.open()
    await keep(store, MODEL)
    await store.close()
    raw = sqlite3.connect(place.path)
    with raw:
        raw.execute("UPDATE models SET definition = x'00'")
    raw.close()

    store = await place.open()
    with pytest.raises(StorageError, match="a model is damaged in the store; restore a backup"):
        await store.model(MODEL.hash)
    await store.close()
