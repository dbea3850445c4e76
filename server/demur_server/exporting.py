"""Releases as CSV and JSON: what is public already, and nothing else."""

import csv
import io
import math
from collections.abc import Iterable
from typing import Any

from demur_proto.release import Release

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
)


def release_csv(releases: Iterable[Release]) -> str:
    """One line for every coordinate of every release, and one for each that was withheld.

    `sum` is in grid steps and the others are in data units; for a histogram `sum` is a count and
    the others are in people. A number without its guarantee is none:
    the JSON form has it beside every release.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for release in releases:
        head = [release.study_hash.hex(), release.number, release.reports, release.withheld.value]
        if not release.estimate:
            writer.writerow([*head, *[""] * 6])
        sums = iter(release.sums)  # a mechanism may have a sum or two more than estimates
        for at, (total, value) in enumerate(zip(sums, release.estimate, strict=False)):
            errors = release.standard_error_at(at), release.half_width_at(at), release.confidence
            writer.writerow([*head, at, total, repr(value), *map(repr, errors)])
    return text.getvalue()


def release_table(release: Release) -> dict[str, Any]:
    """A release for JSON; what was withheld is empty or null.

    `standard_error` and `half_width` have one number for each estimate, or one that all share.
    """
    return {
        "study": release.study_hash.hex(),
        "round_hash": release.round_hash.hex(),
        "round": release.number,
        "reports": release.reports,
        "withheld": release.withheld.value,
        "sums": list(release.sums),
        "estimate": list(release.estimate),
        "standard_error": list(release.standard_error),
        "half_width": list(release.half_width),
        "confidence": _finite(release.confidence),
        "guarantee": release.guarantee,
    }


def _finite(value: float) -> float | None:
    """JSON knows no NaN."""
    return value if math.isfinite(value) else None
