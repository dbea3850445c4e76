"""What a ledger promises, in memory and in a file alike."""

import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from demur_client.ledger.base import Identity, Ledger, Settled
from demur_client.ledger.file import LedgerFile
from demur_client.ledger.kept import MemoryLedger
from demur_client.ledger.reading import LedgerCopy
from demur_client.ledger.scope import Purse
from demur_proto.errors import NotFoundError, ParameterError, StateError, StorageError
from demur_proto.study import Policy
from demur_proto.transport.credentials import DeviceCredential
from demur_proto.v1.report_pb2 import Report
from ledger_kit import FULL, answer, ask, maker, spent_of, study_of

STUDY = study_of()
OTHER = study_of(name="other")
IDENTITY = Identity(
    target="collector.example:8750",
    certificate=b"-----BEGIN CERTIFICATE-----",
    nonce=bytes(range(16)),
    credential=DeviceCredential(device_id=bytes(16), secret=bytes(range(32))),
)
KINDS = ("memory", "file")


class Place:
    """Somewhere a ledger can be opened again; in memory it is simply kept."""

    def __init__(self, kind: str, path: Path) -> None:
        self.path = path
        self.kind = kind
        self._ledger: MemoryLedger | LedgerFile = (
            MemoryLedger() if kind == "memory" else LedgerFile(path)
        )
        self._ledger.agree(STUDY)

    def ledger(self) -> Ledger:
        return self._ledger

    def reopened(self) -> Ledger:
        if isinstance(self._ledger, LedgerFile):
            self._ledger.close()
            self._ledger = LedgerFile(self.path)
        return self._ledger

    def close(self) -> None:
        if isinstance(self._ledger, LedgerFile):
            self._ledger.close()


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = Place(request.param, tmp_path / "ledger")
    yield made
    made.close()


# ---- answers ---------------------------------------------------------------------------------


def test_a_round_gets_the_same_bytes_for_one_charge_however_often_it_is_asked(
    place: Place,
) -> None:
    first = answer(place.ledger(), ask(STUDY, 1)).SerializeToString()

    again = {answer(place.reopened(), ask(STUDY, 1)).SerializeToString() for _ in range(3)}

    assert again == {first}
    assert spent_of(place.ledger(), STUDY) == FULL
    assert [report.SerializeToString() for report in place.ledger().unsettled(STUDY.hash)] == [
        first
    ]


def test_what_was_spent_is_spent_after_a_restart(place: Place) -> None:
    given: list[bool] = []
    for number in range(1, 6):
        answer(place.reopened(), ask(STUDY, number))
        given = [row.given for row in place.ledger().history(STUDY.hash)]

    assert given == [True, True, True, False, False]
    assert spent_of(place.ledger(), STUDY) == 3 * FULL
    assert place.ledger().ever_refused(STUDY.hash)


def test_policy_retire_outlasts_a_restart(place: Place) -> None:
    of = study_of(Policy.RETIRE)
    place.ledger().agree(of)

    for number, norm in enumerate([FULL, 4 * FULL, FULL, 0], start=1):
        answer(place.reopened(), ask(of, number), norm)

    given = [row.given for row in place.ledger().history(of.hash)]
    assert given == [True, False, False, True]


def test_a_settled_report_is_dropped_and_its_round_never_answered_again(place: Place) -> None:
    report = answer(place.ledger(), ask(STUDY, 1))
    kept = answer(place.ledger(), ask(STUDY, 2))

    place.ledger().settle(report.report_id, Settled.ACKED)
    place.ledger().settle(report.report_id, Settled.EXPIRED)  # nothing new

    ledger = place.reopened()
    sealed = ledger.sealed(STUDY.hash, 1)
    assert sealed is not None
    assert (sealed.settled, sealed.report) == (Settled.ACKED, None)
    assert list(ledger.unsettled(STUDY.hash)) == [kept]
    with pytest.raises(StateError, match="acked"):
        answer(ledger, ask(STUDY, 1))
    assert spent_of(ledger, STUDY) == 2 * FULL  # never given back
    assert ledger.reached(STUDY.hash) == 2
    with pytest.raises(NotFoundError):
        ledger.settle(bytes(16), Settled.ACKED)


def test_another_round_of_the_same_number_is_refused(place: Place) -> None:
    answer(place.ledger(), ask(STUDY, 1))

    with pytest.raises(ParameterError, match="had this number"):
        answer(place.reopened(), ask(STUDY, 1, "another"))

    assert place.ledger().answered(STUDY.hash, 1) == ask(STUDY, 1).hash
    assert place.ledger().answered(STUDY.hash, 2) is None


def test_a_round_of_a_study_that_was_not_agreed_to_is_refused(place: Place) -> None:
    with pytest.raises(ParameterError, match="agreed to"):
        answer(place.ledger(), ask(OTHER, 1))


def test_an_answer_that_cannot_be_made_costs_nothing(place: Place) -> None:
    def fail(purse: Purse) -> Report:
        purse.try_spend(FULL, weight=ask(STUDY, 1).value.weight)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place.ledger().seal(ask(STUDY, 1), fail)

    assert spent_of(place.reopened(), STUDY) == 0
    assert place.ledger().sealed(STUDY.hash, 1) is None


def test_threads_that_ask_at_once_get_one_answer(place: Place) -> None:
    ledger = place.ledger()

    with ThreadPoolExecutor(8) as pool:
        reports = list(pool.map(lambda _: answer(ledger, ask(STUDY, 1)), range(32)))

    assert len({report.SerializeToString() for report in reports}) == 1
    assert spent_of(ledger, STUDY) == FULL


def test_studies_spend_from_budgets_of_their_own(place: Place) -> None:
    place.ledger().agree(OTHER)
    place.ledger().agree(STUDY)  # nothing new

    answer(place.ledger(), ask(OTHER, 7), 5)

    ledger = place.reopened()
    assert [study.hash for study in ledger.studies()] == [STUDY.hash, OTHER.hash]
    assert [study.value for study in ledger.studies()] == [STUDY.value, OTHER.value]
    assert [spent_of(ledger, of) for of in (STUDY, OTHER)] == [0, 5]
    assert [ledger.reached(of.hash) for of in (STUDY, OTHER)] == [0, 7]


def test_who_a_device_is_outlasts_a_restart(place: Place) -> None:
    assert place.ledger().identity is None
    secret = place.ledger().secret
    before = Identity(target=IDENTITY.target, nonce=IDENTITY.nonce)

    place.ledger().keep_identity(before)
    assert place.reopened().identity == before
    place.ledger().keep_identity(IDENTITY)

    assert place.reopened().identity == IDENTITY
    assert place.ledger().secret == secret
    assert len(secret) == 32


def test_the_owner_sees_what_was_asked_and_what_it_cost(place: Place) -> None:
    asked = ask(STUDY, 1)
    place.ledger().seal(asked, maker(place.ledger(), asked, FULL), note="no such column")
    answer(place.ledger(), ask(STUDY, 2), 3 * FULL)

    first, second = place.reopened().history(STUDY.hash)

    weight, total = asked.value.weight, STUDY.value.budget_units
    assert first.definition == asked.definition
    assert (first.charge, first.wanted, first.given) == (weight * FULL, weight * FULL, True)
    assert (first.left, first.note) == (total - weight * FULL, "no such column")
    assert (second.charge, second.wanted, second.given) == (0, 3 * weight * FULL, False)
    assert second.left == first.left


def test_nothing_of_a_ledger_shows_in_texts(place: Place) -> None:
    answer(place.ledger(), ask(STUDY, 1))
    (row,) = place.ledger().history(STUDY.hash)

    for thing in (place.ledger(), row):
        assert repr(thing).startswith((f"{type(thing).__name__}(secret)", "<demur_client"))
        assert str(row.charge) not in repr(thing)
    assert IDENTITY.credential is not None
    assert repr(IDENTITY.credential.secret) not in repr(IDENTITY)
    assert repr(IDENTITY.nonce) not in repr(IDENTITY)


# ---- forgetting ------------------------------------------------------------------------------


def test_a_forgotten_study_stays_spent_for_ever(place: Place) -> None:
    place.ledger().agree(OTHER)
    report = answer(place.ledger(), ask(STUDY, 1), 1)

    place.ledger().forget(STUDY.hash)
    place.ledger().forget(STUDY.hash)  # nothing new

    ledger = place.reopened()
    assert [study.hash for study in ledger.studies()] == [OTHER.hash]
    assert list(ledger.history(STUDY.hash)) == list(ledger.unsettled(STUDY.hash)) == []
    with pytest.raises(NotFoundError):
        ledger.settle(report.report_id, Settled.ACKED)
    ledger.agree(STUDY)
    answer(ledger, ask(STUDY, 1), 1)
    answer(ledger, ask(OTHER, 1), 1)
    assert [row.charge for row in place.reopened().history(STUDY.hash)] == [0]
    assert place.ledger().remaining_units(STUDY.hash) == 0
    assert spent_of(place.ledger(), OTHER) == 1
    with pytest.raises(NotFoundError, match="never took part"):
        place.ledger().forget(bytes(32))


def test_everything_can_be_forgotten_at_once(place: Place) -> None:
    place.ledger().agree(OTHER)
    place.ledger().keep_identity(IDENTITY)

    place.ledger().forget()

    ledger = place.reopened()
    assert ledger.studies() == []
    assert ledger.identity is None
    assert ledger.trusted
    for of in (STUDY, OTHER):
        ledger.agree(of)
        assert ledger.remaining_units(of.hash) == 0
    ledger.keep_identity(IDENTITY)
    assert place.reopened().identity == IDENTITY


def test_what_was_forgotten_is_nowhere_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "device"
    folder.mkdir()
    asked = ask(STUDY, 1)
    with LedgerFile(folder / "ledger") as ledger:
        ledger.agree(STUDY)
        ledger.keep_identity(IDENTITY)
        answer(ledger, ask(STUDY, 2))
        ledger.seal(asked, maker(ledger, asked, 12345), note="my own words")
        assert IDENTITY.credential is not None
        traces = [
            *(b"my own words", STUDY.definition.hex().encode(), asked.hash, asked.definition),
            (12345 * asked.value.weight).to_bytes(8, "big"),
            IDENTITY.credential.secret.hex().encode(),
            *(each.words for each in ledger.unsettled(STUDY.hash)),
        ]

        def found() -> list[bool]:
            content = b"".join(path.read_bytes() for path in folder.iterdir())
            return [trace in content for trace in traces]

        assert all(found())
        ledger.forget()
        assert not any(found())
    assert not any(found())


# ---- the file --------------------------------------------------------------------------------


def test_only_the_owner_may_read_the_files(tmp_path: Path) -> None:
    with LedgerFile(tmp_path / "ledger") as ledger:
        ledger.agree(STUDY)

        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}

    assert set(modes) == {"ledger", "ledger-wal", "ledger-shm", "ledger.lock"}
    assert set(modes.values()) == {0o600}


def test_every_commit_waits_for_the_disk(tmp_path: Path) -> None:
    with LedgerFile(tmp_path / "ledger") as ledger:
        settings = {
            name: ledger._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "fullfsync", "checkpoint_fullfsync")
        }

    assert settings == {
        "journal_mode": "wal",
        "synchronous": 2,  # 2 is FULL
        "fullfsync": 1,
        "checkpoint_fullfsync": 1,
    }


OPEN = """
import sys
from pathlib import Path
from demur_client.ledger.file import LedgerFile
from demur_proto.errors import DemurError
try:
    LedgerFile(Path(sys.argv[1])).close()
except DemurError as error:
    print(type(error).__name__, error)
"""


def test_a_second_process_is_refused_at_once_and_served_when_the_first_has_ended(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger"

    def said() -> str:
        command = [sys.executable, "-c", OPEN, str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    with LedgerFile(path):
        assert said() == (
            f"StateError the ledger {path} is in use by another process; "
            "a device runs once at a time\n"
        )
        with pytest.raises(StateError, match="in use"):
            LedgerFile(path)
    assert said() == ""


def test_the_owner_can_look_while_the_device_runs(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with pytest.raises(NotFoundError):
        LedgerCopy(path)
    with LedgerFile(path) as ledger:
        ledger.agree(STUDY)
        answer(ledger, ask(STUDY, 1))
        seen = LedgerCopy(path)
        answer(ledger, ask(STUDY, 2))

        assert seen.history(STUDY.hash) == list(ledger.history(STUDY.hash))[:1]
        assert seen.remaining_units(STUDY.hash) > ledger.remaining_units(STUDY.hash)
        assert LedgerCopy(path).remaining_units(STUDY.hash) == ledger.remaining_units(STUDY.hash)
        with pytest.raises(StateError, match="copy"):
            seen.forget()
    assert len(LedgerCopy(path).history(STUDY.hash)) == 2


def test_a_ledger_that_is_closed_gives_no_report(tmp_path: Path) -> None:
    ledger = LedgerFile(tmp_path / "ledger")
    ledger.agree(STUDY)
    answer(ledger, ask(STUDY, 1))

    ledger.close()
    ledger.close()

    for use in (
        lambda: answer(ledger, ask(STUDY, 1)),
        lambda: answer(ledger, ask(STUDY, 2)),
        lambda: ledger.unsettled(STUDY.hash),
    ):
        with pytest.raises(StorageError):
            use()


def test_what_cannot_be_kept_is_not_given_out_and_costs_nothing(tmp_path: Path) -> None:
    with LedgerFile(tmp_path / "ledger") as ledger:
        ledger.agree(STUDY)
        answer(ledger, ask(STUDY, 1))
        asked = ask(STUDY, 2)
        ledger._connection.execute("PRAGMA max_page_count=1")  # as a full disk

        with pytest.raises(StorageError, match="full"):
            ledger.seal(asked, maker(ledger, asked, FULL, length=100_000))

        assert ledger.sealed(STUDY.hash, 2) is None
        assert spent_of(ledger, STUDY) == FULL
        ledger._connection.execute("PRAGMA max_page_count=1000000")
        report = ledger.seal(asked, maker(ledger, asked, FULL, length=100_000))
    with LedgerFile(tmp_path / "ledger") as ledger:
        assert ledger.trusted
        assert answer(ledger, asked) == report
        assert spent_of(ledger, STUDY) == 2 * FULL
