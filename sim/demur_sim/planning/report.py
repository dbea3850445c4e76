"""A plan for people to read, and for programs."""

import csv
from pathlib import Path
from typing import Any

from demur_proto.accounting.numerics import text_up
from demur_proto.study import View
from demur_sim.planning.plan import Curve, Plan, Point
from demur_sim.results.base import guarantee_json
from demur_sim.results.files import write_files, write_json
from demur_sim.scenario import scenario_text

PUBLIC = "taken to be public: were their data secret, the choice below would tell of them"


def report(plan: Plan, folder: Path) -> str:
    """A plan in lines of at most 100 characters.

    Args:
        plan: what to tell of.
        folder: where its files are.
    """
    guarantee, best = plan.guarantee, plan.best
    promise = (
        f"({text_up(guarantee.epsilon)}, {text_up(guarantee.delta)}), unit one device, "
        f"neighbour zero-out, view {guarantee.view}"
    )
    rows = {"guarantee": promise}
    if guarantee.view is View.AGGREGATE and guarantee.per_report_mu is not None:
        alone = text_up(guarantee.per_report_mu, digits=2)
        rows["trusted"] = f"the collector: one report on its own is only {alone}-GDP"
    rows |= {
        "model": _model(plan),
        "": PUBLIC,
        "best": (
            f"{plan.chosen.way.name}, room for {_budget(plan.chosen, best)}, "
            f"noise of standard deviation {best.sigma:.4g} in a round"
        ),
    }
    scenario = plan.scenario
    lines = [
        f"{scenario.title or scenario.name}: a plan",
        f"  for {plan.people:,} people and {plan.rounds:,} rounds",
        *(f"  {label:10}  {text}" for label, text in rows.items()),
        "",
        f"  {'asked as':22}{'budget':>14}{'noise':>12}{'truncation':>12}{'error':>12}",
    ]
    for curve in plan.curves:
        point = curve.best
        numbers = (point.noise, point.truncation, point.error)
        cells = "".join(f"{number:12,.1f}" for number in numbers)
        lines.append(f"  {curve.way.name:22}{_budget(curve, point):>14}{cells}")
    lines += ["", f"  {'worst case':22}{'':38}{'error':>12}"]
    for worst in plan.worst_cases:
        times = f"{plan.factor(worst):.1f} times as much"
        lines.append(f"  {worst.name:22}{'':38}{worst.error:12,.1f}  {times}")
    lines += [
        "",
        "  root mean squares over rounds, in people; worked out, not simulated",
        f"  results     {folder}/plan.json, {folder}/curve.csv",
        f"  picture     {folder}/plot.png",
        f"  try it      demur simulate {folder}/scenario.toml",
    ]
    return "\n".join(lines)


def plan_json(plan: Plan) -> dict[str, Any]:
    """A plan as one JSON object; the keys are a contract with other tools."""
    scenario = plan.scenario
    return {
        "scenario": scenario.name,
        "feature": scenario.feature,
        "people": plan.people,
        "rounds": plan.rounds,
        "model": {
            "people": plan.model.people,
            "looked_at": plan.model.modelled,
            "statement": f"{_model(plan)}; {PUBLIC}.",
        },
        "guarantee": guarantee_json(plan.guarantee, statement=plan.guarantee.statement),
        "best": _best(plan.chosen),
        **plan.chosen.way.details(plan.best.budget),
        "asked": [_best(curve) for curve in plan.curves],
        "worst_cases": [
            {
                "name": worst.name,
                "meaning": worst.meaning,
                "error": worst.error,
                "times_best": plan.factor(worst),
            }
            for worst in plan.worst_cases
        ],
    }


def _best(curve: Curve) -> dict[str, Any]:
    asked, point = curve.way.asked(curve.best.budget), curve.best
    return {
        "kind": str(asked.kind),
        "factorisation": curve.way.correlation,
        "budget": point.budget,
        "unit": curve.way.unit,
        "sigma": point.sigma,
        "noise": point.noise,
        "truncation": point.truncation,
        "error": point.error,
    }


def _budget(curve: Curve, point: Point) -> str:
    unit = curve.way.unit
    return f"{point.budget:,} {unit.removesuffix('s') if point.budget == 1 else unit}"


def _model(plan: Plan) -> str:
    """What the plan knows of people."""
    model = plan.model
    if model.law is not None:
        rest = f"; {model.modelled:,} drawn from it"
        return f"a histogram of {model.law.devices:,} people, active rounds spread evenly{rest}"
    if model.drawn:
        return f"{model.modelled:,} people drawn from the scenario's law"
    if model.modelled < model.people:
        return f"{model.modelled:,} of the scenario's {model.people:,} people"
    return f"the scenario's {model.people:,} people"


# The files that keep a plan.

COLUMNS = (
    *("kind", "factorisation", "budget", "unit", "sigma", "noise", "truncation", "error"),
    "best",
)


def save(plan: Plan, folder: Path) -> None:
    """Write a plan's files; see `write_files`. A folder without `plan.json` holds no whole plan.

    Raises:
        DataError: a file cannot be written.
    """
    write_files(
        {
            "curve.csv": lambda path: _write_curves(plan, path),
            "scenario.toml": lambda path: _write_scenario(plan, path),
            "plot.png": lambda path: _draw(plan, path),
            "plan.json": lambda path: write_json(plan_json(plan), path),
        },
        folder,
    )


def _write_curves(plan: Plan, path: Path) -> None:
    """A line for each budget that was tried."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        for curve in plan.curves:
            asked = curve.way.asked(curve.best.budget)
            for point in curve.points:
                how = (asked.kind, curve.way.correlation or "", point.budget, curve.way.unit)
                errors = (point.sigma, point.noise, point.truncation, point.error)
                rows.writerow([*how, *errors, int(point is curve.best)])


def _write_scenario(plan: Plan, path: Path) -> None:
    about = [
        f"Planned for {plan.people:,} people and {plan.rounds:,} rounds.",
        "The people of this file served as a public model: its budget tells of them.",
    ]
    path.write_text(scenario_text(plan.scenario, about=about), encoding="utf-8")


def _draw(plan: Plan, path: Path) -> None:
    from demur_sim.planning import plots  # matplotlib takes a while to load

    plots.draw(plan, path)
