"""The picture of sums: what was released, beside the truth and the worst-case alternatives."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from demur_proto.arrays import Vector
from demur_proto.release import Estimand
from demur_proto.study import Policy
from demur_sim.beside import Beside
from demur_sim.linear_results import LinearResult
from demur_sim.results import Result
from demur_sim.seeds import Purpose, stream

TRUTH, ACTIVE, RELEASED, WORST = "#222222", "#d55e00", "#0072b2", "#999999"
OTHERS = ("#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#8c564b", "#bcbd22", "#9467bd")
INCHES = (11.0, 7.5)  #: of two panels
BESIDE_TITLE = "other designs for the same people, which promise other things: see the summary"


def draw(result: LinearResult, path: Path, *, coordinate: int = 0) -> None:
    """Draw a finished run into a PNG file.

    Above: the released sums with their 95 % interval, the truth over the people who contributed
    (which the interval is about), and the truth over everyone. Below, at the same guarantee and
    the same scale: everyone pays for every round, either with noise for all rounds or with this
    run's noise until the budget is gone. Below that, on a scale of their own, other designs if
    there are any.

    Args:
        result: what to draw.
        path: of the PNG.
        coordinate: which coordinate of the question.
    """
    figure, (above, below, *rest) = panels(result.beside)
    below.sharey(above)
    _individual(above, result, coordinate)
    _worst_case(below, result, coordinate)
    for axes in rest:
        draw_beside(axes, result, result.beside, scale=1.0)
        _finish(axes, BESIDE_TITLE)
    figure.suptitle(heading(result), parse_math=False)
    figure.savefig(path, dpi=110)


def panels(beside: Sequence[Beside]) -> tuple[Figure, Sequence[Axes]]:
    """A figure with two panels, one above the other, and a third if there are other designs."""
    rows = 3 if beside else 2
    figure = Figure(figsize=(INCHES[0], INCHES[1] * rows / 2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, 1, sharex=True)
    axes[-1].set_xlabel("round")
    return figure, axes


def draw_beside(axes: Axes, result: Result, beside: Sequence[Beside], *, scale: float) -> None:
    """Draw what other designs found of the same people, beside the truth and what was released.

    Args:
        axes: where.
        result: of this run, of one coordinate.
        beside: the other designs.
        scale: what a number is multiplied by.
    """
    numbers = np.arange(1, len(result.releases) + 1)
    truth = result.within_reach[:, 0]

    def line(values: Vector, name: str, error: float, color: str) -> None:
        shown = f"{error * scale:.2%}" if scale != 1 else f"{error:,.1f}"
        label = f"{name}: error {shown}"
        axes.plot(numbers, scale * values, color=color, linewidth=0.8, label=label)

    for each, color in zip(beside, cycle(OTHERS), strict=False):
        line(each.estimates, str(each.name), each.rmse(truth), color)
    line(result.estimates[:, 0], "this run", result.rmse, RELEASED)
    axes.plot(numbers, scale * truth, color=TRUTH, linewidth=1.0, label="truth (everyone)")


def heading(result: Result) -> str:
    """What a run was about, and what it promises."""
    promise = "no guarantee: a refusal shows in the silence"
    if result.is_private:
        epsilon, delta = result.guarantee.epsilon, result.guarantee.delta
        promise = f"(ε = {epsilon:g}, δ = {delta:g}), zero-out neighbour, unit one device"
    return (
        f"{result.scenario.title or result.scenario.name}: {result.devices:,} devices, "
        f"{len(result.releases)} rounds, view {result.guarantee.view}\n{promise}"
    )


def _individual(axes: Axes, result: LinearResult, coordinate: int) -> None:
    numbers = np.arange(1, len(result.releases) + 1)
    released = result.estimates[:, coordinate]
    name = "released"
    if any(release.has_interval for release in result.releases):
        axes.fill_between(
            numbers,
            result.lows[:, coordinate],
            result.highs[:, coordinate],
            color=RELEASED,
            alpha=0.2,
            linewidth=0,
            label="95 % interval for the people who contributed",
        )
    elif result.study.value.policy is Policy.CLIP:
        name = f"released, unbiased for {Estimand.S_SHRUNK.told}"
    axes.plot(numbers, released, ".", color=RELEASED, markersize=4, label=name)
    axes.plot(
        numbers, result.truth[:, coordinate], color=TRUTH, linewidth=1.0, label="truth (everyone)"
    )
    axes.plot(
        numbers,
        result.active_truth[:, coordinate],
        color=ACTIVE,
        linewidth=1.0,
        label="truth (people who contributed)",
    )
    _finish(
        axes,
        f"a filter on each device: {result.answered_rounds} rounds answered, "
        f"RMSE {result.rmse:.1f} against everyone",
    )


def _worst_case(axes: Axes, result: LinearResult, coordinate: int) -> None:
    numbers = np.arange(1, len(result.releases) + 1)
    truth = result.within_reach[:, coordinate]
    rng = stream(result.seed, Purpose.WORST_CASE)
    noisy = truth + rng.normal(scale=result.worst_case_sigma, size=len(truth))
    axes.plot(
        numbers,
        noisy,
        ".",
        color=WORST,
        markersize=4,
        label=f"noise for all rounds: standard error {result.worst_case_sigma:.1f}",
    )
    axes.plot(numbers, truth, color=TRUTH, linewidth=1.0, label="truth (everyone)")
    stop = result.worst_case_rounds
    axes.plot(
        numbers[:stop],
        result.estimates[:stop, coordinate],
        ".",
        color=RELEASED,
        markersize=5,
        label=f"this run's noise: stops after {stop} rounds",
    )
    axes.axvline(stop + 0.5, color=RELEASED, linewidth=0.8, linestyle="--")
    _finish(axes, "everyone pays for every round, at the same guarantee")


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_ylabel("sum over people")
    axes.legend(loc="upper right", fontsize=8, framealpha=0.9)
    axes.spines[["top", "right"]].set_visible(False)
