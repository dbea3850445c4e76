"""What all factorisations ask of their horizon and grid."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Protocol

import numpy as np

from demur_proto.arrays import Integers, Vector, fixed_floats, fixed_integers
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.running.segments import FINEST_COUNTING, MOST_POSITIONS, Factorisation


def check_factors(horizon: int, exponent: int) -> None:
    """Refuse what no factorisation can be made for.

    Raises:
        ParameterError: the horizon is not from 1 to 2^14, or the exponent not from −20 to 0.
    """
    check_integer("horizon", horizon, 1, MOST_POSITIONS)
    check_integer("exponent", exponent, FINEST_COUNTING, 0)


# The trivial factorisation: changes as they are, added up by the server.


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


# The square root of all prefix sums, in whole grid steps.

GUARD_BITS = 64  #: below the grid step, so that errors of the recurrence stay far away from it
KEPT = (
    16  #: horizons and grids whose coefficients are kept: 2^14 halved until it is 1, and one more
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareRoot:
    """C[t, s] = c_{t−s}, c_k the coefficient r_k of the square root, rounded to the grid.

        r_0 = 1, r_k = r_{k−1}(2k − 1)/(2k):  (Σ r_k x^k)² = 1/(1 − x)

    Rounded like this, C is a factor of its own, and B the one that goes with it: B[t, s] = b_{t−s},
    Σ b_k x^k = 1/((1 − x) Σ c_k x^k). So B·C is exactly all prefix sums; that B is not quite equal to
    C costs less than one part in 2^13 of its error.

    The integers follow from integers alone, in any language: with the step 2^−e,

        u_0 = 2^(e+64), u_k = ⌊u_{k−1}(2k − 1)/(2k)⌋, c_k = ⌊u_k/2^64 + ½⌋

    Raises:
        ParameterError: a field is outside its range.

    Source: Fichtenberger, Henzinger & Upadhyay 2023, arXiv:2202.11205, the explicit factorisation of
    the counting matrix; its mean squared error: Henzinger, Upadhyay & Upadhyay 2023.

    >>> factors = SquareRoot(horizon=3, exponent=-3)
    >>> factors.row(3).tolist()  # 8 times 3/8, 1/2 and 1
    [3, 4, 8]
    >>> factors.shared(2).tolist()  # 4·8 + 3·4, and 8·8 + 4·4
    [44, 80]
    >>> factors.solution(3).tolist()  # an eighth of 3/8, 1/2 and 1
    [0.046875, 0.0625, 0.125]
    """

    horizon: int  #: H; 1 to 2^14
    exponent: int  #: the grid step is 2^this units of the state; -20 to 0

    def __post_init__(self) -> None:
        check_factors(self.horizon, self.exponent)

    def row(self, position: int) -> Integers:
        """C[t, 1 … t], grid steps."""
        check_integer("position", position, 1, self.horizon)
        return _coefficients(self.horizon, self.exponent)[:position][::-1]

    def shared(self, position: int) -> Integers:
        """Σ_{τ ≥ t} C[τ, s]·C[τ, t] for s = 1 … t, grid steps²."""
        check_integer("position", position, 1, self.horizon)
        steps = _coefficients(self.horizon, self.exponent)
        left = self.horizon - position + 1  # positions from t on
        lags: Integers = np.correlate(steps, steps[:left], mode="valid")
        return lags[::-1]

    def solution(self, position: int) -> Vector:
        """B[t, 1 … t], units of the state per grid step."""
        check_integer("position", position, 1, self.horizon)
        return _inverse(self.horizon, self.exponent)[:position][::-1]


@lru_cache(maxsize=KEPT)
def _coefficients(horizon: int, exponent: int) -> Integers:
    """c_0 … c_{H−1}, grid steps; they never rise, and none is above 2^−exponent."""
    exact = 1 << (GUARD_BITS - exponent)
    half = 1 << (GUARD_BITS - 1)
    steps = []
    for k in range(1, horizon + 1):
        steps.append((exact + half) >> GUARD_BITS)
        exact = exact * (2 * k - 1) // (2 * k)
    return fixed_integers(steps)


@lru_cache(maxsize=KEPT)
def _inverse(horizon: int, exponent: int) -> Vector:
    """b_0 … b_{H−1}, the coefficients of 1/((1 − x) Σ c_k x^k).

    Running sums add in one order, so that every machine gets the same numbers.
    """
    series = np.ldexp(_coefficients(horizon, exponent).astype(np.float64), exponent)  # c_0 is 1
    inverse = np.zeros(horizon)
    inverse[0] = 1.0
    for k in range(1, horizon):
        inverse[k] = -np.cumsum(series[1 : k + 1] * inverse[:k][::-1])[-1]
    return fixed_floats(np.ldexp(np.cumsum(inverse), exponent))


# The binary tree: each position sends what changed over one dyadic interval that ends there.


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


# RunningCount sums as B·C: a device sends a row of C times its changes, the server applies B.
#
# C is in whole grid steps, so what a device sends is an integer by construction: nothing is rounded,
# and charges are exact before anything is sent. B undoes exactly that C:
#
#     B·C = A,  A[t, s] = 1 for s ≤ t
#
# Times are positions of a segment, from 1.


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
