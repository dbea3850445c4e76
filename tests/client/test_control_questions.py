"""Control questions: studies of their own, room for them under every cap, and devices that take no part."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counting_kit import EXPONENT, STATE, UNIT, NoNoise, a_study
from demur_client.device import Device
from demur_client.ledger.base import Ledger
from demur_client.ledger.counter import FileCounter
from demur_client.ledger.file import LedgerFile
from demur_client.ledger.kept import MemoryLedger
from demur_client.ledger.records import Doubted
from demur_client.ledger.scope import LifetimeCap
from demur_client.sources.base import FunctionSource
from demur_proto.arrays import Values
from demur_proto.errors import ParameterError, PolicyError
from demur_proto.queries import ErrorCount, Gradient, HaltCount, Linear, Query
from demur_proto.queries.halt_count import check_payable
from demur_proto.queries.registry import mechanism_for
from demur_proto.round import Round, round_of
from demur_proto.running.factorisations import change_norm
from demur_proto.running.segments import Factorisation, Segment
from demur_proto.study import Measure, Policy, Purpose, Study
from demur_proto.wire.definition import Defined, define_round, read_round
from demur_proto.wire.words import decode_words
from demur_server.collector.collector import Collector
from demur_server.store.memory import MemoryStore
from ledger_kit import quick_folder

HORIZON = 8
NORM = change_norm(Factorisation.SQUARE_ROOT, horizon=HORIZON, exponent=EXPONENT)
ALWAYS = FunctionSource({STATE.name: lambda _: 1.0})
MAIN = a_study(answers=3, name="main")
OTHER = a_study(answers=3, name="other")
HALTS = a_study(answers=1, clip=NORM, name="halts", purpose=Purpose.HALTS)
ERRORS = a_study(name="errors", grid_exponent=-15, purpose=Purpose.ERRORS)


def rho(study: Defined[Study]) -> float:
    return float(study.value.budget) ** 2 / 2


def cap_of(budget: float) -> LifetimeCap:
    return LifetimeCap(measure=Measure.ZCDP, budget=budget)


BOTH = rho(MAIN) + rho(HALTS)  # all that the two declare


class Halves(NoNoise):
    """No noise, and every coin lands in the middle."""

    def uniform(self, *, reports: int, dimension: int) -> Values:
        return np.full((reports, dimension), 0.5)


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=quick_folder(tmp_path)) as folder:
        yield Path(folder) / "ledger"


def a_device(study: Defined[Study], ledger: Ledger) -> Device:
    return Device(study, ALWAYS, Halves(), ledger=ledger)


def word_of(device: Device, asked: Round) -> int:
    defined = define_round(asked)
    report = device.report(defined, device.evaluate(defined))
    words, _ = decode_words(report.words, asked.word_type, reports=1, dimension=1)
    return int(words[0, 0])


def sum_of(number: int, study: Defined[Study] = MAIN) -> Round:
    return round_of(study, Linear([STATE], on_grid=True), number=number)


def halts_at(
    position: int, *, study: Defined[Study] = HALTS, about: Defined[Study] = MAIN
) -> Round:
    segment = Segment(horizon=HORIZON, cohort=1).begun(1)
    for _ in range(1, position):
        segment = segment.after()
    return round_of(study, HaltCount(about.hash, segment), number=position)


# ---- whatever a device tells of halting is true ------------------------------------------------


@pytest.mark.parametrize("trouble", ["gone", "damaged", "old", "a lower cap"])
def test_a_device_that_might_not_pay_to_say_that_it_halted_is_missing_and_never_not_halted(
    quick: Path, trouble: str
) -> None:
    """Before, it was told as one that had answered in full: H⁺ was no bound at any confidence."""
    counter = FileCounter(quick.with_name("counter"))
    with LedgerFile(quick, counter=counter, caps=[cap_of(1.001 * BOTH)]) as ledger:
        for study in (MAIN, HALTS):
            a_device(study, ledger)
    kept = bytearray(quick.read_bytes())
    with LedgerFile(quick, counter=counter, caps=[cap_of(1.001 * BOTH)]) as ledger:
        for number in (1, 2, 3):
            word_of(a_device(MAIN, ledger), sum_of(number))
    caps = []
    if trouble == "gone":
        quick.unlink()
    elif trouble == "old":
        quick.write_bytes(kept)
    elif trouble == "damaged":
        kept[len(kept) // 2] ^= 255
        quick.write_bytes(kept)
    else:
        caps = [cap_of(0.7 * rho(MAIN))]

    with LedgerFile(quick, counter=counter, caps=caps) as ledger:
        main = a_device(MAIN, ledger)
        with pytest.raises((ParameterError, PolicyError), match="answers no control questions"):
            word_of(a_device(HALTS, ledger), halts_at(1))
        given = [word_of(main, sum_of(number)) for number in (4, 5)]

        assert given == [0, 0]  # in the main study nothing shows: it goes on, with cover
        assert main.ever_covered
        assert ledger.reached(HALTS.hash) == 0


def test_a_device_whose_own_filter_runs_out_says_so() -> None:
    ledger = MemoryLedger(caps=[cap_of(1.001 * BOTH)])
    main, halts = a_device(MAIN, ledger), a_device(HALTS, ledger)

    told = []
    for number in range(1, 6):
        word_of(main, sum_of(number))
        told.append(word_of(halts, halts_at(number)))

    assert told[:3] == [0, 0, 0]
    assert told[3:] == [UNIT, UNIT // 2]


@pytest.mark.parametrize("value", [None, np.zeros((1, 1)), np.full((1, 1), np.nan)])
def test_no_restart_and_no_failure_keeps_a_device_from_saying_that_it_halted(
    quick: Path, value: Values | None
) -> None:
    asked = define_round(halts_at(1))
    with LedgerFile(quick) as ledger:
        main, halts = a_device(MAIN, ledger), a_device(HALTS, ledger)
        for number in range(1, 5):
            word_of(main, sum_of(number))
        halts.begin(asked)  # and here it is killed

    with LedgerFile(quick) as ledger:
        report = a_device(HALTS, ledger).report(asked, value, note="it came too late")

    words, _ = decode_words(report.words, asked.value.word_type, reports=1, dimension=1)
    assert words.tolist() == [[UNIT]]


def test_a_device_answers_control_questions_again_once_the_cap_holds_them_again(
    quick: Path,
) -> None:
    high, low = cap_of(1.001 * BOTH), cap_of(0.999 * BOTH)
    for cap, answered in ((high, True), (low, False), (high, True)):
        with LedgerFile(quick, caps=[cap]) as ledger:
            a_device(MAIN, ledger)
            a_device(HALTS, ledger)
            assert (not ledger.control_refusal) is answered


OTHERS = [
    a_study(answers=answers, name=f"{measure} {policy}", policy=policy, measure=measure)
    for measure in (Measure.GDP, Measure.ZCDP)
    for answers, policy in ((1, Policy.SKIP), (4, Policy.RETIRE), (2, Policy.CLIP))
]


@given(
    earlier=st.lists(st.sampled_from(OTHERS), max_size=2, unique_by=lambda each: each.hash),
    later=st.lists(st.sampled_from(OTHERS), max_size=2, unique_by=lambda each: each.hash),
    asked=st.lists(st.integers(0, 4), max_size=8),
    cap=st.floats(1.0, 7.0),
)
@settings(max_examples=60, deadline=None)
def test_nothing_that_other_studies_spend_ever_keeps_a_device_from_saying_that_it_halted(
    earlier: list[Defined[Study]], later: list[Defined[Study]], asked: list[int], cap: float
) -> None:
    ledger = MemoryLedger(caps=[cap_of(cap * rho(MAIN))])
    agreed = []
    for study in [*earlier, MAIN, HALTS, *later]:
        try:
            ledger.agree(study)
            agreed.append(study)
        except PolicyError:
            if study is HALTS:
                return  # there is no room for the count, and all can see that it takes no part
    numbers = dict.fromkeys([each.hash for each in agreed], 0)

    def ask(study: Defined[Study]) -> None:
        if study is not HALTS:
            numbers[study.hash] += 1
            word_of(a_device(study, ledger), sum_of(numbers[study.hash], study))

    for which in asked:
        ask(agreed[which % len(agreed)])
    for _ in range(4):  # one more than its budget holds
        ask(MAIN)
    assert ledger.ever_covered(MAIN.hash)

    assert word_of(a_device(HALTS, ledger), halts_at(1)) == UNIT
    assert not ledger.ever_refused(HALTS.hash)


# ---- room for them, by what is declared --------------------------------------------------------


@pytest.mark.parametrize("control", [HALTS, ERRORS], ids=["halts", "errors"])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("share", "fits"), [(1 + 1e-6, True), (1 - 1e-6, False)])
def test_a_control_study_keeps_its_whole_budget_free_under_every_cap(
    control: Defined[Study], first: bool, share: float, fits: bool
) -> None:
    wide = LifetimeCap(measure=Measure.GDP, budget=100.0)
    ledger = MemoryLedger(caps=[wide, cap_of(share * (rho(MAIN) + rho(control)))])
    earlier, later = (control, MAIN) if first else (MAIN, control)
    ledger.agree(earlier)

    if fits:
        ledger.agree(later)
    else:
        with pytest.raises(PolicyError, match="a lifetime cap does not hold what it declares"):
            ledger.agree(later)

    assert [each.hash for each in ledger.studies()] == [earlier.hash, *[later.hash] * fits]
    assert not ledger.control_refusal


def test_studies_without_control_questions_share_a_cap_by_what_they_really_spend() -> None:
    ledger = MemoryLedger(caps=[cap_of(1.1 * rho(MAIN))])
    for study in (MAIN, OTHER):
        ledger.agree(study)

    with pytest.raises(PolicyError, match="a lifetime cap does not hold all that its studies have"):
        ledger.agree(HALTS)

    given = [word_of(a_device(OTHER, ledger), sum_of(each, OTHER)) // UNIT for each in (1, 2, 3)]
    assert given == [1, 1, 1]


@given(
    answered=st.integers(0, 4), forgets=st.booleans(), cap=st.floats(0.5, 3.0), first=st.booleans()
)
@settings(max_examples=40, deadline=None)
def test_what_was_spent_or_forgotten_has_no_part_in_who_takes_part(
    answered: int, forgets: bool, cap: float, first: bool
) -> None:
    def outcome(answered: int, forgets: bool) -> tuple[bool, str]:
        ledger = MemoryLedger(caps=[cap_of(cap * rho(MAIN))])
        main = a_device(MAIN, ledger)
        for number in range(1, answered + 1):
            word_of(main, sum_of(number))
        try:
            if first:
                ledger.agree(HALTS)
            if forgets:
                ledger.forget(MAIN.hash)
            ledger.agree(OTHER)
            if not first:
                ledger.agree(HALTS)
        except PolicyError:
            return False, ledger.control_refusal
        return True, ledger.control_refusal

    assert outcome(answered, forgets) == outcome(0, forgets) == outcome(0, False)


def test_a_ledger_in_doubt_takes_up_no_control_study_and_any_other() -> None:
    ledger = MemoryLedger()
    ledger._keep(Doubted(doubt="an older ledger was put in its place"))

    with pytest.raises(PolicyError, match="its ledger cannot be relied on"):
        ledger.agree(HALTS)

    ledger.agree(MAIN)
    assert ledger.studies() == [MAIN]


# ---- never in the study that they are about ----------------------------------------------------


def rounds_of(study: Defined[Study]) -> dict[Purpose, Round]:
    """A round of each purpose, whatever the study is for: as somebody may write it down."""
    noise: dict[str, Any] = {
        "sigma": study.value.base_sigma,
        "grid_exponent": study.value.base_grid_exponent,
    }
    queries: dict[Purpose, Query] = {
        Purpose.DATA: Gradient(model_hash=bytes(32), dimension=1, clip=1.0, **noise),
        Purpose.ERRORS: ErrorCount(model_hash=bytes(32), parameters=1, on_grid=False, **noise),
        Purpose.HALTS: HaltCount(
            halted_study=MAIN.hash, segment=Segment(horizon=1, cohort=1).begun(1), **noise
        ),
    }
    return {purpose: round_of(study, query, number=1) for purpose, query in queries.items()}


@pytest.mark.parametrize("purpose", list(Purpose))
@pytest.mark.parametrize("asked", list(Purpose))
async def test_devices_and_collectors_refuse_what_a_study_is_not_for(
    purpose: Purpose, asked: Purpose
) -> None:
    study = a_study(answers=9, name="mine", grid_exponent=-15, purpose=purpose)
    collector = Collector(MemoryStore(), open_access=True)
    await collector.create_study(study.definition)
    defined = define_round(rounds_of(study)[asked])
    assert read_round(defined.definition, study=study).value == defined.value  # as bytes it is one
    device, main = Device(study, ALWAYS, ledger=(ledger := MemoryLedger())), MAIN
    ledger.agree(main)

    if purpose is asked:
        assert mechanism_for(study.value, defined.value) == device.check(defined)
        return
    for refuses in (
        lambda: mechanism_for(study.value, defined.value),
        lambda: device.check(defined),
        lambda: device.evaluate(defined),
        lambda: device.report(defined, np.zeros((1, 1))),
    ):
        with pytest.raises(ParameterError, match=f"purpose must be {asked} in a study with quest"):
            refuses()
    with pytest.raises(ParameterError, match=f"purpose must be {asked}"):
        await collector.open_round(defined.definition)
    assert ledger.reached(study.hash) == 0


def test_a_study_for_gradients_is_asked_for_no_count_of_errors() -> None:
    gradients = a_study(
        name="gradients", policy=Policy.CLIP, grid_exponent=-15, maximum_dimension=100
    )

    Gradient.check_kind(gradients.value)
    with pytest.raises(ParameterError, match="purpose must be errors"):
        ErrorCount.check_kind(gradients.value)


def test_a_ledger_and_rounds_from_before_studies_said_what_they_are_for_are_read(
    quick: Path,
) -> None:
    old = a_study(answers=3, name="halts of old")  # its definition is what it always was
    asked = define_round(rounds_of(old)[Purpose.HALTS])
    with LedgerFile(quick) as ledger:
        for number in range(1, 5):
            word_of(a_device(MAIN, ledger), sum_of(number))
        device = a_device(old, ledger)
        mechanism = mechanism_for(old.value, asked.value, kept=True)
        ledger.seal(asked, lambda purse: device._made(asked, mechanism, np.ones((1, 1)), purse))

    with LedgerFile(quick) as ledger:
        assert not ledger.doubt
        assert [row.change for row in ledger.history(old.hash)] == [1]
        assert ledger.held_units(old.hash) == 0
        assert not ledger.control_refusal


async def test_a_store_from_before_studies_said_what_they_are_for_is_taken_up() -> None:
    old, store = a_study(answers=3, name="halts of old"), MemoryStore()
    asked = define_round(rounds_of(old)[Purpose.HALTS])
    await store.add_study(old)
    await store.add_round(asked, sums_length=1, open_access=True)

    collector = Collector(store, open_access=True)
    await collector.refresh()
    release = await collector.close_round(asked.hash)

    assert (release.number, release.reports) == (1, 0)
    assert [study.hash for study in collector.studies()] == [old.hash]


# ---- a change that everybody can pay for -------------------------------------------------------


async def test_a_halt_count_that_some_could_not_pay_for_is_refused_by_everybody() -> None:
    longer = Segment(horizon=HORIZON + 1, cohort=1)
    louder = halts_at(1).query.sigma / 2  # type: ignore[attr-defined]
    segment = Segment(horizon=HORIZON, cohort=1)
    collector = Collector(MemoryStore(), open_access=True)
    await collector.create_study(HALTS.definition)
    ledger = MemoryLedger()
    ledger.agree(MAIN)
    device = a_device(HALTS, ledger)

    for asked in (
        round_of(HALTS, HaltCount(MAIN.hash, longer), number=1),
        round_of(HALTS, HaltCount(MAIN.hash, segment, sigma=louder), number=1),
    ):
        with pytest.raises(ParameterError, match="everybody can pay for a change"):
            device.check(define_round(asked))
        with pytest.raises(ParameterError, match="everybody can pay for a change"):
            await collector.open_round(define_round(asked).definition)

    first = define_round(round_of(HALTS, HaltCount(MAIN.hash, segment), number=1))
    device.check(first)
    await collector.open_round(first.definition)


async def test_a_second_halt_count_needs_room_for_a_second_change() -> None:
    segment, ledger = Segment(horizon=HORIZON, cohort=1), MemoryLedger()
    twice = a_study(answers=2, clip=NORM, name="two counts", purpose=Purpose.HALTS)
    collector = Collector(MemoryStore(), open_access=True)
    main = a_device(MAIN, ledger)
    for number in range(1, 5):
        word_of(main, sum_of(number))
    ledger.agree(OTHER)

    for study, counts in ((HALTS, 1), (twice, 2)):
        await collector.create_study(study.definition)
        device = a_device(study, ledger)
        for number in range(1, counts + 2):
            about = MAIN if number % 2 else OTHER
            asked = round_of(study, HaltCount(about.hash, segment), number=number)
            if number <= counts:
                opened = await collector.open_round(define_round(asked).definition)
                assert word_of(device, asked) == (UNIT if about is MAIN else 0)
                await collector.close_round(opened.hash)
                continue
            with pytest.raises(ParameterError, match=f"of which there are {counts + 1}"):
                device.check(define_round(asked))
            with pytest.raises(ParameterError, match=f"of which there are {counts + 1}"):
                await collector.open_round(define_round(asked).definition)


def test_a_count_that_goes_on_in_segments_needs_room_for_the_longest() -> None:
    short = Segment(horizon=HORIZON // 2, cohort=1)
    asked = round_of(HALTS, HaltCount(MAIN.hash, short), number=1)
    goes_on = Segment(horizon=HORIZON, cohort=1, earlier=(HORIZON // 2,), origin=1)
    too_far = Segment(horizon=1, cohort=1, earlier=(HORIZON + 1,), origin=1)

    check_payable(HALTS.value, asked)
    later = round_of(HALTS, HaltCount(MAIN.hash, goes_on), number=HORIZON)
    check_payable(HALTS.value, later, [asked])
    with pytest.raises(ParameterError, match="everybody can pay"):
        check_payable(
            HALTS.value, round_of(HALTS, HaltCount(MAIN.hash, too_far), number=HORIZON + 2)
        )
    check_payable(MAIN.value, sum_of(1))  # asks for no such count
