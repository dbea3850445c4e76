"""What a run leaves in files, read the way other tools read it."""

import csv
import json
from pathlib import Path
from typing import Any, NoReturn


def not_json(word: str) -> NoReturn:
    raise AssertionError(f"{word} is not JSON")


def read_json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"), parse_constant=not_json)
    assert isinstance(content, dict)
    return content


def read_rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "releases.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def broken(content: Any, contract: Any, where: str = "summary") -> list[str]:
    """Which keys of the contract are missing, or hold another type."""
    if not isinstance(contract, dict):
        return [] if type(content) is contract else [f"{where}: {content!r}"]
    missing = [f"{where}.{key} is missing" for key in contract if key not in content]
    return missing + [
        problem
        for key in contract
        if key in content
        for problem in broken(content[key], contract[key], f"{where}.{key}")
    ]
