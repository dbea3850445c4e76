"""`demur admin`, on stores that were filled by a collector, and beside one that runs."""

import argparse
import csv
import io
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import grpc
import numpy as np
import pytest

from demur_client.connection import connected
from demur_proto.asking import next_round
from demur_proto.credentials import read_credential, read_token
from demur_proto.definition import Defined, define_round, define_study
from demur_proto.errors import (
    AccessError,
    DemurError,
    NotFoundError,
    ParameterError,
    StateError,
    StorageError,
)
from demur_proto.round import Feature
from demur_proto.study import Study
from demur_proto.v1 import release_pb2, report_pb2
from demur_proto.words import encode_words
from demur_server.admin import make_tokens
from demur_server.admin_command import add_commands
from demur_server.analyst import Analyst
from demur_server.backup import back_up
from demur_server.collector import Collector
from demur_server.data_folder import credential_file
from demur_server.keys import KeyFolder
from demur_server.store.base import Store
from demur_server.store.durable import DurableStore
from demur_server.store.packing import checksum
from demur_server.store.postgres import PostgresDatabase
from demur_server.store.side_door import sqlite_door
from demur_server.store.sqlite import SqliteDatabase
from demur_server.verifying import Verified, verify
from serve_kit import answer, enrolled, serving
from store_kit import STUDY, PostgresServer, a_round, random_batch

Capture = pytest.CaptureFixture[str]
Admin = Callable[..., tuple[int, str]]
REPORTS = {1: (5, 6, 7), 2: (1,), 3: (1000, 2000, 3000)}  #: words by round; the third stays open
REPORT_ID, DEVICE = b"\xaa", b"\xbb"


@pytest.fixture
def admin(capsys: Capture) -> Admin:
    """Run a command: its exit status, and what it printed."""

    def run(*words: str) -> tuple[int, str]:
        parser = argparse.ArgumentParser(prog="demur")
        add_commands(parser.add_subparsers())
        options = parser.parse_args(["admin", *words])
        capsys.readouterr()
        status = options.run(options)
        told = capsys.readouterr()
        assert told.err == ""
        return status, told.out

    return run


@asynccontextmanager
async def filled(store: Store, keys: Path, study: Defined[Study]) -> AsyncIterator[Collector]:
    """A collector that released one round, withheld the next, and has the third open."""
    collector = Collector(store, keys=KeyFolder(keys))
    await collector.create_study(study.definition)
    try:
        for number, words in REPORTS.items():
            feature = Feature(name="active", parameters={"period": float(number)})
            asked = define_round(next_round(study, [feature], number=number, on_grid=True))
            await collector.open_round(asked.definition)
            await collector.intake.submit(
                asked.hash,
                b"".join(REPORT_ID * 15 + bytes([who]) for who in range(len(words))),
                encode_words(np.array(words).reshape(-1, 1), asked.value.word_type),
                devices=b"".join(DEVICE * 15 + bytes([who]) for who in range(len(words))),
            )
            if number < 3:
                await collector.close_round(asked.hash)
        yield collector
    finally:
        await store.close()


@pytest.fixture
async def folder(tmp_path: Path, study: Defined[Study]) -> Path:
    """A data folder whose collector has stopped."""
    made = tmp_path / "data"
    made.mkdir(mode=0o700)
    store = await DurableStore.open(SqliteDatabase(made / "store.sqlite"))
    async with filled(store, made / "keys", study):
        pass
    return made


@pytest.fixture
async def database(
    postgres: PostgresServer, tmp_path: Path, study: Defined[Study]
) -> tuple[str, str]:
    """The configuration of a collector on PostgreSQL that has stopped, and its address."""
    conninfo = postgres.new_database()
    store = await DurableStore.open(PostgresDatabase(conninfo))
    async with filled(store, tmp_path / "pg/keys", study):
        pass
    config = tmp_path / "postgres.toml"
    config.write_text(f"folder = 'pg'\n[store]\npostgres = {json.dumps(conninfo)}")
    return str(config), conninfo


def spoil(folder: Path, statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(folder / "store.sqlite", isolation_level=None)) as connection:
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(statement, values)


# ---- looking ---------------------------------------------------------------------------------


def check_lists(admin: Admin, study: Defined[Study], *where: str) -> None:
    _, studies = admin("studies", "--json", *where)
    _, rounds = admin("rounds", "--json", *where)
    _, releases = admin("releases", "--json", *where)

    [line] = json.loads(studies)
    assert (line["study"], line["name"]) == (study.hash.hex(), "test")
    assert [line[key] for key in ("rounds", "open", "releases", "withheld")] == [3, 1, 1, 1]
    lines = json.loads(rounds)
    assert [each["state"] for each in lines] == ["released", "withheld", "open"]
    assert [each["reports"] for each in lines] == [3, 1, 3]
    assert lines[2]["asks"] == "sum: active period=3"
    published, withheld = json.loads(releases)
    assert (published["round"], published["sums"]) == (1, [18])
    assert published["estimate"] == [18 / 128]
    assert "zero-out" in published["guarantee"]
    assert (withheld["withheld"], withheld["half_width"]) == ("below_minimum_cohort", [])


def test_studies_rounds_and_releases_are_listed(
    admin: Admin, folder: Path, study: Defined[Study]
) -> None:
    where = ("--folder", str(folder))

    check_lists(admin, study, *where)
    _, table = admin("rounds", *where)
    _, releases = admin("releases", *where)

    assert [line.split()[0] for line in table.splitlines()[:2]] == ["study", study.hash.hex()[:16]]
    assert "active period=2" in table
    assert "withheld: below minimum cohort" in releases


def test_the_same_is_listed_from_postgresql(
    admin: Admin, database: tuple[str, str], study: Defined[Study]
) -> None:
    config, _ = database

    check_lists(admin, study, "--config", config)
    status, said = admin("verify", "--config", config)

    assert status == 0
    assert "1 studies, 3 rounds (1 open), 2 releases, 7 reports" in said


@pytest.mark.parametrize("wanted", ["test", "hash"])
def test_a_study_is_meant_by_its_name_or_its_hash(
    wanted: str, admin: Admin, folder: Path, study: Defined[Study]
) -> None:
    meant = study.hash.hex()[:8] if wanted == "hash" else wanted

    _, rounds = admin("rounds", "--json", "--folder", str(folder), "--study", meant)

    assert len(json.loads(rounds)) == 3
    with pytest.raises(NotFoundError, match=r"there is no study 'other'; the store has 1"):
        admin("rounds", "--folder", str(folder), "--study", "other")


def test_an_export_holds_the_releases_and_nothing_else(
    admin: Admin, folder: Path, study: Defined[Study]
) -> None:
    _, text = admin("export", "--folder", str(folder))
    _, as_json = admin("export", "--format", "json", "--folder", str(folder))

    first, second = csv.DictReader(io.StringIO(text))
    assert (first["round"], first["sum"], first["reports"]) == ("1", "18", "3")
    assert float(first["estimate"]) == 18 / 128
    assert (second["round"], second["withheld"]) == ("2", "below_minimum_cohort")
    assert (second["sum"], second["estimate"]) == ("", "")
    assert [each["round"] for each in json.loads(as_json)] == [1, 2]


def test_no_command_shows_an_id_or_what_an_open_or_withheld_round_adds_up(
    admin: Admin, folder: Path
) -> None:
    where = ("--folder", str(folder))
    told = ""
    for part in ("studies", "rounds", "releases", "credentials", "verify", "export"):
        for more in ([], ["--json"]):
            told += admin(part, *where, *more)[1]

    assert (REPORT_ID * 15).hex() not in told
    assert (DEVICE * 15).hex() not in told
    assert str(sum(REPORTS[3])) not in told
    assert str(sum(REPORTS[3]) / 128) not in told


# ---- verify ----------------------------------------------------------------------------------


def test_a_store_as_its_collector_left_it_is_sound(admin: Admin, folder: Path) -> None:
    status, said = admin("verify", "--json", "--folder", str(folder))

    found = json.loads(said)
    assert status == 0
    assert found["sound"]
    assert (found["studies"], found["rounds"], found["open_rounds"]) == (1, 3, 1)
    assert (found["releases"], found["reports"], found["problems"]) == (2, 7, [])
    assert found["notes"] == []


def test_an_open_round_without_its_key_is_noted(admin: Admin, folder: Path) -> None:
    [key] = (folder / "keys/rounds").iterdir()
    key.unlink()

    status, said = admin("verify", "--json", "--folder", str(folder))

    assert status == 0
    [note] = json.loads(said)["notes"]
    assert "open without its digest key; it can only be closed" in note


OPEN = "(SELECT id FROM rounds WHERE NOT closed)"


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (f"UPDATE totals SET reports = 4 WHERE round_id = {OPEN}", "damaged"),
        ("UPDATE totals SET sums = zeroblob(length(sums)) WHERE length(sums)", "damaged"),
        ("UPDATE commits SET records = zeroblob(length(records))", "is damaged"),
        ("DELETE FROM commits", "counts 3 reports, and records 0"),
        ("UPDATE rounds SET closed = 1", "damaged"),
        ("UPDATE studies SET definition = x'0a0141'", "study 1: "),
        ("UPDATE studies SET hash = zeroblob(32)", "definition is not what its hash says"),
        ("UPDATE rounds SET definition = x'0a0141' WHERE number = 3", "round 3"),
        ("UPDATE releases SET message = x'0a0141' WHERE round_id = 1", "release of round 1 is dam"),
        ("DELETE FROM totals WHERE round_id = 2", "damaged"),
    ],
)
def test_what_was_changed_behind_the_back_of_a_collector_is_found(
    statement: str, said: str, admin: Admin, folder: Path
) -> None:
    spoil(folder, statement)

    status, told = admin("verify", "--folder", str(folder))

    assert status == 1
    assert any(said in line for line in told.splitlines() if line.startswith("problem: ")), told
    assert "is NOT sound: restore a backup" in told


def test_a_release_that_does_not_follow_from_its_sums_is_found(admin: Admin, folder: Path) -> None:
    with closing(sqlite3.connect(folder / "store.sqlite")) as connection:
        [(content,)] = connection.execute("SELECT message FROM releases WHERE round_id = 1")
    message = release_pb2.Release.FromString(content)
    message.estimate[0] += 1e-9
    forged = message.SerializeToString(deterministic=True)
    spoil(
        folder,
        "UPDATE releases SET message = ?, checksum = ? WHERE round_id = 1",
        forged,
        checksum(forged, 1),
    )

    status, told = admin("verify", "--folder", str(folder))

    assert status == 1
    assert "round 1 of study 1: its release does not follow from its sums" in told


def test_a_corrupt_page_is_found_or_ends_the_command_in_one_line(
    admin: Admin, folder: Path
) -> None:
    path = folder / "store.sqlite"
    content = bytearray(path.read_bytes())
    content[8192 * 3 : 8192 * 4] = b"\xff" * 8192
    path.write_bytes(content)

    try:
        status, told = admin("verify", "--folder", str(folder))
    except StorageError as error:
        status, told = 1, str(error)

    assert status == 1
    assert "restore a backup" in told


def test_there_has_to_be_a_store(admin: Admin, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"there is no store .*; demur serve makes one"):
        admin("studies", "--folder", str(tmp_path))

    assert list(tmp_path.iterdir()) == []


# ---- backup and restore ----------------------------------------------------------------------


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


# ---- beside a running collector --------------------------------------------------------------


def test_tokens_are_written_to_a_file_of_their_owner_and_over_nothing(
    admin: Admin, folder: Path, tmp_path: Path
) -> None:
    words = ("tokens", "--count", "3", "--out", str(tmp_path / "new"), "--folder", str(folder))

    status, said = admin(*words)[:2]

    tokens = (tmp_path / "new").read_text().splitlines()
    assert (status, len({read_token(each) for each in tokens})) == (0, 3)
    assert "demur_token" not in said
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600
    with pytest.raises(StateError, match="exists and is kept"):
        admin(*words)


async def until(condition: Callable[[], Any]) -> None:
    """Wait for what a running collector takes up within seconds."""
    with anyio.fail_after(6.0):
        while not await condition():  # noqa: ASYNC110  another process rings no bell
            await anyio.sleep(0.1)


async def test_beside_a_running_collector_everything_works_and_is_taken_up(
    admin: Admin, tmp_path: Path, study: Defined[Study]
) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup.sqlite"
    where = ("--folder", str(data))
    with serving(data) as server:
        made = admin("tokens", "--count", "2", *where)[1].split()
        device, other = await enrolled(server.devices, *map(read_token, made))
        analyst_text = admin("credential", "Ada", "--role", "analyst", *where)[1].strip()
        file = tmp_path / "gateway"
        admin("credential", "box", "--role", "gateway", "--out", str(file), *where)
        names = json.loads(admin("credentials", "--json", *where)[1])
        ada: Any = read_credential(analyst_text)

        async def ada_is_in() -> bool:
            try:
                async with Analyst.create(server.analysts, study.value, credential=ada):
                    return True
            except AccessError:
                return False

        async def ada_is_out() -> bool:
            return not await ada_is_in()

        await until(ada_is_in)
        async with (
            Analyst.resume(server.analysts, "test", credential=server.analyst) as analyst,
            connected(server.devices) as channel,
        ):
            asked = await analyst.open(Feature(name="active"), on_grid=True)
            first = await answer(channel, device, study, word=5)
            verified, _ = admin("verify", *where)
            admin("backup", str(backup), *where)
            rounds = json.loads(admin("rounds", "--json", *where)[1])
            admin("revoke", device.device_id.hex(), "--reason", "lost", *where)
            listed = json.loads(admin("devices", "--json", *where)[1])
            table = admin("devices", *where)[1]
            admin("credential", "Ada", "--remove", *where)

            async def device_is_out() -> bool:
                try:
                    await answer(channel, device, study, word=5)
                except grpc.aio.AioRpcError as error:
                    return error.code() is grpc.StatusCode.UNAUTHENTICATED
                return False

            await until(device_is_out)
            await until(ada_is_out)
            await answer(channel, other, study, word=6)
            release = await analyst.close(asked)
        with pytest.raises(
            StateError, match=r"a collector runs on .*; stop it, or restore into an"
        ):
            admin("restore", str(backup), *where)
        server.process.terminate()
        status, out, err = server.ended()

    assert len(set(made)) == 2
    assert file.stat().st_mode & 0o777 == 0o600
    assert {(each["name"], each["role"]) for each in names} == {
        ("Ada", "analyst"),
        ("analyst", "analyst"),
        ("box", "gateway"),
    }
    ids = sorted([device.device_id.hex(), other.device_id.hex()])
    revoked = {device.device_id.hex(): "lost", other.device_id.hex(): None}
    assert listed == [{"device": each, "revoked": revoked[each]} for each in ids]
    assert [line.split() for line in table.splitlines()] == [
        ["device", "revoked"],
        *([each, *([revoked[each]] if revoked[each] else [])] for each in ids),
    ]
    assert first == report_pb2.DISPOSITION_ACCEPTED
    assert verified == 0
    assert (rounds[0]["state"], rounds[0]["reports"]) == ("open", 1)
    assert release.sums.tolist() == [11]
    secrets = [*made, analyst_text, credential_file(data).read_text().strip()]
    assert not any(secret in out + err for secret in secrets)
    assert (status, out, err) == (0, "", "")


# ---- what is wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        (["tokens", "--count", "0"], ParameterError, r"^count must be an integer >= 1"),
        (["revoke", "zz", "--reason", "x"], ParameterError, "a device id: 32 hexadecimal digits"),
        (["revoke", "00" * 16, "--reason", "x"], NotFoundError, "there is no device 0000"),
        (["credential", "", "--role", "analyst"], ParameterError, r"^name must be 1 to 100"),
        (["credential", "nobody", "--remove"], NotFoundError, "there is no credential 'nobody'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    words: list[str], kind: type[DemurError], said: str, admin: Admin, folder: Path
) -> None:
    with pytest.raises(kind, match=said):
        admin(*words, "--folder", str(folder))


def test_a_name_is_given_once_and_a_file_is_never_overwritten(
    admin: Admin, folder: Path, tmp_path: Path
) -> None:
    where = ("--folder", str(folder))
    file = tmp_path / "kept"
    file.write_text("mine")
    admin("credential", "Ada", "--role", "analyst", *where)

    with pytest.raises(StateError, match="there is a credential 'Ada' already"):
        admin("credential", "Ada", "--role", "gateway", *where)
    with pytest.raises(StateError, match="exists and is kept"):
        admin("credential", "Bob", "--role", "gateway", "--out", str(file), *where)

    assert file.read_text() == "mine"
    assert [each["name"] for each in json.loads(admin("credentials", "--json", *where)[1])] == [
        "Ada"
    ]
