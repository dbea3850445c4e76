"""Vectors for what a filter decides and an odometer shows, step by step."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from demur_client.budget.charges import RenyiBudget, ZcdpBudget
from demur_client.budget.filters import Filter, RenyiFilter
from demur_client.budget.odometers import ExactSumOdometer, NestedOdometer, RestartOdometer
from demur_conformance.vectors.case import Case, Check, Tally, Verdict, examine
from demur_proto.accounting.calibration import GRAIN
from demur_proto.checks import check_integer
from demur_proto.errors import DataError, ParameterError
from demur_proto.study import Policy

NO_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def check_filter_traces(cases: list[dict[str, Any]]) -> Verdict:
    """What exact rationals decide, and what an integer filter decides at two grains."""
    return examine("filter_traces", cases, _filter_trace)


def check_multi_order_traces(cases: list[dict[str, Any]]) -> Verdict:
    """What a filter of several orders decides: every order must fit."""
    return examine("multi_order_traces", [_with_steps(case) for case in cases], _multi_order_trace)


def check_odometer_traces(cases: list[dict[str, Any]]) -> Verdict:
    """The level of each odometer after each answer."""
    return examine("odometer_traces", cases, _odometer_trace)


def check_clip_traces(cases: list[dict[str, Any]]) -> Verdict:
    """To what squared norm policy `clip` shrinks each answer, and what then remains."""
    return examine("clip_traces", cases, _clip_trace)


FAMILIES: dict[str, Check] = {
    "filter_traces": check_filter_traces,
    "multi_order_traces": check_multi_order_traces,
    "odometer_traces": check_odometer_traces,
    "clip_traces": check_clip_traces,
}


def exact_decisions(
    charges: Sequence[Fraction | float], *, budget: Fraction, policy: Policy
) -> tuple[list[str], list[Fraction]]:
    """What a filter decides in exact rational arithmetic, and what is spent after each step.

    Written without any of the filter's code, so that one can be held against the other.

    >>> exact_decisions([Fraction(1, 3)] * 4, budget=Fraction(1), policy=Policy.SKIP)[0]
    ['CONT', 'CONT', 'CONT', 'HALT']
    """
    spent, halted = Fraction(0), False
    decisions, after = [], []
    for charge in charges:
        if math.isnan(charge) or charge < 0:
            decisions.append("ERROR")
        elif charge == 0:
            decisions.append("CONT")
        elif (
            charge == math.inf or spent + charge > budget or (halted and policy is not Policy.SKIP)
        ):
            decisions.append("HALT")
            halted = True
        else:
            decisions.append("CONT")
            spent += Fraction(charge)
        after.append(spent)
    return decisions, after


def integer_decisions(
    charges: Sequence[Fraction | float], *, budget: ZcdpBudget, policy: Policy
) -> list[str]:
    """What the integer filter decides about charges of a scalar measure.

    >>> budget = ZcdpBudget(rho=1, budget_units=2**52)
    >>> integer_decisions([Fraction(1, 3)] * 4, budget=budget, policy=Policy.SKIP)
    ['CONT', 'CONT', 'HALT', 'HALT']
    """
    mine = Filter.within(budget, policy=policy)
    decisions = []
    for charge in charges:
        try:
            given = mine.try_charge(budget.charge(charge))
        except ParameterError:
            decisions.append("ERROR")
        else:
            decisions.append("CONT" if given else "HALT")
    return decisions


def ticks_budget(budget: Fraction, *, scale_log2: int) -> ZcdpBudget:
    """A budget in ticks of 2^-scale, rounded down to whole ones.

    >>> ticks_budget(Fraction(7, 4), scale_log2=1)
    ZcdpBudget(rho=Fraction(3, 2), budget_units=3)
    """
    check_integer("ticks_scale_log2", scale_log2, -2000, 2000)
    scale = Fraction(2) ** scale_log2
    ticks = math.floor(budget * scale)
    # Without a tick nothing fits that costs anything: a bound of 0, in whatever units.
    return ZcdpBudget(rho=ticks / scale, budget_units=max(1, ticks))


def _filter_trace(case: Case, tally: Tally) -> None:
    budget, policy, steps = case.exact("budget"), _policy(case), case.cases("steps")
    charges = [_charge(step) for step in steps]
    decisions, spent = exact_decisions(charges, budget=budget, policy=policy)
    tally.same("decisions", decisions, case.texts("decisions"))
    tally.same("decision of each step", decisions, [step.text("decision") for step in steps])
    tally.same("spent", spent, [step.exact("spent") for step in steps])
    whole = ZcdpBudget(rho=budget, budget_units=GRAIN)
    tally.same(
        "grain_lcm40_decisions",
        integer_decisions(charges, budget=whole, policy=policy),
        case.texts("grain_lcm40_decisions"),
    )
    ticks = ticks_budget(budget, scale_log2=case.integer("ticks_scale_log2"))
    decided = integer_decisions(charges, budget=ticks, policy=policy)
    tally.same("ticks_decisions", decided, case.texts("ticks_decisions"))
    paid = [charge for charge, word in zip(charges, decided, strict=True) if word == "CONT"]
    tally.same("ticks_sound", sum(paid, Fraction(0)) <= budget, case.flag("ticks_sound"))


def _multi_order_trace(case: Case, tally: Tally) -> None:
    orders, bounds = case.numbers("orders"), case.exacts("budget")
    if len(set(orders)) < len(orders) or len(bounds) != len(orders):
        raise DataError(f"{case.where} needs distinct orders and a budget for each")
    budget = RenyiBudget(bounds=dict(zip(orders, bounds, strict=True)))
    mine = RenyiFilter.within(budget)
    charges = [step.exacts("losses") for step in case.cases("charges")]
    decisions = [_word(mine.try_charge(budget.charge(charge))) for charge in charges]
    tally.same("forall", decisions, case.texts("forall"))
    # Not ours, but what the warning in the file is about must be there to be seen.
    tally.same("exists_UNSOUND", _some_order(charges, bounds), case.texts("exists_UNSOUND"))
    for at, order in enumerate(orders):
        name = f"fixed_order_{order:g}"
        if name in case.names():
            one, column = ZcdpBudget(rho=bounds[at]), [charge[at] for charge in charges]
            alone = integer_decisions(column, budget=one, policy=Policy.SKIP)
            tally.same(name, alone, case.texts(name))


def _odometer_trace(case: Case, tally: Tally) -> None:
    step, charges = case.exact("Delta"), case.exacts("charges")
    nested, paper = NestedOdometer(step=step), RestartOdometer(step=step)
    exact = ExactSumOdometer()
    for name, odometer in (
        ("nested_O", nested),
        ("paper_restart_O", paper),
        ("exact_sum", exact),
    ):
        levels = [odometer.add(charge) for charge in charges]
        tally.same(name, levels, case.exacts(name))
    tally.same("paper_T", list(paper.restarts), case.exacts("paper_T"))
    tally.same("paper_precondition_holds", paper.holds, case.flag("paper_precondition_holds"))
    sound = paper.level >= exact.level
    tally.same("paper_sound_at_end", sound, case.flag("paper_sound_at_end"))


def _clip_trace(case: Case, tally: Tally) -> None:
    clip, budget, steps = case.exact("C2"), case.exact("B_norm"), case.cases("steps")
    asked = [step.exact("norm2_in") for step in steps]
    # In units of their common denominator all squared norms are integers, as on a grid.
    unit = math.lcm(*(number.denominator for number in (clip, budget, *asked)))
    mine = Filter(budget_units=int(budget * unit), policy=Policy.CLIP)
    for step, norm in zip(steps, asked, strict=True):
        wanted = int(min(norm, clip) * unit)
        radius = mine.radius(weight=1, largest=int(clip * unit))
        given = min(wanted, radius)
        if not mine.try_spend(given, weight=1, shrunk=given < wanted):
            tally.fail("an answer that was shrunk to what fits is refused")
        tally.same("norm2_out", Fraction(given, unit), step.exact("norm2_out"))
        remaining = Fraction(mine.remaining_units, unit)
        tally.same("remaining", remaining, step.exact("remaining"))


def _with_steps(fields: dict[str, Any]) -> dict[str, Any]:
    """The case with its rows of charges as objects, which is what a case can be asked for."""
    rows = fields.get("charges")
    if not isinstance(rows, list):
        return fields
    return {**fields, "charges": [{"losses": row} for row in rows]}


def _some_order(charges: list[list[Fraction]], bounds: list[Fraction]) -> list[str]:
    """The unsound rule, in exact rationals: go on while some order fits."""
    spent, decisions = [Fraction(0)] * len(bounds), []
    for charge in charges:
        after = [before + more for before, more in zip(spent, charge, strict=True)]
        fits = any(total <= bound for total, bound in zip(after, bounds, strict=True))
        spent = after if fits else spent
        decisions.append(_word(fits))
    return decisions


def _policy(case: Case) -> Policy:
    name = case.text("policy")
    if name not in ("skip", "retire"):
        raise DataError(f"{case.where}.policy must be skip or retire, got {name!r}")
    return Policy(name)


def _charge(step: Case) -> Fraction | float:
    """A charge, which may be what no charge may be."""
    number = NO_NUMBERS.get(step.text("charge"))
    return step.exact("charge") if number is None else number


def _word(given: bool) -> str:
    return "CONT" if given else "HALT"
