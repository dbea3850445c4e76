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
from fractions import Fraction
from itertools import chain
from typing import Protocol

import numpy as np
import numpy.typing as npt

from demur_proto.accounting.numerics import up
from demur_proto.arrays import Flags, Integers, Vector
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.thresholds import check_epsilon
from demur_sim.comparison.design import (
    GRID,
    Estimates,
    Protection,
    check_horizon,
    checked_rounds,
    largest_probability,
    odds_of,
)
from demur_sim.comparison.flips import MOST_CHANGES, Flips, SignRows

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


# One change of each person, about one level: Erlingsson et al. 2019.


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptChange:
    """Keep one of one's first k changes, all equally likely, and forget the others.

    So at most one interval of one's level holds a change. About it one tells the truth with
    probability (1 + c)/2; about all others one flips a fair coin. Who changes more than k times is
    counted, on average, as if their state stayed as the k-th change left it.

    Without data all answers are fair coins, so no likelihood ratio is outside 1 ± c. Two people differ
    most where both have a change, at different times: (1 + c)/(1 − c). What others answered, and when,
    may steer a state: the ratios hold for every sequence of answers.

    `pair` asks for ε between two arbitrary people instead.

    Raises:
        ParameterError: a field is outside its range.

    Source: Erlingsson, Feldman, Mironov, Raghunathan, Talwar & Thakurta 2019, arXiv:1811.12469. With
    e^ε = 2 the rarer answer is to have half of what a coin gives it, so c is ½:

    >>> round(KeptChange(horizon=8, changes=2, epsilon=math.log(2)).lean, 9)
    0.5
    """

    horizon: int  #: T; from 1 to 2^20
    changes: int  #: k; from 1 to 32
    epsilon: float  #: ε over all rounds, nats; from 1e-9 to 50
    pair: bool = False  #: whether ε is to hold between two arbitrary people
    lean: float = field(init=False)  #: c

    def __post_init__(self) -> None:
        check_horizon(self.horizon)
        check_integer("changes", self.changes, 1, MOST_CHANGES)
        check_epsilon(self.epsilon)
        most = odds_of(self.epsilon)
        whole = GRID // 2  # so that (1 ± c)/2 are multiples of 2^-53

        def fits(m: int) -> bool:
            lean = Fraction(m // 2, whole)
            low, high = 1 - lean, 1 + lean
            return high <= most * low if self.pair else most * low >= 1

        lean = largest_probability(fits)
        object.__setattr__(self, "lean", math.floor(lean * whole) / whole)

    @property
    def guarantee(self) -> Protection:
        """Pure, and exact."""
        alone = up(-math.log1p(-self.lean))
        return Protection(
            rounds=self.horizon,
            epsilon=alone,
            delta=0.0,
            pair_epsilon=up(math.log1p(self.lean) - math.log1p(-self.lean)),
            pair_delta=0.0,
            report_epsilon=alone,
            reference="the state is always no, and every answer a fair coin",
        )

    @property
    def deviation(self) -> float:
        """The error by noise, root mean square over rounds, for one person; nearly, from above."""
        return noise_error(horizon=self.horizon, lean=self.lean / self.changes)

    def estimates(self, states: Iterable[Flags], *, rng: np.random.Generator) -> Estimates:
        """Run it; see `Baseline`. A state with more than k changes counts as described above."""

        def run(rounds: Iterator[Flags], levels: Integers) -> Iterator[Answers]:
            return self.answers(rounds, levels=levels, rng=rng)

        lean = self.lean / self.changes
        return run_levels(states, run, horizon=self.horizon, lean=lean, rng=rng)

    def answers(
        self, states: Iterable[Flags], *, levels: Integers, rng: np.random.Generator
    ) -> Iterator[Answers]:
        """Device half: all answers, of people with these levels [n]."""
        kept = rng.integers(1, self.changes + 1, size=len(levels))
        follower = _OneChange(lean=self.lean, kept=kept, rng=rng)
        return answers_of(states, follower, levels=levels, horizon=self.horizon)


class _OneChange:
    """The devices: which change each keeps, and how far they are."""

    def __init__(self, *, lean: float, kept: Integers, rng: np.random.Generator) -> None:
        self._lean = lean
        self._rng = rng
        self._kept = kept
        self._changes = np.zeros_like(kept)
        self._state = np.zeros(len(kept), dtype=np.bool_)
        self._followed: Signs = np.zeros(len(kept), dtype=np.int8)

    def follow(self, state: Flags) -> Signs:
        changed = state != self._state
        self._changes += changed
        now = changed & (self._changes == self._kept)
        self._followed[now] = np.where(state[now], 1, -1)
        self._state = state.copy()
        return self._followed

    def answer(self, people: Integers, changes: Signs) -> Signs:
        del people
        truth = self._rng.random(len(changes)) < (1 + self._lean) / 2
        signs: Signs = np.where(truth, changes, -changes).astype(np.int8)
        return np.where(changes == 0, coins(len(changes), self._rng), signs)


# All changes of each person, about one level, by noise that was drawn beforehand.
#
# Ohrimenko, Wirth & Wu 2022.


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposedResponse:
    """Follow one's first k changes, and tell those of one's level, each times the next of k signs.

    The signs are drawn from one law before anything is known. About intervals without a change one
    flips a fair coin. Changes alternate, so at most k intervals of a level hold one. Who changes more
    than k times is counted as if their state stayed as the k-th change left it.

    Without data all answers are fair coins, so the law's ratios against coins are those of a whole
    record: see `flips`. Two people with k changes each, at different times, are as far apart as the
    law's largest and smallest weight. What others answered, and when, may steer a state: the ratios
    hold for every sequence of answers, and are the same for all.

    Raises:
        ParameterError: a field is outside its range.

    Source: Ohrimenko, Wirth & Wu 2022, arXiv:2112.12279, FutureRand: signs drawn beforehand, their
    `annulus_flips`. What the law guarantees, and `threshold_flips`, are derived in `flips`.

    >>> flips = Flips(weights=(3, 3, 1))
    >>> ComposedResponse(horizon=8, flips=flips).lean  # (3 · 1 + 6 · 0 − 1)/10
    0.2
    """

    horizon: int  #: T; from 1 to 2^20
    flips: Flips  #: of k signs
    lean: float = field(init=False)  #: c, the mean of an answer about a change

    def __post_init__(self) -> None:
        check_horizon(self.horizon)
        if not isinstance(self.flips, Flips):
            raise ParameterError("flips", self.flips, "Flips")
        if not self.flips.lean > 0:
            raise ParameterError("flips", self.flips, "of a positive lean")
        object.__setattr__(self, "lean", float(self.flips.lean))

    @property
    def changes(self) -> int:
        """How many changes it follows, k."""
        return self.flips.changes

    @property
    def guarantee(self) -> Protection:
        """Pure; exact where the horizon has room for 2k changes."""
        alone = Flips(weights=_alone(self.flips))
        return Protection(
            rounds=self.horizon,
            epsilon=self.flips.epsilon,
            delta=0.0,
            pair_epsilon=self.flips.pair_epsilon,
            pair_delta=0.0,
            report_epsilon=alone.epsilon,
            reference="the state is always no, and every answer a fair coin",
        )

    @property
    def deviation(self) -> float:
        """The error by noise, root mean square over rounds, for one person; nearly, from above."""
        return noise_error(horizon=self.horizon, lean=self.lean)

    def estimates(self, states: Iterable[Flags], *, rng: np.random.Generator) -> Estimates:
        """Run it; see `Baseline`. A state with more than k changes counts as described above."""

        def run(rounds: Iterator[Flags], levels: Integers) -> Iterator[Answers]:
            return self.answers(rounds, levels=levels, rng=rng)

        return run_levels(states, run, horizon=self.horizon, lean=self.lean, rng=rng)

    def answers(
        self, states: Iterable[Flags], *, levels: Integers, rng: np.random.Generator
    ) -> Iterator[Answers]:
        """Device half: all answers, of people with these levels [n]."""
        follower = _FirstChanges(rows=self.flips.draw(len(levels), rng), rng=rng)
        return answers_of(states, follower, levels=levels, horizon=self.horizon)


class _FirstChanges:
    """The devices: their signs, how many they have used, and the state that they follow."""

    def __init__(self, *, rows: SignRows, rng: np.random.Generator) -> None:
        self._rows = rows
        self._rng = rng
        people, self._most = rows.shape
        self._used = np.zeros(people, dtype=np.int64)
        self._changes = np.zeros(people, dtype=np.int64)
        self._state = np.zeros(people, dtype=np.bool_)
        self._followed: Signs = np.zeros(people, dtype=np.int8)

    def follow(self, state: Flags) -> Signs:
        changed = state != self._state
        self._changes += changed
        now = changed & (self._changes <= self._most)
        self._followed[now] = state[now]
        self._state = state.copy()
        return self._followed

    def answer(self, people: Integers, changes: Signs) -> Signs:
        signs = coins(len(people), self._rng)
        some = np.flatnonzero(changes)
        who = people[some]
        signs[some] = changes[some] * self._rows[who, self._used[who]]
        self._used[who] += 1
        return signs


def _alone(flips: Flips) -> tuple[int, int]:
    """Weights of one sign on its own: how likely it is not flipped, and flipped."""
    share = (1 - flips.lean) / 2
    return share.denominator - share.numerator, share.numerator
