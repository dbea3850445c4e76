"""Ledgers of other versions: older ones go on, newer ones are left alone."""

import hashlib
import json
import sqlite3
from pathlib import Path

import pytest

from demur_client.ledger import schema
from demur_client.ledger.base import Settled
from demur_client.ledger.reading import LedgerCopy
from demur_proto.errors import StateError, UnsupportedError
from home_kit import CHARGE_AT, SECRET, STUDY, Home, execute
from ledger_kit import FULL, answer, ask, spent_of


def test_a_ledger_of_a_newer_version_is_refused_and_left_alone(home: Home) -> None:
    home.answer(1)
    execute("PRAGMA user_version = 9")(home)
    content = home.path.read_bytes()

    with pytest.raises(UnsupportedError, match="has version 9, and this demur knows 3"):
        home.ledger()
    with pytest.raises(UnsupportedError):
        LedgerCopy(home.path)

    assert home.path.read_bytes() == content
    execute("PRAGMA user_version = 1")(home)
    with home.ledger() as ledger:
        assert ledger.trusted


def test_another_database_is_refused_and_left_alone(home: Home) -> None:
    execute("CREATE TABLE mine (x)")(home)
    content = home.path.read_bytes()

    with pytest.raises(StateError, match="not a device's ledger"):
        home.ledger()

    assert home.path.read_bytes() == content


def write_version_1(path: Path) -> None:
    """The first version's file, by hand: this must be readable for ever."""
    round_hash, words = ask(STUDY, 1).hash, b"\x01\x02\x03\x04"
    sealed = (
        *(b"\x0a\x20", round_hash, b"\x12\x10", bytes(16)),  # fields 1 and 2 of a Report
        *(b"\x1a\x04", words),
    )
    report = b"".join(sealed)
    bodies: list[tuple[str, dict[str, object]]] = [
        ("made", {"secret": SECRET.hex(), "start": bytes(32).hex(), "doubt": ""}),
        (
            "identified",
            {
                "identity": {
                    "target": "collector.example:8750",
                    "certificate": None,
                    "nonce": bytes(16).hex(),
                    "credential": {"device_id": bytes(16).hex(), "secret": SECRET.hex()},
                }
            },
        ),
        ("agreed", {"definition": STUDY.definition.hex()}),
        (
            "charged",
            {
                "study_hash": STUDY.hash.hex(),
                "number": 1,
                "round_hash": round_hash.hex(),
                "definition": ask(STUDY, 1).definition.hex(),
                "report_id": bytes(16).hex(),
                "report_digest": hashlib.sha256(report).hexdigest(),
                "charge": 5 * ask(STUDY, 1).value.weight,
                "wanted": 5 * ask(STUDY, 1).value.weight,
                "given": True,
                "shrunk": False,
                "refused": False,
                "covered": False,
                "change": None,
                "planned": 0,
                "held": 0,
                "at_unix_ms": 1_700_000_000_000,
                "note": "",
            },
        ),
    ]
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(
        "CREATE TABLE changes (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, salt BLOB,"
        " body BLOB, cover BLOB NOT NULL, link BLOB NOT NULL, sealed BLOB)"
    )
    link = bytes(32)
    for number, (kind, fields) in enumerate(bodies, start=1):
        salt, body = bytes([number]) * 16, json.dumps(fields).encode()
        cover = hashlib.sha256(salt + kind.encode() + b"\0" + body).digest()
        chained = b"demur.ledger.v1\0" + link + number.to_bytes(8, "big") + cover
        link = hashlib.sha256(chained).digest()
        connection.execute(
            "INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?, ?)",
            (number, kind, salt, body, cover, link, report if kind == "charged" else None),
        )
    connection.execute("PRAGMA user_version = 1")
    connection.execute("PRAGMA application_id = 1684368757")
    connection.close()


def test_a_ledger_of_version_1_is_read_and_goes_on(home: Home) -> None:
    write_version_1(home.path)

    with home.ledger() as ledger:
        assert ledger.trusted
        assert spent_of(ledger, STUDY) == 5
        (report,) = ledger.unsettled(STUDY.hash)
        assert (report.round_hash, report.words) == (ask(STUDY, 1).hash, b"\x01\x02\x03\x04")
        assert ledger.identity is not None
        assert ledger.identity.credential is not None
        assert ledger.identity.credential.secret == SECRET
        ledger.settle(report.report_id, Settled.ACKED)
        answer(ledger, ask(STUDY, 2))
    with home.ledger() as ledger:
        assert ledger.trusted
        assert spent_of(ledger, STUDY) == FULL + 5


def test_an_answer_in_a_file_of_version_3_is_bytes_as_the_docs_say(home: Home) -> None:
    home.answer(1)

    connection = sqlite3.connect(home.path)
    kind, body, sealed = connection.execute(
        "SELECT kind, body, sealed FROM changes WHERE sealed NOT NULL"
    ).fetchone()
    assert connection.execute("PRAGMA user_version").fetchone() == (3,)
    connection.close()

    asked = ask(STUDY, 1)
    cost, at = FULL * asked.value.weight, body[CHARGE_AT + 40 : CHARGE_AT + 48]
    amounts = (cost, cost, 0, 0, 0)
    expected = (
        *((1).to_bytes(4, "big"), STUDY.hash, asked.hash, body[68:84]),
        *(hashlib.sha256(sealed).digest(), b"".join(each.to_bytes(8, "big") for each in amounts)),
        *(at, b"\x01", bytes(240), asked.definition),
    )
    assert (kind, body) == ("answered", b"".join(expected))


def test_a_round_that_was_begun_is_bytes_as_the_docs_say(home: Home) -> None:
    with home.ledger() as ledger:
        ledger.agree(STUDY)
        ledger.begin(ask(STUDY, 7))

    connection = sqlite3.connect(home.path)
    (row,) = connection.execute("SELECT body, sealed FROM changes WHERE kind = 'begun'").fetchall()
    connection.close()

    assert row == ((7).to_bytes(4, "big") + STUDY.hash + ask(STUDY, 7).hash, None)


def test_a_ledger_of_version_2_is_read_and_goes_on(home: Home) -> None:
    home.answer(1)  # without a round that was begun: as version 2 wrote it
    execute("PRAGMA user_version = 2")(home)

    with pytest.raises(UnsupportedError, match="start the device once"):
        LedgerCopy(home.path)
    with home.ledger() as ledger:
        assert ledger.trusted
        assert spent_of(ledger, STUDY) == FULL
        assert ledger.begin(ask(STUDY, 2))
    with home.ledger() as ledger:
        assert ledger.trusted
        assert not ledger.begin(ask(STUDY, 2))


def test_a_history_over_both_versions_is_told_in_one(home: Home) -> None:
    write_version_1(home.path)

    with home.ledger() as ledger:
        answer(ledger, ask(STUDY, 2))
        told = [(row.number, row.given, row.definition) for row in ledger.history(STUDY.hash)]

    assert told == [(number, True, ask(STUDY, number).definition) for number in (1, 2)]
    assert len(LedgerCopy(home.path).history(STUDY.hash)) == 2


def test_older_tables_are_brought_to_the_newest_version_in_one_step(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_version_1(home.path)
    later = (*schema.STEPS, "CREATE TABLE later (x)", "ALTER TABLE later ADD COLUMN y")
    monkeypatch.setattr(schema, "STEPS", later)

    with pytest.raises(UnsupportedError, match="start the device once"):
        LedgerCopy(home.path)
    with home.ledger() as ledger:
        assert ledger.trusted
        assert spent_of(ledger, STUDY) == 5

    connection = sqlite3.connect(home.path)
    assert connection.execute("PRAGMA user_version").fetchone() == (5,)
    assert connection.execute("SELECT x, y FROM later").fetchall() == []
    connection.close()


def test_a_migration_that_fails_leaves_the_older_version(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_version_1(home.path)
    connection = schema.connect(home.path)
    steps = (*schema.STEPS, "CREATE TABLE later (x)", "CREATE TABLE changes (x)")

    with pytest.raises(sqlite3.OperationalError), schema.changing(connection):
        schema.migrate(connection, 1, steps)

    assert schema.version_of(connection, home.path) == 1
    assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (1,)
    connection.close()
