"""What the tests of the checker of vectors share: the vectors, and what is in a case."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from demur_conformance.check_vectors import add_commands
from demur_conformance.vectors.checker import families_of

GOLDEN = Path(__file__).parents[1] / "golden"
ACCOUNTING: dict[str, Any] = json.loads((GOLDEN / "accounting.json").read_text("utf-8"))
DIVERGENCES = families_of((GOLDEN / "divergences.json").read_text("utf-8"))
DEVICES = families_of((GOLDEN / "device.json").read_text("utf-8"))
COMPOSITION = families_of((GOLDEN / "composition.json").read_text("utf-8"))
CASES = {
    **families_of((GOLDEN / "accounting.json").read_text("utf-8")),
    **DIVERGENCES,
    **DEVICES,
    **COMPOSITION,
}


def check_vectors(*arguments: object) -> int:
    """Run the command in this process."""
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers(required=True))
    options = parser.parse_args(["check-vectors", *map(str, arguments)])
    return int(options.run(options))


def written(folder: Path, content: object) -> Path:
    path = folder / "vectors.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything in a case that is not a list or an object."""
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for name, part in parts:
            yield from leaves(part, (*path, name))
    else:
        yield path
