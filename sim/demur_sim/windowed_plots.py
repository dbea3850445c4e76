"""The picture of a run over several windows: all of its rounds in line."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from demur_proto.arrays import Values, Vector
from demur_sim.plots import ACTIVE, INCHES, RELEASED, TRUTH, WORST
from demur_sim.results import Result
from demur_sim.windowed_results import WindowedResult


def draw(result: WindowedResult, path: Path) -> None:
    """Draw a finished run into a PNG file.

    The released numbers of all rounds with their 95 % interval, the truth over the people they are
    about and over everyone enrolled, and where windows begin; of histograms, those of the category
    with the largest truth. Where devices come and go, also how many reports each round had.

    Args:
        result: what to draw.
        path: of the PNG.
    """
    turnout = any(part.turnout is not None for part in result.results)
    figure = Figure(figsize=INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    axes, *below = figure.subplots(
        1 + turnout, 1, sharex=True, squeeze=False, height_ratios=[3, 1][: 1 + turnout]
    )[:, 0]
    column = int(np.argmax(sum(part.truth.sum(axis=0) for part in result.results)))

    def line(values: Callable[[Result], Values]) -> Vector:
        return np.concatenate([values(part)[:, column] for part in result.results])

    numbers = np.arange(1, result.schedule.horizon + 1)
    if any(release.has_interval for part in result.results for release in part.releases):
        axes.fill_between(
            numbers,
            line(lambda part: part.lows),
            line(lambda part: part.highs),
            color=RELEASED,
            alpha=0.2,
            linewidth=0,
            label="95 % interval",
        )
    released = line(lambda part: part.estimates)
    axes.plot(numbers, released, ".", color=RELEASED, markersize=3, label="released")
    axes.plot(
        numbers, line(lambda part: part.truth), color=TRUTH, label="truth (everyone enrolled)"
    )
    axes.plot(
        numbers,
        line(lambda part: part.active_truth),
        color=ACTIVE,
        label="truth (what the interval is about)",
    )
    axes.set_ylabel("people" if len(result.first.truth[0]) > 1 else "sum over people")
    axes.legend(loc="upper right", fontsize=8, framealpha=0.9)
    for reports in below:
        counts = [release.reports for part in result.results for release in part.releases]
        enrolled = np.concatenate([part.enrolled for part in result.results])
        reports.plot(numbers, enrolled, color=TRUTH, label="enrolled")
        reports.plot(numbers, counts, color=RELEASED, linewidth=0.8, label="reports in time")
        reports.axhline(
            result.first.study.value.minimum_cohort,
            color=WORST,
            linestyle="--",
            label="minimum cohort",
        )
        reports.set_ylabel("devices")
        reports.legend(loc="lower center", fontsize=8, framealpha=0.9)
    for panel in (axes, *below):
        for window in result.schedule.windows[1:]:
            panel.axvline(window.first - 0.5, color=WORST, linewidth=0.8)
        panel.spines[["top", "right"]].set_visible(False)
    (below[-1] if below else axes).set_xlabel("round")
    figure.suptitle(_heading(result), parse_math=False)
    figure.savefig(path, dpi=110)


def _heading(result: WindowedResult) -> str:
    promise = "no guarantee: a refusal shows in the silence"
    if result.is_private:
        one, life = result.promises[0], result.lifetime
        promise = (
            f"ε = {one.epsilon:g} for whoever is in one window, {life.epsilon:.3g} in all "
            f"{life.windows}; δ = {life.delta:g}, zero-out neighbour, unit one device, view {life.view}"
        )
    return f"{result.scenario.title or result.scenario.name}: {result.first.devices:,} devices\n{promise}"
