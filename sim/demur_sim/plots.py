"""The picture of sums: what was released, beside the truth and the worst-case alternatives."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from demur_sim.linear_results import LinearResult
from demur_sim.results import Result
from demur_sim.seeds import Purpose, stream

TRUTH, ACTIVE, RELEASED, WORST = "#222222", "#d55e00", "#0072b2", "#999999"
INCHES = (11.0, 7.5)


def draw(result: LinearResult, path: Path, *, coordinate: int = 0) -> None:
    """Draw a finished run into a PNG file.

    Above: the released sums with their 95 % interval, the truth over the people who contributed
    (which the interval is about), and the truth over everyone. Below, at the same guarantee and
    the same scale: everyone pays for every round, either with noise for all rounds or with this
    run's noise until the budget is gone.

    Args:
        result: what to draw.
        path: of the PNG.
        coordinate: which coordinate of the question.
    """
    figure = Figure(figsize=INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, sharey=True)
    _individual(above, result, coordinate)
    _worst_case(below, result, coordinate)
    figure.suptitle(heading(result))
    figure.savefig(path, dpi=110)


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
    half = result.half_widths[:, coordinate]
    axes.fill_between(
        numbers,
        released - half,
        released + half,
        color=RELEASED,
        alpha=0.2,
        linewidth=0,
        label="95 % interval for the people who contributed",
    )
    axes.plot(numbers, released, ".", color=RELEASED, markersize=4, label="released")
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
    truth = result.truth[:, coordinate]
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
    axes.set_xlabel("round")
    _finish(axes, "everyone pays for every round, at the same guarantee")


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_ylabel("sum over people")
    axes.legend(loc="upper right", fontsize=8, framealpha=0.9)
    axes.spines[["top", "right"]].set_visible(False)
