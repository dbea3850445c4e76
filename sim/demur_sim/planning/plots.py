"""The picture of a plan: error against budget."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from demur_sim.planning.plan import Curve, Plan
from demur_sim.results.plots import ACTIVE, INCHES, RELEASED, TRUTH, WORST

COLOURS = (RELEASED, ACTIVE, "#009e73", "#cc79a7", "#d55e00")
DASHES = ("--", ":")


def draw(plan: Plan, path: Path) -> None:
    """Draw a plan into a PNG file.

    Left: the error against the budget for every way to ask, each with its best budget, and the worst
    cases as lines across. Right: what the error of the best way is made of.

    Args:
        plan: what to draw.
        path: of the PNG.
    """
    figure = Figure(figsize=(INCHES[0], 5.0), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    for curve, colour in zip(plan.curves, COLOURS, strict=False):
        left.plot(
            [point.budget for point in curve.points],
            [point.error for point in curve.points],
            ".-",
            color=colour,
            linewidth=1.0,
            markersize=4,
            label=f"{curve.way.name}: {_people(curve.best.error)} at {curve.best.budget:,}",
        )
        _mark(left, curve, colour)
    for worst, dashes in zip(plan.worst_cases, DASHES, strict=False):
        label = f"{worst.name}: {_people(worst.error)}"
        left.axhline(worst.error, color=WORST, linewidth=1.2, linestyle=dashes, label=label)
    _finish(left, "all ways to ask, and worst cases", "budget of one device, answers or changes")
    _parts(right, plan.chosen)
    tops = [curve.best.error for curve in plan.curves] + [worst.error for worst in plan.worst_cases]
    parts = [plan.best.noise, plan.best.truncation, plan.best.error]
    left.set_ylim(min(part for part in parts if part > 0) / 4, 3 * max(tops))
    guarantee = plan.guarantee
    figure.suptitle(
        f"{plan.scenario.title or plan.scenario.name}: planned for {plan.people:,} people, "
        f"{plan.rounds:,} rounds, view {guarantee.view}\n"
        f"(ε = {guarantee.epsilon:g}, δ = {guarantee.delta:g}), zero-out neighbour, unit one device",
        parse_math=False,
    )
    figure.savefig(path, dpi=110)


def _parts(axes: Axes, curve: Curve) -> None:
    budgets = [point.budget for point in curve.points]
    missing = np.array([point.truncation for point in curve.points])
    axes.plot(budgets, [point.error for point in curve.points], color=TRUTH, label="error")
    axes.plot(budgets, [point.noise for point in curve.points], color=RELEASED, label="noise")
    visible = np.where(missing > 0, missing, np.nan)
    axes.plot(budgets, visible, color=ACTIVE, label="budgets that did not hold everything")
    _mark(axes, curve, TRUTH)
    _finish(axes, f"{curve.way.name}", f"budget of one device, {curve.way.unit}")


def _mark(axes: Axes, curve: Curve, colour: str) -> None:
    axes.plot([curve.best.budget], [curve.best.error], "o", color=colour, markersize=7)


def _finish(axes: Axes, title: str, across: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:,.4g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(across)
    axes.set_ylabel("error, people (root mean square over rounds)")
    axes.legend(loc="best", fontsize=8, framealpha=0.9)
    axes.spines[["top", "right"]].set_visible(False)


def _people(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
