"""What a store says and does when its file is not what it was: nothing is lost."""

import shutil
import sqlite3
from pathlib import Path

import anyio
import numpy as np
import psycopg
import pytest

from demur_proto.errors import DemurError, StateError, StorageError, UnsupportedError
from demur_server.collector.estimates import make_release
from demur_server.store import migrating
from demur_server.store.base import Counted
from demur_server.store.durable import DurableStore
from demur_server.store.schema import HEAD, metadata
from demur_server.store.sqlite import SqliteDatabase
from fault_kit import ASKED, alarms, is_one_clear_line, with_round
from store_kit import ACCEPTED, STUDY, TRY_LATER, PostgresPlace, SqlitePlace, a_round, batch, sent

# ---- the file --------------------------------------------------------------------------------


async def test_a_second_owner_of_a_file_is_refused_at_once_and_the_first_not_disturbed(
    store: DurableStore, sqlite_place: SqlitePlace
) -> None:
    with anyio.fail_after(1), pytest.raises(StateError, match="in use by another") as refused:
        await sqlite_place.open()

    assert is_one_clear_line(refused.value)
    assert await store.admit(ASKED.hash, batch(sent(1))) == [ACCEPTED]
    await store.close()
    again = await sqlite_place.open()
    assert await again.counted(ASKED.hash) == Counted(reports=1, conflicts=0, closed=False)
    await again.close()


@pytest.mark.parametrize("content", [b"not a database, " * 100, b"SQLite format 3\0" + b"?" * 999])
async def test_a_file_that_is_no_database_is_said_in_one_line_and_left_alone(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(content)

    with pytest.raises(StorageError, match=r"store\.sqlite.*restore a backup") as refused:
        await DurableStore.open(SqliteDatabase(path))

    assert is_one_clear_line(refused.value)
    assert path.read_bytes() == content


async def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE releases (version TEXT)")
    other.close()

    with pytest.raises(UnsupportedError, match="has tables of something else") as refused:
        await DurableStore.open(SqliteDatabase(path))

    assert is_one_clear_line(refused.value)
    with sqlite3.connect(path) as other:
        tables = other.execute("SELECT name FROM sqlite_master").fetchall()
    other.close()
    assert tables == [("releases",)]


async def test_a_newer_schema_is_refused_in_one_line(
    sqlite_place: SqlitePlace, postgres_place: PostgresPlace
) -> None:
    await (await sqlite_place.open()).close()
    await (await postgres_place.open()).close()
    with sqlite3.connect(sqlite_place.path) as raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.close()
    with postgres_place.admin() as admin:
        admin.execute("UPDATE alembic_version SET version_num = '9999'")

    try:
        for place in (sqlite_place, postgres_place):
            with pytest.raises(UnsupportedError, match="has schema 9999, which this ver") as at:
                await place.open()
            assert is_one_clear_line(at.value)
    finally:
        with postgres_place.admin() as admin:
            admin.execute(f"UPDATE alembic_version SET version_num = '{HEAD}'")
    await (await postgres_place.open()).close()


async def test_the_migrations_arrive_at_the_schema_that_the_code_speaks_of(
    sqlite_place: SqlitePlace, postgres_place: PostgresPlace
) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory

    assert ScriptDirectory(str(migrating.VERSIONS)).get_current_head() == HEAD
    for place in (sqlite_place, postgres_place):
        store = await place.open()
        differences = await store._do(
            lambda link: compare_metadata(MigrationContext.configure(link.sql), metadata)
        )
        await store.close()

        assert differences == []


@pytest.mark.parametrize("place_of", ["sqlite_place", "postgres_place"])
async def test_the_database_itself_refuses_to_reopen_a_round_or_to_change_a_release(
    place_of: str, request: pytest.FixtureRequest
) -> None:
    place = request.getfixturevalue(place_of)
    store = await with_round(await place.open())
    await store.close_round(ASKED.hash)
    await store.add_release(make_release(STUDY, ASKED, [3, 4], reports=2))
    await store.close()

    for statement, complaint in [
        ("UPDATE rounds SET closed = false", "a closed round never opens again"),
        ("UPDATE releases SET checksum = 0", "a release never changes"),
        ("DELETE FROM releases", "a release never changes"),
    ]:
        if isinstance(place, PostgresPlace):
            with place.admin() as admin, pytest.raises(psycopg.Error, match=complaint):
                admin.execute(statement)
        else:
            with sqlite3.connect(place.path) as raw, pytest.raises(sqlite3.Error, match=complaint):
                raw.execute(statement)
            raw.close()
    place.clear()


# ---- damage ----------------------------------------------------------------------------------

OTHER = a_round(STUDY, 2)
RELEASE = make_release(STUDY, OTHER, [3, 4], reports=2)


async def everything(store: DurableStore) -> object:
    """All that a collector learns from a store."""
    totals = [await store.totals(asked.hash) for asked in (ASKED, OTHER)]
    told = await store.admit(ASKED.hash, batch(*map(sent, range(200))))
    if TRY_LATER in told:
        raise StorageError("the store says to try later")
    return (
        told,
        await store.studies(),
        await store.rounds(),
        [(each.reports, each.conflicts, each.sums.tolist(), each.closed) for each in totals],
        await store.releases(STUDY.hash),
    )


async def test_a_damaged_page_is_an_error_in_one_line_or_has_no_effect_at_all(
    sqlite_place: SqlitePlace, tmp_path: Path
) -> None:
    store = await with_round(await sqlite_place.open())
    await store.add_round(OTHER, sums_length=2)
    for who in range(0, 200, 20):
        await store.admit(ASKED.hash, batch(*map(sent, range(who, who + 20))))
    await store.admit(ASKED.hash, batch(sent(1, digest=2)))
    await store.admit(OTHER.hash, batch(sent(1), sent(2)))
    await store.close_round(OTHER.hash)
    await store.add_release(RELEASE)
    truth = await everything(store)
    await store.close()
    intact = sqlite_place.path.read_bytes()
    size = 8192
    rng = np.random.default_rng(7)
    errors: list[DemurError] = []

    for page in range(len(intact) // size):
        for damage in ("zeros", "noise", "one bit", "one bit", "one bit"):
            damaged = bytearray(intact)
            start = page * size + (100 if page == 0 else 0)  # the file's header is another test's
            if damage == "one bit":
                used = [at for at in range(start, (page + 1) * size) if damaged[at]]
                damaged[int(rng.choice(used or [start]))] ^= 1 << int(rng.integers(8))
            else:
                length = (page + 1) * size - start
                damaged[start : start + length] = (
                    bytes(length) if damage == "zeros" else rng.bytes(length)
                )
            path = tmp_path / "damaged" / "store.sqlite"
            shutil.rmtree(path.parent, ignore_errors=True)
            path.parent.mkdir()
            path.write_bytes(damaged)
            try:
                store = await DurableStore.open(SqliteDatabase(path))
            except DemurError as error:
                errors.append(error)
                continue
            try:
                assert await everything(store) == truth, (page, damage)
            except StorageError as error:
                errors.append(error)
            finally:
                await store.close()

    assert len(errors) > 20
    assert all(map(is_one_clear_line, errors))


async def test_damage_found_while_running_is_a_try_later_and_one_alarm(
    store: DurableStore, sqlite_place: SqlitePlace, caplog: pytest.LogCaptureFixture
) -> None:
    await store.admit(ASKED.hash, batch(sent(1)))
    with sqlite3.connect(sqlite_place.path) as raw:
        raw.execute("UPDATE totals SET seq = 7")  # as no collector would
    raw.close()

    told = [await store.admit(ASKED.hash, batch(sent(2))) for _ in range(3)]

    assert told == [[TRY_LATER]] * 3
    assert alarms(caplog)[0].startswith("the store is in trouble: somebody else has written")
    await anyio.sleep(0.03)
    assert await store.admit(ASKED.hash, batch(sent(2))) == [TRY_LATER]
    assert "round 1 is damaged in the store; restore a backup" in caplog.text
