"""The budget with the least error, without trying all of them."""

from collections.abc import Callable
from itertools import pairwise

ALL_UP_TO = 16  #: budgets that are tried one after the other
WORTH = 1e-2  #: of the least squared error: what could be better by less is not looked for

Tried = dict[int, tuple[float, float]]


def worth_trying(
    noise: Callable[[int], float], bias: Callable[[int], float], *, most: int, step: int = 1
) -> Tried:
    """Both parts of the error for so many budgets that one of the best is among them.

    More budget needs more noise: where the noise alone is no better than the best so far, no larger
    budget is. Up to 16 every other one is tried, so there the best is found. Beyond, with `step` more a
    budget misses less: between two budgets a and b that were tried, of those a whole number of steps
    away from them, no error is below noise(a + step) + bias(b). Where that is not better by a
    hundredth than the best so far, none is tried; but both neighbours of the best one are.

    Args:
        noise: of a budget, a variance; does not fall as the budget grows.
        bias: of a budget, a square; does not rise by `step`. Where it might, the best found is still no
            worse than its neighbours, nor than any up to 16.
        most: a budget from which nothing is missing; >= 1.
        step: 2 where an odd and an even number of answers leave people with different things to say.

    Returns:
        Budgets, ascending, with their noise and bias.

    >>> tried = worth_trying(lambda n: 2.0 * n, lambda n: 800 / n, most=1000)
    >>> min(tried, key=lambda n: sum(tried[n])), len(tried) < 30
    (20, True)
    """
    search = _Search(noise, bias)
    for budget in range(1, min(most, ALL_UP_TO) + 1):
        search.error(budget)
        if noise(budget) >= search.least:
            break
    else:
        for start in range(ALL_UP_TO - step + 1, ALL_UP_TO + 1):
            search.widen(start, most=most, step=step)
    while wanted := search.promising(step) or search.beside_the_best(most):
        search.error(wanted[0])
    return dict(sorted(search.tried.items()))


class _Search:
    def __init__(self, noise: Callable[[int], float], bias: Callable[[int], float]) -> None:
        self.tried: Tried = {}
        self._noise, self._bias = noise, bias

    def error(self, budget: int) -> float:
        if budget not in self.tried:
            self.tried[budget] = (self._noise(budget), self._bias(budget))
        return sum(self.tried[budget])

    @property
    def least(self) -> float:
        return min(sum(parts) for parts in self.tried.values())

    def widen(self, start: int, *, most: int, step: int) -> None:
        """Go up in larger and larger steps until noise alone is too much, or nothing is missing."""
        budget, stride = start, step
        while budget < most and self._noise(budget) < self.least:
            budget += stride
            stride *= 2
            self.error(budget)

    def beside_the_best(self, most: int) -> list[int]:
        """The neighbours of the best budget that were not tried."""
        best = min(self.tried, key=self.error)
        return [at for at in (best - 1, best + 1) if 1 <= at <= most and at not in self.tried]

    def promising(self, step: int) -> list[int]:
        """One from between any two that were tried, if there may be a better one."""
        found = []
        for rest in range(step):
            budgets = sorted(budget for budget in self.tried if budget % step == rest)
            for low, high in pairwise(budgets):
                between = (high - low) // step - 1
                bound = self._noise(low + step) + self.tried[high][1] if between else 0.0
                if between and bound < (1 - WORTH) * self.least:
                    found.append(low + step * ((between + 1) // 2))
        return found
