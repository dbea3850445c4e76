"""Windows cover each round once, and what they promise together is what their budgets add up to."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.accounting.histograms import design_histogram_study
from demur_proto.accounting.pure import composition_epsilon
from demur_proto.accounting.windows import Window, Windows, over_windows, told_stays
from demur_proto.errors import ParameterError
from demur_proto.study import Measure, Study, View, design_study

DELTA = 1e-6


def study(number: int, **changes: Any) -> Study:
    given: dict[str, Any] = {"epsilon": 1.0, "delta": DELTA, "answers": 3, "minimum_cohort": 10}
    return design_study(**{**given, "name": f"window {number}", "horizon": 91, **changes})


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ(ε) of μ-GDP by the error function: Balle & Wang 2018, arXiv:1805.06530, Theorem 8."""

    def tail(x: float) -> float:
        return math.erfc(x / math.sqrt(2)) / 2

    return tail(epsilon / mu - mu / 2) - math.exp(epsilon) * tail(epsilon / mu + mu / 2)


@given(rounds=st.integers(1, 50), horizon=st.integers(1, 400))
def test_every_round_is_in_one_window(rounds: int, horizon: int) -> None:
    if rounds > horizon:
        with pytest.raises(ParameterError, match=f"^window must be an integer .* <= {horizon}, "):
            Windows.every(rounds, horizon=horizon)
        return

    windows = Windows.every(rounds, horizon=horizon).windows

    covered = [at for each in windows for at in range(each.first, each.last + 1)]
    assert covered == list(range(1, horizon + 1))
    assert {each.rounds for each in windows[:-1]} <= {rounds}


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        (
            [(1, 91), (80, 182)],
            (
                "windows: the first round of window 2 must be 92, so that it does not overlap with "
                "the window before it, got 80"
            ),
        ),
        (
            [(1, 91), (93, 182)],
            "windows: the first round of window 2 must be 92, so that no round is left out, got 93",
        ),
        (
            [(1, 91), (92, 183)],
            "windows: the last round of window 2 must be at most 182, the horizon, got 183",
        ),
        ([(1, 91)], "windows: the last round must be 182, the horizon, got 91"),
        ([], "windows must be one Window or more, got ()"),
    ],
)
def test_windows_that_are_no_schedule_are_refused_in_one_line(
    spans: list[tuple[int, int]], message: str
) -> None:
    windows = tuple(Window(first=first, last=last) for first, last in spans)

    with pytest.raises(ParameterError) as caught:
        Windows(windows=windows, horizon=182)

    assert str(caught.value) == message


def test_the_promise_for_one_window_is_that_of_its_study() -> None:
    (one,) = [over_windows([[study(1)]], stay=1, delta=DELTA)]

    assert one.budget == study(1).budget
    assert 1.0 - 1e-9 <= one.epsilon <= 1.0
    assert one.pair == pytest.approx((2 * one.epsilon, (1 + math.exp(one.epsilon)) * DELTA))


@pytest.mark.parametrize("stay", [1, 2, 4, 9])
def test_squares_add_up_and_convert_exactly(stay: int) -> None:
    windows = [[study(number)] for number in range(1, 10)]

    together = over_windows(windows, stay=stay, delta=DELTA)

    assert together.budget == pytest.approx(math.sqrt(stay) * study(1).budget, rel=1e-12)
    # At this ε the exact curve is at δ: not above, and a smaller ε would not do.
    assert gaussian_delta(together.budget, together.epsilon) <= DELTA * (1 + 1e-9)
    assert gaussian_delta(together.budget, together.epsilon * (1 - 1e-6)) > DELTA
    assert together.epsilon < stay * 1.0 + 1e-12


def test_rho_adds_up_for_zcdp_and_for_histograms() -> None:
    histogram = design_histogram_study(
        name="h", epsilon=1.0, delta=DELTA, minimum_cohort=10, categories=4
    )
    for each in (study(1, measure=Measure.ZCDP), histogram):
        together = over_windows([[each]] * 3, stay=3, delta=DELTA)

        assert together.measure is Measure.ZCDP
        assert together.budget == pytest.approx(3 * each.budget, rel=1e-12)
        assert together.in_measure in together.statement


def test_whoever_stays_for_some_windows_is_promised_what_holds_for_any_of_them() -> None:
    uneven = [[study(1, epsilon=0.5)], [study(2, epsilon=2.0)], [study(3), study(4, epsilon=0.25)]]

    budgets = [over_windows(uneven, stay=stay, delta=DELTA).budget for stay in (1, 2, 3)]

    mus = [math.hypot(*(each.budget for each in studies)) for studies in uneven]
    assert budgets[0] == pytest.approx(mus[1])
    assert budgets[1] == pytest.approx(math.hypot(mus[1], mus[2]))
    assert budgets[2] == pytest.approx(math.hypot(*mus))


def test_a_promise_names_unit_neighbour_view_and_how_many_windows() -> None:
    for view in View:
        windows = [[study(number, view=view)] for number in (1, 2)]
        statement = over_windows(windows, stay=2, delta=DELTA).statement

        for part in ("over all rounds of 2 windows", "Unit: ", "Neighbour: ", f"View: {view}"):
            assert part in statement
        assert ("its store and its backups are trusted" in statement) is (view is View.AGGREGATE)


@pytest.mark.parametrize(
    ("windows", "stay", "message"),
    [
        ([], 1, "windows must be at least one, each with its studies, got 0"),
        ([[study(1)], []], 1, "windows must be at least one, each with its studies, got 2"),
        ([[study(1)]], 2, "stay must be an integer >= 1 and <= 1, got 2"),
        ([[study(1)], [study(2, view=View.LOCAL)]], 1, "windows must be of one measure, view"),
    ],
)
def test_windows_that_promise_nothing_together_are_refused(
    windows: list[list[Study]], stay: int, message: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        over_windows(windows, stay=stay, delta=DELTA)

    assert str(caught.value).startswith(message)


def test_a_delta_that_samplers_of_so_many_windows_would_use_up_is_refused() -> None:
    large = study(1, horizon=0, maximum_dimension=1 << 30)

    with pytest.raises(ParameterError, match=r"^delta must be above .* samplers may need over 1 "):
        over_windows([[large]], stay=1, delta=1e-17)


def test_promises_are_told_for_every_small_number_of_windows_and_for_all() -> None:
    assert told_stays(1) == [1]
    assert told_stays(5) == [1, 2, 3, 4, 5]
    assert told_stays(100) == [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 100]


@pytest.mark.parametrize("measure", [Measure.PURE, Measure.ANSWERS])
def test_windows_of_pure_mechanisms_add_up_in_their_own_measure(measure: Measure) -> None:
    study = design_histogram_study(
        name="h",
        epsilon=1.0,
        delta=1e-6,
        minimum_cohort=10,
        categories=4,
        measure=measure,
        answers=26 if measure is Measure.ANSWERS else 0,
    )

    one, two = (over_windows([[study]] * 3, stay=stay, delta=1e-6) for stay in (1, 2))

    assert (one.budget, two.budget) == (study.budget, 2 * study.budget)
    if measure is Measure.PURE:
        assert (one.epsilon, two.epsilon) == (1.0, 2.0)
        assert two.pair == (4.0, 0.0)
        assert "from pure 2-DP, over all rounds of 2 windows" in two.statement
    else:
        assert one.epsilon == pytest.approx(1.0, rel=1e-9)
        exact = composition_epsilon(52, each=study.answer_epsilon, delta=1e-6)
        assert two.epsilon == pytest.approx(exact, rel=1e-9)
        assert two.epsilon < 2.0
        assert "from at most 52 answers of pure 0.0" in two.statement


def test_more_answers_than_are_composed_exactly_add_up_in_zcdp() -> None:
    study = design_histogram_study(
        name="h",
        epsilon=1.0,
        delta=1e-6,
        minimum_cohort=10,
        categories=4,
        measure=Measure.ANSWERS,
        answers=1 << 12,
    )

    both = over_windows([[study]] * 257, stay=257, delta=1e-6)

    assert both.measure is Measure.ZCDP
    assert both.budget == pytest.approx(257 * float(study.rho), rel=1e-12)
