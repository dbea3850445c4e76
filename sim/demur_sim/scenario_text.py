"""A scenario as the TOML file that it could have been read from."""

import json
from collections.abc import Sequence
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from demur_sim.presence import Presence
from demur_sim.scenario import Scenario
from demur_sim.scenario_data import Data

PATHS = ("csv", "histogram")
TABLES = ("data", "presence")


def scenario_text(scenario: Scenario, *, about: Sequence[str] = ()) -> str:
    """TOML that says whatever a scenario says beyond defaults; paths become absolute.

    Args:
        scenario: of any kind.
        about: lines of a comment to begin with.

    >>> print(scenario_text(Scenario(name="rare", budget=3), about=["few answers"]))
    # few answers
    <BLANKLINE>
    name = "rare"
    budget = 3
    <BLANKLINE>
    """
    lines = [f"# {line}" for line in about] + [""] * bool(about)
    plain = Scenario(name=scenario.name)
    for item in fields(scenario):
        value = getattr(scenario, item.name)
        if item.name == "parameters":
            if value:
                lines.append(f"parameters = {_inline(value)}")
        elif item.name == "name" or (
            item.name not in TABLES and value not in (None, getattr(plain, item.name))
        ):
            lines.append(f"{item.name} = {_written(value)}")
    for name in TABLES:
        lines += _table(name, getattr(scenario, name))
    return "\n".join(lines) + "\n"


def _table(title: str, table: Data | Presence) -> list[str]:
    told = {item.name: getattr(table, item.name) for item in fields(table)}
    told = {item.name: told[item.name] for item in fields(table) if told[item.name] != item.default}
    for name in PATHS:
        if name in told:
            told[name] = str(Path(told[name]).resolve())
    written = [f"{name} = {_written(value)}" for name, value in told.items()]
    return ["", f"[{title}]", *written] if written else []


def _inline(table: Any) -> str:
    inside = ", ".join(f"{_written(name)} = {_written(value)}" for name, value in table.items())
    return "{ " + inside + " }"


def _written(value: Any) -> str:
    """A text, number or flag; texts here are printable, and so in JSON what they are in TOML."""
    if isinstance(value, float):
        return repr(value)
    return json.dumps(str(value) if isinstance(value, StrEnum) else value, ensure_ascii=False)
