"""A ledger that is not what it was: old, missing, damaged or cut off."""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from demur_client.ledger.base import Identity
from demur_client.ledger.counter import FileCounter
from demur_client.ledger.reading import LedgerCopy
from demur_proto.errors import StorageError
from home_kit import CHARGE, CHARGE_AT, SECRET, STUDY, Home, execute
from ledger_kit import FULL, answer, ask, quick_folder, spent_of, study_of


def expect_doubt(home: Home, doubt: str) -> None:
    """It answers as ever, but nothing that costs anything, now and later."""
    for number in (7001, 7002):
        with home.ledger() as ledger:
            assert not ledger.trusted
            assert doubt in ledger.doubt
            ledger.agree(STUDY)
            assert ledger.remaining_units(STUDY.hash) == 0
            paid = answer(ledger, ask(STUDY, number), 1)
            free = answer(ledger, ask(STUDY, number + 10), 0)
            rows = ledger.history(STUDY.hash)[-2:]
            assert [(row.charge, row.given) for row in rows] == [(0, False), (0, True)]
            assert {paid.report_id, free.report_id} <= {
                report.report_id for report in ledger.unsettled(STUDY.hash)
            }


# ---- rolled back -----------------------------------------------------------------------------


def test_an_old_copy_of_the_folder_regains_nothing(home: Home, tmp_path: Path) -> None:
    home.answer(1)
    home.copy_to(tmp_path / "backup")
    home.answer(2)

    home.copy_from(tmp_path / "backup")

    expect_doubt(home, "an older ledger")
    with home.ledger() as ledger:
        assert ledger.secret == SECRET  # so that reports keep their ids
        assert ledger.studies() == [STUDY]


def test_whatever_copy_is_put_back_and_however_often_nothing_is_regained(
    home: Home, tmp_path: Path
) -> None:
    backups = []
    for number in range(1, 5):
        home.answer(number)
        backups.append(tmp_path / f"backup-{number}")
        home.copy_to(backups[-1])

    for backup in (backups[-1], *backups[:-1], backups[-1]):
        home.copy_from(backup)
        with home.ledger() as ledger:
            newest = backup is backups[-1] and ledger.trusted
            assert ledger.remaining_units(STUDY.hash) == 0
            assert newest or not ledger.trusted


def test_the_same_copy_as_the_newest_is_believed(home: Home, tmp_path: Path) -> None:
    home.answer(1, 2)
    home.copy_to(tmp_path / "backup")

    home.copy_from(tmp_path / "backup")

    with home.ledger() as ledger:
        assert ledger.trusted
        assert spent_of(ledger, STUDY) == 2 * FULL


def test_another_continuation_of_the_same_past_is_not_the_newest(
    home: Home, tmp_path: Path
) -> None:
    # Two ledgers of as many changes: the counter's digest tells which it was.
    home.answer(1)
    home.copy_to(tmp_path / "past")
    before = Path(tmp_path / "counter").read_bytes()
    with home.ledger() as ledger:
        answer(ledger, ask(STUDY, 2), 0)  # costs nothing
    home.copy_to(tmp_path / "cheap")
    home.copy_from(tmp_path / "past")
    (tmp_path / "counter").write_bytes(before)
    home.answer(2)

    home.copy_from(tmp_path / "cheap")

    expect_doubt(home, "an older ledger")


def test_a_counter_that_was_set_back_is_noticed(home: Home, tmp_path: Path) -> None:
    home.answer(1)
    before = (tmp_path / "counter").read_bytes()
    home.answer(2, 3)

    (tmp_path / "counter").write_bytes(before)

    expect_doubt(home, "an older ledger")


def test_a_change_that_the_counter_was_not_told_of_is_confirmed_at_the_next_start(
    home: Home, tmp_path: Path
) -> None:
    home.answer(1)
    before = (tmp_path / "counter").read_bytes()
    home.answer(2)
    (tmp_path / "counter").write_bytes(before)  # as if it had crashed in between

    with home.ledger() as ledger:
        assert ledger.trusted
        assert spent_of(ledger, STUDY) == 2 * FULL
    assert (tmp_path / "counter").read_bytes() != before


def test_a_ledger_gets_a_counter_later_and_is_held_to_it(tmp_path: Path) -> None:
    home = Home(tmp_path, counted=False)
    home.answer(1)
    home.counter = FileCounter(tmp_path / "counter")
    home.answer(2)
    home.copy_to(tmp_path / "backup")
    home.answer(3)

    home.copy_from(tmp_path / "backup")

    expect_doubt(home, "an older ledger")


def test_while_the_counter_fails_nothing_leaves(home: Home, tmp_path: Path) -> None:
    with home.ledger() as ledger:
        ledger.agree(STUDY)
        before = (tmp_path / "counter").read_bytes()
        (tmp_path / "counter").unlink()
        (tmp_path / "counter").mkdir()

        for use in (
            lambda: answer(ledger, ask(STUDY, 1)),  # it is kept, and yet not given out
            lambda: answer(ledger, ask(STUDY, 1)),
            lambda: ledger.unsettled(STUDY.hash),
            lambda: ledger.sealed(STUDY.hash, 1),
        ):
            with pytest.raises(StorageError, match="counter"):
                use()

        (tmp_path / "counter").rmdir()
        (tmp_path / "counter").write_bytes(before)
        report = answer(ledger, ask(STUDY, 1))
        assert spent_of(ledger, STUDY) == FULL
    with home.ledger() as ledger:
        assert ledger.trusted
        assert list(ledger.unsettled(STUDY.hash)) == [report]


# ---- gone ------------------------------------------------------------------------------------


def gone(home: Home) -> None:
    home.path.unlink()


def emptied(home: Home) -> None:
    home.path.write_bytes(b"")


def without_folder(home: Home) -> None:
    shutil.rmtree(home.folder)
    home.folder.mkdir()


@pytest.mark.parametrize("lose", [gone, emptied, without_folder])
def test_a_ledger_that_is_gone_counts_as_spent(home: Home, lose: Callable[[Home], None]) -> None:
    home.answer(1)

    lose(home)

    expect_doubt(home, "gone")


@pytest.mark.parametrize("lose", [gone, emptied])
def test_without_a_counter_the_lock_remembers_that_there_was_one(
    tmp_path: Path, lose: Callable[[Home], None]
) -> None:
    home = Home(tmp_path, counted=False)
    home.answer(1)

    lose(home)

    expect_doubt(home, "gone")


def test_a_first_ledger_is_believed(home: Home) -> None:
    home.answer(1)

    with home.ledger() as ledger:
        assert ledger.trusted
        assert ledger.doubt == ""


# ---- damaged ---------------------------------------------------------------------------------


def change_at(trace: bytes) -> Callable[[Home], None]:
    def damage(home: Home) -> None:
        content = bytearray(home.path.read_bytes())
        content[content.rindex(trace)] ^= 1
        home.path.write_bytes(content)

    damage.__name__ = f"change_at_{trace[:12].decode()}"
    return damage


def cut_off(at: float) -> Callable[[Home], None]:
    def damage(home: Home) -> None:
        os.truncate(home.path, int(at * home.path.stat().st_size))

    damage.__name__ = f"cut_off_at_{at:.0%}"
    return damage


def other_words(home: Home) -> None:
    home.path.write_text("this is no database " * 1000)


def lower_charge(home: Home) -> None:
    connection = sqlite3.connect(home.path, isolation_level=None)
    (body,) = connection.execute("SELECT body FROM changes WHERE kind = 'answered'").fetchone()
    charge = CHARGE.unpack_from(body, CHARGE_AT)[0]
    assert charge > 0
    body = body[:CHARGE_AT] + CHARGE.pack(charge - 1) + body[CHARGE_AT + CHARGE.size :]
    connection.execute("UPDATE changes SET body = ? WHERE kind = 'answered'", (body,))
    connection.close()


DAMAGES = [
    other_words,
    *map(change_at, (b"SQLite format 3", b'"secret"', b'"definition"', b"answered")),
    *map(cut_off, (0.01, 0.4, 0.9)),
    lower_charge,
    execute("DELETE FROM changes WHERE number = (SELECT max(number) - 1 FROM changes)"),
    execute("UPDATE changes SET kind='emptied', salt=NULL, body=NULL WHERE kind='answered'"),
    execute("UPDATE changes SET salt = NULL WHERE number = 3"),
    execute("UPDATE changes SET link = zeroblob(32) WHERE number = 3"),
    execute("UPDATE changes SET kind = 'doubted' WHERE number = 3"),
    execute("DELETE FROM changes"),
    execute("DELETE FROM changes WHERE number = 1"),
    execute("UPDATE changes SET sealed = NULL"),
    execute("UPDATE changes SET sealed = zeroblob(40) WHERE sealed NOT NULL"),
    execute("DROP TABLE changes"),
    execute("PRAGMA user_version = 0"),
]


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__[:60])
def test_a_damaged_ledger_counts_as_spent_and_is_set_aside(
    tmp_path: Path, damage: Callable[[Home], None], counted: bool
) -> None:
    home = Home(tmp_path, counted=counted)
    home.answer(1, 2)

    damage(home)

    expect_doubt(home, "damaged")
    assert "ledger.aside-1" in home.names()


def test_wherever_a_file_is_damaged_nothing_is_regained(tmp_path: Path) -> None:
    folder = quick_folder(tmp_path)
    with tempfile.TemporaryDirectory(dir=folder) as kept:
        home = Home(Path(kept), counted=False)
        home.answer(1, 2)
        home.copy_to(Path(kept) / "whole")
        whole = home.path.read_bytes()
        trusted = 0
        for start in range(100, len(whole), 512):
            home.copy_from(Path(kept) / "whole")
            content = bytearray(whole)
            content[start : start + 48] = bytes(48)
            home.path.write_bytes(content)

            with home.ledger() as ledger:
                trusted += ledger.trusted
                left = 1 if ledger.trusted else 0  # of three answers
                ledger.agree(STUDY)
                assert (
                    ledger.remaining_units(STUDY.hash) // ask(STUDY, 1).value.weight >> 28 == left
                )

    assert 0 < trusted < len(range(100, len(whole), 512))  # or free space, where nothing is


def test_cutting_the_last_change_off_is_only_known_to_the_counter(tmp_path: Path) -> None:
    cut = execute("DELETE FROM changes WHERE number = (SELECT max(number) FROM changes)")
    for counted in (True, False):
        folder = tmp_path / f"counted-{counted}"
        folder.mkdir()
        home = Home(folder, counted=counted)
        home.answer(1, 2)

        cut(home)

        with home.ledger() as ledger:
            assert ledger.trusted is not counted


def test_what_can_be_saved_of_a_damaged_ledger_is(home: Home) -> None:
    identity = Identity(target="collector.example:8750", nonce=bytes(16))
    with home.ledger() as ledger:
        ledger.agree(STUDY)
        ledger.agree(study_of(name="forgotten"))
        ledger.keep_identity(identity)
        ledger.forget(study_of(name="forgotten").hash)
        answer(ledger, ask(STUDY, 1))
    execute("UPDATE changes SET sealed = NULL")(home)

    with home.ledger() as ledger:
        assert ledger.secret == SECRET
        assert ledger.identity == identity
        assert ledger.studies() == [STUDY]
        ledger.agree(study_of(name="forgotten"))
        assert ledger.remaining_units(study_of(name="forgotten").hash) == 0
    assert LedgerCopy(home.path).doubt == "the ledger was damaged"


def test_forgetting_removes_what_was_set_aside(home: Home) -> None:
    home.answer(1)
    execute("UPDATE changes SET sealed = NULL")(home)

    with home.ledger() as ledger:
        assert any("aside" in name for name in home.names())
        ledger.forget()

    assert not any("aside" in name for name in home.names())


def test_looking_at_a_damaged_ledger_changes_nothing(home: Home) -> None:
    home.answer(1)
    execute("UPDATE changes SET sealed = NULL")(home)
    content = home.path.read_bytes()

    with pytest.raises(StorageError, match="damaged"):
        LedgerCopy(home.path)

    assert home.path.read_bytes() == content
    assert not any("aside" in name for name in home.names())
