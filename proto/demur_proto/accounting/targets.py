"""Filters of other papers for rounds of pure differential privacy, to compare with.

Each answers one question: do these rounds together still fit (ε, δ)? Whoever keeps the state adds
a round with `plus`, asks, and takes the new losses only if they fit. Sums are exact; what is not
rational is rounded up, so a filter never says yes too often.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from demur_proto.accounting import calibration, conversions
from demur_proto.accounting.conversions import Grade
from demur_proto.accounting.numerics import ceil_float, check_amount, check_delta, up
from demur_proto.accounting.pure import PureCharge, pure_rho
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError

MOST_ROUNDS = 1 << 40  #: where counting stops


@dataclass(frozen=True, slots=True, kw_only=True)
class PureLosses:
    """What the filters here need to know of the rounds so far.

    Raises:
        ParameterError: a sum is no Fraction, or negative.

    >>> PureLosses().plus(0.5).plus(0.25, rounds=2).squares
    Fraction(3, 8)
    """

    total: Fraction = Fraction(0)  #: Σ ε_t, nats
    squares: Fraction = Fraction(0)  #: Σ ε_t², nats²
    drift: Fraction = Fraction(0)  #: Σ ε_t (e^ε_t − 1)/2, each term rounded up; nats

    def __post_init__(self) -> None:
        for name in ("total", "squares", "drift"):
            if not (type(value := getattr(self, name)) is Fraction and value >= 0):
                raise ParameterError(name, value, "a Fraction >= 0")

    def plus(self, epsilon: float | Fraction, *, rounds: int = 1) -> "PureLosses":
        """The losses after some more rounds, each of them ε-DP.

        Args:
            epsilon: ε in nats, a Fraction where that is exact; 0 ≤ ε ≤ 700.
            rounds: how many; ≥ 0.

        Raises:
            ParameterError: an argument is outside its range.
        """
        if not check_amount("epsilon", epsilon) <= 700:
            raise ParameterError("epsilon", epsilon, "at least 0 and at most 700")
        check_integer("rounds", rounds, 0)
        exact = Fraction(epsilon)
        # The float nearest to an exact ε may be below it by a little less than `up` adds.
        drift = up(float(exact) * math.expm1(float(exact)) / 2) if exact else 0.0
        return PureLosses(
            total=self.total + rounds * exact,
            squares=self.squares + rounds * exact**2,
            drift=self.drift + rounds * Fraction(drift),
        )


def basic_fits(losses: PureLosses, *, epsilon: float | Fraction) -> bool:
    """Whether these rounds are together ε-DP: Σ ε_t ≤ ε, exactly.

    Source: Rogers, Roth, Ullman & Vadhan 2016, arXiv:1605.08294, the filter of basic composition.

    >>> losses = PureLosses().plus(0.25, rounds=4)
    >>> basic_fits(losses, epsilon=1.0), basic_fits(losses.plus(0.25), epsilon=1.0)
    (True, False)
    """
    check_amount("epsilon", epsilon)
    return losses.total <= Fraction(epsilon)


def rogers_fits(
    losses: PureLosses, *, epsilon: float, delta: float, halve_delta: bool = False
) -> bool:
    """Whether these rounds fit (ε, δ) by the first adaptive filter.

        Σ ε_t(e^ε_t − 1)/2 + √( (Σ ε_t² + H) (2 + ln(1 + Σ ε_t²/H)) ln(1/δ) ) ≤ ε,
        H = ε² / (28.04 ln(1/δ))

    Args:
        losses: the rounds.
        epsilon: ε in nats; 0 ≤ ε ≤ 1e15.
        delta: δ, a probability; 1e-300 ≤ δ ≤ 1/e.
        halve_delta: write ln(2/δ) under the root, as where half of δ is kept for rounds that are
            not purely private.

    Returns:
        Whether they fit; rounds that cost nothing always do.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Rogers, Roth, Ullman & Vadhan 2016, arXiv:1605.08294, the filter of advanced
    composition; the concentration bound that it rests on needs ln(1/δ) ≥ 1.

    >>> losses = PureLosses().plus(0.01, rounds=185)
    >>> rogers_fits(losses, epsilon=1.0, delta=1e-5)
    True
    >>> rogers_fits(losses.plus(0.01), epsilon=1.0, delta=1e-5)
    False
    """
    epsilon = check_amount("epsilon", epsilon)
    level = -math.log(check_delta("delta", delta))
    if not level >= 1:
        raise ParameterError("delta", delta, "at most 1/e")
    if losses.squares == 0:
        return True
    least = epsilon**2 / (28.04 * level)
    if least == 0:
        return False
    squares = up(ceil_float(losses.squares))
    width = (squares + least) * (2 + math.log1p(squares / least))
    level += math.log(2) if halve_delta else 0.0
    return up(up(ceil_float(losses.drift)) + math.sqrt(width * level)) <= epsilon


def whitehouse_fits(losses: PureLosses, *, epsilon: float, delta: float) -> bool:
    """Whether these rounds fit (ε, δ) by the filter that matches advanced composition.

        √(2 ln(1/δ) Σ ε_t²) + ½ Σ ε_t² ≤ ε

    Args:
        losses: the rounds.
        epsilon: ε in nats; 0 ≤ ε ≤ 1e15.
        delta: δ, a probability; 1e-300 ≤ δ < 1.

    Returns:
        Whether they fit; rounds that cost nothing always do.

    Raises:
        ParameterError: an argument is outside its range.

    Source: Whitehouse, Ramdas, Rogers & Wu 2023, arXiv:2203.05481, the filter for (ε, δ). It is
    the simple zCDP budget with charges ½ε².

    >>> losses = PureLosses().plus(0.01, rounds=416)
    >>> whitehouse_fits(losses, epsilon=1.0, delta=1e-5)
    True
    >>> whitehouse_fits(losses.plus(0.01), epsilon=1.0, delta=1e-5)
    False
    """
    epsilon = check_amount("epsilon", epsilon)
    level = -math.log(check_delta("delta", delta))
    if losses.squares == 0:
        return True
    squares = up(ceil_float(losses.squares))
    return up(math.sqrt(2 * level * squares) + squares / 2) <= epsilon


def rounds_that_fit(round_epsilon: float | Fraction, fits: Callable[[PureLosses], bool]) -> int:
    """The largest number of equal rounds that a filter accepts, at most 2^40.

    Args:
        round_epsilon: ε of each round in nats, as in `PureLosses.plus`.
        fits: one of the filters here, its target filled in.

    >>> rounds_that_fit(0.25, lambda losses: basic_fits(losses, epsilon=1.0))
    4
    """

    def accepted(rounds: int) -> bool:
        return fits(PureLosses().plus(round_epsilon, rounds=rounds))

    low, high = 0, 1
    while accepted(high):
        low, high = high, 2 * high
        if high > MOST_ROUNDS:
            return low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accepted(middle) else (low, middle)
    return low


# From an (ε, δ) that must hold to the noise, or to the number of answers, and back.
#
# Three grades. `simple` and `improved` turn zCDP into (ε, δ), which works for any noise with a zCDP
# bound; `exact` is the trade-off of the Gaussian itself (GDP), for Gaussian noise only.

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
