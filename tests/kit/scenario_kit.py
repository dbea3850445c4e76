"""What the tests of scenarios share: a file of events, what a histogram says, and keys with values."""

import dataclasses
from pathlib import Path
from typing import Any

from demur_proto.queries import Feature
from demur_sim.people.populations import Population
from demur_sim.scenario import Scenario

EVENTS = "visitor,day,minutes\n17,2026-01-05,12.5\n4,2026-01-05,3\n17,2026-01-07,40\n"


def write(folder: Path, text: str) -> Path:
    file = folder / "mine.toml"
    file.write_text(text)
    return file


def totals(population: Population, name: str, **parameters: float) -> list[float]:
    return [
        float(
            population.evaluate(
                Feature(name=name, parameters={"period": period, **parameters}), slice(None)
            ).sum()
        )
        for period in range(1, population.periods + 1)
    ]


def flat(scenario: Scenario) -> dict[str, Any]:
    """Dotted keys to values."""
    table = dataclasses.asdict(scenario)
    inner = {name: table.pop(name) for name in ("data", "presence")}
    for name, values in inner.items():
        table |= {f"{name}.{key}": value for key, value in values.items()}
    return table


HISTOGRAM: dict[str, Any] = {
    "kind": "histogram",
    "categories": 8,
    "mechanism": "oue",
    "view": "local",
    "measure": "zcdp",
}
SEVEN = "krr or sue or oue or blh or olh or hadamard or subset"
