"""The budget with the least error, without trying all of them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.guarantee import Guarantee
from demur_proto.running.segments import Admission, Factorisation
from demur_proto.study import Policy, View
from demur_sim.people.populations import MOST_DEVICES, Population
from demur_sim.planning.model import Model, check_kind, model_of
from demur_sim.planning.ways import LONGEST_SEGMENT, ResponseWay, RunningWay, Way
from demur_sim.results.sums import worst_case_error
from demur_sim.scenario import Refusal, Scenario

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


# Which budget, noise and question are best for a population, and what worst-case designs would give.

Progress = Callable[[str], None]  # the way that is worked out next


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What a budget gives: root mean squares over rounds, people."""

    budget: int
    sigma: float  #: of the noise that the view shows in one round, units of the value
    noise: float  #: standard error of a released number
    truncation: float  #: expected, of what is missing since budgets did not hold it

    @property
    def error(self) -> float:
        """Both together, √(noise² + truncation²)."""
        return math.hypot(self.noise, self.truncation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Error against budget, for one way to ask."""

    way: Way = field(repr=False)
    points: tuple[Point, ...]  #: by budget; the best of all budgets is among them

    @property
    def best(self) -> Point:
        """The one with the least error, of several the smallest budget."""
        return min(self.points, key=lambda point: point.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstCase:
    """A design that knows nothing of who is active when, with the same guarantee."""

    name: str
    meaning: str
    error: float  #: standard error of a number, people; nothing is missing


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is best, and everything else beside it."""

    people: int  #: for how many it was made
    rounds: int
    model: Model = field(repr=False)
    curves: tuple[Curve, ...] = field(repr=False)  #: the least error first
    worst_cases: tuple[WorstCase, ...]

    @property
    def chosen(self) -> Curve:
        """The way to ask with the least error."""
        return self.curves[0]

    @property
    def best(self) -> Point:
        """Its best budget."""
        return self.chosen.best

    @property
    def scenario(self) -> Scenario:
        """The best design, to be simulated on the same public data, or on as many people of its law."""
        asked = self.chosen.way.asked(self.best.budget)
        if asked.data.devices or asked.data.histogram is not None:
            return replace(asked, data=replace(asked.data, devices=self.people))
        return asked

    @cached_property
    def guarantee(self) -> Guarantee:
        """What it promises to whom."""
        return self.chosen.way.promise(self.best.budget)

    def factor(self, worst: WorstCase) -> float:
        """How many times the error of the best design another one has."""
        return worst.error / self.best.error


def plan(
    scenario: Scenario,
    *,
    people: int | None = None,
    population: Population | None = None,
    progress: Progress | None = None,
) -> Plan:
    """The way to ask, and its budget, with the least error in how many people have the value 1.

    The error is the root of mean squares over rounds: of the noise, and of what is missing because
    budgets do not hold it. Both are worked out, nothing is simulated.

    The choice depends on the model, so it tells of the people in it: whoever they are, their data must be
    public. What is asked of others afterwards is as private as the scenario promises.

    Args:
        scenario: whose people are the model, and whose promise is kept: epsilon, delta, measure, view,
            policy, rounds, minimum cohort. Its kind, budget and grid are what is chosen anew. The
            feature has to be 0 or 1 for everybody.
        people: for how many; by default as many as the scenario has. The model is scaled.
        population: public data of one's own; by default the scenario's.
        progress: told what is worked out next.

    Raises:
        DataError: the people's data cannot be read.
        ParameterError: the scenario is not one that can be planned, or an argument is outside its
            range.
    """
    _check(scenario)
    if people is not None:
        check_integer("people", people, 1, MOST_DEVICES)
    model = model_of(scenario, population)
    count = model.people if people is None else people
    curves = []
    ways = ways_to_ask(scenario, model, people=count)
    for way in ways:
        if progress:
            progress(way.name)
        curves.append(_curve(way))
    return Plan(
        people=count,
        rounds=model.rounds,
        model=model,
        curves=tuple(sorted(curves, key=lambda curve: curve.best.error)),
        worst_cases=_worst_cases(ways, people=count, rounds=model.rounds),
    )


def _check(scenario: Scenario) -> None:
    """Refuse what would be another scenario if it were planned."""
    check_kind(scenario)
    wanted: dict[str, tuple[Any, ...]] = {
        "policy": (Policy.SKIP, Policy.RETIRE),
        "refusal": (Refusal.COVER,),
        "admission": (Admission.COMMIT,),
        "halts": (0,),
        "first_segment": (0,),
        "window": (0,),
        "beside": ("",),
    }
    for name, choices in wanted.items():
        value = getattr(scenario, name)
        if value not in choices:
            possible = " or ".join(str(each) for each in choices) or "left out"
            found = value if isinstance(value, int | float) else str(value)
            raise ParameterError(name, found, f"{possible}, to be planned")
    if not scenario.presence.is_whole:
        expected = "left out, to be planned: everybody answers in every round"
        raise ParameterError("presence", "devices come and go", expected)


def _curve(way: Way) -> Curve:
    def bias(budget: int) -> float:
        return way.truncation(budget).mean_squared_bias(way.people)

    tried = worth_trying(way.variance, bias, most=way.most, step=way.step)
    points = (
        Point(
            budget=budget,
            sigma=way.sigma(budget),
            noise=math.sqrt(noise),
            truncation=math.sqrt(missing),
        )
        for budget, (noise, missing) in tried.items()
    )
    return Curve(way=way, points=tuple(points))


def _worst_cases(ways: Sequence[Way], *, people: int, rounds: int) -> tuple[WorstCase, ...]:
    """What one does who knows nothing of who is active when.

    Args:
        ways: to ask, of which the first asks for sums.
        people: how many.
        rounds: how many.
    """
    everyone = WorstCase(
        name="everyone pays",
        meaning="everybody pays for every round, and nobody runs out",
        error=worst_case_error(ways[0].asked(1), devices=people, rounds=rounds),
    )
    response = [
        WorstCase(
            name="randomised response",
            meaning="everybody answers by it in every round, and nobody runs out",
            error=math.sqrt(way.variance(rounds)),
        )
        for way in ways
        if isinstance(way, ResponseWay)
    ]
    return (everyone, *response)


def ways_to_ask(scenario: Scenario, model: Model, *, people: int) -> tuple[Way, ...]:
    """All ways to ask for how many people have the value 1 in each round.

    Running counts of more than 4,096 rounds are left out, and randomised response where the view is
    not local.

    Args:
        scenario: what is promised.
        model: who has the value 1 when.
        people: for how many people.
    """
    ways: list[Way] = [Way(scenario=scenario, model=model, people=people)]
    if model.rounds <= LONGEST_SEGMENT:
        ways += [
            RunningWay(scenario=scenario, model=model, people=people, factorisation=factorisation)
            for factorisation in Factorisation
        ]
    if scenario.view is View.LOCAL:
        ways.append(ResponseWay(scenario=scenario, model=model, people=people))
    return tuple(ways)
