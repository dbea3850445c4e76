"""Several filters that spend in one step, and several threads that spend at once."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_client.budget.charges import RenyiBudget, ZcdpBudget
from demur_client.budget.decide import decide, decide_every
from demur_client.budget.filters import Filter, RenyiFilter, spend_all
from demur_proto.accounting.calibration import GRAIN
from demur_proto.errors import ParameterError
from demur_proto.study import Policy

# Several filters in one step.


@st.composite
def joint_steps(draw: st.DrawFn) -> tuple[list[tuple[int, Policy]], list[list[int]]]:
    """Budgets and policies of some filters, then each one's charges step by step."""
    filters = draw(
        st.lists(
            st.tuples(st.integers(0, 30), st.sampled_from([Policy.SKIP, Policy.RETIRE])),
            min_size=1,
            max_size=4,
        )
    )
    row = st.lists(st.integers(0, 20), min_size=len(filters), max_size=len(filters))
    return filters, draw(st.lists(row, max_size=10))


@given(joint_steps())
def test_several_filters_spend_together_or_not_at_all(
    joint: tuple[list[tuple[int, Policy]], list[list[int]]],
) -> None:
    kinds, steps = joint
    filters = [Filter(budget_units=units, policy=policy) for units, policy in kinds]
    refused = [False] * len(filters)

    for charges in steps:
        before = [mine.remaining_units for mine in filters]
        fits = [
            charge == 0 or (charge <= left and not (policy is Policy.RETIRE and gone))
            for charge, left, (_, policy), gone in zip(charges, before, kinds, refused, strict=True)
        ]

        given_ = spend_all(*zip(filters, charges, strict=True))

        taken = charges if given_ else [0] * len(filters)
        assert given_ == all(fits)
        assert [mine.remaining_units for mine in filters] == [
            left - charge for left, charge in zip(before, taken, strict=True)
        ]
        refused = [gone or not fit for gone, fit in zip(refused, fits, strict=True)]
        assert [mine.ever_refused for mine in filters] == refused


def test_filters_of_different_measures_spend_in_one_step() -> None:
    study, cap = ZcdpBudget(rho=0.5), RenyiBudget(bounds={2: 2, 8: 6})
    mine, lifetime = Filter.within(study), RenyiFilter.within(cap)
    rho = 0.25

    given_ = [
        spend_all((mine, study.charge(rho)), (lifetime, cap.charge_zcdp(rho))) for _ in range(3)
    ]

    assert given_ == [True, True, False]
    assert mine.remaining_units == 0
    assert lifetime.remaining_units == (GRAIN // 2, GRAIN // 3)
    assert (mine.ever_refused, lifetime.ever_refused) == (True, False)


def test_a_cap_that_agreed_does_not_retire_with_the_study_that_refused() -> None:
    study = Filter(budget_units=1, policy=Policy.RETIRE)
    other = Filter(budget_units=9, policy=Policy.RETIRE)
    cap = Filter(budget_units=9, policy=Policy.RETIRE)

    assert not spend_all((study, 2), (cap, 2))
    assert spend_all((other, 2), (cap, 2))
    assert not spend_all((study, 1), (cap, 1))  # it would fit, but this study has retired
    assert spend_all((study, 0), (cap, 1))
    assert (study.remaining_units, other.remaining_units, cap.remaining_units) == (1, 7, 6)


def test_a_shrunk_answer_retires_the_filters_that_shrink() -> None:
    study = Filter(budget_units=5, policy=Policy.CLIP)
    cap = Filter(budget_units=9, policy=Policy.SKIP)

    assert spend_all((study, 5), (cap, 5), shrunk=True)

    assert (study.ever_refused, cap.ever_refused) == (True, False)
    assert study.radius(weight=1, largest=3) == 0
    assert cap.radius(weight=1, largest=3) == 3


def test_a_shrunk_answer_that_another_filter_refused_retires_nobody() -> None:
    study = Filter(budget_units=5, policy=Policy.CLIP)
    cap = Filter(budget_units=1, policy=Policy.SKIP)

    assert not spend_all((study, 5), (cap, 5), shrunk=True)

    assert (study.ever_refused, cap.ever_refused) == (False, True)


def test_steps_that_are_no_step_are_refused_as_wrong() -> None:
    mine = Filter(budget_units=10, policy=Policy.SKIP)

    with pytest.raises(ParameterError, match="at least one filter"):
        spend_all()
    with pytest.raises(ParameterError, match="none of them twice"):
        spend_all((mine, 1), (mine, 1))
    with pytest.raises(ParameterError, match="shrunk"):
        spend_all((mine, 1), shrunk=True)
    with pytest.raises(ParameterError, match="shrunk"):
        mine.try_spend(1, weight=1, shrunk=True)

    assert mine.remaining_units == 10


# Threads.


@contextmanager
def racing() -> Iterator[None]:
    """Switch threads as often as there can be a race."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def count_in_threads(attempt: Callable[[int], bool], *, threads: int, times: int) -> list[int]:
    """How many attempts succeeded in each thread, all of them started together."""
    start, counts = threading.Barrier(threads), [0] * threads

    def work(thread: int) -> None:
        start.wait(timeout=30)
        counts[thread] = sum(attempt(thread) for _ in range(times))

    workers = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(threads)]
    deadline = time.monotonic() + 20
    with racing():
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(timeout=max(0.0, deadline - time.monotonic()))
    assert not any(worker.is_alive() for worker in workers), "they wait for each other"
    return counts


@pytest.fixture
def dawdling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let other threads run between a decision and the moment it is kept."""

    def slowly(rule: Callable[..., Any]) -> Callable[..., Any]:
        def decided(*charge: Any, **state: Any) -> Any:
            outcome = rule(*charge, **state)
            time.sleep(1e-6)
            return outcome

        return decided

    monkeypatch.setattr("demur_client.budget.filters.decide", slowly(decide))
    monkeypatch.setattr("demur_client.budget.filters.decide_every", slowly(decide_every))


@pytest.mark.usefixtures("dawdling")
def test_threads_that_come_between_a_decision_and_its_charge_get_no_more() -> None:
    one = Filter(budget_units=100, policy=Policy.SKIP)
    norms = Filter(budget_units=100, policy=Policy.SKIP)
    every = RenyiFilter(budget_units=100, counters=2, policy=Policy.SKIP)
    study = Filter(budget_units=100, policy=Policy.SKIP)
    cap = RenyiFilter(budget_units=300, counters=2, policy=Policy.SKIP)

    granted = [
        count_in_threads(lambda _: one.try_charge(1), threads=6, times=30),
        count_in_threads(lambda _: norms.try_spend(1, weight=1), threads=6, times=30),
        count_in_threads(lambda _: every.try_charge((1, 0)), threads=6, times=30),
        count_in_threads(lambda _: spend_all((study, 1), (cap, (1, 3))), threads=6, times=30),
    ]

    assert [sum(counts) for counts in granted] == [100] * 4  # of 180 attempts each
    assert (one.remaining_units, norms.remaining_units, study.remaining_units) == (0, 0, 0)
    assert (every.remaining_units, cap.remaining_units) == ((0, 100), (200, 0))


def test_threads_never_get_more_than_the_budget_between_them() -> None:
    mine = Filter(budget_units=1_000, policy=Policy.SKIP)
    several = RenyiFilter(budget_units=1_000, counters=3, policy=Policy.SKIP)

    one = count_in_threads(lambda _: mine.try_charge(1), threads=8, times=250)
    norms = count_in_threads(lambda _: mine.try_spend(1, weight=1), threads=2, times=10)
    every = count_in_threads(lambda _: several.try_charge((1, 0, 1)), threads=8, times=250)

    assert sum(one) == 1_000  # of 2,000 attempts
    assert sum(norms) == 0
    assert sum(every) == 1_000
    assert (mine.remaining_units, several.remaining_units) == (0, (0, 1_000, 0))


def test_the_race_would_show_without_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    class Open:
        """A lock that lets everybody in."""

        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> None: ...

    def granted() -> int:
        mine = Filter(budget_units=1_000, policy=Policy.SKIP)
        monkeypatch.setattr(mine, "_lock", Open())
        return sum(count_in_threads(lambda _: mine.try_charge(1), threads=8, times=250))

    if all(granted() == 1_000 for _ in range(50)):
        pytest.skip("this interpreter never switches threads inside a decision")


def test_threads_that_name_filters_in_any_order_neither_wait_for_ever_nor_overspend() -> None:
    study = Filter(budget_units=600, policy=Policy.SKIP)
    cap = RenyiFilter(budget_units=900, counters=2, policy=Policy.SKIP)
    third = Filter(budget_units=10_000, policy=Policy.SKIP)

    def attempt(thread: int) -> bool:
        if thread % 3 == 0:
            return spend_all((study, 1), (cap, (1, 2)), (third, 1))
        if thread % 3 == 1:
            return spend_all((third, 1), (cap, (1, 2)), (study, 1))
        return spend_all((cap, (1, 2)), (third, 1), (study, 1))

    granted = count_in_threads(attempt, threads=6, times=200)

    assert sum(granted) == 450  # the cap's second order allows no more
    assert study.remaining_units == 150
    assert cap.remaining_units == (450, 0)
    assert third.remaining_units == 10_000 - 450


def test_nobody_sees_half_a_step() -> None:
    one = Filter(budget_units=5_000, policy=Policy.SKIP)
    two = Filter(budget_units=5_000, policy=Policy.SKIP)

    def attempt(thread: int) -> bool:
        if thread:
            return spend_all((one, 1), (two, 1))
        # Whoever holds the first lock of a step sees both filters before it or after it.
        first, second = sorted((one, two), key=id)
        with first._lock, second._lock:
            return one.remaining_units != two.remaining_units

    torn, *_ = count_in_threads(attempt, threads=4, times=500)

    assert torn == 0
