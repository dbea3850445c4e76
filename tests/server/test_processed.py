"""Post-processed releases: nearest to what was released, never called unbiased, intervals that hold."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counting_kit import a_study, rounds_of
from demur_proto.errors import ParameterError, StateError
from demur_proto.running.segments import Admission, Segment
from demur_server.collector.estimates import make_release
from demur_server.post_processing import Processed

NONE = np.zeros(0)
numbers = st.lists(st.tuples(st.floats(-100, 100), st.floats(0.5, 20)), min_size=1, max_size=9).map(
    np.array
)


def bare(values: Any, errors: Any = None) -> Processed:
    """Numbers without intervals."""
    values = np.asarray(values, dtype=np.float64)
    errors = np.ones_like(values) if errors is None else errors
    return Processed(values=values, errors=errors, low=NONE, high=NONE, confidence=math.nan)


@given(numbers=numbers)
@settings(max_examples=60, deadline=None)
def test_rising_numbers_are_those_of_the_min_max_formula(numbers: Any) -> None:
    values, errors = numbers[:, 0], numbers[:, 1]
    weights, size = errors**-2.0, len(values)

    found = bare(values, errors).rising().values

    def mean(first: int, last: int) -> float:
        part = slice(first, last + 1)
        return float(np.average(values[part], weights=weights[part]))

    expected = [
        max(min(mean(first, last) for last in range(at, size)) for first in range(at + 1))
        for at in range(size)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert (np.diff(found) >= 0).all()


@given(numbers=numbers, step=st.floats(0.1, 50))
@settings(max_examples=60, deadline=None)
def test_smoothed_numbers_solve_the_normal_equations(numbers: Any, step: float) -> None:
    values, errors = numbers[:, 0], numbers[:, 1]
    steps = np.diff(np.eye(len(values)), axis=0) / step

    found = bare(values, errors).smoothed(step).values

    matrix = np.diag(errors**-2.0) + steps.T @ steps
    np.testing.assert_allclose(
        found, np.linalg.solve(matrix, values * errors**-2.0), rtol=1e-6, atol=1e-6
    )


@given(numbers=numbers, step=st.sampled_from([1e-300, 1e-12, 1e-8, 1e-5, 1e-3, 1e9, 1e300]))
@settings(max_examples=40, deadline=None)
def test_numbers_are_smoothed_to_the_last_digits_by_any_step(numbers: Any, step: float) -> None:
    values, errors = numbers[:, 0], numbers[:, 1]
    weights = [1 / Fraction(error) ** 2 for error in errors.tolist()]
    exact = [Fraction(value) for value in values.tolist()]
    stiff = 1 / Fraction(step) ** 2
    # The normal equations in fractions, by elimination.
    size = len(exact)
    diagonal = [weight + stiff * ((at > 0) + (at < size - 1)) for at, weight in enumerate(weights)]
    right = [weight * value for weight, value in zip(weights, exact, strict=True)]
    for now in range(1, size):
        factor = stiff / diagonal[now - 1]
        diagonal[now] -= factor * stiff
        right[now] += factor * right[now - 1]
    expected = [right[-1] / diagonal[-1]]
    for now in reversed(range(size - 1)):
        expected.insert(0, (right[now] + stiff * expected[0]) / diagonal[now])

    found = bare(values, errors).smoothed(step).values

    largest = float(np.abs(values).max())
    np.testing.assert_allclose(found, [*map(float, expected)], rtol=1e-12, atol=1e-12 * largest)


@given(numbers=numbers, total=st.floats(0.1, 500))
@settings(max_examples=60, deadline=None)
def test_numbers_that_add_up_are_all_moved_alike_or_end_at_zero(numbers: Any, total: float) -> None:
    values = numbers[:, 0]

    found = bare(values).adding_to(total).values

    assert found.sum() == pytest.approx(total)
    assert (found >= 0).all()
    moved = (values - found)[found > 0]
    assert np.ptp(moved) <= 1e-9
    assert (
        values[found == 0] <= moved[0] + 1e-9
    ).all()  # the nearest: by its optimality conditions


@given(numbers=numbers, shift=st.lists(st.floats(-30, 30), min_size=9, max_size=9))
@settings(max_examples=60, deadline=None)
def test_a_truth_that_is_as_assumed_is_never_further_away_than_before(
    numbers: Any, shift: list[float]
) -> None:
    errors = numbers[:, 1]
    truth = np.sort(numbers[:, 0])
    noisy = truth + errors * np.array(shift[: len(truth)])
    counts = np.abs(truth) + 1

    risen = bare(noisy, errors).rising().values
    added = bare(counts + shift[: len(truth)]).adding_to(counts.sum()).values

    def off(values: Any, around: Any, by: Any = 1.0) -> float:
        return float(np.sum(((values - around) / by) ** 2))

    assert off(risen, truth, errors) <= off(noisy, truth, errors) * (1 + 1e-9) + 1e-9
    before = off(counts + shift[: len(truth)], counts)
    assert off(added, counts) <= before * (1 + 1e-9) + 1e-9


def test_an_interval_that_held_still_does_once_cut_to_where_the_truth_must_be() -> None:
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 40, size=4000).astype(float)
    estimates = truth + 20 * rng.standard_normal(4000)
    width = np.full(4000, 1.96 * 20)
    released = Processed(
        values=estimates,
        errors=width,
        low=estimates - width,
        high=estimates + width,
        confidence=0.95,
    )

    cut = released.between(0.0, 40.0)

    def holds(each: Processed) -> Any:
        return (each.low <= truth) & (truth <= each.high)

    assert 0.94 < holds(released).mean() < 0.96
    assert holds(cut)[holds(released)].all()
    assert ((cut.high - cut.low) <= (released.high - released.low)).all()
    assert np.mean((cut.values - truth) ** 2) < np.mean((estimates - truth) ** 2)


def test_whatever_was_moved_says_so_and_only_cutting_keeps_an_interval() -> None:
    study = a_study(minimum_cohort=2)
    rounds = rounds_of(study, Segment(horizon=3, cohort=2))
    releases: list[Any] = []
    for asked, total in zip(rounds, (40000, -90000, 5000), strict=True):
        releases.append(make_release(study, asked, [total], reports=2, earlier=list(releases)))

    series = Processed.of_series(releases)
    cut, risen = series.between(0.0), series.between(0.0).rising()

    assert series.label == "as released: unbiased for S_active, its interval holds"
    assert series.values.tolist() == [release.estimate[0] for release in releases]
    assert cut.label == "post-processed (from 0): biased, its interval holds"
    assert cut.confidence == 0.95
    assert risen.label == "post-processed (from 0, then never falling): biased, without an interval"
    assert not risen.low.size
    assert math.isnan(risen.confidence)
    assert risen.smoothed(3.0).adding_to(9.0).steps[2:] == (
        "smoothed by steps of 3",
        "adding up to 9",
    )


def test_a_withheld_round_and_a_count_without_intervals_are_told_apart() -> None:
    study = a_study(minimum_cohort=2)
    asked, halting = (
        rounds_of(study, Segment(horizon=2, cohort=2), admission=admission)[0]
        for admission in (Admission.COMMIT, Admission.HALT)
    )

    with pytest.raises(StateError, match="round 1 was withheld; leave it out"):
        Processed.of(make_release(study, asked, [5], reports=1))
    with pytest.raises(StateError, match="no releases"):
        Processed.of_series([])
    with pytest.raises(ParameterError, match="coordinate must be from 0 to 0"):
        Processed.of_series([make_release(study, asked, [5], reports=2)], coordinate=1)
    without = Processed.of(make_release(study, halting, [5], reports=2))
    assert without.label == "as released: unbiased for nothing, without an interval"


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0, 0.0, None, "a"])
def test_numbers_that_are_none_are_refused(wrong: Any) -> None:
    for process in (bare([1.0, 2.0]).smoothed, bare([1.0]).adding_to):
        with pytest.raises(ParameterError, match="must be a finite number > 0"):
            process(wrong)


def test_bounds_that_are_none_are_refused() -> None:
    for least, most in ((math.nan, 1.0), (math.inf, math.inf), (1.0, 0.0), (0.0, math.nan)):
        with pytest.raises(ParameterError, match=r"^(least|most) must be"):
            bare([1.0]).between(least, most)
    for wrong in ("a", None, True, 1j):
        for bounds in ((wrong, 1.0), (0.0, wrong)):
            with pytest.raises(ParameterError, match=r"^(least|most) must be a number, got"):
                bare([1.0]).between(*bounds)
    with pytest.raises(ParameterError, match="values must be finite"):
        bare([math.nan])
    with pytest.raises(ParameterError, match="errors must be 2 numbers > 0"):
        bare([1.0, 2.0], np.array([1.0]))
