"""What a store says and does when its disk, its file or its database fails it: nothing is lost."""

import logging
import os
import re
import shutil
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import numpy as np
import psycopg
import pytest

from demur_proto.errors import (
    DemurError,
    ParameterError,
    StateError,
    StorageError,
    UnsupportedError,
)
from demur_server.estimates import make_release
from demur_server.store import clerk, migrating, writer
from demur_server.store.base import Batch, Counted
from demur_server.store.durable import DurableStore
from demur_server.store.postgres import PostgresDatabase
from demur_server.store.schema import HEAD, metadata
from demur_server.store.sqlite import SqliteDatabase, connect
from store_kit import (
    ACCEPTED,
    DUPLICATE,
    STUDY,
    TRY_LATER,
    Crash,
    Fuse,
    PostgresPlace,
    PostgresServer,
    SqlitePlace,
    a_round,
    batch,
    random_batch,
    sent,
)

ASKED = a_round(STUDY)


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


async def with_round(store: DurableStore) -> DurableStore:
    await store.add_study(STUDY)
    await store.add_round(ASKED, sums_length=2)
    return store


async def settle(store: DurableStore, reports: Batch) -> list[int]:
    """Send again whatever is to be sent later, until it is not."""
    with anyio.fail_after(10):
        while True:
            told = await store.admit(ASKED.hash, reports)
            if TRY_LATER not in told:
                return told
            assert set(told) == {TRY_LATER}  # all of a batch or nothing
            await anyio.sleep(0.005)


def alarms(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def is_one_clear_line(error: BaseException) -> bool:
    return "\n" not in str(error) and 10 < len(str(error)) < 250


# ---- the disk --------------------------------------------------------------------------------


async def fill_and_recover(
    store: DurableStore, make_room: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Hand in reports until the disk is full; then make room, and send the rest again."""
    rng = np.random.default_rng(1)
    accepted: list[Batch] = []
    later: list[Batch] = []
    while len(later) < 3:
        reports = random_batch(rng, 500, dimension=2)
        told = await store.admit(ASKED.hash, reports)
        assert told in ([ACCEPTED] * 500, [TRY_LATER] * 500)
        (accepted if told[0] == ACCEPTED else later).append(reports)
        await anyio.sleep(0.02)  # time for another attempt to get it back
    assert accepted
    with pytest.raises(StorageError):
        await store.add_round(a_round(STUDY, 2, dimension=1 << 15), sums_length=1 << 15)

    make_room()
    for reports in accepted:
        assert await settle(store, reports) == [DUPLICATE] * 500
    for reports in later:
        assert await settle(store, reports) == [ACCEPTED] * 500

    counted = 500 * (len(accepted) + len(later))
    assert (await store.totals(ASKED.hash)).sums.tolist() == [counted, counted]
    lines = alarms(caplog)
    assert lines[0].startswith("the store is in trouble: ")
    assert lines[-1].startswith("the store is back: ")
    assert all("\n" not in line for line in lines)


async def test_a_database_that_may_not_grow_is_a_try_later_and_loses_nothing(
    sqlite_place: SqlitePlace, caplog: pytest.LogCaptureFixture
) -> None:
    pages = [60]

    def limited(path: Path) -> sqlite3.Connection:
        made = connect(path)
        made.execute(f"PRAGMA max_page_count = {pages[0]}")
        return made

    await (await sqlite_place.open()).close()
    store = await DurableStore.open(SqliteDatabase(sqlite_place.path, connection=limited))
    await with_round(store)

    def make_room() -> None:
        pages[0] = 100_000

    await fill_and_recover(store, make_room, caplog)

    # An attempt that fails like the one before is not worth a line, and reading proves nothing.
    assert [line.split(":")[0] for line in alarms(caplog)] == [
        "the store is in trouble",
        "the store is back",
    ]
    assert "full" in alarms(caplog)[0]
    await store.close()


async def test_a_file_that_the_system_lets_grow_no_more_is_a_try_later_and_loses_nothing(
    store: DurableStore, caplog: pytest.LogCaptureFixture
) -> None:
    resource = pytest.importorskip("resource")  # Windows has none
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
    try:
        await fill_and_recover(
            store, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard)), caplog
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def as_nobody(folder: Path) -> Iterator[None]:
    """Without the rights of root, whom no permission stops; the folder is nobody's own."""
    if os.geteuid() != 0:
        yield
        return
    nobody = 65534
    for each in [folder, *folder.rglob("*")]:
        os.chown(each, nobody, nobody)
    for parent in folder.parents:
        if parent.stat().st_uid == 0 and parent != parent.parent and not parent.stat().st_mode & 1:
            parent.chmod(parent.stat().st_mode | 0o011)
    os.seteuid(nobody)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(sys.platform == "win32", reason="folders there are not read-only")
async def test_a_read_only_folder_is_said_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    folder.chmod(0o500)

    with as_nobody(folder):
        for path in (folder / "store.sqlite", folder / "deeper" / "store.sqlite"):
            with pytest.raises(StorageError, match=r"no store can be kept in .*: Permission") as at:
                await DurableStore.open(SqliteDatabase(path))
            assert is_one_clear_line(at.value)


@pytest.mark.skipif(sys.platform == "win32", reason="files there are owned otherwise")
async def test_a_read_only_file_is_said_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    path = folder / "store.sqlite"
    await (await DurableStore.open(SqliteDatabase(path))).close()
    path.chmod(0o400)

    with as_nobody(folder), pytest.raises(StorageError, match=r"Permission denied|readonly") as at:
        await DurableStore.open(SqliteDatabase(path))

    assert is_one_clear_line(at.value)


@pytest.mark.skipif(sys.platform == "win32", reason="no modes there")
async def test_nobody_else_can_read_the_store(tmp_path: Path) -> None:
    path = tmp_path / "made" / "store.sqlite"
    store = await with_round(await DurableStore.open(SqliteDatabase(path)))
    await store.admit(ASKED.hash, batch(sent(1)))

    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o077 for each in path.parent.iterdir()} == {0}
    await store.close()


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

    assert len(sources) > 15
    for name, source in sources.items():
        if name != "side_door.py":
            assert not re.search(r"datetime|time\.time\b|now\(\)|TIMESTAMP", source), name
