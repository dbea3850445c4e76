"""What a collector that came back from a backup refuses, so that nothing is released twice."""

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import psycopg
import pytest

from demur_proto.errors import DemurError, NotFoundError, StateError, StorageError
from demur_proto.queries import Feature, Linear
from demur_proto.round import Round, round_of
from demur_proto.study import Study
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_proto.wire.words import encode_words
from demur_server.admin.admin import make_credential, make_tokens, revoke
from demur_server.admin.backup import Restored, back_up, restore_file, restore_postgres
from demur_server.admin.overview import round_lines, study_lines
from demur_server.admin.verifying import verify
from demur_server.collector.collector import Collector
from demur_server.collector.keys import KeyFolder
from demur_server.grpc.access import Enrolment, hash_secret, new_token
from demur_server.store.base import Role
from demur_server.store.durable import DurableStore
from demur_server.store.inspect import postgres_door, sqlite_door
from demur_server.store.postgres import PostgresDatabase
from demur_server.store.schema import metadata
from demur_server.store.sqlite import SqliteDatabase
from store_kit import PostgresServer

Ask = Callable[..., Defined[Round]]


@asynccontextmanager
async def collecting(folder: Path) -> AsyncIterator[Collector]:
    """A collector on the store in a folder, as `demur serve` would run it."""
    store = await DurableStore.open(SqliteDatabase(folder / "store.sqlite"))
    collector = Collector(store, keys=KeyFolder(folder / "keys"))
    try:
        await collector.refresh()
        yield collector
    finally:
        await store.close()


async def report(collector: Collector, asked: Defined[Round], *words: int) -> list[int]:
    """One report of each device, always the same bytes for the same word."""
    return await collector.intake.submit(
        asked.hash,
        b"".join(word.to_bytes(16) for word in words),
        encode_words(np.array(words).reshape(-1, 1), asked.value.word_type),
        devices=b"".join(word.to_bytes(16)[::-1] for word in words),
    )


def copied(folder: Path, name: str = "backup.sqlite") -> Path:
    with sqlite_door(folder / "store.sqlite") as door:
        back_up(door, folder.with_name(name))
    return folder.with_name(name)


def marked(study: Defined[Study], restored: Restored) -> Defined[Study]:
    return define_study(replace(study.value, name=f"again {restored.mark}"))


async def test_a_round_that_was_released_since_the_backup_is_not_asked_again(
    tmp_path: Path, study: Defined[Study], ask: Ask
) -> None:
    """Released once of {1, 2} and once of {1, 2, 3}, it would say what 3 has sent."""
    async with collecting(tmp_path / "data") as collector:
        await collector.create_study(study.definition)
        backup = copied(tmp_path / "data")
        asked = await collector.open_round(ask(1).definition)
        await report(collector, asked, 1, 2)
        release = await collector.close_round(asked.hash)
    restored = restore_file(backup, tmp_path / "back/store.sqlite")

    async with collecting(tmp_path / "back") as collector:
        with pytest.raises(StateError, match="came back from a backup and has ended"):
            await collector.open_round(asked.definition)
        with pytest.raises(NotFoundError):
            await report(collector, asked, 1, 2, 3)

    assert release.sums.tolist() == [3]
    with sqlite_door(tmp_path / "back/store.sqlite") as door, door.looking() as sql:
        assert [(line.state, line.rounds) for line in study_lines(sql)] == [("ended", 0)]
    assert restored.voided_rounds == 0


async def test_a_study_that_was_made_since_the_backup_is_not_made_again(
    tmp_path: Path, study: Defined[Study], ask: Ask
) -> None:
    """The same study and round have the same hashes, so devices would send the same bytes."""
    async with collecting(tmp_path / "data") as collector:
        backup = copied(tmp_path / "data")
        await collector.create_study(study.definition)
    restored = restore_file(backup, tmp_path / "back/store.sqlite")
    new = marked(study, restored)

    async with collecting(tmp_path / "back") as collector:
        with pytest.raises(StateError, match=f"put {restored.mark} into the name of a new one"):
            await collector.create_study(study.definition)
        await collector.create_study(new.definition)
        await collector.create_study(new.definition)
        feature = Feature(name="x")
        asked = define_round(round_of(new, Linear([feature], on_grid=True), number=1))
        await collector.open_round(asked.definition)
        await report(collector, asked, 1, 2)
        release = await collector.close_round(asked.hash)

    assert release.sums.tolist() == [3]
    # Whoever comes back a second time needs the second mark.
    second = restore_file(copied(tmp_path / "back", "second.sqlite"), tmp_path / "two/store.sqlite")
    assert second.mark != restored.mark
    async with collecting(tmp_path / "two") as collector:
        with pytest.raises(StateError, match=second.mark):
            await collector.create_study(
                define_study(replace(new.value, name=f"third {restored.mark}")).definition
            )
        assert [each.hash for each in collector.studies()] == [new.hash]


async def test_an_open_round_comes_back_withheld_and_empty_and_its_study_ended(
    tmp_path: Path, study: Defined[Study], ask: Ask
) -> None:
    async with collecting(tmp_path / "data") as collector:
        await collector.create_study(study.definition)
        asked = await collector.open_round(ask(1).definition)
        await report(collector, asked, 1, 2)
        backup = copied(tmp_path / "data")
    restored = restore_file(backup, tmp_path / "back/store.sqlite")

    async with collecting(tmp_path / "back") as collector:
        late = await report(collector, asked, 1, 2, 3)
        release = await collector.release(asked.hash)
        again = await collector.open_round(asked.definition)  # it changes nothing

    assert (restored.voided_rounds, restored.studies, restored.rounds) == (1, 1, 1)
    assert (release.reports, release.sums.size, release.estimate.size) == (0, 0, 0)
    assert len(set(late)) == 1
    assert again == asked
    with sqlite_door(tmp_path / "back/store.sqlite") as door, door.looking() as sql:
        assert [(line.state, line.reports) for line in round_lines(sql)] == [("withheld", 0)]
        assert verify(sql, keys_folder=None).problems == ()


async def test_nobody_comes_back_who_may_have_been_shut_out_since(
    tmp_path: Path, study: Defined[Study]
) -> None:
    path, back, master = tmp_path / "store.sqlite", tmp_path / "back.sqlite", bytes(32)
    used, unused, later = new_token(), new_token(), new_token()
    nonce = bytes(16)
    store = await DurableStore.open(SqliteDatabase(path))
    for token in (used, unused):
        await store.add_token(hash_secret(token))
    early = await Enrolment(store, master_key=master).enrol(used, nonce)
    with sqlite_door(path) as door:
        make_credential(door, "gone since", role=Role.ANALYST)
        back_up(door, tmp_path / "backup.sqlite")
    await store.add_token(hash_secret(later))
    since = await Enrolment(store, master_key=master).enrol(later, nonce)
    await store.close()

    restored = restore_file(tmp_path / "backup.sqlite", back)

    assert (restored.dropped_tokens, restored.dropped_credentials) == (1, 1)
    store = await DurableStore.open(SqliteDatabase(back))
    enrolment = Enrolment(store, master_key=master)
    assert await enrolment.enrol(used, nonce) == early  # a lost answer is still given again
    for token in (unused, later):
        with pytest.raises(DemurError, match="not let in"):
            await enrolment.enrol(token, nonce)
    assert await store.credentials() == []
    # A device that was enrolled since is let in by the master key, so it can be revoked.
    with sqlite_door(back) as door:
        revoke(door, since.device_id.hex(), reason="sold")
        make_tokens(door, count=1)
    assert await store.revoked_devices() == {since.device_id: "sold"}
    await store.close()


async def test_the_database_itself_lets_no_ended_study_go_on(
    tmp_path: Path, study: Defined[Study]
) -> None:
    async with collecting(tmp_path / "data") as collector:
        await collector.create_study(study.definition)
    restore_file(copied(tmp_path / "data"), tmp_path / "back.sqlite")

    with (
        sqlite3.connect(tmp_path / "back.sqlite") as sql,
        pytest.raises(sqlite3.IntegrityError, match="a study that has ended never goes on"),
    ):
        sql.execute("UPDATE studies SET ended = 0")
    sql.close()


async def test_a_restore_that_stops_on_postgresql_leaves_nothing_to_be_served(
    tmp_path: Path, study: Defined[Study], ask: Ask, postgres: PostgresServer
) -> None:
    async with collecting(tmp_path / "data") as collector:
        await collector.create_study(study.definition)
        await report(collector, await collector.open_round(ask(1).definition), 1, 2)
        backup = copied(tmp_path / "data")
    conninfo = postgres.new_database()
    await (await DurableStore.open(PostgresDatabase(conninfo))).close()
    with psycopg.connect(conninfo, autocommit=True) as raw:  # the last step cannot be done
        raw.execute(
            "CREATE TRIGGER no BEFORE INSERT ON restores FOR EACH ROW"
            " EXECUTE FUNCTION demur_refuse('stopped')"
        )

    with pytest.raises(StorageError, match="cannot be restored: stopped"):
        restore_postgres(backup, conninfo)

    with postgres_door(conninfo) as door, door.looking() as sql:
        assert [
            table.name for table in metadata.sorted_tables if sql.execute(table.select()).all()
        ] == []
    with psycopg.connect(conninfo, autocommit=True) as raw:
        raw.execute("DROP TRIGGER no ON restores")
    restored = restore_postgres(backup, conninfo)
    assert restored.voided_rounds == 1
    store = await DurableStore.open(PostgresDatabase(conninfo))
    with pytest.raises(StateError, match=f"with {restored.mark} in its name"):
        await store.add_round(ask(2), sums_length=1)
    await store.add_study(marked(study, restored))
    with (
        psycopg.connect(conninfo, autocommit=True) as raw,
        pytest.raises(psycopg.Error, match="a study that has ended never goes on"),
    ):
        raw.execute("UPDATE studies SET ended = false WHERE ended")
    await store.close()
    with postgres_door(conninfo) as door:  # and once more, over the mark it has
        back_up(door, tmp_path / "second.sqlite")
    other = postgres.new_database()
    assert restore_postgres(tmp_path / "second.sqlite", other).mark != restored.mark


# ---- files -----------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """An empty store."""
    database = SqliteDatabase(tmp_path / "store.sqlite")
    database.connect().close()
    database.close()
    return tmp_path / "store.sqlite"


@pytest.mark.parametrize("end", ["-wal", "-shm", "-journal"])
def test_a_log_that_was_left_behind_is_not_taken_for_the_new_files(
    end: str, store: Path, tmp_path: Path
) -> None:
    with sqlite_door(store) as door:
        back_up(door, tmp_path / "backup.sqlite")
    (tmp_path / f"back.sqlite{end}").write_bytes(b"of a store that was removed")

    with pytest.raises(StateError, match=f"back.sqlite{end} exists and is kept"):
        restore_file(tmp_path / "backup.sqlite", tmp_path / "back.sqlite")

    assert not (tmp_path / "back.sqlite").exists()


def test_of_many_backups_into_one_file_one_is_made_and_whole(store: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup.sqlite"
    outcomes: list[str] = []

    def make() -> None:
        try:
            with sqlite_door(store) as door:
                back_up(door, backup)
            outcomes.append("made")
        except StateError:
            outcomes.append("kept")

    threads = [threading.Thread(target=make) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert sorted(outcomes) == ["kept"] * 7 + ["made"]
    with sqlite_door(backup) as door, door.looking() as sql:
        assert verify(sql, keys_folder=None).problems == ()
    # Connections that close at the same moment may each leave the store's log to the other.
    log = {"store.sqlite-shm", "store.sqlite-wal"}
    names = {each.name for each in tmp_path.iterdir()}
    assert names - log == {"backup.sqlite", "store.sqlite", "store.sqlite.lock"}


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_half_a_backup_is_refused_in_one_line_and_leaves_nothing(
    part: float, store: Path, tmp_path: Path
) -> None:
    backup = tmp_path / "backup.sqlite"
    with sqlite_door(store) as door:
        back_up(door, backup)
    content = backup.read_bytes()
    backup.write_bytes(content[: int(part * len(content))])

    with pytest.raises(StorageError, match=r"^the backup .* is damaged: .*; take an earlier one$"):
        restore_file(backup, tmp_path / "back/store.sqlite")

    assert not (tmp_path / "back").exists() or not list((tmp_path / "back").iterdir())


@pytest.mark.skipif(os.name != "posix", reason="has no such limit")
def test_a_disk_that_is_full_is_one_clear_line_and_leaves_nothing(
    store: Path, tmp_path: Path
) -> None:
    backup, back = tmp_path / "backup.sqlite", tmp_path / "back/store.sqlite"
    with sqlite_door(store) as door:
        back_up(door, backup)
    script = (
        "import resource, sys; from pathlib import Path\n"
        "from demur_proto.errors import StorageError\n"
        "from demur_server.admin.backup import back_up, restore_file\n"
        "from demur_server.store.inspect import sqlite_door\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))\n"
        "store, backup, back = map(Path, sys.argv[1:])\n"
        "for each in (lambda: restore_file(backup, back), lambda: back_up(door, back)):\n"
        "    with sqlite_door(store) as door:\n"
        "        try: each()\n"
        "        except StorageError as error: print(error)\n"
    )

    run = subprocess.run(
        [sys.executable, "-c", script, store, backup, back],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )

    lines = run.stdout.splitlines()
    assert (len(lines), run.stderr) == (2, "")
    assert all(f" cannot be copied to {back}: " in line for line in lines)
    assert list(back.parent.iterdir()) == []
