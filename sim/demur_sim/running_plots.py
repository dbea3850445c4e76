"""The picture of a running count: what was released beside the truth, and what its error is made of."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from demur_proto.mechanisms.base import TWO_SIDED_QUANTILE
from demur_sim.plots import (
    ACTIVE,
    BESIDE_TITLE,
    RELEASED,
    TRUTH,
    WORST,
    draw_beside,
    heading,
    panels,
)
from demur_sim.running_results import RunningResult

EVERYONE = "#009e73"


def draw(result: RunningResult, path: Path) -> None:
    """Draw a finished run into a PNG file, in fractions of all people.

    Above: the released count with its 95 % interval, the truth over states as told, which the interval
    is about, and over states as they are; where somebody counted who ran out, also the interval for
    everyone. Below: the error against states as they are, what of it comes from states that were not
    told, what noise does in theory, and the noise at the same guarantee if everyone paid in every round.
    Below that, other designs if there are any.

    Args:
        result: what to draw.
        path: of the PNG.
    """
    figure, (above, below, *rest) = panels(result.beside)
    _count(above, result)
    _error(below, result)
    for axes in rest:
        draw_beside(axes, result, result.beside, scale=1 / result.devices)
        axes.set_ylabel("people who are on")
        _finish(axes, BESIDE_TITLE)
    figure.suptitle(heading(result), parse_math=False)
    figure.savefig(path, dpi=110)


def _count(axes: Axes, result: RunningResult) -> None:
    people = result.devices
    numbers = np.arange(1, len(result.releases) + 1)
    released = result.estimates[:, 0] / people
    if result.everyone:
        bounds = [(np.nan, np.nan) if x is None else (x.low, x.high) for x in result.everyone]
        for side, name in zip(np.array(bounds).T / people, ("95 % interval for everyone", None)):  # noqa: B905
            axes.plot(numbers, side, color=EVERYONE, linewidth=0.7, label=name)
    if result.has_intervals:
        axes.fill_between(
            numbers,
            result.lows[:, 0] / people,
            result.highs[:, 0] / people,
            color=RELEASED,
            alpha=0.2,
            linewidth=0,
            label="95 % interval for the states as told",
        )
    axes.plot(numbers, released, color=RELEASED, linewidth=0.8, label="released")
    axes.plot(
        numbers, result.truth[:, 0] / people, color=TRUTH, linewidth=1.0, label="truth (everyone)"
    )
    axes.plot(
        numbers,
        result.active_truth[:, 0] / people,
        color=ACTIVE,
        linewidth=1.0,
        label="truth (states as told)",
    )
    axes.set_ylabel("people who are on")
    _finish(
        axes,
        f"a running count, {result.scenario.factorisation}, {result.scenario.budget} changes each: "
        f"error {result.rmse / people:.2%} of people over all rounds",
    )


def _error(axes: Axes, result: RunningResult) -> None:
    people = result.devices
    numbers = np.arange(1, len(result.releases) + 1)
    reach = TWO_SIDED_QUANTILE * result.noise_errors / people
    worst = TWO_SIDED_QUANTILE * result.worst_case_sigma / people
    axes.fill_between(
        numbers,
        -reach,
        reach,
        color=RELEASED,
        alpha=0.2,
        linewidth=0,
        label="noise in theory, 95 %",
    )
    axes.plot(
        numbers,
        (result.estimates - result.truth)[:, 0] / people,
        color=RELEASED,
        linewidth=0.8,
        label="released, less the truth",
    )
    axes.plot(
        numbers,
        (result.active_truth - result.truth)[:, 0] / people,
        color=ACTIVE,
        linewidth=1.0,
        label="of which changes that were not told",
    )
    label = "noise if everyone paid for their state in every round, 95 %"
    for side, name in ((worst, label), (-worst, None)):
        axes.axhline(side, color=WORST, linewidth=1.0, linestyle="--", label=name)
    axes.set_ylabel("error, people")
    _finish(
        axes,
        f"noise {result.sigma / people:.2%}, changes not told {result.truncation_rmse / people:.2%}; "
        f"asking every round anew {result.worst_case_sigma / people:.1%} (root mean squares)",
    )


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.25 * (high - low))  # room for the legend
    axes.legend(loc="upper left", fontsize=8, framealpha=0.9, ncols=3)
    axes.spines[["top", "right"]].set_visible(False)
