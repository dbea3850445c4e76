"""From an (ε, δ) that must hold to the noise, or to the number of answers, and back.

Three grades. `simple` and `improved` turn zCDP into (ε, δ), which works for any noise with a zCDP
bound; `exact` is the trade-off of the Gaussian itself (GDP), for Gaussian noise only.
"""

from fractions import Fraction
from typing import Literal

from demur_proto import calibration, conversions
from demur_proto.baselines import MOST_ROUNDS
from demur_proto.errors import ParameterError
from demur_proto.grades import Grade
from demur_proto.outward import ceil_float
from demur_proto.pure import PureCharge, pure_rho
from demur_proto.ranges import check_amount

TargetGrade = Literal["simple", "improved", "exact"]
"""Which proof connects noise and (ε, δ)."""


def sigma_for_target(
    answers: int | Fraction,
    *,
    clip: float,
    epsilon: float,
    delta: float,
    grade: TargetGrade = "exact",
) -> float:
    """The least Gaussian noise under which so many full-clip answers are (ε, δ)-DP; rounded up.

        σ = C √k / μ (exact), C √(k / 2ρ) (else), with the largest μ or ρ that gives (ε, δ)

    Args:
        answers: k, how many answers at full clip one person may give; > 0.
        clip: ℓ₂ norm C of the largest answer, data units; finite, > 0.
        epsilon: ε in nats; 0 ≤ ε ≤ 1e15.
        delta: δ, a probability; 1e-300 ≤ δ < 1.
        grade: which proof.

    Returns:
        σ of the full noise that the view shows, per coordinate, data units.

    Raises:
        ParameterError: an argument is outside its range, or no finite σ is enough.

    Source: `gdp_mu` and `zcdp_rho`, then `sigma_for_answers` and `sigma_for_answers_zcdp`.
    Within one standard deviation lie 68.27 % of a normal law, so there μ = 2:

    >>> round(sigma_for_target(4, clip=1.0, epsilon=0.0, delta=0.682689492137), 9)
    1.0
    """
    proof = _zcdp_grade(grade)
    if proof is None:
        mu = conversions.gdp_mu(epsilon, delta=delta)
        return calibration.sigma_for_answers(answers, clip=clip, mu=_some("mu", mu))
    rho = conversions.zcdp_rho(epsilon, delta=delta, grade=proof)
    return calibration.sigma_for_answers_zcdp(answers, clip=clip, rho=_some("rho", rho))


def answers_for_target(
    *, sigma: float, clip: float, epsilon: float, delta: float, grade: TargetGrade = "exact"
) -> int:
    """How many full-clip answers under Gaussian noise are together (ε, δ)-DP; never too many.

        ⌊σ²μ²/C²⌋ (exact), ⌊2σ²ρ/C²⌋ (else), with the largest μ or ρ that gives (ε, δ)

    Args:
        sigma: σ of the full noise that the view shows, per coordinate, data units; finite, > 0.
        clip: ℓ₂ norm C of the largest answer, data units; finite, > 0.
        epsilon: ε in nats; 0 ≤ ε ≤ 1e15.
        delta: δ, a probability; 1e-300 ≤ δ < 1.
        grade: which proof.

    Returns:
        The number of answers; 0 where not even one fits.

    Raises:
        ParameterError: an argument is outside its range.

    Source: `gdp_mu` and `zcdp_rho`, then `answers_that_fit` and `answers_that_fit_zcdp`.

    >>> answers_for_target(sigma=1.0, clip=1.0, epsilon=0.0, delta=0.6827)
    4
    """
    proof = _zcdp_grade(grade)
    if proof is None:
        mu = conversions.gdp_mu(epsilon, delta=delta)
        return calibration.answers_that_fit(sigma=sigma, clip=clip, mu=mu) if mu else 0
    rho = conversions.zcdp_rho(epsilon, delta=delta, grade=proof)
    return calibration.answers_that_fit_zcdp(sigma=sigma, clip=clip, rho=rho) if rho else 0


def epsilon_of_answers(
    answers: int | Fraction,
    *,
    clip: float,
    sigma: float,
    delta: float,
    grade: TargetGrade = "exact",
) -> float:
    """The ε of so many full-clip answers under Gaussian noise; rounded up.

        with μ = C √k / σ (exact) or ρ = C² k / (2σ²) (else)

    Args:
        answers: k, how many answers at full clip one person gives; > 0.
        clip: ℓ₂ norm C of the largest answer, data units; finite, > 0.
        sigma: σ of the full noise that the view shows, per coordinate, data units; finite, > 0.
        delta: δ, a probability; 1e-300 ≤ δ < 1.
        grade: which proof.

    Returns:
        ε in nats.

    Raises:
        ParameterError: an argument is outside its range, or μ or ρ is above 1e15.

    Source: `mu_of_answers` and `rho_of_answers`, then `gdp_epsilon` and `zcdp_epsilon`.

    >>> epsilon_of_answers(4, clip=1.0, sigma=1.0, delta=0.6827)
    0.0
    """
    proof = _zcdp_grade(grade)
    if proof is None:
        mu = calibration.mu_of_answers(answers, clip=clip, sigma=sigma)
        return conversions.gdp_epsilon(mu, delta=delta)
    rho = calibration.rho_of_answers(answers, clip=clip, sigma=sigma)
    return conversions.zcdp_epsilon(rho, delta=delta, grade=proof)


def pure_rounds_for_target(
    round_epsilon: float | Fraction,
    *,
    epsilon: float,
    delta: float,
    grade: Grade = "improved",
    charge: PureCharge = "tight",
) -> int:
    """How many ε_t-DP rounds are together (ε, δ)-DP, each charged as zCDP; never too many.

        ⌊B* / ρ(ε_t)⌋, with the largest zCDP budget B* that gives (ε, δ), at most 2^40

    Args:
        round_epsilon: ε_t of each round in nats; 0 ≤ ε_t ≤ 1e15.
        epsilon: ε in nats; 0 ≤ ε ≤ 1e15.
        delta: δ, a probability; 1e-300 ≤ δ < 1.
        grade: which proof; the exact one belongs to Gaussian noise.
        charge: what a round costs, as in `pure_rho`.

    Returns:
        The number of rounds; 0 where not even one fits.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Feldman & Zrnic 2021, arXiv:2008.11193, Theorem "dp-filter-general", with `zcdp_rho` and
    `pure_rho`.

    >>> pure_rounds_for_target(0.01, epsilon=1.0, delta=1e-5, grade="simple")
    416
    """
    budget = conversions.zcdp_rho(epsilon, delta=delta, grade=grade)
    check_amount("round_epsilon", round_epsilon)
    price = pure_rho(ceil_float(Fraction(round_epsilon)), charge=charge)
    return min(MOST_ROUNDS, int(Fraction(budget) / Fraction(price)) if price else MOST_ROUNDS)


def _zcdp_grade(grade: TargetGrade) -> Grade | None:
    """The proof for zCDP, or None for the exact trade-off of GDP."""
    if grade not in ("simple", "improved", "exact"):
        raise ParameterError("grade", grade, '"simple", "improved" or "exact"')
    return None if grade == "exact" else grade


def _some(name: str, budget: float) -> float:
    """A budget that allows anything at all."""
    if budget == 0:
        raise ParameterError(name, budget, "above 0: this target leaves no budget in this grade")
    return budget
