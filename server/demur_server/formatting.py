"""A release in words."""

import csv
import io
import math
from collections.abc import Iterable, Iterator
from typing import Any

from demur_proto.release import Estimand, Release, Withheld

LONGEST_SHOWN = 20  #: estimates
WHY = {
    Withheld.BELOW_MINIMUM_COHORT: "fewer reports than the study allows",
    Withheld.SEGMENT_BROKEN: "an earlier round of the running count published nothing",
}

WITHOUT = {
    Estimand.NOTHING: "no interval: devices may have dropped parts of what it counts",
    Estimand.S_SHRUNK: (
        f"unbiased for {Estimand.S_SHRUNK.told}; no interval, since nobody may know how many were shrunk: "
        "a count of halts bounds the sum over everyone"
    ),
}


def told(question: str, release: Release, *, histogram: bool) -> str:
    """A release for people; a number never comes without its guarantee."""
    where = f"round {release.number}, {release.reports:,} reports"
    if not release.estimate.size:
        return f"{question}: withheld, {WHY[release.withheld]} ({where})"
    one = histogram and release.estimate.size == 1  # category: 1 is yes
    shown = [
        f"{('yes: ' if one else f'category {at}: ') if histogram else ''}{value:,.6g}{_around(release, at)}"
        for at, value in enumerate(release.estimate[:LONGEST_SHOWN].tolist())
    ]
    if len(release.estimate) > LONGEST_SHOWN:
        shown.append(f"… ({len(release.estimate)} in all; --json prints them)")
    separator = " " if len(shown) == 1 else "\n  "
    told = f"{question}:{separator}{separator.join(shown)}\n"
    if not release.has_interval:
        return f"{told}{WITHOUT[release.estimand]}; {where}\n{release.guarantee}"
    what = "number of people in each, of those" if histogram else "sum over the people"
    if one:
        what = "number of people whose answer is yes, of those"
    return (
        f"{told}{release.confidence:.0%} interval for {release.estimand.told}: the {what} whose devices "
        f"could still pay; {where}\n{release.guarantee}"
    )


def _around(release: Release, at: int) -> str:
    """How far off an estimate may be, in words that follow it."""
    low, high = release.interval_at(at)
    if not release.has_interval:
        return f", standard error {release.standard_error_at(at):,.6g}"
    if release.half_width.size:
        return f" ± {(high - low) / 2:,.6g}"
    return f" ({low:,.6g} to {high:,.6g})"


# Releases as CSV and JSON: what is public already, and nothing else.

COLUMNS = (
    "study",
    "round",
    "reports",
    "withheld",
    "coordinate",
    "sum",
    "estimate",
    "standard_error",
    "half_width",
    "confidence",
    "low",
    "high",
    "estimand",
)

LINES = 1 << 12  #: of CSV at a time


def release_csv(releases: Iterable[Release]) -> str:
    """One line for every coordinate of every release, and one for each that was withheld.

    `sum` is in grid steps and the others are in data units; for a histogram `sum` is a count and
    the others are in people. A number without its guarantee is none:
    the JSON form has it beside every release.
    """
    return "".join(csv_pieces(releases))


def csv_pieces(releases: Iterable[Release]) -> Iterator[str]:
    """The same text, a few thousand lines at a time: a large release is gigabytes of it."""
    yield _csv_text([COLUMNS])
    for release in releases:
        head = [release.study_hash.hex(), release.number, release.reports, release.withheld.value]
        if not release.estimate.size:
            yield _csv_text([[*head, *[""] * 8, release.estimand]])
        for start in range(0, release.estimate.size, LINES):
            yield _csv_text([*head, *cells] for cells in _cells(release, start))


def _cells(release: Release, start: int) -> Iterator[list[object]]:
    """What the lines from a coordinate on say of it."""
    piece = slice(start, start + LINES)
    # A mechanism may have a sum or two more than estimates.
    same = release.half_width.size  # as far below an estimate as above
    pairs = zip(release.sums[piece].tolist(), release.estimate[piece].tolist(), strict=False)
    for at, (total, value) in enumerate(pairs, start=start):
        half = release.half_width[at if release.half_width.size > 1 else 0] if same else math.nan
        numbers = (
            *(release.standard_error_at(at), float(half), release.confidence),
            *release.interval_at(at),
        )
        told = ("" if math.isnan(each) else repr(each) for each in numbers)
        yield [at, total, repr(value), *told, release.estimand]


def _csv_text(rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def release_table(release: Release) -> dict[str, Any]:
    """A release for JSON; what was withheld is empty or null.

    `standard_error` and `half_width` have one number for each estimate, or one that all share.
    `half_width` is empty where intervals are not as far below the estimate as above, or are none;
    `low` and `high` have one number for each estimate wherever there are intervals.
    """
    return {
        "study": release.study_hash.hex(),
        "round_hash": release.round_hash.hex(),
        "round": release.number,
        "reports": release.reports,
        "withheld": release.withheld.value,
        "sums": release.sums.tolist(),
        "estimate": release.estimate.tolist(),
        "standard_error": release.standard_error.tolist(),
        "half_width": release.half_width.tolist(),
        "low": release.low.tolist(),
        "high": release.high.tolist(),
        "confidence": _finite(release.confidence),
        "estimand": str(release.estimand),
        "guarantee": release.guarantee,
    }


def _finite(value: float) -> float | None:
    """JSON knows no NaN."""
    return value if math.isfinite(value) else None
