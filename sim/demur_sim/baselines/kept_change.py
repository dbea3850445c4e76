"""One change of each person, about one level: Erlingsson et al. 2019."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from demur_proto.arrays import Flags, Integers
from demur_proto.checks import check_integer
from demur_proto.mechanisms.thresholds import check_epsilon
from demur_proto.outward import up
from demur_sim.baselines.design import (
    GRID,
    Estimates,
    Protection,
    check_horizon,
    largest_probability,
    odds_of,
)
from demur_sim.baselines.flips import MOST_CHANGES
from demur_sim.baselines.sampled_levels import (
    Answers,
    Signs,
    answers_of,
    coins,
    noise_error,
    run_levels,
)


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
