"""The trivial factorisation: changes as they are, added up by the server."""

from dataclasses import dataclass

import numpy as np

from demur_proto.arrays import Integers, Vector
from demur_proto.checks import check_integer
from demur_proto.continual.ranges import check_factors


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """C is the identity, B all prefix sums. After t rounds the noise has t times its variance.

    Raises:
        ParameterError: a field is outside its range.

    >>> factors = Identity(horizon=4, exponent=-1)
    >>> factors.row(3).tolist(), factors.shared(3).tolist(), factors.solution(3).tolist()
    ([0, 0, 2], [0, 0, 4], [0.5, 0.5, 0.5])
    """

    horizon: int  #: H; 1 to 2^14
    exponent: int  #: the grid step is 2^this units of the state; -20 to 0

    def __post_init__(self) -> None:
        check_factors(self.horizon, self.exponent)

    def row(self, position: int) -> Integers:
        """C[t, 1 … t], grid steps."""
        return self._last(position, 1 << -self.exponent)

    def shared(self, position: int) -> Integers:
        """Σ_{τ ≥ t} C[τ, s]·C[τ, t] for s = 1 … t, grid steps²."""
        return self._last(position, 1 << -2 * self.exponent)

    def solution(self, position: int) -> Vector:
        """B[t, 1 … t], units of the state per grid step."""
        check_integer("position", position, 1, self.horizon)
        return np.full(position, 2.0**self.exponent)

    def _last(self, position: int, value: int) -> Integers:
        check_integer("position", position, 1, self.horizon)
        numbers: Integers = np.zeros(position, dtype=np.int64)
        numbers[-1] = value
        return numbers
