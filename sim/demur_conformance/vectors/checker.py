"""Runs this implementation on vector files, family by family."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from demur_conformance.vectors import (
    composition,
    conversions,
    curves,
    device,
    divergences,
    facts,
    filters,
    rounds,
    witness,
)
from demur_conformance.vectors.case import Check, Verdict
from demur_proto.errors import DataError

FAMILIES: dict[str, Check] = {
    **conversions.FAMILIES,
    **composition.FAMILIES,
    **curves.FAMILIES,
    **divergences.FAMILIES,
    **filters.FAMILIES,
    **rounds.FAMILIES,
    **witness.FAMILIES,
    **facts.FAMILIES,
    **device.FAMILIES,
}
"""Every family that this implementation knows, and what checks it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One family of one file."""

    file: str
    family: str
    verdict: Verdict | None  #: None: this implementation does not know the family

    @property
    def holds(self) -> bool:
        """Whether the family and its cases are known, and every case was reproduced."""
        return self.verdict is not None and self.verdict.holds


def check_file(path: Path) -> list[Finding]:
    """Check every family of a vector file, whatever else is in it that is not known.

    Raises:
        DataError: the file cannot be read, or is not a vector file.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text at byte {error.start}") from None
    try:
        families = families_of(text)
        return [
            Finding(file=str(path), family=name, verdict=check(cases) if check else None)
            for name, cases in families.items()
            for check in [FAMILIES.get(name)]
        ]
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def families_of(text: str) -> dict[str, list[dict[str, Any]]]:
    """The families in a vector file's text, each with its cases.

    Raises:
        DataError: the text is not JSON, or not laid out as docs/vectors.md says.

    >>> families_of('{"meta": {}, "note": "a remark", "a": {"x": 1}, "b": [{"y": 2}]}')
    {'a': [{'x': 1}], 'b': [{'y': 2}]}
    >>> families_of('{"vectors": [{"mechanism": "laplace", "alpha": 2}]}')
    {'divergences.laplace': [{'mechanism': 'laplace', 'alpha': 2}]}
    """
    try:
        content = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise DataError(f"not JSON at line {error.lineno}: {error.msg}") from None
    except RecursionError:
        raise DataError("not JSON that can be read: nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits
        if isinstance(error, DataError):
            raise
        raise DataError(f"not JSON that can be read: {error}") from None
    if not isinstance(content, dict):
        raise DataError("not a vector file: the top level must be an object of families")
    found: dict[str, list[dict[str, Any]]] = {}
    for name, value in content.items():
        if name == "meta" or isinstance(value, str):
            continue
        cases = [value] if isinstance(value, dict) else value
        if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
            raise DataError(f"{name} must be a list of objects, or one object")
        if name == "vectors":
            _by_mechanism(cases, found)
        else:
            found[name] = cases
    if not found:
        raise DataError("not a vector file: it has no family")
    return found


def _by_mechanism(cases: list[dict[str, Any]], found: dict[str, list[dict[str, Any]]]) -> None:
    """Single divergences: every mechanism is a family of its own, and so is a case that names none."""
    for index, case in enumerate(cases):
        mechanism = case.get("mechanism")
        named = isinstance(mechanism, str)
        family = f"divergences.{mechanism}" if named else f"vectors[{index}]"
        found.setdefault(family, []).append(case)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON allows a name twice, and most readers then forget the first: half a file unchecked."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"the name {twice!r} is there twice in one object")
    return fields


def _no_constant(text: str) -> NoReturn:
    raise DataError(f'{text} is not JSON; infinity is the text "inf"')
