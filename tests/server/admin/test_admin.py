"""`demur admin` on a store that nobody else has: looking, verifying, and what is wrong."""

import csv
import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from admin_kit import DEVICE, REPORT_ID, REPORTS, Admin, spoil
from demur_proto.errors import DemurError, NotFoundError, ParameterError, StateError, StorageError
from demur_proto.study import Study
from demur_proto.v1 import release_pb2
from demur_proto.wire.definition import Defined
from demur_server.store.link import checksum

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
