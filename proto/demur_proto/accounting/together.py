"""What several studies of the same people promise together, and how to split one promise.

Every question is charged to exactly one study's filter, so the budgets add up under full adaptivity,
whichever study's question comes next: squares of μ, and ρ itself.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from demur_proto.accounting import conversions
from demur_proto.accounting.conversions import pair_epsilon_delta, pair_mu, pair_rho
from demur_proto.accounting.numerics import ceil_float, check_amount, check_delta, root_up, text_up
from demur_proto.checks import check_positive
from demur_proto.errors import ParameterError
from demur_proto.guarantee import GAUSSIAN_NOISE, NEIGHBOUR, UNIT, VIEWS, Guarantee, guarantee_of
from demur_proto.study import Measure, Study, View, largest_rho

SHRINK = 1 - 2.0**-44  #: a budget that misses its target by rounding is made smaller by this


def added_budget(budgets: Sequence[float], *, measure: Measure) -> float:
    """What budgets are together, rounded up.

        √(μ₁² + μ₂² + …) (gdp),  ρ₁ + ρ₂ + … (zcdp),  ε₁ + ε₂ + … (pure),  n₁ + n₂ + … (answers)

    Numbers of answers add up where each is of at most the same ε₀.

    Args:
        budgets: μ each, or ρ or ε each in nats, or answers; > 0 and at most 1e15.
        measure: which.

    Raises:
        ParameterError: an argument is outside its range, or there is no budget.

    Source: Dong, Roth & Su 2019, arXiv:1905.02383, Corollary 3.3, and under full adaptivity
    arXiv:2209.15596, arXiv:2210.17520; Bun & Steinke 2016, arXiv:1605.02065, Lemma 1.7, and
    arXiv:2008.11193.

    >>> [added_budget([3.0, 4.0], measure=measure) for measure in (Measure.GDP, Measure.ZCDP, Measure.PURE)]
    [5.0, 7.0, 7.0]
    """
    if not budgets:
        raise ParameterError("budgets", budgets, "at least one")
    _check_measure(measure)
    for budget in budgets:
        if not check_amount("budgets", budget):
            raise ParameterError("budgets", budget, "above 0")
    if measure is Measure.GDP:
        return root_up(sum((Fraction(budget) ** 2 for budget in budgets), Fraction()))
    return ceil_float(sum(map(Fraction, budgets), Fraction()))


def split_target(
    shares: Sequence[float], *, epsilon: float, delta: float, measure: Measure, sampler: float
) -> list[float]:
    """The ε of several studies, each with the same δ, that together keep (ε, δ).

    Args:
        shares: of μ² or of ρ, for each study; > 0, and at most 1 together.
        epsilon: of all together, nats; > 0.
        delta: of all together.
        measure: in which they count.
        sampler: what exact samplers may add to δ in all studies, at most.

    Returns:
        ε of each, nats.

    Raises:
        ParameterError: an argument is outside its range, or nothing is left beside the sampler's δ.

    >>> half = split_target([0.5, 0.5], epsilon=1.0, delta=1e-6, measure=Measure.GDP, sampler=0.0)
    >>> mus = [conversions.gdp_mu(epsilon, delta=1e-6) for epsilon in half]
    >>> conversions.gdp_delta(added_budget(mus, measure=Measure.GDP), epsilon=1.0) <= 1e-6
    True
    """
    check_positive("epsilon", epsilon)
    check_amount("epsilon", epsilon)
    check_delta("delta", delta)
    _check_of_sums(measure)
    for share in shares:
        check_positive("shares", share)
    if not sum(map(Fraction, shares)) <= 1:
        raise ParameterError("shares", list(shares), "at most 1 together")
    left = math.nextafter(delta - check_amount("sampler", sampler), 0.0)
    if not left > 0:
        needed = f"above {float(sampler):g}, which samplers may need at epsilon {epsilon:g}"
        raise ParameterError("delta", delta, f"{needed}; a smaller epsilon needs less")
    check_delta("delta", left)
    gdp = measure is Measure.GDP
    whole = conversions.gdp_mu(epsilon, delta=left) if gdp else largest_rho(epsilon, delta=left)
    parts = []
    for share in shares:
        # With all of δ: a study takes from it what its own sampler may need, so that its budget comes
        # out no larger than this.
        if gdp:
            part = conversions.gdp_epsilon(whole * math.sqrt(share) * SHRINK, delta=delta)
        else:
            part = conversions.zcdp_epsilon(whole * share * SHRINK, delta=delta)
        if not part > 0:
            raise ParameterError("shares", share, f"more, so that it has an epsilon at {delta:g}")
        parts.append(part)
    return parts


def guarantee_together(
    studies: Sequence[Study],
    *,
    epsilon: float,
    delta: float,
    per_report_mus: Sequence[float],
) -> Guarantee:
    """The guarantee of several studies of the same people, checked against what was meant.

    Args:
        studies: Gaussian ones, with the same view and measure.
        epsilon: of all together, nats.
        delta: of all together.
        per_report_mus: μ-GDP of a single report of each at its full clip.

    Raises:
        ParameterError: the studies do not fit together, or do not keep (ε, δ).
    """
    first = studies[0]
    for study in studies[1:]:
        if study.view is not first.view or study.measure is not first.measure:
            raise ParameterError("studies", study.name, "of one view and one measure")
    _check_of_sums(first.measure)
    check_positive("epsilon", epsilon)
    check_amount("epsilon", epsilon)
    check_delta("delta", delta)
    for mu in per_report_mus:
        check_positive("per_report_mus", mu)
    per_report_mu = max(per_report_mus)
    if len(studies) == 1 and (first.epsilon, first.delta) == (epsilon, delta):
        return guarantee_of(first, per_report_mu=per_report_mu)
    budget = added_budget([study.budget for study in studies], measure=first.measure)
    samplers = sum(study.sampler_delta_at(epsilon) for study in studies)
    needed = samplers + (
        conversions.gdp_delta(budget, epsilon=epsilon)
        if first.measure is Measure.GDP
        else conversions.zcdp_delta(budget, epsilon=epsilon)
    )
    if not needed <= delta:
        raise ParameterError("delta", delta, f"at least {needed:.17g} at epsilon {epsilon:g}")
    gdp = first.measure is Measure.GDP
    pair_epsilon, pair_delta = pair_epsilon_delta(epsilon, delta)
    pair = f"{text_up(pair_mu(budget))}-GDP" if gdp else f"{text_up(pair_rho(budget))}-zCDP"
    parts = " and ".join(f"{text_up(study.budget)} ({study.name})" for study in studies)
    statement = (
        f"({text_up(epsilon)}, {text_up(delta)})-differential privacy, from "
        f"{text_up(budget)}-{'GDP' if gdp else 'zCDP'}, over all rounds of {len(studies)} studies, "
        f"each with a budget of its own: {parts}, of which {'the squares' if gdp else 'all'} add "
        f"up. Unit: {UNIT}. Neighbour: {NEIGHBOUR}. View: {VIEWS[first.view]}. Between two "
        f"arbitrary people: ({text_up(pair_epsilon)}, {text_up(pair_delta, digits=3)}), from "
        f"{pair}. Noise: {GAUSSIAN_NOISE}."
    )
    if first.view is View.AGGREGATE:
        fewest = min(study.minimum_cohort for study in studies)
        shares = min(study.noise_shares for study in studies)
        dishonest = min(study.dishonest for study in studies)
        statement += (
            " The collector, its store and its backups are trusted: one report on its own is only "
            f"{text_up(per_report_mu, digits=2)}-GDP. The noise is split over {shares} devices; "
            f"{dishonest} may be dishonest, that is add none or tell what they added. Fewer than "
            f"{fewest} reports are never released."
        )
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        measure=first.measure,
        budget=budget,
        view=first.view,
        pair_epsilon=pair_epsilon,
        pair_delta=pair_delta,
        per_report_mu=per_report_mu,
        per_report_epsilon=None,
        per_report_pair_epsilon=None,
        statement=statement,
    )


def _check_of_sums(measure: Measure) -> None:
    """Refuse a measure in which sums cannot count."""
    _check_measure(measure)
    if measure not in (Measure.GDP, Measure.ZCDP):
        raise ParameterError("measure", str(measure), "gdp or zcdp, with linear rounds")


def _check_measure(measure: Measure) -> None:
    if not isinstance(measure, Measure):
        raise ParameterError("measure", measure, "a Measure")
