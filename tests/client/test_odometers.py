"""Three odometers, against recorded traces and against each other."""

import copy
import itertools
import json
import math
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_client.budget.odometers import (
    ExactSumOdometer,
    NestedOdometer,
    Odometer,
    RestartOdometer,
)
from demur_conformance.vectors.filters import check_odometer_traces
from demur_proto.errors import ParameterError

GOLDEN = Path(__file__).parent.parent / "golden" / "accounting.json"
TRACES: list[dict[str, Any]] = json.loads(GOLDEN.read_text(encoding="utf-8"))["odometer_traces"]

losses = st.one_of(
    st.floats(0, 3), st.fractions(0, 3), st.sampled_from([0, 1, 0.5, 0.25, Fraction(1, 3)])
)
steps = st.one_of(st.fractions(Fraction(1, 50), 5), st.floats(0.01, 5), st.sampled_from([1, 0.25]))

ODOMETERS: dict[str, Callable[[Any], Odometer]] = {
    "nested": lambda step: NestedOdometer(step=step),
    "exact_sum": lambda step: ExactSumOdometer(),
    "paper_restart": lambda step: RestartOdometer(step=step),
}


@pytest.mark.parametrize("trace", TRACES, ids=lambda t: t["id"])
def test_recorded_traces_are_shown_the_same(trace: dict[str, Any]) -> None:
    step = Fraction(trace["Delta"])
    charges = [Fraction(charge) for charge in trace["charges"]]
    nested, paper, exact = NestedOdometer(step=step), RestartOdometer(step=step), ExactSumOdometer()

    assert [nested.add(charge) for charge in charges] == list(map(Fraction, trace["nested_O"]))
    assert [paper.add(charge) for charge in charges] == list(
        map(Fraction, trace["paper_restart_O"])
    )
    assert [exact.add(charge) for charge in charges] == list(map(Fraction, trace["exact_sum"]))
    assert list(paper.restarts) == trace["paper_T"]
    assert paper.holds == trace["paper_precondition_holds"]
    assert (paper.level >= exact.level) == trace["paper_sound_at_end"]


@pytest.mark.parametrize("column", ["nested_O", "paper_restart_O", "exact_sum", "paper_T"])
def test_the_checker_of_vectors_finds_a_wrong_number_in_any_column(column: str) -> None:
    assert check_odometer_traces(TRACES).holds
    planted = copy.deepcopy(TRACES[:1])
    planted[0][column][-1] = "7"

    verdict = check_odometer_traces(planted)

    assert not verdict.holds
    assert column in verdict.failures[0]


@given(steps, st.lists(losses, max_size=30))
def test_the_nested_level_bounds_the_sum_and_is_never_the_looser_one(
    step: Any, charges: list[Any]
) -> None:
    nested, paper, exact = NestedOdometer(step=step), RestartOdometer(step=step), ExactSumOdometer()

    for charge in charges:
        level, restarted, total = nested.add(charge), paper.add(charge), exact.add(charge)

        assert total <= level
        assert level == Fraction(step) or total > level - Fraction(step)
        if paper.holds:
            assert level <= restarted
            assert total <= restarted


@given(steps, st.lists(losses, max_size=30))
def test_the_restarting_odometer_is_a_row_of_filters(step: Any, charges: list[Any]) -> None:
    paper = RestartOdometer(step=step)
    capped = [min(Fraction(charge), Fraction(step)) for charge in charges]

    for charge in capped:
        paper.add(charge)

    bounds = [0, *paper.restarts, len(capped)]
    parts = [capped[start:stop] for start, stop in itertools.pairwise(bounds)]
    assert paper.holds
    assert paper.level == Fraction(step) * len(parts)
    assert all(sum(part) <= Fraction(step) for part in parts)
    for part, following in itertools.pairwise(parts):  # what came next did not fit
        assert sum(part) + following[0] > Fraction(step)


@given(st.lists(losses, max_size=20))
def test_the_exact_sum_is_exact(charges: list[Any]) -> None:
    mine = ExactSumOdometer()

    for charge in charges:
        mine.add(charge)

    assert mine.level == sum(map(Fraction, charges))


@pytest.mark.parametrize("kind", ODOMETERS)
def test_what_costs_nothing_moves_nothing(kind: str) -> None:
    mine = ODOMETERS[kind](1)
    fresh = mine.level

    assert [mine.add(0), mine.add(0.0), mine.add(Fraction(0))] == [fresh] * 3
    mine.add(1)
    before = mine.level
    assert mine.add(0) == before


def test_levels_before_the_first_answer() -> None:
    assert NestedOdometer(step=0.5).level == Fraction(1, 2)
    assert RestartOdometer(step=0.5).level == Fraction(1, 2)  # O_0, where the paper says O_1
    assert ExactSumOdometer().level == 0


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, -1, -1e-300, True, "1", None])
@pytest.mark.parametrize("kind", ODOMETERS)
def test_what_is_no_loss_is_refused_and_changes_nothing(kind: str, wrong: Any) -> None:
    mine = ODOMETERS[kind](Fraction(1, 2))
    mine.add(0.3)
    before = mine.level

    with pytest.raises(ParameterError) as caught:
        mine.add(wrong)

    assert (caught.value.name, caught.value.value) == ("loss", "something else")
    assert mine.level == before


@pytest.mark.parametrize("wrong", [0, -1, math.nan, math.inf, -math.inf, True, "1", None])
def test_a_step_is_finite_and_above_zero(wrong: Any) -> None:
    for make in (NestedOdometer, RestartOdometer):
        with pytest.raises(ParameterError, match="step must be a finite number > 0"):
            make(step=wrong)


@pytest.mark.parametrize("kind", ODOMETERS)
def test_threads_lose_no_answer(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(self: Odometer, loss: Fraction) -> None:
        before = self._sum
        time.sleep(1e-6)  # others run between reading the sum and writing it
        self._sum = before + loss
        self._answers += 1

    monkeypatch.setattr(Odometer, "_count", slowly)
    mine = ODOMETERS[kind](1)
    workers = [
        threading.Thread(target=lambda: [mine.add(Fraction(1, 4)) for _ in range(40)], daemon=True)
        for _ in range(4)
    ]

    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=30)

    assert mine.level == 40


@pytest.mark.parametrize("kind", ODOMETERS)
def test_what_an_odometer_holds_shows_in_no_text(kind: str) -> None:
    mine = ODOMETERS[kind](1)
    mine.add(0.6)

    assert repr(mine) == str(mine) == f"{type(mine).__name__}(secret)"
