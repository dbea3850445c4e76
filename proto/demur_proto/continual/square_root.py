"""The square root of all prefix sums, in whole grid steps."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from demur_proto.arrays import Integers, Vector, fixed_floats, fixed_integers
from demur_proto.checks import check_integer
from demur_proto.continual.ranges import check_factors

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
