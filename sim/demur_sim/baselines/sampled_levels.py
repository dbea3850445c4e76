"""Dyadic sums of which each person tells those of one level: the frame of two designs.

Rounds 1 to T are cut into intervals of 2^h rounds, h = 0 to L − 1 with L = ⌊log₂ T⌋ + 1. A person
draws one level and answers at the end of each of its intervals by ±1, about how the state that they
follow has changed in it: by −1, 0 or 1. The rounds up to t are one interval for each binary digit
of t, and that of digit h is always the last complete one of its level.

    estimate_t = L/(c n) Σ over the digits h of t, Σ of that interval's answers

c is the mean of an answer about a change of 1. Somebody's part X in the sum is nothing, or ±L/c where
theirs is among the m(t) levels of these intervals. It has the mean s_t, the state, 0 or 1, so

    n · variance of the fraction = m(t) L/c² − mean of s_t

Source: the frame of Erlingsson et al. 2019, arXiv:1811.12469; the variance is derived above.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

import numpy as np
import numpy.typing as npt

from demur_proto.arrays import Flags, Integers, Vector
from demur_sim.baselines.design import Estimates, checked_rounds

Signs = np.ndarray[tuple[int], np.dtype[np.int8]]  # shape [n], −1, 0 or 1


class Follower(Protocol):
    """What all devices of one run hold and draw."""

    def follow(self, state: Flags) -> Signs:
        """Take in a round's states [n]; the followed states [n] after it."""

    def answer(self, people: Integers, changes: Signs) -> Signs:
        """What these people say about changes [m] over an interval: −1 or 1 each [m]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answers:
    """What the people of one level said at the end of one of its intervals."""

    round: int
    level: int
    people: Integers = field(repr=False)  #: [m]
    signs: Signs = field(repr=False)  #: [m]


def levels_of(horizon: int) -> int:
    """L, how many levels have an interval within the horizon.

    >>> levels_of(1024), levels_of(1023)
    (11, 10)
    """
    return horizon.bit_length()


def interval_counts(horizon: int) -> Vector:
    """m(t), how many intervals make up the rounds to t, for t = 1 to T.

    >>> interval_counts(4).tolist()
    [1.0, 1.0, 2.0, 1.0]
    """
    return np.array([float(t.bit_count()) for t in range(1, horizon + 1)])


Run = Callable[[Iterator[Flags], Integers], Iterator[Answers]]
"""From the rounds' states and everybody's level [n] to all answers."""


def run_levels(
    states: Iterable[Flags], run: Run, *, horizon: int, lean: float, rng: np.random.Generator
) -> Estimates:
    """A whole run, of which `run` is the device half.

    Args:
        states: as in `Baseline.estimates`.
        run: the devices.
        horizon: T.
        lean: c.
        rng: of the levels.
    """
    rounds = checked_rounds(states, horizon=horizon)
    first = next(rounds)
    levels = rng.integers(levels_of(horizon), size=len(first))
    answers = run(chain([first], rounds), levels)
    return estimates_of(answers, horizon=horizon, people=len(first), lean=lean)


def answers_of(
    states: Iterable[Flags], follower: Follower, *, levels: Integers, horizon: int
) -> Iterator[Answers]:
    """Device half: all answers in the order in which they come.

    Args:
        states: as in `Baseline.estimates`.
        follower: the devices.
        levels: everybody's level [n].
        horizon: T.
    """
    members = [np.flatnonzero(levels == level) for level in range(levels_of(horizon))]
    told: Signs = np.zeros(len(levels), dtype=np.int8)
    for number, state in enumerate(checked_rounds(states, horizon=horizon), start=1):
        followed = follower.follow(state)
        for level, people in enumerate(members):
            if number % (1 << level):
                break
            changes = followed[people] - told[people]
            told[people] = followed[people]
            yield Answers(
                round=number, level=level, people=people, signs=follower.answer(people, changes)
            )


def estimates_of(
    answers: Iterable[Answers], *, horizon: int, people: int, lean: float
) -> Estimates:
    """Server half: answers in order to the fractions.

    Their standard errors leave the mean of s_t out, which is not known: they are above the true ones,
    by less than a share of c²/L.
    """
    levels = levels_of(horizon)
    sums = np.zeros((horizon + 1, levels))
    for each in answers:
        sums[each.round, each.level] = each.signs.sum(dtype=np.int64)
    fractions = np.zeros(horizon)
    for number in range(1, horizon + 1):
        digits = [h for h in range(levels) if number >> h & 1]
        total = sum(sums[number >> h << h, h] for h in digits)
        fractions[number - 1] = total * levels / (lean * people)
    variances = interval_counts(horizon) * levels / (lean**2 * people)
    return Estimates(fraction=fractions, standard_error=np.sqrt(variances))


def noise_error(*, horizon: int, lean: float) -> float:
    """√(mean over rounds of m(t) L)/c: the error of the fraction by noise, times √n, from above.

    >>> round(noise_error(horizon=4, lean=0.5) ** 2)  # 5/4 intervals, 3 levels, 1/c² = 4
    15
    """
    return math.sqrt(float(interval_counts(horizon).mean()) * levels_of(horizon)) / lean


def coins(count: int, rng: np.random.Generator) -> Signs:
    """Fair signs [count]."""
    drawn: npt.NDArray[np.int8] = rng.integers(2, size=count, dtype=np.int8)
    return 2 * drawn - 1
