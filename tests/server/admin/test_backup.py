"""Backups come back without what must not, and over nothing."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from admin_kit import Admin, filled, spoil
from demur_proto.errors import StateError, StorageError
from demur_proto.study import Study
from demur_proto.v1 import report_pb2
from demur_proto.wire.definition import Defined, define_study
from demur_server.admin.admin import make_tokens
from demur_server.admin.backup import back_up
from demur_server.admin.verifying import Verified, verify
from demur_server.collector.collector import Collector
from demur_server.collector.keys import KeyFolder
from demur_server.store.durable import DurableStore
from demur_server.store.inspect import sqlite_door
from demur_server.store.postgres import PostgresDatabase
from demur_server.store.sqlite import SqliteDatabase
from store_kit import STUDY, PostgresServer, a_round, random_batch


async def released(store: DurableStore, keys: Path, study: Defined[Study]) -> list[Any]:
    collector = Collector(store, keys=KeyFolder(keys))
    try:
        await collector.refresh()
        return await store.releases(study.hash)
    finally:
        await store.close()


async def test_a_backup_comes_back_without_what_must_not(
    admin: Admin, folder: Path, study: Defined[Study], tmp_path: Path
) -> None:
    admin("tokens", "--count", "2", "--folder", str(folder))
    backup, back = tmp_path / "backup.sqlite", tmp_path / "back"
    before = [
        each.message().SerializeToString(deterministic=True)
        for each in await released(
            await DurableStore.open(SqliteDatabase(folder / "store.sqlite")), folder / "keys", study
        )
    ]

    _, copied = admin("backup", str(backup), "--folder", str(folder))
    _, said = admin("restore", str(backup), "--folder", str(back), "--json")

    restored = json.loads(said)
    assert "without keys" in copied
    assert backup.stat().st_mode & 0o777 == 0o600
    assert (folder / "keys/master.key").exists() is False  # this collector never enrolled anybody
    assert (restored["voided_rounds"], restored["dropped_tokens"]) == (1, 2)
    assert (restored["studies"], restored["rounds"], restored["releases"]) == (1, 3, 2)
    assert sorted(each.name for each in back.iterdir()) == ["keys", "store.sqlite"]
    # What was open may have been released since: here it is withheld, and stays so.
    store = await DurableStore.open(SqliteDatabase(back / "store.sqlite"))
    after = await released(store, back / "keys", study)
    assert [each.message().SerializeToString(deterministic=True) for each in after[:2]] == before
    assert (after[2].reports, after[2].withheld.value) == (0, "below_minimum_cohort")
    assert admin("verify", "--folder", str(back))[0] == 0


async def test_postgresql_is_copied_into_a_file_and_comes_back_to_either(
    admin: Admin,
    database: tuple[str, str],
    postgres: PostgresServer,
    study: Defined[Study],
    tmp_path: Path,
) -> None:
    config, _ = database
    backup = tmp_path / "backup.sqlite"
    other = postgres.new_database()
    elsewhere = tmp_path / "elsewhere.toml"
    elsewhere.write_text(f"folder = 'back'\n[store]\npostgres = {json.dumps(other)}")

    admin("backup", str(backup), "--config", config)
    admin("restore", str(backup), "--folder", str(tmp_path / "file"))
    _, said = admin("restore", str(backup), "--config", str(elsewhere), "--json")

    restored = json.loads(said)
    assert restored["voided_rounds"] == 1
    for where in (["--folder", str(tmp_path / "file")], ["--config", str(elsewhere)]):
        assert admin("verify", *where)[0] == 0
        _, releases = admin("releases", "--json", *where)
        assert [each["sums"] for each in json.loads(releases)] == [[18], []]
    # Numbers that the database gives go on after those that came back.
    store = await DurableStore.open(PostgresDatabase(other))
    async with filled(store, tmp_path / "more/keys", _renamed(study, restored["mark"])):
        pass
    assert len(json.loads(admin("studies", "--json", "--config", str(elsewhere))[1])) == 2
    (tmp_path / "third").mkdir()
    with pytest.raises(StateError, match="holds a store; name an empty database"):
        admin("restore", str(backup), "--config", str(elsewhere))


async def test_copies_made_while_reports_are_counted_are_each_of_one_moment(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    path = tmp_path / "store.sqlite"
    store = await DurableStore.open(SqliteDatabase(path))
    asked = a_round(STUDY)
    await store.add_study(STUDY)
    await store.add_round(asked, sums_length=2)
    await store.admit(asked.hash, random_batch(rng, 100, 2))
    copied: list[Verified] = []
    counted = 100

    def beside() -> None:
        for copy in (tmp_path / "one", tmp_path / "two", tmp_path / "three"):
            with sqlite_door(path) as door:
                make_tokens(door, count=10)
                back_up(door, copy)
            with sqlite_door(copy) as door, door.looking() as sql:
                copied.append(verify(sql, keys_folder=None))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, beside)
        while len(copied) < 3:
            dispositions = await store.admit(asked.hash, random_batch(rng, 100, 2))
            assert set(dispositions) == {report_pb2.DISPOSITION_ACCEPTED}
            counted += 100
    await store.close()

    assert [each.problems for each in copied] == [(), (), ()]
    assert 100 <= copied[0].reports <= copied[2].reports <= counted


def _renamed(study: Defined[Study], mark: str) -> Defined[Study]:
    return define_study(replace(study.value, name=f"another {mark}"))


def test_nothing_is_restored_over_anything(admin: Admin, folder: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup.sqlite"
    admin("backup", str(backup), "--folder", str(folder))

    with pytest.raises(StateError, match=r"holds .* and is kept; restore into an empty folder"):
        admin("restore", str(backup), "--folder", str(folder))
    with pytest.raises(StateError, match="exists and is kept"):
        admin("backup", str(backup), "--folder", str(folder))


def test_a_damaged_backup_is_refused_and_leaves_nothing(
    admin: Admin, folder: Path, tmp_path: Path
) -> None:
    backup, back = tmp_path / "backup.sqlite", tmp_path / "back"
    spoil(folder, "DELETE FROM commits")
    admin("backup", str(backup), "--folder", str(folder))

    with pytest.raises(StorageError, match=r"the backup .* is damaged: .* records 0"):
        admin("restore", str(backup), "--folder", str(back))

    assert [each.name for each in back.iterdir()] == ["keys"]
