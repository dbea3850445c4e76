"""What a person reads when a run has ended."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from demur_proto.accounting.numerics import text_up
from demur_proto.release import Estimand
from demur_proto.study import Policy, View
from demur_sim.comparison.beside import Beside
from demur_sim.results.base import Result
from demur_sim.results.histograms import HistogramResult
from demur_sim.results.running import RunningResult
from demur_sim.results.sums import LinearResult
from demur_sim.results.windows import WindowedResult

LARGEST = 3  #: categories shown, added up over all rounds


def report(result: Result, folder: Path) -> str:
    """A run in a few lines of at most 100 characters.

    Args:
        result: what to tell of.
        folder: where its files are.
    """
    guarantee = result.guarantee
    promise = (
        f"({text_up(guarantee.epsilon)}, {text_up(guarantee.delta)}), unit one device, "
        f"neighbour zero-out, view {guarantee.view}"
    )
    rows = {"guarantee": promise if result.is_private else "none: a refusal shows in the silence"}
    if isinstance(result, LinearResult):
        rows |= _sums(result)
    elif isinstance(result, HistogramResult):
        rows |= _counts(result)
    elif isinstance(result, RunningResult):
        rows |= _running(result)
    if isinstance(result, LinearResult | RunningResult) and result.beside:
        rows |= _beside(result, result.beside)
    rows |= _trusted([result])
    rows |= _presence([result])
    size = f"{result.devices:,} devices, {len(result.releases)} rounds"
    return _lines(result, result.scenario.title or result.scenario.name, size, rows, folder)


def report_windows(result: WindowedResult, folder: Path) -> str:
    """A run over several windows, likewise; each of them has a summary of its own.

    Args:
        result: what to tell of.
        folder: where its files are.
    """
    rows: dict[str, str] = {}
    if result.is_private:
        for promise in result.promises:
            where = "in 1 window" if promise.windows == 1 else f"in {promise.windows} windows"
            rows[where] = (
                f"({text_up(promise.epsilon)}, {text_up(promise.delta)}), from {promise.in_measure}"
            )
        rows["each for"] = (
            f"unit one device, neighbour zero-out, view {result.lifetime.view}, and so many windows only"
        )
    else:
        rows["guarantee"] = "none: a refusal shows in the silence"
    answered = sum(part.answered_rounds for part in result.results)
    rows |= {
        "answered rounds": f"{answered}, of which each window paid for its own",
        "error (RMSE)": f"{result.rmse:,.1f} against everyone enrolled",
        **_trusted(result.results),
        **_presence(result.results),
        "simulated": "with seeded noise, so the run itself protects nobody",
        "refused once": f"{result.exhausted_fraction:.2%} of devices (only a simulator knows this)",
        "took": f"{result.wall_s:.1f} s",
    }
    windows = f"{len(result.results)} windows of {result.scenario.window}"
    size = f"{result.first.devices:,} devices, {result.schedule.horizon} rounds in {windows}"
    title = result.scenario.title or result.scenario.name
    return _lines(result.first, title, size, rows, folder)


def _lines(result: Result, title: str, size: str, rows: Mapping[str, str], folder: Path) -> str:
    files = {"results": f"{folder}/summary.json", "picture": f"{folder}/plot.png"}
    lines = [
        title,
        f"  {size}, fidelity {result.fidelity}, seed {result.seed}",
        *(f"  {label:15}  {text}" for label, text in {**rows, **files}.items()),
    ]
    return "\n".join(lines)


def _trusted(results: Sequence[Result]) -> dict[str, str]:
    """Who is trusted, where noise is in released sums only."""
    alone = [each.guarantee.per_report_mu or 0.0 for each in results]
    if results[0].guarantee.view is View.LOCAL:
        return {}
    return {
        "trusted": f"the collector: one report on its own is only {text_up(max(alone), digits=2)}-GDP"
    }


def _presence(results: Sequence[Result]) -> dict[str, str]:
    """How many reports came, where devices come and go."""
    if all(result.turnout is None for result in results):
        return {}
    reports = [release.reports for result in results for release in result.releases]
    enrolled = [int(count) for result in results for count in result.enrolled]
    withheld = sum(len(result.releases) - result.answered_rounds for result in results)
    rows = {
        "reports a round": (
            f"{min(reports):,} to {max(reports):,}, of {min(enrolled):,} to {max(enrolled):,} enrolled "
            "devices"
        )
    }
    if withheld:
        least = results[0].study.value.minimum_cohort
        below = sum(count < least for count in reports)
        rows["withheld"] = (
            f"{withheld} of {len(reports)} rounds, {below} of them below the minimum cohort, {least:,}"
        )
    return rows


def _sums(result: LinearResult) -> dict[str, str]:
    noise = f"standard error {result.sigma:,.1f} of a released sum"
    if result.study.value.view is not View.LOCAL:
        noise += f" (view local would need {result.local_sigma:,.0f})"
    missing = len(result.releases) - result.answered_rounds
    error = f"{result.rmse:,.1f} with a filter on each device"
    if missing:
        error += f" (over the rounds released; {missing} were withheld)"
    if result.clipping_rmse:
        error += f", beside clipping, {result.clipping_rmse:,.1f}"
    unbiased = {}
    if result.study.value.policy is Policy.CLIP:
        unbiased["unbiased for"] = f"{Estimand.S_SHRUNK.told}, without an interval"
    return {
        "noise": noise,
        "answered rounds": _answered(result),
        "error (RMSE)": f"{error}, {result.worst_case_sigma:,.1f} in the worst case for all rounds",
        **unbiased,
        "simulated": "with seeded noise, so the run itself protects nobody",
        "refused once": _refused(result),
        "took": f"{result.wall_s:.1f} s",
    }


def _counts(result: HistogramResult) -> dict[str, str]:
    rows: dict[str, str] = {}
    for each in result.side_by_side:
        query = each.query
        rows[f"{query.mechanism}: noise"] = (
            f"standard error {each.sigma:,.0f} of a count "
            f"(epsilon {query.epsilon:.3f} an answer, {_bytes(each.report_bytes)} a report)"
        )
        if not each.answered_rounds:
            rows[f"{query.mechanism}: error"] = "nothing was released"
            continue
        rows[f"{query.mechanism}: error"] = (
            f"{each.active_rmse:,.0f} (RMSE of active people), in theory {each.theory_rmse:,.0f}; "
            f"{each.worst_case_sigma:,.0f} in the worst case"
        )
        rows[f"{query.mechanism}: held"] = (
            f"{each.coverage:.1%} of the intervals hold the active people, those who contributed"
        )
    if result.answered_rounds:
        rows["largest totals (truth)"] = ", ".join(
            f"{row['category']:.0f}: {row['estimate']:,.0f} ({row['simulator_truth_everyone']:,.0f})"
            for row in result.totals()[:LARGEST]
        )
    return rows | {
        "answered rounds": _answered(result),
        "simulated": "with seeded randomness, so the run itself protects nobody",
        "refused once": _refused(result),
        "took": f"{sum(each.wall_s for each in result.side_by_side):.1f} s",
    }


def _running(result: RunningResult) -> dict[str, str]:
    people = result.devices
    rows = {
        "noise": (
            f"standard error {result.sigma / people:.2%} of people over all rounds "
            f"({result.scenario.factorisation}, {result.scenario.budget} changes each)"
        ),
        "answered rounds": _answered(result),
        "error (RMSE)": (
            f"{result.rmse / people:.2%} of people, of which states that were not told "
            f"{result.truncation_rmse / people:.2%}"
        ),
        "worst case": (
            f"{result.worst_case_sigma / people:.2%} if everyone paid for their state each round"
        ),
    }
    if result.has_intervals:
        rows["held"] = f"{result.coverage:.1%} of the intervals hold the states as told"
    if result.everyone:
        rows["held (everyone)"] = (
            f"{result.everyone_coverage:.1%} of those for everyone hold the states as they are"
        )
    return rows | {
        "simulated": "with seeded noise, so the run itself protects nobody",
        "refused once": _refused(result),
        "took": f"{result.wall_s:.1f} s",
    }


def _beside(result: Result, others: Sequence[Beside]) -> dict[str, str]:
    """What other designs would have found, each in a row with what it promises."""
    rows = {"beside": "the same people by other designs, unit one device, zero-out, view local:"}
    people = result.devices if isinstance(result, RunningResult) else 0

    def shown(value: float) -> str:
        return f"{value / people:.2%}" if people else f"{value:,.1f}"

    for each in others:
        off = f"error {shown(each.rmse(result.within_reach[:, 0]))} (noise {shown(each.standard_error)}"
        if each.changes is not None:
            off += f", not followed {shown(each.truncation)}"
        rows[each.name] = f"{off}); {_promise(each)}"
    return rows


def _promise(other: Beside) -> str:
    """Whom a design protects: anybody, or somebody only."""
    protection = other.protection
    if protection.epsilon == math.inf:
        anybody = "nothing"
    else:
        anybody = f"({text_up(protection.epsilon, digits=3)}, {text_up(protection.delta)})"
    if protection.steady_epsilon is None:
        return f"{anybody} for anybody"
    steady = text_up(protection.steady_epsilon)
    return f"({steady}, 0) if nothing changes, else {anybody}"


def _bytes(count: int) -> str:
    return "1 byte" if count == 1 else f"{count} bytes"


def _answered(result: Result) -> str:
    return (
        f"{result.answered_rounds} with a filter on each device, "
        f"{result.worst_case_rounds} in the worst case at the same noise"
    )


def _refused(result: Result) -> str:
    return f"{result.exhausted_fraction:.2%} of devices (only a simulator knows this)"
