"""What a store says and does when its database or its thread fails it: nothing is lost."""

import re
from pathlib import Path

import anyio
import numpy as np
import pytest

from demur_proto.errors import ParameterError, StorageError
from demur_server.store import worker as clerk
from demur_server.store import worker as writer
from demur_server.store.base import Batch
from demur_server.store.durable import DurableStore
from demur_server.store.postgres import PostgresDatabase
from fault_kit import ASKED, alarms, is_one_clear_line, settle, with_round
from store_kit import (
    ACCEPTED,
    DUPLICATE,
    TRY_LATER,
    Crash,
    Fuse,
    PostgresPlace,
    PostgresServer,
    SqlitePlace,
    batch,
    random_batch,
    sent,
)

# ---- PostgreSQL gone and back ----------------------------------------------------------------


async def test_a_database_gone_and_back_loses_nothing(
    postgres: PostgresServer, postgres_place: PostgresPlace, caplog: pytest.LogCaptureFixture
) -> None:
    postgres_place.clear()
    store = await with_round(await postgres_place.open())
    await store.admit(ASKED.hash, batch(sent(1)))

    postgres.stop()
    try:
        with anyio.fail_after(5):
            gone = [await store.admit(ASKED.hash, batch(sent(who))) for who in (1, 2, 2)]
            with pytest.raises(StorageError, match="the store is in trouble: ") as refused:
                await store.studies()
            with pytest.raises(StorageError, match="is out of reach: ") as at_start:
                await postgres_place.open()
    finally:
        postgres.start()
    back = await settle(store, batch(sent(1), sent(2), sent(3)))

    assert gone == [[TRY_LATER]] * 3
    assert is_one_clear_line(refused.value)
    assert is_one_clear_line(at_start.value)
    assert back == [DUPLICATE, ACCEPTED, ACCEPTED]
    assert (await store.totals(ASKED.hash)).sums.tolist() == [3, 3]
    assert all("\n" not in line for line in alarms(caplog))
    assert alarms(caplog)[-1].startswith("the store is back: PostgreSQL demur")
    await store.close()


async def test_sessions_that_are_cut_off_again_and_again_lose_nothing_and_double_nothing(
    postgres_place: PostgresPlace,
) -> None:
    postgres_place.clear()
    store = await with_round(await postgres_place.open())
    outcomes: list[list[int]] = []

    async def hand_in(rng: np.random.Generator) -> None:
        for _ in range(12):
            outcomes.append(await settle(store, random_batch(rng, 20, dimension=2)))

    async with anyio.create_task_group() as cutting:

        async def cut() -> None:
            while True:
                await anyio.sleep(0.02)
                await anyio.to_thread.run_sync(postgres_place.end_sessions)

        cutting.start_soon(cut)
        async with anyio.create_task_group() as tasks:
            for rng in np.random.default_rng(5).spawn(8):
                tasks.start_soon(hand_in, rng)
        cutting.cancel_scope.cancel()

    # A commit that was cut off may have been kept: then its reports come back as duplicates.
    assert all(each in ([ACCEPTED] * 20, [DUPLICATE] * 20) for each in outcomes)
    with anyio.fail_after(10):
        while True:
            try:
                totals = await store.totals(ASKED.hash)
                break
            except StorageError:
                await anyio.sleep(0.01)
    assert totals.sums.tolist() == [8 * 12 * 20] * 2
    await store.close()


async def fsync_of(place: PostgresPlace) -> object:
    with place.admin() as admin:
        [setting] = admin.execute("SHOW fsync").fetchone() or (None,)
    return setting


async def test_a_database_that_does_not_sync_is_refused(
    postgres_place: PostgresPlace, postgres: PostgresServer
) -> None:
    with postgres_place.admin() as admin:
        admin.execute("ALTER SYSTEM SET fsync = off")
        admin.execute("SELECT pg_reload_conf()")
    try:
        with anyio.fail_after(5):
            while await fsync_of(postgres_place) == "on":  # noqa: ASYNC110  it rings no bell
                await anyio.sleep(0.01)
        with pytest.raises(StorageError, match="fsync off") as refused:
            await postgres_place.open()
    finally:
        with postgres_place.admin() as admin:
            admin.execute("ALTER SYSTEM RESET fsync")
            admin.execute("SELECT pg_reload_conf()")

    assert is_one_clear_line(refused.value)


async def test_commits_are_synchronous_whatever_the_default_is(
    postgres_place: PostgresPlace,
) -> None:
    with postgres_place.admin() as admin:
        name = admin.info.dbname
        admin.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    store = await postgres_place.open()
    setting = await store._do(
        lambda link: link.sql.exec_driver_sql("SHOW synchronous_commit").scalar()
    )
    await store.close()

    assert setting == "on"


async def test_no_password_is_said(caplog: pytest.LogCaptureFixture) -> None:
    database = PostgresDatabase("postgresql://anna:hunter2@127.0.0.1:1/reports")

    with pytest.raises(StorageError, match=r"PostgreSQL reports at 127\.0\.0\.1 is out") as refused:
        await DurableStore.open(database)

    assert is_one_clear_line(refused.value)
    assert "hunter2" not in str(refused.value) + caplog.text + database.name + repr(database)
    with pytest.raises(ParameterError, match="database must be") as mistaken:
        PostgresDatabase("postgresql://anna:hunter2@[oops")
    assert "hunter2" not in str(mistaken.value)


# ---- the thread ------------------------------------------------------------------------------


@pytest.mark.parametrize("statement", [1, 2, 3, 4])
async def test_a_process_that_ends_in_the_middle_has_told_nobody(
    sqlite_place: SqlitePlace, statement: int
) -> None:
    fuse = Fuse()
    store = await with_round(await sqlite_place.open(fuse=fuse))
    await store.admit(ASKED.hash, batch(sent(1)))
    fuse.set(statement, after=False, error=Crash())

    with pytest.raises(StorageError, match="the store has stopped"):
        await store.admit(ASKED.hash, batch(sent(2)))
    with pytest.raises(StorageError, match="the store is closed"):
        await store.admit(ASKED.hash, batch(sent(3)))
    await sqlite_place.crash(store)
    store = await sqlite_place.open()

    assert await store.admit(ASKED.hash, batch(sent(1), sent(2))) == [DUPLICATE, ACCEPTED]
    await store.close()


async def test_a_bug_stays_a_traceback_and_harms_nothing_else(store: DurableStore) -> None:
    await store.admit(ASKED.hash, batch(sent(1)))
    good = batch(sent(2))

    def wrong(rows: object) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        raise TypeError("a bug")

    bad = Batch(
        report_ids=good.report_ids,
        digests=good.digests,
        devices=good.devices,
        words=good.words,
        tally=wrong,
        capacity=9,
    )

    with pytest.raises(TypeError, match="a bug"):
        await store.admit(ASKED.hash, bad)

    assert await settle(store, batch(sent(1), sent(2))) == [DUPLICATE, ACCEPTED]
    assert (await store.totals(ASKED.hash)).sums.tolist() == [2, 2]


async def test_more_work_than_can_wait_is_put_off(
    store: DurableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "WAITING_REPORTS", 50)
    told: list[list[int]] = []

    async def hand_in(who: int) -> None:
        told.append(await store.admit(ASKED.hash, batch(*map(sent, range(who, who + 10)))))

    async with anyio.create_task_group() as tasks:
        for who in range(0, 200, 10):
            tasks.start_soon(hand_in, who)

    assert told.count([TRY_LATER] * 10) >= 10
    assert told.count([ACCEPTED] * 10) == 20 - told.count([TRY_LATER] * 10)
    assert (await store.counted(ASKED.hash)).reports == 10 * told.count([ACCEPTED] * 10)


async def test_a_closed_store_takes_nothing_and_closes_again(store: DurableStore) -> None:
    await store.close()

    with pytest.raises(StorageError, match="the store is closed"):
        await store.studies()
    await store.close()


def test_no_store_looks_at_a_clock_to_decide_anything() -> None:
    """Only how long to wait is measured, and by a clock that cannot be set."""
    folder = Path(clerk.__file__).parent
    sources = {path.name: path.read_text(encoding="utf-8") for path in folder.rglob("*.py")}

    assert len(sources) > 10
    for name, source in sources.items():
        if name != "inspect.py":
            assert not re.search(r"datetime|time\.time\b|now\(\)|TIMESTAMP", source), name
