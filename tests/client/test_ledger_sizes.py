"""However a device answers, its ledger grows by the same bytes: a disk or a backup tells nothing."""

import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counting_kit import STATE, a_study, rounds_of
from demur_client.device import Device
from demur_client.ledger.base import Settled
from demur_client.ledger.file import LedgerFile
from demur_client.ledger.records import fitting_note
from demur_client.ledger.scope import Purse
from demur_client.policy import OwnerPolicy
from demur_client.sources.base import FunctionSource
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.registry import Randomiser
from demur_proto.queries import HaltCount, Histogram
from demur_proto.round import Round, round_of
from demur_proto.running.segments import Factorisation, Segment
from demur_proto.samplers.exact import ExactSampler
from demur_proto.study import Policy, Purpose, Study
from demur_proto.v1.report_pb2 import Report
from demur_proto.wire.definition import Defined, define_round
from ledger_kit import FULL, ask, histogram_study, quick_folder, spent_of, study_of

TURNS = 5
SAMPLER = ExactSampler()  # one for all: its tables take a while
SEGMENT = Segment(horizon=TURNS, cohort=1, factorisation=Factorisation.SQUARE_ROOT)

Person = Sequence[tuple[float | None, str]]
"""What somebody's data gave in each turn, and what went wrong with them."""

people = st.lists(
    st.tuples(
        st.none() | st.floats() | st.integers(-3, 5).map(float),
        st.just("") | st.text(max_size=700),
    ),
    min_size=TURNS,
    max_size=TURNS,
)


def questions() -> list[tuple[Defined[Study], list[Defined[Round]]]]:
    """Rounds of every policy and kind, more than a budget holds."""
    plain = [study_of(policy, name=policy.name) for policy in Policy]
    counted, halts = (
        a_study(answers=2, name="counted"),
        a_study(answers=2, name="halts", purpose=Purpose.HALTS),
    )
    categories = histogram_study()
    numbers = range(1, TURNS + 1)
    part, asked = SEGMENT.begun(1), []
    for number in numbers:
        asked.append(define_round(round_of(halts, HaltCount(plain[0].hash, part), number=number)))
        part = part.after() if number < TURNS else part
    histograms = [
        define_round(
            round_of(
                categories,
                Histogram(STATE, categories=4, mechanism=Randomiser.KRR, epsilon=0.5),
                number=number,
            )
        )
        for number in numbers
    ]
    return [
        *((study, [ask(study, number) for number in numbers]) for study in plain),
        (counted, rounds_of(counted, SEGMENT, bound=3)),
        (categories, histograms),
        (halts, asked),
    ]


QUESTIONS = questions()


def grown(person: Person) -> list[tuple[int, ...]]:
    """The sizes of a device's files after every answer, and at last of all rows."""
    with tempfile.TemporaryDirectory(dir=quick_folder(Path(tempfile.gettempdir()))) as name:
        folder = Path(name)
        path, caps = folder / "ledger", [OwnerPolicy(lifetime_epsilon=6.0).lifetime_cap]
        sizes = []
        with LedgerFile(path, caps=caps, secret=bytes(32)) as ledger:
            devices = [
                Device(study, FunctionSource({}), SAMPLER, ledger=ledger) for study, _ in QUESTIONS
            ]
            for turn, (value, note) in enumerate(person):
                for device, (_, rounds) in zip(devices, QUESTIONS, strict=True):
                    asked = rounds[turn]
                    device.begin(asked)
                    given = None if value is None else np.array([[value]])
                    report = device.report(asked, given, note=note)
                    if turn % 2:
                        ledger.settle(report.report_id, Settled.ACKED)
                    sizes.append(tuple(each.stat().st_size for each in sorted(folder.iterdir())))
        reader = sqlite3.connect(path)
        columns = ("kind", "salt", "body", "cover", "link", "sealed")
        lengths = ", ".join(f"ifnull(length({name}), -1)" for name in columns)
        sizes += reader.execute(f"SELECT {lengths} FROM changes ORDER BY number").fetchall()
        reader.close()
        return [*sizes, (path.stat().st_size,)]


@pytest.fixture(scope="module")
def of_nobody() -> list[tuple[int, ...]]:
    """What the ledger of somebody takes who has nothing to tell."""
    return grown([(0.0, "")] * TURNS)


@settings(max_examples=15)
@given(person=people)
def test_the_size_of_a_ledger_is_the_same_whatever_is_in_it(
    person: Person, of_nobody: list[tuple[int, ...]]
) -> None:
    assert grown(person) == of_nobody


def test_people_who_spend_everything_and_err_take_no_byte_more(
    of_nobody: list[tuple[int, ...]],
) -> None:
    exhausted: Person = [(float(turn % 2), "") for turn in range(1, TURNS + 1)]
    erring: Person = [(None, "é" * 600)] * TURNS

    assert grown(exhausted) == grown(erring) == of_nobody


@settings(max_examples=50)
@given(note=st.text(max_size=700) | st.just("\ud800 and \x00 a name"))
def test_a_note_comes_back_as_far_as_it_fits(note: str) -> None:
    fits = fitting_note(note)

    assert len(fits.encode()) <= 240
    assert note.encode(errors="replace").decode().startswith(fits)
    assert fitting_note(fits) == fits


@pytest.mark.parametrize("length", [0, 8, 17])
def test_a_report_whose_id_no_row_holds_is_neither_kept_nor_paid_for(
    tmp_path: Path, length: int
) -> None:
    def make(purse: Purse) -> Report:
        purse.try_spend(FULL, weight=asked.value.weight)
        return Report(round_hash=asked.hash, report_id=bytes(length), words=bytes(4))

    study = study_of()
    asked = ask(study, 1)
    with LedgerFile(tmp_path / "ledger") as ledger:
        ledger.agree(study)
        with pytest.raises(ParameterError, match="report_id must be 16 bytes"):
            ledger.seal(asked, make)

    with LedgerFile(tmp_path / "ledger") as ledger:
        assert spent_of(ledger, study) == 0
        assert ledger.sealed(study.hash, 1) is None
