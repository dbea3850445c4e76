"""Vectors that state facts about the whole design: recomputed here, not merely read."""

import math
from typing import Any

import numpy as np

from demur_client.budget.filters import Filter
from demur_conformance.vectors.case import Case, Check, Tally, Verdict, examine
from demur_conformance.vectors.conversions import EXACT_GAUSSIAN
from demur_proto.accounting.conversions import gdp_delta, gdp_epsilon, pair_rho
from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError
from demur_proto.study import Policy

LONGEST_RUN = 10_000  #: rounds


def check_halt_leak(cases: list[dict[str, Any]]) -> Verdict:
    """What an observer learns from a device that falls silent, and from one that does not."""
    return examine("halt_leak", cases, _halt_leak)


def check_replacement_factor(cases: list[dict[str, Any]]) -> Verdict:
    """How much two people's answers may differ, compared with what each may spend."""
    return examine("replacement_factor", cases, _replacement_factor)


FAMILIES: dict[str, Check] = {
    "halt_leak": check_halt_leak,
    "replacement_factor": check_replacement_factor,
}


def answered_rounds(squared_norm: int, *, budget: int, rounds: int) -> list[bool]:
    """In which rounds a filter lets a person answer who pays the same in each.

    >>> answered_rounds(1, budget=2, rounds=4)
    [True, True, False, False]
    """
    mine = Filter(budget_units=budget, policy=Policy.SKIP)
    return [mine.try_spend(squared_norm, weight=1) for _ in range(rounds)]


def worst_replacement(rng: np.random.Generator, *, trials: int = 200) -> float:
    """The largest Σ‖q_t(x) − q_t(x′)‖² / B found at random, each person within budget B = 1.

    Both people answer the same questions; each one's filter stops them as it likes, so the two
    may fall silent at different times. By Minkowski's inequality the ratio is at most 4.
    """
    worst = 0.0
    for _ in range(trials):
        rounds, dimension = (int(n) for n in rng.integers(1, 8, size=2))
        mine = rng.normal(size=(rounds, dimension))
        # Between the same answers and the opposite ones, nearer to those that differ most.
        theirs = -mine + rng.exponential(0.3) * rng.normal(size=mine.shape)
        worst = max(worst, float(np.sum((_within_budget(mine) - _within_budget(theirs)) ** 2)))
    return worst


def _halt_leak(case: Case, tally: Tally) -> None:
    budget, rounds, sigma = case.integer("B"), case.integer("rounds"), case.number("sigma")
    check_integer("rounds", rounds, 1, LONGEST_RUN)
    silent, cover = case.within("silent"), case.within("dummy")
    # The observer calls it "x = 1" if a report is missing in some round.
    hits = not all(answered_rounds(1, budget=budget, rounds=rounds))
    false_alarms = not all(answered_rounds(0, budget=budget, rounds=rounds))
    tally.same("silent.TPR", float(hits), silent.number("TPR"))
    tally.same("silent.FPR", float(false_alarms), silent.number("FPR"))
    loss = math.inf if hits and not false_alarms else 0.0
    tally.same("silent.eps", loss, silent.number("eps"))
    # With cover reports only the noisy values differ: so many answers of norm 1.
    answers = sum(answered_rounds(1, budget=budget, rounds=rounds))
    mu = math.sqrt(answers) / sigma if sigma > 0 else math.inf
    tally.near("dummy.mu", mu, cover.number("mu"), within=EXACT_GAUSSIAN)
    advantage = gdp_delta(mu, epsilon=0.0)  # the largest TPR − FPR of any test
    tally.near(
        "dummy.best_advantage", advantage, cover.number("best_advantage"), within=EXACT_GAUSSIAN
    )
    epsilon = gdp_epsilon(mu, delta=1e-5)
    tally.near("dummy.eps_at_1e_5", epsilon, cover.number("eps_at_1e_5"), within=EXACT_GAUSSIAN)


def _replacement_factor(case: Case, tally: Tally) -> None:
    factor = pair_rho(1.0)
    opposite = np.array([[0.6, 0.0], [0.0, 0.8]])  # one person whose answers use up a budget of 1
    attained = float(np.sum((opposite - -opposite) ** 2))
    tally.near("attained", attained, case.number("attained_by_opposite"), within=EXACT_GAUSSIAN)
    tally.near("factor", factor, case.number("attained_by_opposite"), within=EXACT_GAUSSIAN)
    for what, value in (
        ("random_worst", case.number("random_worst")),
        ("the worst found here", worst_replacement(np.random.default_rng(0))),
    ):
        if not 0 < value <= factor:
            tally.fail(f"{what} {value!r} is not above 0 and at most {factor!r}")


def _within_budget(answers: Any) -> Any:
    """What a filter with budget 1 and policy clip lets through: the last answer is shrunk."""
    squares = np.sum(answers**2, axis=1)
    if not np.all(np.isfinite(squares)):
        raise ParameterError("answers", answers, "finite")
    left = np.maximum(1 - (np.cumsum(squares) - squares), 0)
    scale = np.sqrt(np.minimum(1, left / np.maximum(squares, 1e-300)))
    return answers * scale[:, None]
