"""The files that keep a plan."""

import csv
from pathlib import Path

from demur_sim.planning.plan import Plan
from demur_sim.planning.report import plan_json
from demur_sim.result_files import write_files, write_json
from demur_sim.scenario_text import scenario_text

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
