"""Running counts on devices that keep a ledger: restarts, caps over several studies, who halted."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import running_crash
from counting_kit import STATE, UNIT, NoNoise, a_study, chain_of, dense, rounds_of
from demur_client.device import Device
from demur_client.explain import explain_fields, explain_text
from demur_client.ledger.base import Ledger, Settled
from demur_client.ledger.file import LedgerFile
from demur_client.ledger.kept import MemoryLedger
from demur_client.ledger.records import Doubted
from demur_client.ledger.scope import LifetimeCap
from demur_client.sources.base import FunctionSource
from demur_proto.errors import ParameterError
from demur_proto.queries import HaltCount, Linear, RunningCount
from demur_proto.round import Round, round_of
from demur_proto.running.segments import Admission, Factorisation, Segment
from demur_proto.study import Measure, Policy, Purpose, Study
from demur_proto.wire.definition import Defined, define_round
from demur_proto.wire.words import decode_words
from ledger_kit import quick_folder

NOTHING = FunctionSource({})
HORIZON = 6
kinds = st.sampled_from(list(Factorisation))


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=quick_folder(tmp_path)) as folder:
        yield Path(folder)


def segment(horizon: int, kind: Factorisation = Factorisation.SQUARE_ROOT) -> Segment:
    return Segment(horizon=horizon, cohort=1, factorisation=kind)


def a_device(study: Defined[Study], ledger: Ledger) -> Device:
    return Device(study, NOTHING, NoNoise(), ledger=ledger)


def word_of(device: Device, asked: Defined[Round], state: float | None) -> int:
    """What a device says of a state."""
    value = None if state is None else np.array([[float(state)]])
    report = device.report(asked, value)
    words, _ = decode_words(report.words, asked.value.word_type, reports=1, dimension=1)
    return int(words[0, 0])


def sum_of(study: Defined[Study], number: int) -> Defined[Round]:
    return define_round(round_of(study, Linear([STATE], clip=1.0, on_grid=True), number=number))


def halts_of(study: Defined[Study], other: Defined[Study], horizon: int) -> list[Defined[Round]]:
    part, rounds = segment(horizon).begun(1), []
    for number in range(1, horizon + 1):
        rounds.append(define_round(round_of(study, HaltCount(other.hash, part), number=number)))
        part = part.after() if number < horizon else part
    return rounds


def kept_of(ledger: Ledger, study: Defined[Study]) -> tuple[Any, ...]:
    """Everything that decides how a device goes on."""
    return (
        ledger.remaining_units(study.hash),
        ledger.held_units(study.hash),
        ledger.ever_refused(study.hash),
        ledger.ever_covered(study.hash),
        [row.change for row in ledger.history(study.hash)],
    )


# ---- restarts --------------------------------------------------------------------------------


@given(
    kind=kinds,
    horizons=st.sampled_from([(HORIZON,), (2, HORIZON - 2), (1, 2, HORIZON - 3)]),
    admission=st.sampled_from(Admission),
    policy=st.sampled_from([Policy.SKIP, Policy.RETIRE]),
    states=st.lists(st.integers(0, 2) | st.none(), min_size=HORIZON, max_size=HORIZON),
    missed=st.sets(st.integers(0, HORIZON - 1), max_size=2),
    answers=st.integers(1, 20),
    ends=st.sets(st.integers(0, HORIZON - 1)),
)
@settings(max_examples=40, deadline=None)
def test_a_device_that_starts_anew_anywhere_in_a_count_goes_on_exactly(
    kind: Factorisation,
    horizons: tuple[int, ...],
    admission: Admission,
    policy: Policy,
    states: list[int | None],
    missed: set[int],
    answers: int,
    ends: set[int],
) -> None:
    study = a_study(answers=answers, policy=policy)
    rounds = chain_of(study, horizons, kind=kind, bound=2, admission=admission)
    steady = MemoryLedger()
    with tempfile.TemporaryDirectory(dir=quick_folder(Path(tempfile.gettempdir()))) as folder:
        path = Path(folder) / "ledger"
        ledger = LedgerFile(path)
        for index, (asked, state) in enumerate(zip(rounds, states, strict=True)):
            if index in ends:
                ledger.close()
                ledger = LedgerFile(path)
            if index in missed:
                continue

            word = word_of(a_device(study, ledger), asked, state)

            assert word == word_of(a_device(study, steady), asked, state)
            assert kept_of(ledger, study) == kept_of(steady, study)
        ledger.close()


def killed(folder: Path, *, stride: int) -> list[Path]:
    kit = Path(running_crash.__file__).parent
    done = subprocess.run(
        [sys.executable, "-m", "running_crash", str(folder), str(stride)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(kit), *sys.path]))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return sorted(folder.iterdir())


def check_killed(folder: Path, *, stride: int) -> int:
    """A device that was killed anywhere has told and kept what one has that was not.

    In a round that was under way it tells no change, as one whose data give no state.
    """
    study = running_crash.STUDY
    whole = MemoryLedger(bytes(32))
    running_crash.go_on(whole)
    assert any(row.change for row in whole.history(study.hash))
    assert whole.ever_refused(study.hash)  # or refusals were not tried
    points, stopped = killed(folder, stride=stride), set()
    for point in points:
        with LedgerFile(point / "ledger") as ledger:
            assert ledger.trusted
            (unknown,) = [row.number for row in ledger.history(study.hash) if row.note] or [0]
            stopped.add(unknown)
            steady = MemoryLedger(bytes(32))
            running_crash.go_on(steady, unknown=unknown)
            assert kept_of(ledger, study) == kept_of(steady, study)
            sent, wanted = (
                [report.words for report in each.unsettled(study.hash)] for each in (ledger, steady)
            )
            assert sent == wanted
    assert len(stopped) > len(running_crash.STATES) // 2  # or kills fell into few rounds
    return len(points)


def test_a_device_that_is_killed_in_the_middle_of_a_segment_goes_on_exactly(quick: Path) -> None:
    assert check_killed(quick, stride=3) >= 20


@pytest.mark.long
def test_device_running_counts_killed_at_every_step_go_on_exactly(quick: Path) -> None:
    assert check_killed(quick, stride=1) >= 60


def test_after_a_restart_a_segment_refuses_what_does_not_follow(quick: Path) -> None:
    study = a_study(answers=10)
    rounds = rounds_of(study, segment(4))
    again = rounds_of(study, segment(4), bound=2)
    with LedgerFile(quick / "ledger") as ledger:
        for asked in rounds[:2]:
            word_of(a_device(study, ledger), asked, 1)

    with LedgerFile(quick / "ledger") as ledger:
        device = a_device(study, ledger)
        with pytest.raises(ParameterError, match="segment"):
            device.report(again[2], None)
        assert word_of(device, rounds[3], 1) > 0
        with pytest.raises(ParameterError, match="position"):
            device.report(rounds[2], None)  # its position has passed


def test_a_segment_that_is_over_holds_nothing_and_goes_on_no_more() -> None:
    study = a_study(answers=10)
    rounds = rounds_of(study, segment(3))
    ledger = MemoryLedger()
    device = a_device(study, ledger)

    held = []
    for asked in rounds:
        word_of(device, asked, 1)
        held.append(ledger.held_units(study.hash))

    spent = study.value.budget_units - ledger.remaining_units(study.hash)
    assert held[0] > held[1] > held[2] == 0
    assert spent == sum(row.charge for row in ledger.history(study.hash))
    late = define_round(replace(rounds[1].value, number=4))
    with pytest.raises(ParameterError, match="position"):
        device.report(late, np.array([[0.0]]))


def test_what_is_held_is_the_energy_of_the_words_to_come_though_rounds_were_missed() -> None:
    study = a_study(answers=10)
    rounds = rounds_of(study, segment(6))
    ledger = MemoryLedger()
    device = a_device(study, ledger)

    for asked in (rounds[0], rounds[3]):
        word_of(device, asked, 1)

    words = dense(Factorisation.SQUARE_ROOT, 6)[:, 0]
    weight = rounds[0].value.weight
    assert ledger.held_units(study.hash) == weight * int((words[4:] ** 2).sum())
    spent = sum(row.charge for row in ledger.history(study.hash))
    assert spent == weight * int((words[:4] ** 2).sum())  # those missed were paid for as well


def test_an_interrupted_seal_leaves_nothing_taken_up() -> None:
    """What fails while a report is made, as a full disk would, was never said."""
    study = a_study(answers=10)
    rounds = rounds_of(study, segment(2))
    ledger = MemoryLedger()

    class Fails(NoNoise):
        def gaussian(self, steps: float, *, reports: int, dimension: int) -> Any:
            raise OSError("no entropy")

    with pytest.raises(OSError, match="no entropy"):
        Device(study, NOTHING, Fails(), ledger=ledger).report(rounds[0], np.array([[1.0]]))

    assert kept_of(ledger, study) == (study.value.budget_units, 0, False, False, [])
    assert word_of(a_device(study, ledger), rounds[0], 1) == UNIT


# ---- caps over several studies ---------------------------------------------------------------


class Sums:
    """A model of two studies under one cap: how much each has spent and holds, in exact shares."""

    def __init__(self, studies: Sequence[Defined[Study]], cap: float) -> None:
        self.share = [
            Fraction(each.value.budget) ** 2 / each.value.budget_units / Fraction(cap) ** 2
            for each in studies
        ]
        self.total = [each.value.budget_units for each in studies]
        self.taken = [0, 0]
        self.changes: list[list[int]] = [[], []]

    def fits(self, which: int, more: int) -> bool | None:
        """Whether so many units more fit; None where rounding may decide."""
        taken = list(self.taken)
        taken[which] += more
        shares = zip(taken, self.share, strict=True)
        over = sum((each * share for each, share in shares), start=Fraction())
        if abs(over - 1) < Fraction(1, 10**9):
            return None
        return taken[which] <= self.total[which] and (over <= 1 or more <= 0)


@given(
    kind=kinds,
    events=st.lists(
        st.tuples(st.integers(0, 1), st.sampled_from(["sum", "count"]), st.integers(0, 2)),
        min_size=1,
        max_size=14,
    ),
    answers=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    cap=st.floats(0.1, 2.0),
)
@settings(max_examples=60, deadline=None)
def test_no_word_of_a_change_that_was_taken_up_is_ever_refused_whatever_another_study_spends(
    kind: Factorisation,
    events: list[tuple[int, str, int]],
    answers: tuple[int, int],
    cap: float,
) -> None:
    studies = [
        a_study(answers=each, name=name, measure=Measure.GDP)
        for each, name in zip(answers, "ab", strict=True)
    ]
    limit = cap * studies[0].value.budget
    ledger = MemoryLedger(caps=[LifetimeCap(measure=Measure.GDP, budget=limit)])
    devices = [a_device(study, ledger) for study in studies]
    model = Sums(studies, limit)
    matrix, horizon = dense(kind, 14), 14
    parts: list[Segment | None] = [None, None]
    for number, (which, verb, value) in enumerate(events, start=1):
        study, changes = studies[which], model.changes[which]
        if verb == "sum":
            asked = sum_of(study, number)
            value = min(value, 1)
            cost = asked.value.weight * (value * UNIT) ** 2
            fits = model.fits(which, cost)
            word = word_of(devices[which], asked, value)
            assert fits is None or bool(word) == (fits and bool(value))
            model.taken[which] += asked.value.weight * word**2
        else:
            asked, part = next_of(study, parts[which], number, segment(horizon, kind))
            parts[which] = part
            before = matrix[:, : len(changes) + 1] @ [*changes, 0]
            wanted = matrix[:, : len(changes) + 1] @ [*changes, value - sum(changes)]
            ahead = slice(len(changes), None)
            more = int((wanted[ahead] ** 2).sum() - (before[ahead] ** 2).sum())
            fits = model.fits(which, asked.value.weight * more)
            word = word_of(devices[which], asked, value)
            taken = bool(word == wanted[len(changes)])
            assert taken or word == before[len(changes)]  # and never anything else
            if wanted[len(changes)] != before[len(changes)]:
                assert fits is None or taken == fits
            changes.append(value - sum(changes) if taken else 0)
            model.taken[which] += asked.value.weight * more * taken
        kept = study.value.budget_units - ledger.remaining_units(study.hash)
        assert kept == model.taken[which]
        shares = zip(model.taken, model.share, strict=True)
        assert sum(each * share for each, share in shares) <= 1


def next_of(
    study: Defined[Study], part: Segment | None, number: int, fresh: Segment
) -> tuple[Defined[Round], Segment]:
    """The next round of a segment, or its first."""
    part = fresh.begun(number) if part is None else part.after()
    return define_round(round_of(study, RunningCount(STATE, part, bound=2), number=number)), part


def test_what_a_cap_refuses_is_not_held_by_the_study_either() -> None:
    studies = [a_study(answers=4, name=name) for name in "ab"]
    cap = LifetimeCap(measure=Measure.GDP, budget=studies[0].value.budget)
    ledger = MemoryLedger(caps=[cap])
    for number in range(1, 5):  # all of the cap
        word_of(a_device(studies[0], ledger), sum_of(studies[0], number), 1)

    rounds = rounds_of(studies[1], segment(4))
    words = [word_of(a_device(studies[1], ledger), asked, 1) for asked in rounds]

    assert words == [0, 0, 0, 0]
    budget = studies[1].value.budget_units
    assert kept_of(ledger, studies[1]) == (budget, 0, False, True, [0, 0, 0, 0])


def test_what_was_held_is_told_to_the_end_though_the_owner_lowers_the_cap(quick: Path) -> None:
    study = a_study(answers=4)
    rounds = rounds_of(study, segment(4), bound=1)
    with LedgerFile(quick / "ledger") as ledger:
        first = word_of(a_device(study, ledger), rounds[0], 1)

    tiny = LifetimeCap(measure=Measure.GDP, budget=1e-9)
    with LedgerFile(quick / "ledger", caps=[tiny]) as ledger:
        device = a_device(study, ledger)
        rest = [word_of(device, asked, 1) for asked in rounds[1:]]

        assert [first, *rest] == dense(Factorisation.SQUARE_ROOT, 4)[:, 0].tolist()
        assert word_of(device, sum_of(study, 5), 1) == 0


# ---- who halted ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, np.nan, "refused"])
def test_that_an_answer_was_less_than_the_value_survives_a_restart_and_is_counted(
    quick: Path, value: Any
) -> None:
    main, count = (
        a_study(answers=1, name="main"),
        a_study(answers=3, name="halts", purpose=Purpose.HALTS),
    )
    halts = halts_of(count, main, 3)
    words = []
    with LedgerFile(quick / "ledger") as ledger:
        device = a_device(main, ledger)
        word_of(device, sum_of(main, 1), 1)
        beside = a_device(count, ledger)
        words.append(counted(beside, halts[0]))
        word_of(device, sum_of(main, 2), 1 if value == "refused" else value)
        assert device.ever_covered

    with LedgerFile(quick / "ledger") as ledger:
        assert a_device(main, ledger).ever_covered
        words += [counted(a_device(count, ledger), asked) for asked in halts[1:]]

    assert words == [0, UNIT, UNIT // 2]


def counted(device: Device, asked: Defined[Round]) -> int:
    value = device.evaluate(asked)
    return word_of(device, asked, None if value is None else value[0, 0])


def test_a_halt_count_about_a_study_that_the_device_is_not_in_is_refused_for_all_to_see() -> None:
    main, count = a_study(name="main"), a_study(answers=3, name="halts", purpose=Purpose.HALTS)
    ledger = MemoryLedger()
    device = a_device(count, ledger)
    asked = halts_of(count, main, 2)[0]

    with pytest.raises(ParameterError, match="about a study that this device takes part in"):
        device.evaluate(asked)
    with pytest.raises(ParameterError, match="about a study that this device takes part in"):
        word_of(device, asked, 0)

    assert not device.ever_covered
    a_device(main, ledger)
    assert counted(device, asked) == 0


# ---- what cannot be believed, or is forgotten ------------------------------------------------


def test_a_ledger_in_doubt_goes_on_with_cover_and_takes_all_studies_for_covered(
    quick: Path,
) -> None:
    main, other = a_study(answers=9, name="main"), a_study(answers=9, name="other")
    rounds = rounds_of(main, segment(4))
    with LedgerFile(quick / "ledger") as ledger:
        word_of(a_device(main, ledger), rounds[0], 1)
        word_of(a_device(other, ledger), sum_of(other, 1), 1)
        assert not a_device(main, ledger).ever_covered
    content = (quick / "ledger").read_bytes()
    assert rounds[0].definition in content
    lost = content.replace(rounds[0].definition, bytes(len(rounds[0].definition)))
    (quick / "ledger").write_bytes(lost)

    with LedgerFile(quick / "ledger") as ledger:
        devices = [a_device(each, ledger) for each in (main, other)]
        words = [
            word_of(devices[0], asked, state)
            for asked, state in zip(rounds[1:], (1, 0, 1), strict=True)
        ]

        assert not ledger.trusted
        assert words == [0, 0, 0]
        assert [device.ever_covered for device in devices] == [True, True]
        assert ledger.held_units(main.hash) == 0


def test_a_ledger_that_falls_into_doubt_tells_nothing_more_of_what_it_has_begun() -> None:
    study = a_study(answers=9)
    rounds = rounds_of(study, segment(3))
    ledger = MemoryLedger()
    device = a_device(study, ledger)
    word_of(device, rounds[0], 1)

    ledger._keep(Doubted(doubt="it is not the newest"))

    assert [word_of(device, asked, 1) for asked in rounds[1:]] == [0, 0]
    assert device.ever_covered


def test_forgetting_in_the_middle_of_a_segment_erases_what_was_told_and_all_stays_spent(
    quick: Path,
) -> None:
    main, count = (
        a_study(answers=9, name="main"),
        a_study(answers=3, name="halts", purpose=Purpose.HALTS),
    )
    rounds = rounds_of(main, segment(4))
    with LedgerFile(quick / "ledger") as ledger:
        device = a_device(main, ledger)
        word_of(device, rounds[0], 1)
        planned = rounds[0].value.weight and ledger.held_units(main.hash) // rounds[0].value.weight

        ledger.forget(main.hash)

        assert ledger.remaining_units(main.hash) == ledger.held_units(main.hash) == 0
        assert ledger.ever_covered(main.hash) is None
        assert ledger.last_in_count(main.hash, 1) is None
        with pytest.raises(ParameterError, match="a study that this device takes part in"):
            counted(a_device(count, ledger), halts_of(count, main, 1)[0])
    files = [path.read_bytes() for path in quick.iterdir()]
    assert planned
    assert not any(f'"planned":{planned}'.encode() in content for content in files)

    with LedgerFile(quick / "ledger") as ledger:  # whoever agrees again has nothing to spend
        device = a_device(main, ledger)
        assert [word_of(device, asked, 1) for asked in rounds] == [0, 0, 0, 0]
        assert device.ever_covered


# ---- for the owner ---------------------------------------------------------------------------


def test_the_owner_sees_what_was_told_and_what_is_held() -> None:
    study = a_study(answers=2)
    rounds = rounds_of(study, segment(8))
    ledger = MemoryLedger()
    device = a_device(study, ledger)
    for asked, state in zip(rounds, (1, 1, 0, None, 0), strict=False):
        word_of(device, asked, state)
    ledger.settle(ledger.unsettled(study.hash)[0].report_id, Settled.ACKED)

    text, fields = explain_text(ledger, study), explain_fields(ledger, study)

    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    assert lines[0].startswith("change of +1 told; cost 50 %, 36 % held for rounds to come")
    assert lines[0].endswith("acked")
    assert lines[1].startswith("nothing had changed; cost 12.5 %")
    assert lines[2].startswith("change of -1 told") or lines[2].startswith("no change told")
    assert lines[3].startswith("no change told: the data source gave no such state")
    assert "changes of state, from 0 to 1, round 1 of 8" in text
    assert fields["answers"][0]["change"] == 1
    assert fields["held"] == ledger.held_units(study.hash) / study.value.budget_units
