"""All changes of each person, about one level, by noise that was drawn beforehand.

Ohrimenko, Wirth & Wu 2022.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from demur_proto.arrays import Flags, Integers
from demur_proto.errors import ParameterError
from demur_sim.baselines.design import Estimates, Protection, check_horizon
from demur_sim.baselines.flips import Flips, SignRows
from demur_sim.baselines.sampled_levels import (
    Answers,
    Signs,
    answers_of,
    coins,
    noise_error,
    run_levels,
)


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
