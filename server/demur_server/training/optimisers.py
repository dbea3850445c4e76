"""Steps along released gradients. All of it is post-processing: it costs nobody anything."""

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
