"""What every benchmark prints and writes: figures beside their bars and floors.

A floor is the bare work, measured in the same run, because machines drift: the ratio to it is what
can be compared between runs.
"""

import json
import os
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

OUT = Path(__file__).parent / "out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number."""

    name: str
    value: float
    unit: str
    better: Literal["higher", "lower"]
    bar: float | None = None  #: what it should reach
    floor: float | None = None  #: the bare work, in the same unit

    @property
    def ratio(self) -> float | None:
        """Value over floor."""
        return None if not self.floor else self.value / self.floor

    @property
    def ok(self) -> bool | None:
        """Whether the bar is reached; None where there is none."""
        if self.bar is None:
            return None
        return self.value >= self.bar if self.better == "higher" else self.value <= self.bar


def publish(name: str, figures: list[Figure], *, table: bool = True) -> None:
    """Print a table, unless there is to be none, and write `benchmarks/out/NAME.json`."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    rows = [{**asdict(figure), "ratio": figure.ratio, "ok": figure.ok} for figure in figures]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    OUT.mkdir(exist_ok=True)
    report = {"commit": commit or None, "cores": cores, "figures": rows}
    (OUT / f"{name}.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if not table:
        return
    width = max(len(figure.name) for figure in figures)
    print(f"{'figure':{width}}  {'value':>12}  {'bar':>12}  {'floor':>12}  {'ratio':>6}  ok  unit")
    for figure in figures:
        ok = {True: "yes", False: "NO", None: ""}[figure.ok]
        print(
            f"{figure.name:{width}}  {_short(figure.value):>12}  {_short(figure.bar):>12}  "
            f"{_short(figure.floor):>12}  {_short(figure.ratio):>6}  {ok:3} {figure.unit}"
        )


def _short(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
