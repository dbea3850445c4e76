"""Steps and averages against numbers worked out by hand."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from demur_proto.arrays import Vector
from demur_proto.errors import ParameterError
from demur_server.training.optimisers import (
    Adam,
    Averaging,
    ExponentialAverage,
    Last,
    Momentum,
    Optimiser,
    Rate,
    Sgd,
    TailAverage,
)

GRADIENTS = [np.array([1.0, -2.0]), np.array([3.0, 0.5]), np.array([-1.0, 0.0])]


def path(optimiser: Optimiser, gradients: list[Vector] = GRADIENTS) -> list[list[float]]:
    """The iterates from θ = (1, 1) on."""
    theta = np.ones(2)
    state = optimiser.start(2)
    found = []
    for number, gradient in enumerate(gradients, start=1):
        theta, state = optimiser.step(theta, state, gradient, number=number)
        found.append(theta.tolist())
    return found


def test_plain_descent_goes_the_rate_times_the_gradient() -> None:
    assert path(Sgd(rate=Rate(first=0.5))) == [[0.5, 2.0], [-1.0, 1.75], [-0.5, 1.75]]


def test_the_rate_goes_to_its_last_value_in_a_straight_line() -> None:
    assert path(Sgd(rate=Rate(first=1.0, last=0.5, steps=3))) == [
        [0.0, 3.0],
        [-2.25, 2.625],  # 0.75 of (3, 0.5)
        [-1.75, 2.625],
    ]


def test_momentum_goes_along_an_average_of_gradients() -> None:
    # v = (0.5, -1), (1.75, -0.25), (0.375, -0.125)
    assert path(Momentum(rate=Rate(first=2.0), momentum=0.5)) == [
        [0.0, 3.0],
        [-3.5, 3.5],
        [-4.25, 3.75],
    ]


def test_without_momentum_it_is_plain_descent() -> None:
    rate = Rate(first=0.25)

    assert path(Momentum(rate=rate, momentum=0.0)) == path(Sgd(rate=rate))


def test_adam_takes_the_steps_of_its_paper() -> None:
    adam = Adam(rate=Rate(first=0.1), momentum=0.5, squares=0.75)

    # First coordinate: m/(1 - 1/2^t) = 1, 7/3, 3/7; v/(1 - (3/4)^t) = 1, 39/7, 133/37.
    m, v, theta = Fraction(0), Fraction(0), 1.0
    expected = []
    for number, gradient in enumerate([1, 3, -1], start=1):
        m, v = (m + gradient) / 2, (3 * v + gradient**2) / 4
        direction = m / (1 - Fraction(1, 2) ** number)
        square = v / (1 - Fraction(3, 4) ** number)
        theta -= 0.1 * float(direction) / (math.sqrt(square) + 1e-8)
        expected.append(theta)
    assert (direction, square) == (Fraction(3, 7), Fraction(133, 37))
    np.testing.assert_allclose([x for x, _ in path(adam)], expected, rtol=1e-14)


@pytest.mark.parametrize(
    "optimiser",
    [
        Sgd(rate=Rate(first=0.5)),
        Momentum(rate=Rate(first=0.5)),
        Adam(rate=Rate(first=0.5)),
    ],
)
def test_a_step_changes_none_of_what_it_is_given(optimiser: Optimiser) -> None:
    theta, gradient = np.ones(2), np.full(2, 3.0)
    state = optimiser.start(2)
    for array in (theta, gradient, *state):
        array.flags.writeable = False

    again = [optimiser.step(theta, state, gradient, number=1)[0].tolist() for _ in range(2)]

    assert again[0] == again[1] != theta.tolist()


def averaged(averaging: Averaging, iterates: list[float]) -> list[float | None]:
    total, weight = np.zeros(1), 0.0
    found: list[float | None] = []
    for number, iterate in enumerate(iterates, start=1):
        total, weight = averaging.take(total, weight, np.array([iterate]), number=number)
        found.append(float(total[0] / weight) if weight else None)
    return found


def test_a_tail_is_the_mean_from_its_start_on() -> None:
    assert averaged(TailAverage(start=2), [100.0, 1.0, 2.0, 6.0]) == [None, 1.0, 1.5, 3.0]


def test_an_exponential_average_weighs_the_past_less_and_owes_nothing_to_zero() -> None:
    # Weights 1/2 and 1/4 after two, 1/2, 1/4 and 1/8 after three.
    found = averaged(ExponentialAverage(decay=0.5), [3.0, 9.0, 6.0])

    assert found == [3.0, (4.5 + 0.75) / 0.75, (3.0 + 2.25 + 0.375) / 0.875]


def test_no_average_is_the_last_iterate() -> None:
    assert averaged(Last(), [3.0, 9.0]) == [3.0, 9.0]


@pytest.mark.parametrize("bad", [-0.1, 1.0, math.nan, math.inf, True, "0.5", None])
def test_shares_outside_0_to_1_are_refused(bad: Any) -> None:
    rate = Rate(first=1.0)
    for make in (
        lambda: Momentum(rate=rate, momentum=bad),
        lambda: Adam(rate=rate, squares=bad),
        lambda: ExponentialAverage(decay=bad),
    ):
        with pytest.raises(ParameterError, match="at least 0 and below 1"):
            make()
