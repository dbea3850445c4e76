"""A device and a running count that goes through several segments: what was told stays told."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counting_kit import STATE, UNIT, NoNoise, a_study, chain_of, dense, dense_chain
from demur_client.budget.running_counts import UNTOLD
from demur_client.device import Device
from demur_client.sources.base import FunctionSource
from demur_proto.errors import ParameterError
from demur_proto.queries import RunningCount
from demur_proto.round import Round, round_of
from demur_proto.running.segments import Admission, Factorisation, Segment
from demur_proto.study import Policy, Study
from demur_proto.wire.definition import Defined, define_round
from demur_proto.wire.words import decode_words

KINDS = list(Factorisation)
SQUARE_ROOT = Factorisation.SQUARE_ROOT
DOUBLED = (1, 2, 4)


def a_device(study: Defined[Study]) -> Device:
    return Device(study, FunctionSource({}), NoNoise())


def words_of(
    device: Device, rounds: Sequence[Defined[Round]], states: Sequence[float]
) -> list[int]:
    words = []
    for asked, state in zip(rounds, states, strict=True):
        report = device.report(asked, np.array([[float(state)]]))
        decoded, _ = decode_words(report.words, asked.value.word_type, reports=1, dimension=1)
        words.append(int(decoded[0, 0]))
    return words


def spent_of(device: Device) -> int:
    """What is gone and what is held, units."""
    left = device.ledger.remaining_units(device.study.hash)
    return device.study.value.budget_units - left


def held_of(device: Device) -> int:
    return device.ledger.held_units(device.study.hash)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_was_told_is_neither_told_nor_paid_for_again(kind: Factorisation) -> None:
    study = a_study(answers=10)
    rounds = chain_of(study, (2, 4), kind=kind)
    device = a_device(study)

    words = words_of(device, rounds, [1] * 6)

    assert words == [*dense(kind, 2)[:, 0].tolist(), 0, 0, 0, 0]
    energy = sum(word**2 for word in words)
    assert spent_of(device) == rounds[0].value.weight * energy
    assert not device.ever_covered


@given(
    kind=st.sampled_from(KINDS),
    horizons=st.sampled_from([(7,), (3, 4), DOUBLED]),
    states=st.lists(st.integers(0, 2) | st.just(float("nan")), min_size=7, max_size=7),
    answers=st.integers(1, 40),
    policy=st.sampled_from([Policy.SKIP, Policy.RETIRE]),
)
@settings(max_examples=60, deadline=None)
def test_changes_are_taken_up_whole_or_not_at_all_over_all_segments_and_all_is_paid_for(
    kind: Factorisation,
    horizons: tuple[int, ...],
    states: list[float],
    answers: int,
    policy: Policy,
) -> None:
    study = a_study(answers=answers, policy=policy)
    rounds = chain_of(study, horizons, kind=kind, bound=2)
    device = a_device(study)

    words = words_of(device, rounds, states)

    assert rounds[0].value.weight * sum(word**2 for word in words) == spent_of(device)
    assert spent_of(device) <= study.value.budget_units
    changes = np.linalg.solve(dense_chain(kind, horizons).astype(float), np.array(words, float))
    reached = 0
    for state, now in zip(states, np.cumsum(np.rint(changes)).astype(int), strict=True):
        assert now in (reached, state)
        reached = now


@pytest.mark.parametrize("admission", list(Admission))
def test_with_room_for_everything_words_are_the_changes_by_the_rows_of_each_segment(
    admission: Admission,
) -> None:
    states = [1, 0, 2, 2, 1, 0, 2]
    study = a_study(answers=1000)

    words = words_of(
        a_device(study), chain_of(study, DOUBLED, bound=2, admission=admission), states
    )

    assert words == (dense_chain(SQUARE_ROOT, DOUBLED) @ np.diff([0, *states])).tolist()


def test_what_was_held_for_the_missed_end_of_a_segment_stays_spent_and_the_state_stays_told() -> (
    None
):
    study = a_study(answers=10)
    rounds = chain_of(study, (3, 6))
    device = a_device(study)
    words_of(device, rounds[:1], [1])
    taken = spent_of(device)
    assert held_of(device) > 0

    words = words_of(device, rounds[4:6], [1, 1])

    assert words == [0, 0]
    assert held_of(device) == 0
    assert (
        spent_of(device)
        == taken
        == rounds[0].value.weight * int(sum(dense(SQUARE_ROOT, 3)[:, 0] ** 2))
    )


def test_whoever_missed_a_whole_segment_goes_on_from_the_state_told_before_it() -> None:
    study = a_study(answers=10)
    rounds = chain_of(study, DOUBLED)
    device = a_device(study)
    words_of(device, rounds[:1], [1])

    words = words_of(device, rounds[3:5], [1, 0])

    assert words == [0, -UNIT]


def test_whoever_comes_in_a_later_segment_tells_their_state_there() -> None:
    study = a_study(answers=10)

    words = words_of(a_device(study), chain_of(study, (2, 4))[2:4], [1, 1])

    assert words == [UNIT, UNIT // 2]


def changed(**changes: Any) -> Callable[[Round], Round]:
    def changed_round(asked: Round) -> Round:
        query: Any = asked.query
        segment = {each: changes[each] for each in changes if hasattr(query.segment, each)}
        rest = {each: changes[each] for each in changes if each not in segment}
        query = replace(query, segment=replace(query.segment, **segment), **rest)
        return replace(asked, query=query)

    return changed_round


@pytest.mark.parametrize(
    "broken",
    [
        changed(earlier=(1,)),
        changed(earlier=(2, 1), first_round=4, position=2),
        changed(earlier=(), origin=0, first_round=1, position=2, horizon=4),
        changed(cohort=2),
        changed(factorisation=Factorisation.TREE),
        changed(bound=2),
        changed(admission=Admission.HALT),
    ],
    ids=["shorter", "another", "back", "cohort", "factorisation", "bound", "admission"],
)
def test_a_round_that_does_not_go_on_with_its_count_is_refused_and_costs_nothing(
    broken: Callable[[Round], Round],
) -> None:
    study = a_study(answers=10)
    rounds = chain_of(study, (2, 4))
    device = a_device(study)
    words_of(device, rounds[:3], [0, 0, 1])
    spent = spent_of(device)
    odd = define_round(broken(rounds[4].value))

    for attempt in (lambda: device.evaluate(odd), lambda: device.report(odd, np.array([[1.0]]))):
        with pytest.raises(ParameterError) as caught:
            attempt()
        assert len(str(caught.value).splitlines()) == 1

    assert spent_of(device) == spent
    assert words_of(device, rounds[3:4], [1]) == [UNIT // 2]


def test_reports_are_alike_in_size_whatever_was_told_before() -> None:
    study = a_study(answers=2)
    rounds = chain_of(study, DOUBLED)

    sizes = set()
    for states in ([0] * 7, [1] * 7, [1, 0, 1, 0, 1, 0, 1], [float("nan")] * 7):
        device = Device(study, FunctionSource({}))
        for asked, state in zip(rounds, states, strict=True):
            sizes.add(device.report(asked, np.array([[float(state)]])).ByteSize())

    assert len(sizes) == 1


def test_a_count_that_is_only_begun_takes_no_room_however_far_its_horizon() -> None:
    study = a_study(answers=2)
    far = Segment(horizon=1 << 14, cohort=1, first_round=3)
    state = UNTOLD

    for position in (1, 2, 1 << 13):
        segment = replace(far, position=position)
        asked = round_of(study, RunningCount(STATE, segment), number=2 + position)
        state = state.after(asked, change=1, planned=0)

    assert state.positions.tolist() == [1, 2, 1 << 13]
    assert state.positions.nbytes + state.changes.nbytes == 3 * 16
