"""The scenario `telemetry` as it is shipped: the whole command on two cores, and how far off it is."""

import json
import subprocess
import sys
import tempfile
import time
from typing import Any

from figures import Figure

WORKERS = 2
LIMIT_S = 600.0


def measure() -> list[Figure]:
    """Run it once: both mechanisms, a million devices, a hundred rounds each."""
    seconds, summary = run()
    figures = [
        Figure(
            name="telemetry, 10^6 devices, 100 rounds, two mechanisms",
            value=seconds,
            unit="s, the whole command",
            better="lower",
            bar=60.0,
        )
    ]
    for told in (summary, summary["beside"]):
        name = f"telemetry, {told['mechanism']['name']}"
        off = abs(told["simulator_truth"]["error_over_theory"] - 1)
        figures += [
            Figure(
                name=f"{name}: error off theory",
                value=100 * off,
                unit="%",
                better="lower",
                bar=5.0,
            ),
            Figure(
                name=f"{name}: reports",
                value=told["reports_per_s"],
                unit="reports/s",
                better="higher",
            ),
        ]
    return figures


def run() -> tuple[float, dict[str, Any]]:
    """Seconds from start to end of the command, and its summary."""
    command = [sys.executable, "-m", "demur_sim.cli", "simulate", "telemetry", "--json"]
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        done = subprocess.run(
            [*command, "--workers", str(WORKERS), "--out", folder],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
        )
        seconds = time.monotonic() - started
    summary: dict[str, Any] = json.loads(done.stdout)
    return seconds, summary
