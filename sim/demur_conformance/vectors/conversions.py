"""Vectors about conversions between GDP, zCDP, pure DP and (ε, δ), and what follows from them.

A reference is the double nearest to the truth, so an answer on the safe side of the truth is on the
safe side of the reference too: no tolerance is needed on that side.
"""

import math
from typing import Any

from demur_conformance.vectors.case import Case, Check, Tally, Verdict, examine
from demur_proto.accounting import calibration, conversions, targets
from demur_proto.accounting.conversions import renyi_delta, renyi_epsilon, zcdp_renyi
from demur_proto.accounting.intervals import (
    supremum_failure,
    supremum_radius,
    supremum_radius_bound,
)
from demur_proto.accounting.pure import pure_rho

CLOSED_FORM = 1e-12  #: relative distance that closed forms must keep
EXACT_GAUSSIAN = 1e-10  #: the same where the normal law comes in


def check_zcdp_to_dp(cases: list[dict[str, Any]]) -> Verdict:
    """From ρ and δ to ε by both proofs, and from μ = √(2ρ) exactly."""
    return examine("zcdp_to_dp", cases, _zcdp_to_dp)


def check_zcdp_to_delta(cases: list[dict[str, Any]]) -> Verdict:
    """From ρ and ε to δ."""
    return examine("zcdp_to_delta", cases, _zcdp_to_delta)


def check_dp_to_zcdp_budget(cases: list[dict[str, Any]]) -> Verdict:
    """From ε and δ to the largest budgets."""
    return examine("dp_to_zcdp_budget", cases, _dp_to_zcdp_budget)


def check_pure_to_zcdp(cases: list[dict[str, Any]]) -> Verdict:
    """What an ε-DP round costs as zCDP."""
    return examine("pure_to_zcdp", cases, _pure_to_zcdp)


def check_mnist(cases: list[dict[str, Any]]) -> Verdict:
    """A gradient descent's settings under the three grades, and the steps that fit its target."""
    return examine("mnist", cases, _mnist)


def check_linear_query_accuracy(cases: list[dict[str, Any]]) -> Verdict:
    """The sup-norm radius of a linear query."""
    return examine("linear_query_accuracy", cases, _linear_query_accuracy)


FAMILIES: dict[str, Check] = {
    "zcdp_to_dp": check_zcdp_to_dp,
    "zcdp_to_delta": check_zcdp_to_delta,
    "dp_to_zcdp_budget": check_dp_to_zcdp_budget,
    "pure_to_zcdp": check_pure_to_zcdp,
    "mnist": check_mnist,
    "linear_query_accuracy": check_linear_query_accuracy,
}


def _zcdp_to_dp(case: Case, tally: Tally) -> None:
    rho, delta = case.number("rho"), case.number("delta")
    _zcdp_epsilons(case, tally, rho, delta)
    tally.near("mu", math.sqrt(2 * rho), case.number("mu"), within=CLOSED_FORM)
    epsilon = conversions.gdp_epsilon(_root_above(2 * rho), delta=delta)
    reference = case.number("eps_gaussian_exact")
    tally.above("exact epsilon", epsilon, reference, within=EXACT_GAUSSIAN)


def _zcdp_epsilons(case: Case, tally: Tally, rho: float, delta: float) -> None:
    simple = conversions.zcdp_epsilon(rho, delta=delta, grade="simple")
    improved = conversions.zcdp_epsilon(rho, delta=delta)
    tally.above("simple epsilon", simple, case.number("eps_simple"), within=CLOSED_FORM)
    reference = case.number("eps_cks")
    tally.above("improved epsilon", improved, reference, within=CLOSED_FORM)
    order = case.number("alpha_cks")
    there = renyi_epsilon(zcdp_renyi(rho, order=order), order=order, delta=delta)
    tally.above("improved epsilon at alpha_cks", there, reference, within=CLOSED_FORM)
    condition = rho * (order - 1) ** 2 + math.log(order)  # of the best order: `zcdp_epsilon`
    tally.near("condition on alpha_cks", condition, -math.log(delta), within=CLOSED_FORM)


def _zcdp_to_delta(case: Case, tally: Tally) -> None:
    rho, epsilon = case.number("rho"), case.number("eps")
    reference, order = case.number("delta_cks"), case.number("alpha")
    delta = conversions.zcdp_delta(rho, epsilon=epsilon)
    tally.above("improved delta", delta, reference, within=CLOSED_FORM)
    there = renyi_delta(zcdp_renyi(rho, order=order), order=order, epsilon=epsilon)
    tally.above("improved delta at alpha", there, reference, within=CLOSED_FORM)
    condition = rho * (2 * order - 1) - math.log1p(1 / (order - 1))  # as in `zcdp_delta`
    tally.near("condition on alpha", condition, epsilon, within=CLOSED_FORM)
    exact = conversions.gdp_delta(_root_above(2 * rho), epsilon=epsilon)
    reference = case.number("delta_gaussian_exact")
    tally.above("exact delta", exact, reference, within=EXACT_GAUSSIAN)


def _dp_to_zcdp_budget(case: Case, tally: Tally) -> None:
    epsilon, delta = case.number("eps"), case.number("delta")
    simple = conversions.zcdp_rho(epsilon, delta=delta, grade="simple")
    improved = conversions.zcdp_rho(epsilon, delta=delta)
    mu = conversions.gdp_mu(epsilon, delta=delta)
    tally.below("simple budget", simple, case.number("B_simple"), within=CLOSED_FORM)
    tally.below("improved budget", improved, case.number("B_cks"), within=CLOSED_FORM)
    tally.below("mu", mu, case.number("mu_gdp"), within=EXACT_GAUSSIAN)
    reference = case.number("B_gaussian_exact")
    tally.below("exact budget", mu * mu / 2, reference, within=2 * EXACT_GAUSSIAN)


def _pure_to_zcdp(case: Case, tally: Tally) -> None:
    epsilon = case.number("eps")
    quadratic, tight = pure_rho(epsilon, charge="quadratic"), pure_rho(epsilon)
    tally.above("quadratic charge", quadratic, case.number("zcdp_BS"), within=CLOSED_FORM)
    tally.above("tight charge", tight, case.number("zcdp_tight"), within=CLOSED_FORM)


def _mnist(case: Case, tally: Tally) -> None:
    clip, steps = case.number("C"), case.integer("k")
    sigma = case.number("sigma") * clip  # printed in units of the clip
    delta, target = case.number("delta"), case.number("target_eps")
    tally.same("B_norm", steps * case.exact("C") ** 2, case.exact("B_norm"))
    rho = calibration.rho_of_answers(steps, clip=clip, sigma=sigma)
    tally.above("rho", rho, case.number("rho_zcdp"), within=CLOSED_FORM)
    _zcdp_epsilons(case, tally, rho, delta)
    exact = targets.epsilon_of_answers(steps, clip=clip, sigma=sigma, delta=delta)
    tally.above("exact epsilon", exact, case.number("eps_gdp_exact"), within=EXACT_GAUSSIAN)
    simple = conversions.zcdp_epsilon(rho, delta=delta, grade="simple")
    tally.same("simple_meets_target", simple <= target, case.flag("simple_meets_target"))
    grades: tuple[tuple[targets.TargetGrade, str], ...] = (
        ("simple", "k_max_simple"),
        ("improved", "k_max_cks"),
        ("exact", "k_max_gdp"),
    )
    for grade, name in grades:
        fit = targets.answers_for_target(
            sigma=sigma, clip=clip, epsilon=target, delta=delta, grade=grade
        )
        tally.same(name, fit, case.integer(name))


def _linear_query_accuracy(case: Case, tally: Tally) -> None:
    dimension, failure = case.integer("d"), case.number("delta")
    bound = supremum_radius_bound(dimension, failure=failure)
    exact = supremum_radius(dimension, failure=failure)
    tally.above("radius of the corollary", bound, case.number("z_paper"), within=CLOSED_FORM)
    tally.above("exact radius", exact, case.number("z_exact"), within=EXACT_GAUSSIAN)
    tally.near("ratio", bound / exact, case.number("radius_ratio"), within=EXACT_GAUSSIAN)
    radius = math.nextafter(case.number("z_paper"), 0)  # not above the reference's real radius
    for two_sided, name in ((True, "P_two_sided_max"), (False, "P_one_sided_max")):
        reached = supremum_failure(radius, dimension=dimension, two_sided=two_sided)
        tally.above(name, reached, case.number(name), within=EXACT_GAUSSIAN)
    holds = supremum_failure(bound, dimension=dimension) <= failure
    tally.same("bound_holds", holds, case.flag("bound_holds"))


def _root_above(square: float) -> float:
    """A float that is not below the real root."""
    return math.nextafter(math.sqrt(square), math.inf)
