"""Prefix sums as B·C: a device sends a row of C times its changes, the server applies B.

C is in whole grid steps, so what a device sends is an integer by construction: nothing is rounded,
and charges are exact before anything is sent. B undoes exactly that C:

    B·C = A,  A[t, s] = 1 for s ≤ t

Times are positions of a segment, from 1.
"""

import math
from fractions import Fraction
from typing import Protocol

import numpy as np

from demur_proto.arrays import Integers, Vector
from demur_proto.checks import check_integer
from demur_proto.continual.identity import Identity
from demur_proto.continual.square_root import SquareRoot
from demur_proto.continual.tree import Tree
from demur_proto.errors import ParameterError
from demur_proto.segments import Factorisation


class Factors(Protocol):
    """Both factors for one horizon. All of it is public."""

    @property
    def horizon(self) -> int:
        """H."""

    def row(self, position: int) -> Integers:
        """What is sent at t of a change at 1 … t: C[t, 1 … t], grid steps."""

    def shared(self, position: int) -> Integers:
        """What a change at each of 1 … t shares, from t on, with one at t; grid steps².

            Σ_{τ=t}^{H} C[τ, s] · C[τ, t]  for s = 1 … t

        The last one is the energy that a change at t by 1 has on its own, up to the horizon.
        """

    def solution(self, position: int) -> Vector:
        """The weights of the sums of rounds 1 … t: B[t, 1 … t], units of the state per grid step."""


def factors_of(factorisation: Factorisation, *, horizon: int, exponent: int) -> Factors:
    """The factors of a segment.

    Args:
        factorisation: which.
        horizon: H, positions; 1 to 2^14.
        exponent: the grid step is 2^this units of the state; −900 to 0.

    Raises:
        ParameterError: an argument is outside its range.

    >>> factors_of(Factorisation.SQUARE_ROOT, horizon=4, exponent=-4).row(4).tolist()
    [5, 6, 8, 16]
    """
    if not isinstance(factorisation, Factorisation):
        raise ParameterError("factorisation", factorisation, "a Factorisation")
    match factorisation:
        case Factorisation.SQUARE_ROOT:
            return SquareRoot(horizon=horizon, exponent=exponent)
        case Factorisation.TREE:
            return Tree(horizon=horizon, exponent=exponent)
        case Factorisation.IDENTITY:
            return Identity(horizon=horizon, exponent=exponent)


def noise_gains(factors: Factors, *, rounds: int) -> Vector:
    """‖B[t, ·]‖₂² for t = 1 … rounds: what noise of variance 1 in every sum comes to in the count.

    Args:
        factors: of a segment.
        rounds: how many of its positions, from the first; at most its horizon.

    Returns:
        [rounds], units of the state squared per grid step squared.

    Raises:
        ParameterError: there are not so many positions.

    Added up anew, as `Identity` has it, a count after t rounds has the noise of t sums.

    >>> noise_gains(factors_of(Factorisation.IDENTITY, horizon=3, exponent=0), rounds=3).tolist()
    [1.0, 2.0, 3.0]
    """
    check_integer("rounds", rounds, 1, factors.horizon)
    solutions = (factors.solution(position) for position in range(1, rounds + 1))
    return np.array([math.fsum(weights * weights) for weights in solutions])


def change_norm(factorisation: Factorisation, *, horizon: int, exponent: int) -> float:
    """‖C e_1‖₂, units of the state: what a change by 1 weighs at most in a segment, rounded up.

    No change weighs more than one at position 1. A study made for n answers of this clip, times the
    largest state, has room for n changes of any size by anybody.

    Args:
        factorisation: which.
        horizon: H.
        exponent: of the grid.

    Raises:
        ParameterError: an argument is outside its range.

    >>> change_norm(Factorisation.TREE, horizon=8, exponent=-14)  # sent at 1, 2, 4 and 8
    2.0
    """
    factors = factors_of(factorisation, horizon=horizon, exponent=exponent)
    energy = Fraction(int(factors.shared(1)[-1]), 1 << -2 * exponent)
    norm = math.sqrt(energy)
    while Fraction(norm) ** 2 < energy:
        norm = math.nextafter(norm, math.inf)
    return norm
