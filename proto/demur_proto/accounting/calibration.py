"""Budgets and weights as integers: what makes a filter exact.

A charge is a squared norm in grid steps times the round's integer weight. Everything here is exact
rational arithmetic on the floats that a study and a round state, so every device and the server
derive the same integers.
"""

import math
from fractions import Fraction

from demur_proto.accounting.numerics import ceil_float, root_up
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


# How much noise so many answers need, and how many answers fit; exact rational arithmetic.
#
# An answer of norm C under noise σ costs C²/σ² of μ², or C²/(2σ²) of ρ, and costs add up. So all of
# this is division; what is not a float is rounded to the safe side: σ, μ and ρ up, answers down.


def sigma_for_answers(answers: int | Fraction, *, clip: float, mu: float) -> float:
    """The least noise under which so many full-clip answers together are μ-GDP.

        the smallest float σ with σ²μ² ≥ answers · clip², in exact rational arithmetic

    Args:
        answers: how many answers at full clip one person may give; > 0, a fraction counts too.
        clip: ℓ₂ norm of the largest answer, data units; finite, > 0.
        mu: GDP budget μ, standard deviations; finite, > 0.

    Returns:
        σ of the full noise that the view shows, per coordinate, data units.

    Raises:
        ParameterError: an argument is outside its range, or no finite σ is enough.

    Source: one answer is clip/σ-GDP, and squares add: Dong, Roth & Su 2019, arXiv:1905.02383,
    Theorem 2.7 and Corollary 3.3; under full adaptivity arXiv:2209.15596, arXiv:2210.17520.

    >>> sigma_for_answers(4, clip=1.0, mu=2.0)
    1.0
    """
    check_positive("mu", mu)
    return _sigma(_energy(answers, clip) / Fraction(mu) ** 2, "mu", mu)


def sigma_for_answers_zcdp(answers: int | Fraction, *, clip: float, rho: float) -> float:
    """The least noise under which so many full-clip answers together are ρ-zCDP.

        the smallest float σ with 2σ²ρ ≥ answers · clip², in exact rational arithmetic

    Args:
        answers: how many answers at full clip one person may give; > 0, a fraction counts too.
        clip: ℓ₂ norm of the largest answer, data units; finite, > 0.
        rho: zCDP budget ρ in nats; finite, > 0.

    Returns:
        σ of the full noise that the view shows, per coordinate, data units.

    Raises:
        ParameterError: an argument is outside its range, or no finite σ is enough.

    Source: Bun & Steinke 2016, arXiv:1605.02065, Proposition 1.6 and Lemma 1.7; under full
    adaptivity Feldman & Zrnic, arXiv:2008.11193, Theorem "rdp-at-stopping-times".

    >>> sigma_for_answers_zcdp(8, clip=1.0, rho=1.0)
    2.0
    """
    check_positive("rho", rho)
    return _sigma(_energy(answers, clip) / (2 * Fraction(rho)), "rho", rho)


def answers_that_fit(*, sigma: float, clip: float, mu: float) -> int:
    """How many answers at full clip one person may give while all together are μ-GDP.

        ⌊σ²μ² / C²⌋, in exact rational arithmetic

    Args:
        sigma: σ of the full noise that the view shows, per coordinate, data units; finite, > 0.
        clip: ℓ₂ norm C of the largest answer, data units; finite, > 0.
        mu: GDP budget μ, standard deviations; finite, > 0.

    Returns:
        The number of answers, never too many; 0 where not even one fits.

    Raises:
        ParameterError: an argument is outside its range.

    Source: as `sigma_for_answers`, of which this is the inverse.

    >>> answers_that_fit(sigma=1.0, clip=1.0, mu=2.0)
    4
    """
    check_positive("mu", mu)
    return _count(Fraction(mu) ** 2, sigma, clip)


def answers_that_fit_zcdp(*, sigma: float, clip: float, rho: float) -> int:
    """How many answers at full clip one person may give while all together are ρ-zCDP.

        ⌊2σ²ρ / C²⌋, in exact rational arithmetic

    Args:
        sigma: σ of the full noise that the view shows, per coordinate, data units; finite, > 0.
        clip: ℓ₂ norm C of the largest answer, data units; finite, > 0.
        rho: zCDP budget ρ in nats; finite, > 0.

    Returns:
        The number of answers, never too many; 0 where not even one fits.

    Raises:
        ParameterError: an argument is outside its range.

    Source: as `sigma_for_answers_zcdp`, of which this is the inverse.

    >>> answers_that_fit_zcdp(sigma=2.0, clip=1.0, rho=1.0)
    8
    """
    check_positive("rho", rho)
    return _count(2 * Fraction(rho), sigma, clip)


def mu_of_answers(answers: int | Fraction, *, clip: float, sigma: float) -> float:
    """The μ for which so many full-clip answers together are μ-GDP.

        the smallest float μ with μ²σ² ≥ answers · clip², in exact rational arithmetic

    Args:
        answers: how many answers at full clip one person gives; > 0, a fraction counts too.
        clip: ℓ₂ norm of the largest answer, data units; finite, > 0.
        sigma: σ of the full noise that the view shows, per coordinate, data units; finite, > 0.

    Returns:
        μ, standard deviations.

    Raises:
        ParameterError: an argument is outside its range, or no finite μ is enough.

    Source: as `sigma_for_answers`.

    >>> mu_of_answers(4, clip=1.0, sigma=1.0)
    2.0
    """
    check_positive("sigma", sigma)
    try:
        return root_up(_energy(answers, clip) / Fraction(sigma) ** 2)
    except OverflowError:
        raise ParameterError("sigma", sigma, "large enough for a finite mu") from None


def rho_of_answers(answers: int | Fraction, *, clip: float, sigma: float) -> float:
    """The ρ for which so many full-clip answers together are ρ-zCDP.

        the smallest float ρ with 2ρσ² ≥ answers · clip², in exact rational arithmetic

    Args:
        answers: how many answers at full clip one person gives; > 0, a fraction counts too.
        clip: ℓ₂ norm of the largest answer, data units; finite, > 0.
        sigma: σ of the full noise that the view shows, per coordinate, data units; finite, > 0.

    Returns:
        ρ in nats.

    Raises:
        ParameterError: an argument is outside its range, or no finite ρ is enough.

    Source: as `sigma_for_answers_zcdp`.

    >>> rho_of_answers(8, clip=1.0, sigma=2.0)
    1.0
    """
    check_positive("sigma", sigma)
    rho = ceil_float(_energy(answers, clip) / (2 * Fraction(sigma) ** 2))
    if math.isinf(rho):
        raise ParameterError("sigma", sigma, "large enough for a finite rho")
    return rho


def _energy(answers: int | Fraction, clip: float) -> Fraction:
    number = isinstance(answers, int | Fraction) and not isinstance(answers, bool)
    if not (number and answers > 0):
        raise ParameterError("answers", answers, "an integer or a Fraction > 0")
    check_positive("clip", clip)
    return answers * Fraction(clip) ** 2


def _sigma(square: Fraction, budget: str, value: float) -> float:
    try:
        return root_up(square)
    except OverflowError:
        raise ParameterError(budget, value, "large enough for a finite sigma") from None


def _count(budget: Fraction, sigma: float, clip: float) -> int:
    check_positive("sigma", sigma)
    check_positive("clip", clip)
    return int(budget * Fraction(sigma) ** 2 / Fraction(clip) ** 2)
