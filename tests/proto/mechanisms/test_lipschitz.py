import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.arrays import Values
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.for_study.gaussian import LARGEST_STEP, LipschitzGaussian
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_sim.engine.sampling import FastSampler


def sampler(seed: int = 1) -> FastSampler:
    return FastSampler(np.random.Generator(np.random.SFC64(seed)))


def linear(dimension: int = 1, **changes: Any) -> GaussianLinear:
    fields: dict[str, Any] = {
        "dimension": dimension,
        "clip": 1.0,
        "grid_exponent": -14,
        "sigma": 4.0,
        "shares": 1,
        "on_grid": False,
    }
    return GaussianLinear(**{**fields, **changes})


def softened(values: Values) -> Values:
    """From three numbers to two, 1-Lipschitz, and not zero at zero."""
    return np.stack([np.cos(values[:, 0]), np.tanh(values[:, 1] + values[:, 2]) / 2], axis=1)


def around(query: list[float]) -> LipschitzGaussian:
    return LipschitzGaussian.around(query, post_map=softened, linear=linear(2))


def test_the_reference_record_has_words_of_zero_and_costs_nothing() -> None:
    mechanism = around([0.5, 1.0, -0.25])

    assert mechanism.reference == (round(math.cos(0.5) * 2**14), round(math.tanh(0.75) / 2 * 2**14))
    # z_ref is on the grid and g of the reference is not, but for its rounding they are the same.
    words, squares = mechanism.encode(np.array([[0.5, 1.0, -0.25]] * 50), sampler())
    assert np.abs(words).max() <= 1
    on_grid = LipschitzGaussian(
        linear=linear(2), post_map=lambda values: values, reference=(3 << 12, -(1 << 14))
    )
    words, squares = on_grid.encode(np.array([[0.75, -1.0], [0.75, -0.5]]), sampler())
    assert words.tolist() == [[0, 0], [0, 1 << 13]]
    assert squares.tolist() == [0, 1 << 26]
    assert on_grid.charge_zcdp(0) == on_grid.charge_gdp(0) == 0.0


def test_the_charge_is_of_the_distance_from_the_reference_and_not_of_the_value() -> None:
    mechanism = LipschitzGaussian(
        linear=linear(), post_map=lambda values: values, reference=(100 << 14,)
    )

    words, squares = mechanism.encode(np.array([[100.5], [99.0], [0.0]]), sampler())

    assert words[:2].tolist() == [[1 << 13], [-(1 << 14)]]
    assert mechanism.charge_zcdp(int(squares[0])) == 0.5**2 / (2 * 4.0**2)
    assert mechanism.charge_gdp(int(squares[0])) == 0.5 / 4.0
    # Further away than the clip counts as at the clip.
    assert 0.999 * mechanism.largest < squares[2] <= mechanism.largest


@given(query=st.lists(st.floats(-2, 2), min_size=3, max_size=3))
def test_a_lipschitz_map_costs_no_more_than_its_constant_says_but_for_rounding(
    query: list[float],
) -> None:
    mechanism = around([0.0, 0.0, 0.0])
    distance = math.sqrt(sum(q * q for q in query))

    words, squares = mechanism.encode(np.array([query]), sampler())

    # tanh(a + b)/2 moves by at most |a + b|/2 ≤ ‖(a, b)‖/√2.
    bound = mechanism.charge_bound(distance, lipschitz=1.0)
    rounding = 2 * 2**-14  # each coordinate by less than a step, and z_ref by half of one
    moved = math.sqrt(2 * bound) * 4.0
    assert mechanism.charge_zcdp(int(squares[0])) <= (moved + rounding) ** 2 / (2 * 4.0**2)
    assert words.shape == (1, 2)


def test_cover_is_noise_around_the_reference() -> None:
    mechanism = LipschitzGaussian(
        linear=linear(), post_map=lambda values: values, reference=(100 << 14,)
    )
    words, _ = mechanism.encode(np.full((2_000, 1), 100.5), sampler())

    answers = mechanism.randomise(words, sampler(2))
    covers = mechanism.randomise(words * 0, sampler(2))

    assert (answers - covers == 1 << 13).all()  # the same noise around both
    assert abs(covers.mean() / 2**14 - 100) < 4 * 4.0 / math.sqrt(2_000)
    assert mechanism.valid(covers).all()


@pytest.mark.parametrize("answering", [0, 300, 1_000])
def test_what_is_estimated_is_what_the_answering_moved(answering: int) -> None:
    mechanism, people, drawn = around([0.5, 1.0, -0.25]), 1_000, sampler(3)
    values = np.tile([[1.0, 0.2, 0.2]], (people, 1))
    words, _ = mechanism.encode(values, drawn)
    words[answering:] = 0

    reports = mechanism.randomise(words, drawn)
    result = mechanism.estimate(mechanism.tally(reports), reports=people)

    reference = np.array(mechanism.reference) / 2**14
    truth = answering * (softened(values[:1])[0] - reference)
    assert (np.abs(np.array(result.estimate) - truth) < 4 * result.standard_error[0]).all()
    assert result.standard_error[0] == pytest.approx(4.0 * math.sqrt(people), rel=1e-6)


def check(*, runs: int, seed: int) -> None:
    mechanism, people, drawn = around([0.5, 1.0, -0.25]), 50, sampler(seed)
    values = np.tile([[1.0, 0.2, 0.2]], (people, 1))
    truth = people * (softened(values[:1])[0] - np.array(mechanism.reference) / 2**14)
    misses, covered = [], []
    for _ in range(runs):
        reports = mechanism.randomise(mechanism.encode(values, drawn)[0], drawn)
        result = mechanism.estimate(mechanism.tally(reports), reports=people)
        misses.append(np.array(result.estimate) - truth)
        covered.append(np.abs(misses[-1]) <= result.half_width[0])

    theory = people * 4.0**2  # rounding is 10^-9 of it
    assert (np.abs(np.square(misses).mean(axis=0) / theory - 1) < 3 * math.sqrt(2 / runs)).all()
    error = math.sqrt(0.95 * 0.05 / runs)
    assert (np.abs(np.mean(covered, axis=0) - 0.95) < 3 * error).all()


def test_estimates_miss_by_what_theory_says_and_intervals_cover() -> None:
    check(runs=400, seed=5)


@pytest.mark.long
def test_mechanisms_lipschitz_estimates_over_thousands_of_runs() -> None:
    check(runs=10_000, seed=6)


def test_a_query_that_the_map_cannot_answer_becomes_the_reference() -> None:
    mechanism = LipschitzGaussian.around([1.0], post_map=np.log, linear=linear())

    words, squares = mechanism.encode(np.array([[0.0], [-1.0], [math.nan], [1.5]]), sampler())

    assert words[:3].tolist() == [[0], [0], [0]]
    assert squares[:3].tolist() == [0, 0, 0]
    assert words[3, 0] == pytest.approx(math.log(1.5) * 2**14, abs=1)


def test_what_does_not_fit_is_refused_in_one_line() -> None:
    def identity(values: Values) -> Values:
        return values

    references: list[Any] = [(), (0, 0), (0.5,), (True,), (LARGEST_STEP + 1,)]
    for reference in references:
        with pytest.raises(ParameterError, match=r"^reference [^\n]*$"):
            LipschitzGaussian(linear=linear(), post_map=identity, reference=reference)
    with pytest.raises(ParameterError, match=r"^linear [^\n]*$"):
        LipschitzGaussian(linear="gaussian", post_map=identity, reference=(0,))  # type: ignore[arg-type]
    for query in ([math.nan], [math.inf], [1e300]):
        with pytest.raises(ParameterError, match=r"^query [^\n]*$"):
            LipschitzGaussian.around(query, post_map=identity, linear=linear())
    with pytest.raises(ParameterError, match=r"^post_map [^\n]*$"):
        LipschitzGaussian.around([1.0, 2.0], post_map=identity, linear=linear())
    mechanism = LipschitzGaussian.around([0.0], post_map=identity, linear=linear())
    with pytest.raises(ParameterError, match=r"^post_map "):
        mechanism.encode(np.zeros((3, 2)), sampler())
    with pytest.raises(ParameterError, match=r"^values "):
        mechanism.encode(np.zeros(3), sampler())  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"^reports "):
        mechanism.estimate(np.array([0]), reports=0)
    with pytest.raises(ParameterError, match=r"^sums "):
        mechanism.estimate(np.array([0, 0]), reports=1)
    for distance, constant, name in (
        (-1.0, 1.0, "distance"),
        (math.nan, 1.0, "distance"),
        (1.0, 0.0, "lipschitz"),
        (1.0, math.nan, "lipschitz"),
    ):
        with pytest.raises(ParameterError, match=rf"^{name} "):
            mechanism.charge_bound(distance, lipschitz=constant)
    huge = mechanism.valid(np.array([[1 << 62], [-(1 << 63)], [0]]))
    assert huge.tolist() == [False, False, True]
