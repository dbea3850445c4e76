"""The search finds the best budget, and tries few."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from demur_sim.planning.plan import WORTH, worth_trying

steps = st.lists(st.floats(0, 10), min_size=1, max_size=120)


@given(rises=steps, falls=steps, step=st.sampled_from([1, 2]), parity=st.floats(0, 100))
def test_no_budget_is_better_than_the_best_of_those_tried(
    rises: list[float], falls: list[float], step: int, parity: float
) -> None:
    most = min(len(rises), len(falls))
    noise = np.cumsum(rises[:most])
    bias = np.cumsum(falls[:most])[::-1]
    bias = np.where(np.arange(1, most + 1) % step, bias + parity, bias)
    bias[-1] = 0
    total = noise + bias

    tried = worth_trying(
        lambda n: float(noise[min(n, most) - 1]),
        lambda n: float(bias[n - 1]) if n <= most else 0.0,
        most=most,
        step=step,
    )

    found = min(tried, key=lambda n: sum(tried[n]))
    assert sum(tried[found]) <= total.min() / (1 - WORTH) * (1 + 1e-9)
    assert {found - 1, found + 1} - {0} <= tried.keys() or found >= most


def test_thousands_of_budgets_are_not_tried_one_by_one() -> None:
    asked = []

    def bias(budget: int) -> float:
        asked.append(budget)
        return 1e9 / budget**2

    tried = worth_trying(lambda n: float(n), bias, most=100_000)

    best = min(tried, key=lambda n: sum(tried[n]))
    assert abs(best - 1260) < 20  # the cube root of 2·10^9, around which it hardly matters
    assert len(asked) == len(set(asked)) < 80


def test_up_to_sixteen_the_best_is_found_however_bias_goes() -> None:
    bias = [9, 50, 8, 50, 50, 7, 50, 50, 50, 50, 50, 50, 1, 50, 50, 50]

    tried = worth_trying(lambda n: 0.1 * n, lambda n: bias[n - 1], most=16)

    assert min(tried, key=lambda n: sum(tried[n])) == 13
