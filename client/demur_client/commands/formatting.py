"""What the commands print: tables with all that gives their numbers a meaning, or JSON."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from demur_client.budget.answers import SYMBOLS, Answer, Row
from demur_proto.accounting.numerics import text_down, text_up
from demur_proto.guarantee import NEIGHBOUR, UNIT

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
    return "\n".join([answer.question, "", table(lines), "", *below])


def answer_fields(answer: Answer, given: Mapping[str, float | None]) -> dict[str, Any]:
    """The answer of `demur budget` for programs; `given` is what was asked about."""
    return {
        "question": answer.question,
        "given": {name: finite(value) for name, value in given.items() if value is not None},
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


def _budget(row: Row, answer: Answer) -> str:
    """What is spent, rounded up; or what a target allows, rounded down."""
    rounded = text_up if answer.quantity == "epsilon" else text_down
    return f"{SYMBOLS.get(row.measure, row.measure)} = {rounded(row.budget)}"


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else text_up(value)


def finite(value: float | None) -> float | str | None:
    """A number as JSON, which has no infinity: an order may be infinite, and an error too."""
    return "inf" if value == math.inf else value


def table(lines: list[list[str]]) -> str:
    """Columns as wide as they must be; the first is left-justified, the others right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
