"""What ε is this, how many rounds fit, what σ do I need? Answers in every grade, for both neighbours.

The first number of a row holds against the zero-out neighbour, the second between any two people:
their answers differ by twice as much, so the second is what the first would be at twice the clip.
Every number is rounded to the safe side.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from demur_proto.accounting import calibration, conversions, targets
from demur_proto.accounting.conversions import (
    Grade,
    gdp_renyi,
    pair_mu,
    pair_renyi,
    pair_rho,
    renyi_epsilon,
)
from demur_proto.accounting.numerics import ceil_float, check_amount
from demur_proto.accounting.pure import (
    LARGEST_ANSWER,
    PureCharge,
    composition_answers,
    pure_epsilon,
)
from demur_proto.accounting.targets import (
    PureLosses,
    basic_fits,
    rogers_fits,
    rounds_that_fit,
    whitehouse_fits,
)

SYMBOLS = {"gdp": "μ", "zcdp": "ρ", "pure": "ε", "answers": "n"}  #: of budgets, by measure
Quantity = Literal["epsilon", "rounds", "sigma"]
GRADES: tuple[Grade, ...] = ("improved", "simple")
CHARGES: tuple[PureCharge, ...] = ("tight", "quadratic")
TARGET_GRADES: tuple[targets.TargetGrade, ...] = ("exact", "improved", "simple")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way to prove it, and what that way answers."""

    grade: str
    measure: str  #: the currency in which the budget is kept
    budget: float  #: the budget in it: what is spent, or the most that the target allows
    zero_out: float | int | None
    two_people: float | int | None  #: None: this way proves nothing between two people


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Everything that was found out about one question."""

    question: str  #: in words
    quantity: Quantity  #: what the numbers of the rows are
    rows: tuple[Row, ...]


def epsilon_of_mu(mu: float, *, delta: float) -> Answer:
    """The ε of a GDP budget; also as the zCDP budget that it implies, ρ = ½μ²."""
    rho = gdp_renyi(mu, order=1.0)
    exact = Row(
        grade="exact",
        measure="gdp",
        budget=mu,
        zero_out=conversions.gdp_epsilon(mu, delta=delta),
        two_people=conversions.gdp_epsilon(pair_mu(mu), delta=delta),
    )
    question = f"What ε is {_plain(mu)}-GDP at δ = {_plain(delta)}?"
    return Answer(question=question, quantity="epsilon", rows=(exact, *_zcdp_rows(rho, delta)))


def epsilon_of_rho(rho: float, *, delta: float) -> Answer:
    """The ε of a zCDP budget."""
    question = f"What ε is {_plain(rho)}-zCDP at δ = {_plain(delta)}?"
    return Answer(question=question, quantity="epsilon", rows=_zcdp_rows(rho, delta))


def epsilon_of_pure(pure: float, *, delta: float) -> Answer:
    """The smaller ε that pure DP gives at some δ."""
    row = Row(
        grade="exact",
        measure="pure",
        budget=pure,
        zero_out=pure_epsilon(pure, delta=delta),
        two_people=pure_epsilon(2 * pure, delta=delta),
    )
    question = f"What ε is {_plain(pure)}-DP at δ = {_plain(delta)}?"
    return Answer(question=question, quantity="epsilon", rows=(row,))


def epsilon_of_renyi(bound: float, *, order: float, delta: float) -> Answer:
    """The ε of a bound on the Rényi divergence at one order."""
    check_amount("renyi", bound)
    pair = pair_renyi(bound, order=order) if order > 2 else None

    def row(grade: Grade) -> Row:
        there = None
        if pair is not None and pair[0] > 1:
            there = renyi_epsilon(pair[1], order=pair[0], delta=delta, grade=grade)
        return Row(
            grade=grade,
            measure=f"renyi({_plain(order)})",
            budget=bound,
            zero_out=renyi_epsilon(bound, order=order, delta=delta, grade=grade),
            two_people=there,
        )

    question = f"What ε is a Rényi divergence of {_plain(bound)} at order {_plain(order)}, at δ = {_plain(delta)}?"
    return Answer(question=question, quantity="epsilon", rows=tuple(row(g) for g in GRADES))


def epsilon_of_answers(answers: int, *, clip: float, sigma: float, delta: float) -> Answer:
    """The ε of so many Gaussian answers at the full clip."""
    mu = calibration.mu_of_answers(answers, clip=clip, sigma=sigma)
    rho = calibration.rho_of_answers(answers, clip=clip, sigma=sigma)
    known = epsilon_of_mu(mu, delta=delta)
    question = f"What ε are {answers:,} answers of norm {_plain(clip)} under noise {_plain(sigma)}, at δ = {_plain(delta)}?"
    rows = (known.rows[0], *_zcdp_rows(rho, delta))
    return Answer(question=question, quantity="epsilon", rows=rows)


def sigma_of_target(answers: int, *, clip: float, epsilon: float, delta: float) -> Answer:
    """The least noise under which so many full-clip answers keep (ε, δ)."""

    def row(grade: targets.TargetGrade) -> Row:
        def noise(answers: int) -> float:
            return targets.sigma_for_target(
                answers, clip=clip, epsilon=epsilon, delta=delta, grade=grade
            )

        measure, budget = _budget(epsilon, delta, grade)
        return Row(
            grade=grade,
            measure=measure,
            budget=budget,
            zero_out=noise(answers),
            two_people=noise(4 * answers),  # as at twice the clip
        )

    question = (
        f"What noise do {answers:,} answers of norm {_plain(clip)} need "
        f"to be ({_plain(epsilon)}, {_plain(delta)})-DP?"
    )
    rows = tuple(row(grade) for grade in TARGET_GRADES)
    return Answer(question=question, quantity="sigma", rows=rows)


def rounds_of_target(*, sigma: float, clip: float, epsilon: float, delta: float) -> Answer:
    """How many Gaussian answers at the full clip keep (ε, δ)."""

    def row(grade: targets.TargetGrade) -> Row:
        def fit(distance: float) -> int:
            return targets.answers_for_target(
                sigma=sigma, clip=distance, epsilon=epsilon, delta=delta, grade=grade
            )

        measure, budget = _budget(epsilon, delta, grade)
        return Row(
            grade=grade,
            measure=measure,
            budget=budget,
            zero_out=fit(clip),
            two_people=fit(2 * clip),
        )

    question = f"How many answers of norm {_plain(clip)} under noise {_plain(sigma)} are ({_plain(epsilon)}, {_plain(delta)})-DP?"
    rows = tuple(row(grade) for grade in TARGET_GRADES)
    return Answer(question=question, quantity="rounds", rows=rows)


def rounds_of_pure(round_epsilon: float, *, epsilon: float, delta: float) -> Answer:
    """How many ε_t-DP rounds keep (ε, δ), by our filters and by those of other papers.

    Both ε are taken as the decimals that they print as: ten rounds of 0.1 make 1.
    """
    one = Fraction(repr(check_amount("round_epsilon", round_epsilon)))
    target = Fraction(repr(check_amount("epsilon", epsilon)))

    def zcdp_row(grade: Grade, charge: PureCharge) -> Row:
        def fit(one: Fraction) -> int:
            return targets.pure_rounds_for_target(
                one, epsilon=epsilon, delta=delta, grade=grade, charge=charge
            )

        return Row(
            grade=f"{grade}, {charge}",
            measure="zcdp",
            budget=conversions.zcdp_rho(epsilon, delta=delta, grade=grade),
            zero_out=fit(one),
            two_people=fit(2 * one),
        )

    def baseline_row(grade: str, fits: Callable[[PureLosses], bool]) -> Row:
        return Row(
            grade=grade,
            measure="pure",
            budget=epsilon,
            zero_out=rounds_that_fit(one, fits),
            two_people=rounds_that_fit(2 * one, fits),
        )

    def whitehouse(losses: PureLosses) -> bool:
        return whitehouse_fits(losses, epsilon=epsilon, delta=delta)

    def rogers(losses: PureLosses) -> bool:
        return rogers_fits(losses, epsilon=epsilon, delta=delta)

    rows = [_composed_row(one, epsilon=epsilon, delta=delta)]
    rows += [zcdp_row(grade, charge) for grade in GRADES for charge in CHARGES]
    rows.append(baseline_row("Whitehouse et al. 2023", whitehouse))
    if math.log(delta) <= -1:  # else its proof does not hold
        rows.append(baseline_row("Rogers et al. 2016", rogers))
    rows.append(baseline_row("sum", lambda losses: basic_fits(losses, epsilon=target)))
    question = (
        f"How many {_plain(round_epsilon)}-DP rounds are ({_plain(epsilon)}, {_plain(delta)})-DP?"
    )
    return Answer(question=question, quantity="rounds", rows=tuple(rows))


def _composed_row(one: Fraction, *, epsilon: float, delta: float) -> Row:
    """How many answers fit by exact composition, which is also the budget."""

    def fit(one: Fraction) -> int:
        each = ceil_float(one)
        if each > LARGEST_ANSWER:
            return 0
        return composition_answers(each, epsilon=epsilon, delta=delta)

    answers = fit(one)
    return Row(
        grade="composed",
        measure="answers",
        budget=answers,
        zero_out=answers,
        two_people=fit(2 * one),
    )


def _zcdp_rows(rho: float, delta: float) -> tuple[Row, ...]:
    return tuple(
        Row(
            grade=grade,
            measure="zcdp",
            budget=rho,
            zero_out=conversions.zcdp_epsilon(rho, delta=delta, grade=grade),
            two_people=conversions.zcdp_epsilon(pair_rho(rho), delta=delta, grade=grade),
        )
        for grade in GRADES
    )


def _budget(epsilon: float, delta: float, grade: targets.TargetGrade) -> tuple[str, float]:
    """The currency of a grade, and the most that the target allows in it."""
    if grade == "exact":
        return "gdp", conversions.gdp_mu(epsilon, delta=delta)
    return "zcdp", conversions.zcdp_rho(epsilon, delta=delta, grade=grade)


def _plain(value: float) -> str:
    """A number as somebody would write it.

    >>> _plain(1.0), _plain(1e-6), _plain(0.23670438066343572)
    ('1', '1e-06', '0.23670438066343572')
    """
    return repr(float(value)).removesuffix(".0")
