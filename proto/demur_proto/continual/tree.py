"""The binary tree: each position sends what changed over one dyadic interval that ends there."""

from dataclasses import dataclass

import numpy as np

from demur_proto.arrays import Integers, Vector
from demur_proto.checks import check_integer
from demur_proto.continual.ranges import check_factors


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Position t sends the changes over (t − 2^v, t], 2^v the largest power of two that divides t.

    A prefix is the disjoint union of at most ⌊log₂ t⌋ + 1 of these intervals, and a change is in at
    most ⌊log₂ H⌋ + 1 of them. They are the nodes of the binary tree that prefix sums ever use: its
    left children and its left edge.

    Raises:
        ParameterError: a field is outside its range.

    Source: Chan, Shi & Song 2011, "Private and continual release of statistics", the binary mechanism;
    Dwork, Naor, Pitassi & Rothblum 2010, "Differential privacy under continual observation".

    >>> factors = Tree(horizon=8, exponent=0)
    >>> [factors.row(t).tolist() for t in (1, 2, 3, 4)]
    [[1], [1, 1], [0, 0, 1], [1, 1, 1, 1]]
    >>> factors.solution(7).tolist()  # 7 is (0, 4] and (4, 6] and (6, 7]
    [0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0]
    >>> factors.shared(5).tolist()  # a change at 5 is sent at 5, 6 and 8
    [1, 1, 1, 1, 3]
    """

    horizon: int  #: H; 1 to 2^14
    exponent: int  #: the grid step is 2^this units of the state; -20 to 0

    def __post_init__(self) -> None:
        check_factors(self.horizon, self.exponent)

    def row(self, position: int) -> Integers:
        """C[t, 1 … t], grid steps."""
        check_integer("position", position, 1, self.horizon)
        row: Integers = np.zeros(position, dtype=np.int64)
        row[position - _length(position) :] = 1 << -self.exponent
        return row

    def shared(self, position: int) -> Integers:
        """Σ_{τ ≥ t} C[τ, s]·C[τ, t] for s = 1 … t, grid steps²."""
        check_integer("position", position, 1, self.horizon)
        shared: Integers = np.zeros(position, dtype=np.int64)
        node = position
        while node <= self.horizon:  # all nodes from t on that t is in
            shared[node - _length(node) :] += 1 << -2 * self.exponent
            node += _length(node)
        return shared

    def solution(self, position: int) -> Vector:
        """B[t, 1 … t], units of the state per grid step."""
        check_integer("position", position, 1, self.horizon)
        solution: Vector = np.zeros(position)
        node = position
        while node:
            solution[node - 1] = 2.0**self.exponent
            node -= _length(node)
        return solution


def _length(position: int) -> int:
    """The largest power of two that divides it.

    >>> [_length(position) for position in (1, 2, 3, 12)]
    [1, 2, 1, 4]
    """
    return position & -position
