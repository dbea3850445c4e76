"""Steps along released gradients. All of it is post-processing: it costs nobody anything."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from demur_proto.arrays import Vector
from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import ParameterError

MOST_STEPS = (1 << 32) - 1  #: of a training, as many as a study can have rounds

State = tuple[Vector, ...]
"""What an optimiser remembers, [d] each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A learning rate that goes from one value to another in a straight line, and stays there.

    Raises:
        ParameterError: a field is outside its range.

    >>> [Rate(first=1.0, last=0.0, steps=5).at(number) for number in (1, 2, 5, 6)]
    [1.0, 0.75, 0.0, 0.0]
    """

    first: float  #: of step 1; > 0
    last: float | None = None  #: of step `steps`; >= 0; None: as the first
    steps: int = 1  #: how many it takes

    def __post_init__(self) -> None:
        check_positive("first", self.first)
        if self.last is not None and self.last != 0:
            check_positive("last", self.last)
        check_integer("steps", self.steps, 1, MOST_STEPS)

    def at(self, number: int) -> float:
        """The rate of a step; they count from 1."""
        check_integer("number", number, 1, MOST_STEPS)
        if self.last is None or self.steps == 1:
            return self.first
        way = min(1.0, (number - 1) / (self.steps - 1))
        return self.first + way * (self.last - self.first)


class Optimiser(Protocol):
    """A pure step: the same arguments give the same numbers, bit for bit."""

    def start(self, dimension: int) -> State:
        """What there is to remember before the first step."""

    def step(
        self, theta: Vector, state: State, gradient: Vector, *, number: int
    ) -> tuple[Vector, State]:
        """θ and what to remember after a step; they count from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sgd:
    """Plain descent, θ ← θ − ηg: the paper's.

    >>> Sgd(rate=Rate(first=0.5)).step(np.array([1.0]), (), np.array([4.0]), number=1)
    (array([-1.]), ())
    """

    rate: Rate

    def start(self, dimension: int) -> State:
        """Nothing."""
        return ()

    def step(
        self, theta: Vector, state: State, gradient: Vector, *, number: int
    ) -> tuple[Vector, State]:
        """θ after a step."""
        return theta - self.rate.at(number) * gradient, ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Momentum:
    """Descent along an average of gradients, v ← βv + (1 − β)g and θ ← θ − ηv.

    With the factor 1 − β the same rate takes steps of about the same length whatever β is.

    >>> momentum = Momentum(rate=Rate(first=1.0), momentum=0.5)
    >>> momentum.step(np.array([1.0]), (np.array([2.0]),), np.array([4.0]), number=1)
    (array([-2.]), (array([3.]),))
    """

    rate: Rate
    momentum: float = 0.9  #: β; at least 0 and below 1

    def __post_init__(self) -> None:
        check_share("momentum", self.momentum)

    def start(self, dimension: int) -> State:
        """No direction yet."""
        return (np.zeros(dimension),)

    def step(
        self, theta: Vector, state: State, gradient: Vector, *, number: int
    ) -> tuple[Vector, State]:
        """θ and the direction after a step."""
        (direction,) = state
        direction = self.momentum * direction + (1 - self.momentum) * gradient
        return theta - self.rate.at(number) * direction, (direction,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam:
    """Momentum in which every coordinate is divided by its own root mean square.

        m ← βm + (1 − β)g,  v ← β₂v + (1 − β₂)g²,
        θ ← θ − η · m/(1 − βᵗ) / (√(v/(1 − β₂ᵗ)) + 10⁻⁸)

    Source: Kingma & Ba 2015, arXiv:1412.6980, Algorithm 1. The first step goes η against each sign:

    >>> Adam(rate=Rate(first=0.1)).step(
    ...     np.zeros(2), (np.zeros(2), np.zeros(2)), np.array([3.0, -5.0]), number=1)[0].round(6)
    array([-0.1,  0.1])
    """

    rate: Rate
    momentum: float = 0.9  #: β; at least 0 and below 1
    squares: float = 0.999  #: β₂, of the squares; at least 0 and below 1

    def __post_init__(self) -> None:
        check_share("momentum", self.momentum)
        check_share("squares", self.squares)

    def start(self, dimension: int) -> State:
        """No direction and no squares yet."""
        return np.zeros(dimension), np.zeros(dimension)

    def step(
        self, theta: Vector, state: State, gradient: Vector, *, number: int
    ) -> tuple[Vector, State]:
        """θ, direction and squares after a step."""
        direction, squares = state
        direction = self.momentum * direction + (1 - self.momentum) * gradient
        squares = self.squares * squares + (1 - self.squares) * gradient**2
        size = np.sqrt(squares / (1 - self.squares**number)) + 1e-8
        step = direction / (1 - self.momentum**number) / size
        return theta - self.rate.at(number) * step, (direction, squares)


def check_share(name: str, value: float) -> None:
    """Refuse what is not a number in [0, 1).

    >>> check_share("momentum", 0.9)
    """
    if type(value) not in (int, float) or not 0 <= value < 1:
        raise ParameterError(name, value, "at least 0 and below 1")


# Averages of released iterates: post-processing that takes out some of the noise.
#
# An average is kept as a weighted total and its weight; without any weight there is none yet.


class Averaging(Protocol):
    """Which average of the iterates θ₁, θ₂, … stands for the model."""

    def take(
        self, total: Vector, weight: float, theta: Vector, *, number: int
    ) -> tuple[Vector, float]:
        """Total and weight after one more iterate; they count from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Last:
    """No average: the last iterate."""

    def take(
        self, total: Vector, weight: float, theta: Vector, *, number: int
    ) -> tuple[Vector, float]:
        """The iterate, with weight 1."""
        return theta, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TailAverage:
    """The mean of the iterates from one on.

    Source: Rakhlin, Shamir & Sridharan 2012, arXiv:1109.5647, α-suffix averaging.
    """

    start: int  #: number of the first iterate of the mean; >= 1

    def __post_init__(self) -> None:
        check_integer("start", self.start, 1, MOST_STEPS)

    def take(
        self, total: Vector, weight: float, theta: Vector, *, number: int
    ) -> tuple[Vector, float]:
        """The sum of the iterates, and their number."""
        return (total, weight) if number < self.start else (total + theta, weight + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialAverage:
    """A mean in which an iterate has the weight (1 − γ)γⁱ, i steps later."""

    decay: float  #: γ; at least 0 and below 1

    def __post_init__(self) -> None:
        check_share("decay", self.decay)

    def take(
        self, total: Vector, weight: float, theta: Vector, *, number: int
    ) -> tuple[Vector, float]:
        """The weighted sum of all iterates, and the sum of weights."""
        return (
            self.decay * total + (1 - self.decay) * theta,
            self.decay * weight + (1 - self.decay),
        )


# When to stop: decided from noisy counts that were paid for, never from data.


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A noisy count of people, released after a step."""

    step: int  #: after which it was asked; >= 1
    value: float  #: people; noise may make it negative
    standard_error: float  #: people; >= 0

    def __post_init__(self) -> None:
        check_integer("step", self.step, 1, MOST_STEPS)
        for name in ("value", "standard_error"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
                raise ParameterError(name, value, "a finite number")
        if self.standard_error < 0:
            raise ParameterError("standard_error", self.standard_error, "at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plateau:
    """Stop when errors have not become fewer for a while.

    That is when none of the last `patience` counts is below the best one before them by more than
    `margin` standard errors of a difference of two.

    Raises:
        ParameterError: a field is outside its range.

    >>> counts = [Count(step=step, value=value, standard_error=0.0)
    ...           for step, value in [(5, 90.0), (10, 60.0), (15, 61.0), (20, 60.0)]]
    >>> Plateau(patience=2).has_come(counts), Plateau(patience=3).has_come(counts)
    (True, False)
    """

    patience: int  #: >= 1
    margin: float = 1.0  #: >= 0

    def __post_init__(self) -> None:
        check_integer("patience", self.patience, 1, MOST_STEPS)
        if type(self.margin) not in (int, float) or not 0 <= self.margin < math.inf:
            raise ParameterError("margin", self.margin, "a finite number >= 0")

    def has_come(self, counts: Sequence[Count]) -> bool:
        """Whether to stop after these counts of errors, in the order in which they came."""
        earlier, latest = counts[: -self.patience], counts[-self.patience :]
        if not earlier:
            return False
        best = min(earlier, key=lambda count: count.value)
        least = min(latest, key=lambda count: count.value)
        noise = math.hypot(best.standard_error, least.standard_error)
        return least.value >= best.value - self.margin * noise


@dataclass(frozen=True, slots=True, kw_only=True)
class HaltThreshold:
    """Stop when so many people have run out, by a noisy count of those who ever did.

    Raises:
        ParameterError: the share is outside its range.

    >>> HaltThreshold(share=0.5).has_come(
    ...     [Count(step=3, value=51.0, standard_error=2.0)], cohort=100)
    True
    """

    share: float  #: of the cohort; > 0 and <= 1

    def __post_init__(self) -> None:
        if type(self.share) not in (int, float) or not 0 < self.share <= 1:
            raise ParameterError("share", self.share, "above 0 and at most 1")

    def has_come(self, counts: Sequence[Count], *, cohort: int) -> bool:
        """Whether to stop after these counts of people who ran out."""
        check_integer("cohort", cohort, 1)
        return bool(counts) and counts[-1].value >= self.share * cohort
