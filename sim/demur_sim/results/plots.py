"""The picture of sums: what was released, beside the truth and the worst-case alternatives."""

import math
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter, StrMethodFormatter

from demur_proto.arrays import Values, Vector
from demur_proto.mechanisms.base import TWO_SIDED_QUANTILE
from demur_proto.release import Estimand
from demur_proto.study import Policy
from demur_sim.comparison.beside import Beside
from demur_sim.engine.sampling import Purpose, stream
from demur_sim.people.populations import AMOUNT_BIN, bin_labels, edges_of
from demur_sim.results.base import Result
from demur_sim.results.histograms import HistogramResult
from demur_sim.results.running import RunningResult
from demur_sim.results.sums import LinearResult
from demur_sim.results.windows import WindowedResult

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


# The picture of histograms: counts by category beside the truth, and every round's error.

NAMES = {
    "krr": "k-ary randomised response",
    "sue": "symmetric unary encoding",
    "oue": "optimised unary encoding",
    "blh": "binary local hashing",
    "olh": "optimised local hashing",
    "hadamard": "Hadamard response",
    "subset": "subset selection",
}


def draw_histograms(result: HistogramResult, path: Path) -> None:
    """Draw a finished run into a PNG file, a column for each mechanism.

    Above: people per round in each category, averaged over the rounds, with the interval that the
    released ones imply, and the truth over everyone and over the people who contributed. Bins of amounts
    stand in their order; other categories by how frequent they are, on a scale that is logarithmic, but
    linear around zero, since estimates of rare categories may be negative. Below: root mean squared error of every
    round over its categories against the people who contributed, beside theory, and beside theory
    where everyone pays for every round.

    Args:
        result: what to draw_histograms.
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
    _finish_histograms(axes, f"{name}: {answer}")


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
        _finish_histograms(axes, "nothing was released")
        return
    _finish_histograms(
        axes,
        f"error {result.active_rmse:,.0f}, theory {result.theory_rmse:,.0f}; "
        f"in the worst case {result.worst_case_sigma:,.0f}",
    )


def _finish_histograms(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)


# The picture of a running count: what was released beside the truth, and what its error is made of.

EVERYONE = "#009e73"


def draw_running_count(result: RunningResult, path: Path) -> None:
    """Draw a finished run into a PNG file, in fractions of all people.

    Above: the released count with its 95 % interval, the truth over states as told, which the interval
    is about, and over states as they are; where somebody counted who ran out, also the interval for
    everyone. Below: the error against states as they are, what of it comes from states that were not
    told, what noise does in theory, and the noise at the same guarantee if everyone paid in every round.
    Below that, other designs if there are any.

    Args:
        result: what to draw_running_count.
        path: of the PNG.
    """
    figure, (above, below, *rest) = panels(result.beside)
    _count(above, result)
    _error(below, result)
    for axes in rest:
        draw_beside(axes, result, result.beside, scale=1 / result.devices)
        axes.set_ylabel("people who are on")
        _finish_running_count(axes, BESIDE_TITLE)
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
    _finish_running_count(
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
    _finish_running_count(
        axes,
        f"noise {result.sigma / people:.2%}, changes not told {result.truncation_rmse / people:.2%}; "
        f"asking every round anew {result.worst_case_sigma / people:.1%} (root mean squares)",
    )


def _finish_running_count(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.25 * (high - low))  # room for the legend
    axes.legend(loc="upper left", fontsize=8, framealpha=0.9, ncols=3)
    axes.spines[["top", "right"]].set_visible(False)


# The picture of a run over several windows: all of its rounds in line.


def draw_windows(result: WindowedResult, path: Path) -> None:
    """Draw a finished run into a PNG file.

    The released numbers of all rounds with their 95 % interval, the truth over the people they are
    about and over everyone enrolled, and where windows begin; of histograms, those of the category
    with the largest truth. Where devices come and go, also how many reports each round had.

    Args:
        result: what to draw_windows.
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
