"""What the commands print: tables with all that gives their numbers a meaning, or JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from demur_client.budget_answers import SYMBOLS, Answer, Row
from demur_proto.guarantee import NEIGHBOUR, UNIT
from demur_proto.outward import text_down, text_up

if TYPE_CHECKING:
    from demur_client.vectors.checker import Finding

VIEW = "whoever sees only what carries the noise: reports (local) or released sums (aggregate)"
TWO_PEOPLE = "two people: the person's data replaced by any other person's"
ROUNDING = "ε, δ and σ up, budgets and rounds down"
GRADES = {
    "exact": "no proof can do better; a budget μ is for Gaussian noise only",
    "composed": "exactly, by Kairouz, Oh & Viswanath 2015; a study with measure answers",
    "improved": "from zCDP or Rényi, by Canonne, Kamath & Steinke 2020",
    "simple": "from zCDP or Rényi, by Bun & Steinke 2016 and Mironov 2017",
    "tight": "a round of pure ε costs ε·tanh(ε/2)",
    "quadratic": "a round of pure ε costs ½ε²",
    "sum": "the rounds' ε added up; a study with measure pure",
}
QUANTITIES = {"epsilon": "ε", "rounds": "rounds", "sigma": "σ"}
SHOWN_FAILURES = 5  #: of one family; --json lists all


def answer_text(answer: Answer) -> str:
    """The answer of `demur budget` for people."""
    symbol = QUANTITIES[answer.quantity]
    lines = [["grade", "budget", f"{symbol}, zero-out", f"{symbol}, two people"]]
    lines += [
        [row.grade, _budget(row, answer), _shown(row.zero_out), _shown(row.two_people)]
        for row in answer.rows
    ]
    notes = [("unit", UNIT), ("neighbour", NEIGHBOUR), ("", TWO_PEOPLE), ("view", VIEW)]
    words = {word for row in answer.rows for word in row.grade.split(", ")}
    notes += [(word, meaning) for word, meaning in GRADES.items() if word in words]
    notes.append(("rounded", ROUNDING))
    below = [f"{name:10} {text}" for name, text in notes]
    return "\n".join([answer.question, "", _table(lines), "", *below])


def answer_fields(answer: Answer, given: Mapping[str, float | None]) -> dict[str, Any]:
    """The answer of `demur budget` for programs; `given` is what was asked about."""
    return {
        "question": answer.question,
        "given": {name: _finite(value) for name, value in given.items() if value is not None},
        "quantity": answer.quantity,
        "unit": UNIT,
        "neighbours": {
            "zero_out": NEIGHBOUR.removeprefix("zero-out: "),
            "two_people": TWO_PEOPLE.removeprefix("two people: "),
        },
        "view": VIEW,
        "rounding": ROUNDING,
        "answers": [asdict(row) for row in answer.rows],
    }


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
    return "\n".join([_table(lines), *([""] if details else []), *details, "", end])


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
        "worst_relative_error": _finite(worst),
        "failures": [] if verdict is None else list(verdict.failures),
        "unknown": [] if verdict is None else list(verdict.unknown),
    }


def _budget(row: Row, answer: Answer) -> str:
    """What is spent, rounded up; or what a target allows, rounded down."""
    rounded = text_up if answer.quantity == "epsilon" else text_down
    return f"{SYMBOLS.get(row.measure, row.measure)} = {rounded(row.budget)}"


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else text_up(value)


def _finite(value: float | None) -> float | str | None:
    """A number as JSON, which has no infinity: an order may be infinite, and an error too."""
    return "inf" if value == math.inf else value


def _table(lines: list[list[str]]) -> str:
    """Columns as wide as they must be; the first is left-justified, the others right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
