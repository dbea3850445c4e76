"""When to stop: decided from noisy counts that were paid for, never from data."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_server.training.optimisers import MOST_STEPS


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
