"""Vectors about how many rounds of pure differential privacy several filters allow."""

from typing import Any

from demur_conformance.vectors.case import Case, Check, Tally, Verdict, examine
from demur_proto.accounting.targets import (
    basic_fits,
    pure_rounds_for_target,
    rogers_fits,
    rounds_that_fit,
    whitehouse_fits,
)


def check_dp_filter_rounds(cases: list[dict[str, Any]]) -> Verdict:
    """Equal rounds until each filter refuses."""
    return examine("dp_filter_rounds", cases, _dp_filter_rounds)


FAMILIES: dict[str, Check] = {"dp_filter_rounds": check_dp_filter_rounds}


def _dp_filter_rounds(case: Case, tally: Tally) -> None:
    target, delta, one = case.exact("eps_g"), case.number("delta"), case.exact("eps")
    epsilon = case.number("eps_g")
    counts = {
        "basic": rounds_that_fit(one, lambda losses: basic_fits(losses, epsilon=target)),
        "rogers_printed": rounds_that_fit(
            one, lambda losses: rogers_fits(losses, epsilon=epsilon, delta=delta)
        ),
        "rogers_log2": rounds_that_fit(
            one,
            lambda losses: rogers_fits(losses, epsilon=epsilon, delta=delta, halve_delta=True),
        ),
        "whitehouse": rounds_that_fit(
            one, lambda losses: whitehouse_fits(losses, epsilon=epsilon, delta=delta)
        ),
        "zcdp_simple": pure_rounds_for_target(
            one, epsilon=epsilon, delta=delta, grade="simple", charge="quadratic"
        ),
        "zcdp_cks": pure_rounds_for_target(
            one, epsilon=epsilon, delta=delta, grade="improved", charge="quadratic"
        ),
        "zcdp_cks_tightpure": pure_rounds_for_target(
            one, epsilon=epsilon, delta=delta, grade="improved", charge="tight"
        ),
    }
    for name, count in counts.items():
        tally.same(name, count, case.integer(name))
