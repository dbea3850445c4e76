"""A device and running counts: charges before it tells, and tells to the end what it has begun."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counting_kit import STATE, UNIT, NoNoise, a_study, dense, rounds_of
from demur_client.budget import running_counts as running_state
from demur_client.budget.filters import Filter
from demur_client.budget.running_counts import RunningState
from demur_client.device import Device
from demur_client.ledger.kept import MemoryLedger
from demur_proto.arrays import Values
from demur_proto.errors import ParameterError
from demur_proto.queries import Feature, HaltCount, Linear
from demur_proto.round import Round, round_of
from demur_proto.running.segments import Admission, Factorisation, Segment
from demur_proto.study import Policy, Purpose, Study
from demur_proto.wire.definition import Defined, define_round
from demur_proto.wire.words import decode_words

KINDS = list(Factorisation)
policies = st.sampled_from([Policy.SKIP, Policy.RETIRE])


def segment(horizon: int, kind: Factorisation = Factorisation.SQUARE_ROOT) -> Segment:
    return Segment(horizon=horizon, cohort=1, factorisation=kind)


class Scripted:
    """A person whose state at each round was written down; an exception is raised instead."""

    def __init__(self, states: Sequence[Any]) -> None:
        self._states = list(states)

    def evaluate(self, feature: Feature) -> Values:
        state = self._states.pop(0)
        if isinstance(state, type):
            raise state("no such file")
        return np.array([[state]], dtype=np.float64)


def words_of(device: Device, rounds: Sequence[Defined[Round]]) -> list[int]:
    words = []
    for asked in rounds:
        report = device.report(asked, device.evaluate(asked))
        decoded, _ = decode_words(report.words, asked.value.word_type, reports=1, dimension=1)
        words.append(int(decoded[0, 0]))
    return words


def told_by(words: Sequence[int], kind: Factorisation) -> list[int]:
    """The states that noise-free words tell: all of C is undone, exactly."""
    changes = np.linalg.solve(dense(kind, len(words)).astype(float), np.array(words, float))
    assert np.abs(changes - np.rint(changes)).max() < 1e-6
    states: list[int] = np.cumsum(np.rint(changes)).astype(int).tolist()
    return states


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_the_changes_weighted_by_the_rows(kind: Factorisation) -> None:
    states = [0, 1, 1, 3, 3, 0, 2, 2]
    study = a_study(answers=1000)
    device = Device(study, Scripted(states), NoNoise())

    words = words_of(device, rounds_of(study, segment(8, kind), bound=3))

    assert words == (dense(kind, 8) @ np.diff([0, *states])).tolist()
    assert not device.ever_covered


@given(
    kind=st.sampled_from(KINDS),
    states=st.lists(st.integers(0, 2) | st.just(float("nan")), min_size=1, max_size=12),
    answers=st.integers(1, 40),
    policy=policies,
)
@settings(max_examples=150, deadline=None)
def test_what_was_taken_up_is_told_to_the_end_and_all_of_it_is_paid_for(
    kind: Factorisation, states: list[float], answers: int, policy: Policy
) -> None:
    study = a_study(answers=answers, policy=policy)
    budget = study.value.budget_units
    rounds = rounds_of(study, segment(len(states), kind), bound=2)
    device = Device(study, Scripted(states), NoNoise())

    words = words_of(device, rounds)

    assert sum(rounds[0].value.weight * word**2 for word in words) <= budget
    told = told_by(words, kind)
    reached = 0
    for state, now in zip(states, told, strict=True):
        assert now in (reached, state)  # a change is taken up whole, or not at all
        reached = now
    honest = [last if np.isnan(state) else state for last, state in zip(told, states, strict=True)]
    assert device.ever_covered or told == honest


@given(
    kind=st.sampled_from(KINDS),
    states=st.lists(st.integers(0, 1), min_size=1, max_size=10),
    answers=st.integers(1, 8),
    policy=policies,
)
@settings(max_examples=100, deadline=None)
def test_under_halt_single_words_are_refused_and_the_rest_is_paid_for(
    kind: Factorisation, states: list[int], answers: int, policy: Policy
) -> None:
    study = a_study(answers=answers, policy=policy)
    horizon = len(states)
    rounds = rounds_of(study, segment(horizon, kind), admission=Admission.HALT)
    device = Device(study, Scripted(states), NoNoise())

    words = words_of(device, rounds)

    weight = rounds[0].value.weight
    left, refused = study.value.budget_units, False
    for word, true in zip(words, (dense(kind, horizon) @ np.diff([0, *states])), strict=True):
        fits = weight * int(true) ** 2 <= left
        fits &= not (refused and policy is Policy.RETIRE and true)
        refused |= not fits
        assert word == (true if fits else 0)
        left -= weight * word**2
    assert device.ever_covered == refused


@given(
    kind=st.sampled_from(KINDS),
    horizon=st.integers(2, 9),
    joined=st.integers(1, 4),
    states=st.lists(st.integers(0, 1), min_size=9, max_size=9),
    missed=st.lists(st.booleans(), min_size=9, max_size=9),
    answers=st.integers(1, 12),
)
@settings(max_examples=100, deadline=None)
def test_whoever_comes_late_or_misses_rounds_never_pays_more_than_the_budget(
    kind: Factorisation,
    horizon: int,
    joined: int,
    states: list[int],
    missed: list[bool],
    answers: int,
) -> None:
    study = a_study(answers=answers)
    rounds = rounds_of(study, segment(horizon, kind))
    asked = [
        each
        for each, out in zip(rounds, missed, strict=False)
        if not out and each.value.number >= joined
    ]
    device = Device(study, Scripted(states), NoNoise())

    words = words_of(device, asked)

    weight = rounds[0].value.weight
    assert sum(weight * word**2 for word in words) <= study.value.budget_units


def test_what_is_held_for_words_to_come_no_other_round_can_spend() -> None:
    """A change at the first of eight positions takes 1.72 squared units; a sum of 1 does not fit."""
    study = a_study(answers=2)
    rounds = rounds_of(study, segment(8), number=1)[:1]
    between = define_round(round_of(study, Linear([STATE], clip=1.0, on_grid=True), number=2))
    later = rounds_of(study, segment(8), number=1)
    device = Device(study, Scripted([1, 1, *[1] * 7]), NoNoise())

    first = words_of(device, rounds)
    sum_of_it = words_of(device, [between])
    after = [
        define_round(
            replace(each.value, number=each.value.number + 1)  # the other round came in between
        )
        for each in later[1:]
    ]
    rest = words_of(device, after)

    assert [*first, *rest] == dense(Factorisation.SQUARE_ROOT, 8)[:, 0].tolist()
    assert sum_of_it == [0]
    assert device.ever_covered


@pytest.mark.parametrize("failure", [OSError, SystemExit, float("nan"), -1.0, 2.0, 0.5, 1e300])
def test_whatever_is_no_state_changes_nothing(failure: Any) -> None:
    study = a_study(answers=10)
    rounds = rounds_of(study, segment(3))

    broken = words_of(Device(study, Scripted([1, failure, 1]), NoNoise()), rounds)
    steady = words_of(Device(study, Scripted([1, 1, 1]), NoNoise()), rounds)

    assert broken == steady


def test_a_refused_change_may_be_asked_for_again_where_the_policy_is_to_skip() -> None:
    """A change at position 1 of two costs 1 and a quarter, one at position 2 only 1."""
    told = {}
    for policy in (Policy.SKIP, Policy.RETIRE):
        study = a_study(answers=1, policy=policy)
        device = Device(study, Scripted([1, 1]), NoNoise())
        told[policy] = words_of(device, rounds_of(study, segment(2)))

    assert told == {Policy.SKIP: [0, UNIT], Policy.RETIRE: [0, 0]}


# ---- nothing is paid where nothing changes ----------------------------------------------------


def most_paid(states: Sequence[int], *, kind: Factorisation) -> int:
    """Of ample budget, what a person pays in a segment of so many rounds; budget units."""
    study = a_study(answers=1000)
    mine = Filter.of(study.value)
    rounds = rounds_of(study, segment(len(states), kind))
    state = RunningState()
    for asked, now in zip(rounds, states, strict=True):
        state.check(asked.value)
        state = state.answer(asked.value, np.array([[float(now)]]), mine).state
    return (study.value.budget_units - mine.remaining_units) // rounds[0].value.weight


def is_one_change(kind: Factorisation) -> bool:
    """Whether somebody who changes once, and then stays, pays for one change and no more."""
    alone = int((dense(kind, 64)[:, 0] ** 2).sum())
    return most_paid([1] * 64, kind=kind) == alone


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_stays_as_they_are_pays_for_one_change_however_long(kind: Factorisation) -> None:
    assert is_one_change(kind)
    assert most_paid([0] * 64, kind=kind) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_level_that_is_charged_daily_would_be_noticed(
    kind: Factorisation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def level(values: Values, **_: Any) -> tuple[Any, Any]:
        return values[:, 0].astype(np.int64), np.ones(len(values), dtype=np.bool_)

    monkeypatch.setattr(running_state, "changes_wanted", level)

    assert not is_one_change(kind)


# ---- rounds that break their segment ----------------------------------------------------------


def other_sigma(asked: Round) -> Round:
    study = a_study(answers=10)
    query: Any = asked.query
    louder = replace(query, sigma=2 * query.sigma)
    return define_round(replace(asked, query=louder, weight=-(-study.value.base_weight // 4))).value


def with_segment(**changes: Any) -> Callable[[Round], Round]:
    def changed(asked: Round) -> Round:
        query: Any = asked.query
        return replace(asked, query=replace(query, segment=replace(query.segment, **changes)))

    return changed


def with_query(**changes: Any) -> Callable[[Round], Round]:
    def changed(asked: Round) -> Round:
        query: Any = asked.query
        return replace(asked, query=replace(query, **changes))

    return changed


@pytest.mark.parametrize(
    "broken",
    [
        other_sigma,
        with_segment(horizon=9),
        with_segment(factorisation=Factorisation.TREE),
        with_segment(cohort=2),
        with_segment(position=2),
        with_query(bound=2),
        with_query(admission=Admission.HALT),
        with_query(feature=Feature(name="another")),
    ],
    ids=[
        "sigma",
        "horizon",
        "factorisation",
        "cohort",
        "position",
        "bound",
        "admission",
        "feature",
    ],
)
def test_a_round_that_breaks_its_segment_is_refused_before_any_data_is_read(
    broken: Callable[[Round], Round],
) -> None:
    study = a_study(answers=10)
    rounds = rounds_of(study, segment(8))
    source = Scripted([0, 1, 0, 0])
    device = Device(study, source, NoNoise())
    words_of(device, rounds[:2])
    odd = define_round(broken(rounds[2].value))

    for attempt in (lambda: device.evaluate(odd), lambda: device.report(odd, np.array([[1.0]]))):
        with pytest.raises(ParameterError) as caught:
            attempt()
        assert len(str(caught.value).splitlines()) == 1
    assert len(source._states) == 2

    assert (
        words_of(device, rounds[2:4])
        == (  # and it goes on as if nothing had been asked
            dense(Factorisation.SQUARE_ROOT, 8)[2:4, :3] @ [0, 1, -1]
        ).tolist()
    )


def test_parameters_of_the_feature_may_differ_from_round_to_round() -> None:
    study = a_study(answers=10)
    rounds = rounds_of(study, segment(3))
    feature = Feature(name=STATE.name, parameters={"day": 2.0})
    device = Device(study, Scripted([1, 1]), NoNoise())

    words = words_of(
        device, [rounds[0], define_round(with_query(feature=feature)(rounds[1].value))]
    )

    assert words == [UNIT, UNIT // 2]


def test_a_report_that_is_asked_for_again_is_the_same_and_costs_nothing() -> None:
    study = a_study(answers=2)
    rounds = rounds_of(study, segment(2))
    device = Device(study, Scripted([1, 1]))
    first = device.report(rounds[0], device.evaluate(rounds[0]))
    device.report(rounds[1], device.evaluate(rounds[1]))

    again = device.report(rounds[0], None)

    assert again.SerializeToString() == first.SerializeToString()


def test_reports_are_alike_in_size_whatever_was_taken_up() -> None:
    study = a_study(answers=1)
    rounds = rounds_of(study, segment(6))

    sizes = set()
    for states in ([0] * 6, [1] * 6, [1, 0, 1, 0, 1, 0], [OSError] * 6):
        device = Device(study, Scripted(states))
        sizes |= {device.report(each, device.evaluate(each)).ByteSize() for each in rounds}

    assert len(sizes) == 1


def test_a_study_that_shrinks_answers_has_no_running_counts() -> None:
    study = a_study(policy=Policy.CLIP)

    asked = rounds_of(study, segment(2))[0]
    with pytest.raises(ParameterError, match="policy"):
        Device(study, Scripted([1])).evaluate(asked)


# ---- who halted -------------------------------------------------------------------------------


def halts_of(study: Defined[Study], other: Defined[Study], horizon: int) -> list[Defined[Round]]:
    part = segment(horizon).begun(1)
    rounds = []
    for number in range(1, horizon + 1):
        rounds.append(define_round(round_of(study, HaltCount(other.hash, part), number=number)))
        part = part.after() if number < horizon else part
    return rounds


def test_a_device_tells_once_that_it_ran_out_in_another_study() -> None:
    main, count = (
        a_study(answers=2, name="main"),
        a_study(answers=3, name="halts", purpose=Purpose.HALTS),
    )
    sums = [
        define_round(round_of(main, Linear([STATE], on_grid=True), number=number))
        for number in range(1, 5)
    ]
    ledger = MemoryLedger()
    device = Device(main, Scripted([1] * 4), NoNoise(), ledger=ledger)
    beside = Device(count, Scripted([]), NoNoise(), ledger=ledger)

    words = []
    for asked, about in zip(sums, halts_of(count, main, 4), strict=True):
        words_of(device, [asked])
        words += words_of(beside, [about])

    assert words == [0, 0, UNIT, UNIT // 2]  # the third answer did not fit
    assert not beside.ever_covered


def test_a_study_cannot_count_those_who_ran_out_in_itself() -> None:
    study = a_study(purpose=Purpose.HALTS)

    with pytest.raises(ParameterError, match="study_hash"):
        Device(study, Scripted([])).evaluate(halts_of(study, study, 1)[0])
