"""What it costs to follow only so many changes of everybody, and the best number of them."""

import math
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

import numpy as np

from demur_proto.arrays import Flags, Vector
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_sim.baselines.design import check_horizon, checked_rounds
from demur_sim.baselines.flips import MOST_CHANGES


class Follows(Protocol):
    """A design that follows the first k changes."""

    @property
    def changes(self) -> int:
        """How many, k."""

    @property
    def deviation(self) -> float:
        """The error by noise for one person, root mean square over rounds."""


Design = TypeVar("Design", bound=Follows)


def truncation_errors(states: Iterable[Flags], *, horizon: int, most: int) -> Vector:
    """How far the fraction is off if everybody's state stays after their k-th change, k = 1 to `most`.

    After c changes a state that began at no is yes where c is odd, so it is followed as min(c, k) is.

    Args:
        states: as in `Baseline.estimates`: of a public model, or of an experiment.
        horizon: T; from 1 to 2^20.
        most: from 1 to 32.

    Returns:
        The error of the fraction [most], root mean square over rounds.

    Raises:
        ParameterError: an argument is outside its range.

    One person, who turns yes, no: followed for one change only, they are wrong in the second round.

    >>> truncation_errors(np.array([[True], [False]]), horizon=2, most=2).round(6).tolist()
    [0.707107, 0.0]
    """
    sums, people = truncation_sums(states, horizon=horizon, most=most)
    errors: Vector = np.sqrt(np.mean((sums / people) ** 2, axis=0))
    return errors


def truncation_sums(
    states: Iterable[Flags], *, horizon: int, most: int
) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.int64]], int]:
    """How many people too many, or too few, are counted in each round for that reason.

    Sums of some people add up to those of all, for whom `truncation_errors` is the root mean square.

    Args:
        states: as in `Baseline.estimates`.
        horizon: T; from 1 to 2^20.
        most: from 1 to 32.

    Returns:
        The sums [T, most], and how many people there are.

    Raises:
        ParameterError: an argument is outside its range.

    >>> truncation_sums(np.array([[True], [False]]), horizon=2, most=2)[0].tolist()
    [[0, 0], [1, 0]]
    """
    check_horizon(horizon)
    check_integer("most", most, 1, MOST_CHANGES)
    limits = np.arange(1, most + 1)[:, None]
    sums = np.zeros((horizon, most), dtype=np.int64)
    last: Flags = np.zeros(1, dtype=np.bool_)
    changes = np.zeros(1, dtype=np.int64)
    for row, state in zip(sums, checked_rounds(states, horizon=horizon), strict=True):
        changes = changes + (state != last)
        last = state
        people = np.bincount(changes)  # by how often they have changed
        counts = np.arange(len(people))
        row[:] = (np.minimum(counts, limits) % 2 - counts % 2) @ people
    return sums, len(last)


def best_changes(
    designs: Sequence[Design], truncation: Vector, *, people: int
) -> tuple[Design, float]:
    """The design with the least error of the fraction, noise and truncation together.

    Args:
        designs: with different k, each at most the length of `truncation`.
        truncation: of `truncation_errors`.
        people: how many answer, n.

    Returns:
        The design, and its error √(truncation² + noise²/n), root mean square over rounds.

    Raises:
        ParameterError: there is no design, or one follows more changes than `truncation` tells of.
    """
    check_integer("people", people, 1)
    if not designs or any(design.changes > len(truncation) for design in designs):
        found = [design.changes for design in designs]
        raise ParameterError(
            "designs", found, f"at least one, of at most {len(truncation)} changes"
        )

    def error(design: Design) -> float:
        return math.hypot(truncation[design.changes - 1], design.deviation / math.sqrt(people))

    best = min(designs, key=error)
    return best, error(best)
