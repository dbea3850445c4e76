"""Rounds that were begun: a process that ends while it evaluates one does so once, and pays nothing."""

import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counting_kit import STATE, NoNoise, a_study, dense, rounds_of
from demur_client.device import Device
from demur_client.explain import explain_text
from demur_client.ledger.base import Settled
from demur_client.ledger.file import LedgerFile
from demur_client.ledger.kept import MemoryLedger
from demur_client.ledger.reading import LedgerCopy
from demur_client.sources.base import FunctionSource
from demur_proto.errors import ParameterError, StateError, StorageError
from demur_proto.mechanisms.registry import Randomiser
from demur_proto.queries import Histogram
from demur_proto.round import Round, round_of
from demur_proto.running.segments import Admission, Factorisation, Segment
from demur_proto.samplers.exact import ExactSampler
from demur_proto.study import Policy, Study
from demur_proto.wire.definition import Defined, define_round
from demur_proto.wire.words import decode_words
from home_kit import Home, execute
from ledger_kit import FULL, answer, ask, histogram_study, quick_folder, spent_of, study_of

STUDY = study_of()
STOPPED = "the device stopped while this round was being evaluated"
SAMPLER = ExactSampler()  # one for all: its tables take a while
SEGMENT = Segment(horizon=4, cohort=1, factorisation=Factorisation.SQUARE_ROOT)


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=quick_folder(tmp_path)) as folder:
        yield Path(folder)


def begun(home: Home, *numbers: int) -> None:
    """A process that ends while it evaluates these rounds."""
    with home.ledger() as ledger:
        ledger.agree(STUDY)
        for number in numbers:
            assert ledger.begin(ask(STUDY, number))


def word_of(device: Device, asked: Defined[Round], state: float | None) -> int:
    """What a device without noise says of a state."""
    report = device.report(asked, None if state is None else np.array([[state]]))
    words, _ = decode_words(report.words, asked.value.word_type, reports=1, dimension=1)
    return int(words[0, 0])


# ---- who may evaluate ------------------------------------------------------------------------


def test_who_began_a_round_may_evaluate_it_again_and_a_later_process_may_not(home: Home) -> None:
    with home.ledger() as ledger:
        ledger.agree(STUDY)
        assert [ledger.begin(ask(STUDY, 1)) for _ in range(3)] == [True] * 3
    for _ in range(2):
        with home.ledger() as ledger:
            assert [ledger.begin(ask(STUDY, 1)) for _ in range(2)] == [False] * 2
            assert ledger.begun(STUDY.hash, 1) == ask(STUDY, 1).hash
            assert ledger.begun(STUDY.hash, 2) is None


def test_in_memory_no_process_was_earlier() -> None:
    ledger = MemoryLedger()
    ledger.agree(STUDY)

    assert [ledger.begin(ask(STUDY, 1)) for _ in range(2)] == [True] * 2
    answer(ledger, ask(STUDY, 1))
    assert spent_of(ledger, STUDY) == FULL


def test_nothing_is_evaluated_for_a_round_that_is_sealed(home: Home) -> None:
    with home.ledger() as ledger:
        ledger.agree(STUDY)
        ledger.begin(ask(STUDY, 1))
        report = answer(ledger, ask(STUDY, 1))
        assert ledger.begun(STUDY.hash, 1) is None
        assert not ledger.begin(ask(STUDY, 1))
    with home.ledger() as ledger:
        assert not ledger.begin(ask(STUDY, 1))
        assert answer(ledger, ask(STUDY, 1)) == report
        ledger.settle(report.report_id, Settled.ACKED)
        with pytest.raises(StateError, match="round 1 was answered"):
            ledger.begin(ask(STUDY, 1))


def test_a_round_of_another_study_cannot_be_begun(home: Home) -> None:
    with home.ledger() as ledger, pytest.raises(ParameterError, match="agreed to"):
        ledger.begin(ask(STUDY, 1))


@pytest.mark.parametrize("restarted", [False, True])
def test_another_round_of_the_number_of_one_that_was_begun_is_refused(
    home: Home, restarted: bool
) -> None:
    other = ask(STUDY, 1, "g")
    with home.ledger() as ledger:
        device = Device(STUDY, FunctionSource({}), SAMPLER, ledger=ledger)
        assert device.begin(ask(STUDY, 1))
        if not restarted:
            for refuse in (device.check, device.begin, ledger.begin):
                with pytest.raises(ParameterError, match="had this number before"):
                    refuse(other)
    with home.ledger() as ledger:
        device = Device(STUDY, FunctionSource({}), SAMPLER, ledger=ledger)
        with pytest.raises(ParameterError, match="had this number before"):
            device.check(other)
        with pytest.raises(ParameterError, match="had this number before"):
            answer(ledger, other)
        assert spent_of(ledger, STUDY) == 0
        assert not device.begin(ask(STUDY, 1))


def test_while_it_cannot_be_kept_nobody_may_evaluate(home: Home, tmp_path: Path) -> None:
    with home.ledger() as ledger:
        ledger.agree(STUDY)
        before = (tmp_path / "counter").read_bytes()
        (tmp_path / "counter").unlink()
        (tmp_path / "counter").mkdir()
        for _ in range(2):
            with pytest.raises(StorageError, match="counter"):
                ledger.begin(ask(STUDY, 1))
        (tmp_path / "counter").rmdir()
        (tmp_path / "counter").write_bytes(before)

        assert ledger.begin(ask(STUDY, 1))  # it was nobody else who began it
        answer(ledger, ask(STUDY, 1))
        assert spent_of(ledger, STUDY) == FULL


# ---- what follows ----------------------------------------------------------------------------


def asked_in(kind: str) -> tuple[Defined[Study], Defined[Round]]:
    """A round of every kind whose value costs something."""
    if kind == "histogram":
        study = histogram_study()
        query = round_of(
            study, Histogram(STATE, categories=4, mechanism=Randomiser.KRR, epsilon=0.1), number=1
        )
        return study, define_round(query)
    if kind in list(Admission):
        study = a_study(answers=40)
        return study, rounds_of(study, SEGMENT, bound=3, admission=Admission(kind))[0]
    study = study_of(Policy(kind))
    return study, ask(study, 1)


KINDS = ["histogram", *map(str, Admission), *map(str, Policy)]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(value=st.none() | st.floats() | st.integers(-3, 5).map(float), note=st.text(max_size=40))
def test_a_round_that_an_earlier_process_began_costs_nothing_whatever_it_is_given(
    kind: str, value: float | None, note: str
) -> None:
    study, asked = asked_in(kind)
    with tempfile.TemporaryDirectory(dir=quick_folder(Path(tempfile.gettempdir()))) as folder:
        path = Path(folder) / "ledger"
        with LedgerFile(path) as ledger:
            ledger.agree(study)
            ledger.begin(asked)
        with LedgerFile(path) as ledger:
            device = Device(study, FunctionSource({}), SAMPLER, ledger=ledger)
            device.report(asked, None if value is None else np.array([[value]]), note=note)

            (row,) = ledger.history(study.hash)
            assert (row.charge, row.wanted, row.held, row.change or 0) == (0, 0, 0, 0)
            assert (row.covered, row.shrunk, row.note) == (True, False, STOPPED)
            assert ledger.remaining_units(study.hash) == study.value.budget_units
            assert not ledger.ever_refused(study.hash)
            assert ledger.ever_covered(study.hash)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_value_costs_something_where_nothing_has_stopped(kind: str) -> None:
    study, asked = asked_in(kind)
    device = Device(study, FunctionSource({}), SAMPLER)

    assert device.begin(asked)
    device.report(asked, np.array([[1.0]]))

    assert device.ledger.remaining_units(study.hash) < study.value.budget_units


@pytest.mark.parametrize("policy", Policy)
def test_a_device_that_was_stopped_goes_on_to_spend_all_of_its_budget(
    home: Home, policy: Policy
) -> None:
    study = study_of(policy)
    with home.ledger() as ledger:
        ledger.agree(study)
        ledger.begin(ask(study, 1))
    with home.ledger() as ledger:
        device = Device(study, FunctionSource({}), SAMPLER, ledger=ledger)
        for number in range(1, 5):
            device.begin(ask(study, number))
            device.report(ask(study, number), np.array([[1.0]]))

        charges = [row.charge // ask(study, 1).value.weight for row in ledger.history(study.hash)]
        assert charges == [0, FULL, FULL, FULL]


def test_only_rounds_that_were_not_sealed_are_covered(home: Home) -> None:
    with home.ledger() as ledger:
        ledger.agree(STUDY)
        for number in (1, 2):
            ledger.begin(ask(STUDY, number))
        report = answer(ledger, ask(STUDY, 1))
    with home.ledger() as ledger:
        assert answer(ledger, ask(STUDY, 1)) == report
        answer(ledger, ask(STUDY, 2))

        rows = {row.number: (row.given, row.note) for row in ledger.history(STUDY.hash)}
        assert rows == {1: (True, ""), 2: (False, STOPPED)}
        assert spent_of(ledger, STUDY) == FULL


@pytest.mark.parametrize("admission", Admission)
def test_a_running_count_that_was_stopped_pays_what_it_holds_and_tells_the_change_later(
    home: Home, admission: Admission
) -> None:
    study = a_study(answers=40)
    rounds = rounds_of(study, SEGMENT, bound=3, admission=admission)
    matrix = dense(Factorisation.SQUARE_ROOT, SEGMENT.horizon)
    with home.ledger() as ledger:
        device = Device(study, FunctionSource({}), NoNoise(), ledger=ledger)
        device.begin(rounds[0])
        assert word_of(device, rounds[0], 1.0) == matrix[0, 0]
        before = ledger.remaining_units(study.hash), ledger.held_units(study.hash)
        device.begin(rounds[1])
    with home.ledger() as ledger:
        device = Device(study, FunctionSource({}), NoNoise(), ledger=ledger)
        told = matrix[1, 0] if admission is Admission.COMMIT else 0
        assert not device.begin(rounds[1])
        assert word_of(device, rounds[1], 3.0) == told

        after = ledger.remaining_units(study.hash), ledger.held_units(study.hash)
        paid = rounds[1].value.weight * int(told) ** 2
        assert after == (before[0], before[1] - paid)
        assert f"no change told: {STOPPED}" in explain_text(ledger, study)
        assert device.begin(rounds[2])
        assert word_of(device, rounds[2], 3.0) == matrix[2, 0] + 2 * matrix[2, 2]


def test_its_owner_reads_why_and_nothing_of_rounds_that_are_under_way(home: Home) -> None:
    begun(home, 1, 2)
    with home.ledger() as ledger:
        answer(ledger, ask(STUDY, 1))

    copy = LedgerCopy(home.path)
    text = explain_text(copy, STUDY)
    assert f"cover: {STOPPED}; cost 0 %" in text
    assert "round 2" not in text
    assert copy.begun(STUDY.hash, 2) == ask(STUDY, 2).hash
    with pytest.raises(StateError, match="copy"):
        copy.begin(ask(STUDY, 3))


# ---- doubt, and forgetting -------------------------------------------------------------------


def test_a_ledger_in_doubt_does_not_evaluate_again_what_ended_a_process(home: Home) -> None:
    with home.ledger() as ledger:
        ledger.agree(STUDY)
        ledger.begin(ask(STUDY, 1))
        answer(ledger, ask(STUDY, 1))
        ledger.begin(ask(STUDY, 2))
    execute("UPDATE changes SET sealed = NULL")(home)

    with home.ledger() as ledger:
        assert not ledger.trusted
        assert not ledger.begin(ask(STUDY, 2))
        assert ledger.begin(ask(STUDY, 1))  # it ended none
        answer(ledger, ask(STUDY, 2))
        assert [row.note for row in ledger.history(STUDY.hash)] == [STOPPED]
    with home.ledger() as ledger:
        assert not ledger.begin(ask(STUDY, 1))


def test_an_older_copy_keeps_what_was_begun_by_then(home: Home, tmp_path: Path) -> None:
    begun(home, 1)
    home.copy_to(tmp_path / "backup")
    begun(home, 2)

    home.copy_from(tmp_path / "backup")

    with home.ledger() as ledger:
        assert not ledger.trusted
        assert [ledger.begin(ask(STUDY, number)) for number in (1, 2)] == [False, True]


def test_a_start_that_the_counter_was_not_told_of_is_believed(home: Home, tmp_path: Path) -> None:
    begun(home, 1)
    before = (tmp_path / "counter").read_bytes()
    begun(home, 2)
    (tmp_path / "counter").write_bytes(before)  # as if it had crashed in between

    with home.ledger() as ledger:
        assert ledger.trusted
        assert not ledger.begin(ask(STUDY, 2))
    assert (tmp_path / "counter").read_bytes() != before


def test_forgetting_erases_what_was_begun(home: Home) -> None:
    begun(home, 1, 2)
    with home.ledger() as ledger:
        answer(ledger, ask(STUDY, 1))
        ledger.forget(STUDY.hash)

    connection = sqlite3.connect(home.path)
    kinds = [kind for (kind,) in connection.execute("SELECT kind FROM changes ORDER BY number")]
    connection.close()
    assert kinds == ["made", *["emptied"] * 4, "forgot"]
    content = b"".join(path.read_bytes() for path in home.folder.iterdir())
    assert not any(ask(STUDY, number).hash in content for number in (1, 2))
    with home.ledger() as ledger:
        assert ledger.trusted
        assert ledger.begun(STUDY.hash, 2) is None


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM changes WHERE kind = 'begun'",
        "UPDATE changes SET kind='emptied', salt=NULL, body=NULL WHERE kind='begun'",
        "UPDATE changes SET body = zeroblob(68) WHERE kind = 'begun'",
    ],
)
def test_a_beginning_that_is_taken_away_is_damage(home: Home, damage: str) -> None:
    begun(home, 1)
    with home.ledger() as ledger:
        answer(ledger, ask(STUDY, 1))
    execute(damage)(home)

    with home.ledger() as ledger:
        assert not ledger.trusted
