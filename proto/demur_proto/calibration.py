"""How much noise so many answers need, and how many answers fit; exact rational arithmetic.

An answer of norm C under noise σ costs C²/σ² of μ², or C²/(2σ²) of ρ, and costs add up. So all of
this is division; what is not a float is rounded to the safe side: σ, μ and ρ up, answers down.
"""

import math
from fractions import Fraction

from demur_proto.checks import check_positive
from demur_proto.errors import ParameterError
from demur_proto.outward import ceil_float, root_up


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
