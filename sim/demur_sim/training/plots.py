"""The picture of a training: how good the model became, and who could still pay."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from demur_sim.results.plots import ACTIVE, INCHES, RELEASED, TRUTH
from demur_sim.training.results import TrainingResult


def draw(result: TrainingResult, path: Path) -> None:
    """Draw a finished training into a PNG file.

    Above: accuracy after each step on the examples to test on, and from the noisy counts of errors
    where these were paid for. Below: how many people still answered unshrunk, which only a simulator
    knows.

    Args:
        result: what to draw.
        path: of the PNG.
    """
    figure = Figure(figsize=INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True)
    _learning(above, result)
    _active(below, result)
    figure.suptitle(_heading(result), parse_math=False)
    figure.savefig(path, dpi=110)


def _heading(result: TrainingResult) -> str:
    guarantee = result.design.guarantee
    scenario = result.scenario
    return (
        f"{scenario.title or scenario.name}: {result.devices:,} devices, {result.steps} steps, "
        f"{scenario.algorithm}, view {guarantee.view}\n(ε = {guarantee.epsilon:g}, "
        f"δ = {guarantee.delta:g}), zero-out neighbour, unit one device; tuning is not included"
    )


def _learning(axes: Axes, result: TrainingResult) -> None:
    steps = np.arange(1, result.steps + 1)
    axes.plot(steps, result.accuracies, color=TRUTH, linewidth=1.2, label="on examples to test on")
    counts = result.state.errors
    if counts:
        axes.errorbar(
            [count.step for count in counts],
            [1 - count.value / result.devices for count in counts],
            yerr=[1.96 * count.standard_error / result.devices for count in counts],
            fmt="o",
            color=RELEASED,
            markersize=3,
            linewidth=0.8,
            label="on people's own, by noisy counts (95 % interval)",
        )
        axes.axvline(result.state.final_step, color=RELEASED, linewidth=0.8, linestyle="--")
    title = (
        f"accuracy of the final model {result.test_accuracy:.2%}, of step {result.state.final_step}"
    )
    _finish(axes, title, "accuracy")


def _active(axes: Axes, result: TrainingResult) -> None:
    steps = np.arange(1, result.steps + 1)
    axes.plot(steps, result.actives, color=ACTIVE, linewidth=1.2, label="answered unshrunk so far")
    counts = result.state.halts
    if counts:
        axes.errorbar(
            [count.step for count in counts],
            [result.devices - count.value for count in counts],
            yerr=[1.96 * count.standard_error for count in counts],
            fmt="o",
            color=RELEASED,
            markersize=3,
            linewidth=0.8,
            label="by noisy counts of those who ran out (95 % interval)",
        )
    axes.set_ylim(bottom=0)
    axes.set_xlabel("step")
    _finish(
        axes, "people whose budget still held their whole gradient (simulator's truth)", "people"
    )


def _finish(axes: Axes, title: str, label: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_ylabel(label)
    axes.legend(loc="lower right", fontsize=8, framealpha=0.9)
    axes.spines[["top", "right"]].set_visible(False)
