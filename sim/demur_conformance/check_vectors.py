"""The command `demur check-vectors`."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demur_client.commands.formatting import finite, table

if TYPE_CHECKING:
    from demur_conformance.vectors.checker import Finding

CHECK = """\
Check that this implementation reproduces vector files, family by family. The exit status is 0 only
if every family and case of every file is known, and every case holds. docs/vectors.md describes the files."""

SHOWN_FAILURES = 5  #: of one family; --json lists all


def add_commands(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `check-vectors`."""
    check = subparsers.add_parser(
        "check-vectors", help="check this implementation against vector files", description=CHECK
    )
    check.add_argument("files", nargs="+", type=Path, metavar="FILE", help="vector file, JSON")
    check.add_argument("--json", action="store_true", help="print one JSON object")
    check.set_defaults(run=run_check_vectors)


def run_check_vectors(options: argparse.Namespace) -> int:
    """Run `demur check-vectors`."""
    from demur_conformance.vectors.checker import check_file

    findings = [finding for file in options.files for finding in check_file(file)]
    if options.json:
        print(json.dumps(findings_fields(findings)))
    else:
        print(findings_text(findings))
    return 0 if all(finding.holds for finding in findings) else 1


def findings_text(findings: Sequence["Finding"]) -> str:
    """What `demur check-vectors` found, for people."""
    several = len({finding.file for finding in findings}) > 1
    lines = [["family", "cases", "worst error", "failures", "unknown"]]
    details: list[str] = []
    for finding in findings:
        name = f"{finding.file}: {finding.family}" if several else finding.family
        verdict = finding.verdict
        if verdict is None:
            lines.append([name, "-", "-", "-", "the family"])
            continue
        worst = "-" if verdict.worst is None else f"{verdict.worst:.1e}"
        count = f"{len(verdict.failures):,}" if verdict.cases else "no cases"
        lines.append([name, f"{verdict.cases:,}", worst, count, f"{len(verdict.unknown):,}"])
        for found, mark in ((verdict.failures, ""), (verdict.unknown, "unknown: ")):
            details += [f"{mark}{line}" for line in found[:SHOWN_FAILURES]]
            hidden = len(found) - SHOWN_FAILURES
            if hidden > 0:
                details.append(f"{mark}{finding.family}: {hidden:,} more (--json lists all)")
    failed = [finding.family for finding in findings if not finding.holds]
    cases = sum(finding.verdict.cases for finding in findings if finding.verdict)
    if failed:
        end = f"{len(failed)} of {len(findings)} families fail: {', '.join(failed)}"
    else:
        end = f"all {len(findings)} families hold, {cases:,} cases"
    return "\n".join([table(lines), *([""] if details else []), *details, "", end])


def findings_fields(findings: Sequence["Finding"]) -> dict[str, Any]:
    """What `demur check-vectors` found, for programs."""
    return {
        "holds": all(finding.holds for finding in findings),
        "families": [_finding_fields(finding) for finding in findings],
    }


def _finding_fields(finding: "Finding") -> dict[str, Any]:
    verdict = finding.verdict
    worst = None if verdict is None else verdict.worst
    return {
        "file": finding.file,
        "family": finding.family,
        "known": verdict is not None,
        "holds": finding.holds,
        "cases": 0 if verdict is None else verdict.cases,
        "worst_relative_error": finite(worst),
        "failures": [] if verdict is None else list(verdict.failures),
        "unknown": [] if verdict is None else list(verdict.unknown),
    }
