"""The picture of histograms: counts by category beside the truth, and every round's error."""

import math
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, StrMethodFormatter

from demur_sim.amount_bins import AMOUNT_BIN, bin_labels, edges_of
from demur_sim.histogram_results import HistogramResult
from demur_sim.plots import ACTIVE, INCHES, RELEASED, TRUTH, WORST, heading

NAMES = {
    "krr": "k-ary randomised response",
    "sue": "symmetric unary encoding",
    "oue": "optimised unary encoding",
    "blh": "binary local hashing",
    "olh": "optimised local hashing",
    "hadamard": "Hadamard response",
    "subset": "subset selection",
}


def draw(result: HistogramResult, path: Path) -> None:
    """Draw a finished run into a PNG file, a column for each mechanism.

    Above: people per round in each category, averaged over the rounds, with the interval that the
    released ones imply, and the truth over everyone and over the people who contributed. Bins of amounts
    stand in their order; other categories by how frequent they are, on a scale that is logarithmic, but
    linear around zero, since estimates of rare categories may be negative. Below: root mean squared error of every
    round over its categories against the people who contributed, beside theory, and beside theory
    where everyone pays for every round.

    Args:
        result: what to draw.
        path: of the PNG.
    """
    shown = result.side_by_side
    figure = Figure(figsize=INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, len(shown), sharey="row", squeeze=False)
    for axes, each in zip(above, shown, strict=True):
        _categories(axes, each)
    for axes, each in zip(below, shown, strict=True):
        _errors(axes, each)
    for axes in (above[0], below[0]):
        axes.legend(loc="upper right", fontsize=8, framealpha=0.9)
    above[0].set_ylabel("people per round")
    below[0].set_ylabel("root mean squared error, people")
    figure.suptitle(heading(result), parse_math=False)
    figure.savefig(path, dpi=110)


def _categories(axes: Axes, result: HistogramResult) -> None:
    released = ~np.isnan(result.estimates[:, 0])
    rounds = max(1, int(released.sum()))
    ranks = np.arange(1, result.scenario.categories + 1)
    means = {
        name: values[released].sum(axis=0) / rounds
        for name, values in (
            ("estimate", result.estimates),
            ("everyone", result.truth),
            ("active", result.active_truth),
        )
    }
    low, high = (end / rounds for end in result.total_interval)
    binned = result.query.feature.name == AMOUNT_BIN
    order = ranks - 1 if binned else np.argsort(-means["everyone"], kind="stable")
    everyone, active, estimate = (means[name][order] for name in ("everyone", "active", "estimate"))
    reach = np.maximum(0.0, [estimate - low[order], high[order] - estimate])
    highest = max(1.0, everyone.max(), result.sigma)
    if binned:
        labels = bin_labels(edges_of(result.query.feature.parameters))
        axes.set_xticks(ranks, labels, fontsize=8, rotation=0 if len(ranks) <= 6 else 90)
        axes.set_xlabel("bin")
        axes.set_ylim(min(-0.5, 1.5 * (estimate - reach[0]).min()), 1.8 * highest)
    else:
        _rare_and_frequent(axes, reach=reach.max(), highest=highest)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.axhline(0.0, color=TRUTH, linewidth=0.5)
    axes.plot(ranks, everyone, color=TRUTH, linewidth=1.0, label="truth (everyone)")
    axes.plot(ranks, active, color=ACTIVE, linewidth=1.0, label="truth (people who contributed)")
    axes.errorbar(
        ranks,
        estimate,
        yerr=reach,
        fmt=".",
        color=RELEASED,
        ecolor=(RELEASED, 0.35),
        markersize=5,
        linewidth=1.0,
        label=f"mean of {rounds} rounds, with its 95 % interval",
    )
    axes.axhline(
        result.sigma,
        color=WORST,
        linewidth=1.0,
        linestyle="--",
        label=f"standard error of one round: {result.sigma:,.0f}",
    )
    name = NAMES[result.scenario.mechanism]
    answer = f"ε = {result.query.epsilon:.3f} an answer, reports of {result.report_bytes} B"
    _finish(axes, f"{name}: {answer}")


def _rare_and_frequent(axes: Axes, *, reach: float, highest: float) -> None:
    """Scales on which rare categories are to be seen beside frequent ones."""
    exponent = math.ceil(math.log10(max(1.0, reach)))  # linear as far as intervals reach
    top = max(exponent + 1, math.ceil(math.log10(highest)))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel("category, the most frequent first")
    axes.set_yscale("symlog", linthresh=10.0**exponent, linscale=1.5)
    axes.set_yticks([-(10.0**exponent), 0.0, *(10.0**tick for tick in range(exponent, top + 1))])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(-1.5 * 10.0**exponent, 3.0 * 10.0**top)  # room for the legend


def _errors(axes: Axes, result: HistogramResult) -> None:
    numbers = np.arange(1, len(result.releases) + 1)
    measured = np.sqrt(((result.estimates - result.active_truth) ** 2).mean(axis=1))
    theory = np.sqrt((result.theory**2).mean(axis=1))
    axes.plot(numbers, measured, ".", color=RELEASED, markersize=4, label="measured")
    axes.plot(numbers, theory, color=TRUTH, linewidth=1.0, label="theory")
    axes.plot(
        numbers,
        np.full(len(numbers), result.worst_case_sigma),
        color=WORST,
        linewidth=1.0,
        linestyle="--",
        label="theory, everyone pays for every round",
    )
    axes.set_ylim(0, 1.3 * result.worst_case_sigma)  # room for the legend
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel("round")
    if not result.answered_rounds:
        _finish(axes, "nothing was released")
        return
    _finish(
        axes,
        f"error {result.active_rmse:,.0f}, theory {result.theory_rmse:,.0f}; "
        f"in the worst case {result.worst_case_sigma:,.0f}",
    )


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
