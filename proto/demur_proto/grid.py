"""Budgets and weights as integers: what makes a filter exact.

A charge is a squared norm in grid steps times the round's integer weight. Everything here is exact
rational arithmetic on the floats that a study and a round state, so every device and the server
derive the same integers.
"""

import math
from fractions import Fraction

from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import ParameterError

GRAIN = math.lcm(*range(1, 41))
"""Units of a budget that no base round divides: up to 40 equal parts of it are exact."""

UNITS_LIMIT = 1 << 62  #: budgets stay below this, so charges and sums fit signed 64-bit integers
RADIUS_LIMIT = 1 << 61  #: squared clip radii in grid steps stay below this, for the same reason
EXPONENT_LIMIT = 900  #: grid exponents stay within ± this, so that any 64-bit sum is a finite float


def grid_step(exponent: int) -> Fraction:
    """The grid step γ = 2^exponent as an exact rational.

    >>> grid_step(-7)
    Fraction(1, 128)
    """
    check_integer("grid_exponent", exponent, -EXPONENT_LIMIT, EXPONENT_LIMIT)
    return Fraction(2) ** exponent


def squared_radius(clip: float, exponent: int) -> int:
    """R = ⌊C²/γ²⌋, the largest squared norm of a value in grid steps.

    Args:
        clip: ℓ₂ radius C, data units; > 0.
        exponent: γ = 2^exponent data units.

    Raises:
        ParameterError: R is 0 or does not fit 61 bits.

    >>> squared_radius(1.0, -7)
    16384
    """
    check_positive("clip", clip)
    radius = int(Fraction(clip) ** 2 / grid_step(exponent) ** 2)
    if not 1 <= radius < RADIUS_LIMIT:
        raise ParameterError(
            "grid_exponent", exponent, f"such that 1 <= (clip / 2^exponent)^2 < 2^61 (clip {clip})"
        )
    return radius


def base_units(budget_norm: Fraction, exponent: int) -> tuple[int, int]:
    """The integer budget T and the base weight W of a study.

        T = W · ⌊B_norm / γ₀²⌋,  W the largest power of two that keeps T < 2^62

    Args:
        budget_norm: B_norm, the sum of squared norms ‖q‖² that fits when every round is like the
            base round; data units squared; > 0.
        exponent: γ₀ = 2^exponent data units.

    Returns:
        (T, W). A squared norm of z grid steps in a base round costs W·z, so exactly
        ⌊B_norm/γ₀²⌋ squared grid steps fit.

    Raises:
        ParameterError: the budget is below one squared grid step, or above 2^62 of them.

    >>> base_units(Fraction(15), -7) == (15 * 128**2 * 2**44, 2**44)
    True
    """
    if not (type(budget_norm) is Fraction and budget_norm > 0):
        raise ParameterError("budget", budget_norm, "a Fraction > 0")
    steps = int(budget_norm / grid_step(exponent) ** 2)
    if not 1 <= steps < UNITS_LIMIT:
        size = f"2^{steps.bit_length() - 1}" if steps else "less than one"
        raise ParameterError("budget", size, "between one and 2^62 squared steps of the base grid")
    weight = 1 << ((UNITS_LIMIT - 1) // steps).bit_length() - 1
    return weight * steps, weight


def round_weight(
    *,
    sigma: float,
    exponent: int,
    base_sigma: float,
    base_exponent: int,
    base_weight: int,
    budget_units: int,
) -> int:
    """The integer weight of a round: what one squared grid step costs in it.

        w = min(T + 1, ⌈W · (γ²/σ²) / (γ₀²/σ₀²)⌉)

    Rounded up, so a round never costs less than it should; capped where nothing fits any more.

    >>> round_weight(sigma=2.0, exponent=-7, base_sigma=4.0, base_exponent=-7,
    ...              base_weight=8, budget_units=1000)
    32
    """
    check_positive("sigma", sigma)
    check_positive("base_sigma", base_sigma)
    check_integer("base_weight", base_weight, 1)
    check_integer("budget_units", budget_units, 1, UNITS_LIMIT - 1)
    ratio = (grid_step(exponent) / Fraction(sigma)) ** 2
    base_ratio = (grid_step(base_exponent) / Fraction(base_sigma)) ** 2
    exact = base_weight * ratio / base_ratio
    return min(budget_units + 1, -(-exact.numerator // exact.denominator))


def charge_weight(charge: float, *, budget: float, budget_units: int) -> int:
    """The integer weight of a round in which every answer that is not nothing costs the same.

        w = min(T + 1, ⌈T · ρ / B⌉), exact in rationals

    Rounded up, so a round never costs less than it should; capped where nothing fits any more. In
    a study with a base round too this is sound: a unit never stands for more than B/T there
    either, so T units of both together stay within B.

    Args:
        charge: ρ, what one answer costs in the study's measure; > 0.
        budget: B, the study's budget in the same measure; > 0.
        budget_units: T, the same budget in units.

    >>> charge_weight(0.25, budget=0.75, budget_units=6), charge_weight(1.0, budget=0.5, budget_units=6)
    (2, 7)
    """
    check_positive("charge", charge)
    check_positive("budget", budget)
    check_integer("budget_units", budget_units, 1, UNITS_LIMIT - 1)
    exact = budget_units * Fraction(charge) / Fraction(budget)
    return min(budget_units + 1, -(-exact.numerator // exact.denominator))
