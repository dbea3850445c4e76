"""Averages of released iterates: post-processing that takes out some of the noise.

An average is kept as a weighted total and its weight; without any weight there is none yet.
"""

from dataclasses import dataclass
from typing import Protocol

from demur_proto.arrays import Vector
from demur_proto.checks import check_integer
from demur_server.training.optimisers import MOST_STEPS, check_share


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
