"""The TOML of scenarios: files, overrides, and one flat table of dotted keys."""

import datetime as dt
import difflib
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from demur_proto.errors import DataError, ParameterError

TRAINING = "training"  #: the kind of scenarios that `demur train` runs
OF_NUMBERS = ("parameters", "features")  #: tables that hold numbers by any name

Table = dict[str, Any]


def shipped() -> dict[str, Traversable]:
    """The scenarios that come with demur, by name."""
    folder = resources.files("demur_sim") / "scenarios"
    files = {Path(file.name).stem: file for file in folder.iterdir() if file.name.endswith(".toml")}
    return dict(sorted(files.items()))


def shipped_of(*, training: bool) -> list[str]:
    """Those that train, or those that ask questions, by name."""
    return [name for name in shipped() if (read_table(name).get("kind") == TRAINING) is training]


def read_table(name_or_path: str | Path, *, training: bool = False) -> Table:
    """The TOML of a scenario, as it is.

    Args:
        name_or_path: of any kind.
        training: what to suggest in place of a name that there is not.

    Raises:
        ParameterError: there is no such scenario.
        DataError: the file cannot be read, or is not TOML.
    """
    known = shipped()
    path = Path(name_or_path)
    file: Path | Traversable
    if isinstance(name_or_path, str) and name_or_path in known:
        file = known[name_or_path]
    elif isinstance(name_or_path, Path) or path.suffix == ".toml" or name_or_path != path.name:
        file = path
    else:
        offered = shipped_of(training=training)
        expected = f"{_one_of(offered, name_or_path)}, or the path of a TOML file"
        raise ParameterError("scenario", name_or_path, expected)
    try:
        return tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # of UTF-8, of TOML, of Python's own limits
        raise DataError(f"{path}: expected TOML: {error}") from None


def read_override(text: str, *, numeric: Collection[str]) -> Table:
    """The key and the value of a text `key=value`.

    Args:
        text: the value as in TOML, texts also without quotes.
        numeric: keys whose values are numbers; whatever is inside `OF_NUMBERS` is one too.

    Raises:
        ParameterError: there is no equals sign.

    >>> read_override("budget=5", numeric=["budget"]), read_override("title=5", numeric=["budget"])
    ({'budget': 5}, {'title': '5'})
    """
    key, equals, value = map(str.strip, text.partition("="))
    if not equals:
        raise ParameterError("--set", text, "key=value")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError):
        return {key: value}  # a text without quotes
    of_text = key not in numeric and key.split(".")[0] not in OF_NUMBERS
    plain = parsed.keys() != {"value"} or (of_text and not isinstance(parsed["value"], str | dict))
    return {key: value if plain else parsed["value"]}


def overridden(
    overrides: Sequence[str], *, known: Sequence[str], numeric: Collection[str]
) -> Table:
    """What all overrides together say, dotted keys to values; of two to one key the last counts.

    Raises:
        ParameterError: one has no equals sign, or an unknown key.
    """
    replaced: Table = {}
    for override in overrides:
        replaced |= flattened(read_override(override, numeric=numeric), known=known, where="--set")
    return replaced


@contextmanager
def placed(name_or_path: str | Path, *, replaced: Table) -> Iterator[None]:
    """Say of an error about a key whether it stood in the file or in an override."""
    try:
        yield
    except ParameterError as error:
        where = "--set" if error.name in replaced else name_or_path
        raise ParameterError(f"{error.name} in {where}", error.value, error.expected) from None


def flattened(table: Mapping[str, Any], *, known: Sequence[str], where: str) -> Table:
    """Dotted keys to values.

    Args:
        table: keys to values, some of which are tables.
        known: every key that there is, dotted; `name.*` for a table that may hold any.
        where: what messages call the place.

    Raises:
        ParameterError: a key is unknown, or no table where there should be one.
    """
    flat: Table = {}
    tables = {key.split(".")[0] for key in known if "." in key}
    for key, value in table.items():
        if key not in tables:
            flat[key] = value
        elif isinstance(value, Mapping):
            flat |= {f"{key}.{name}": each for name, each in value.items()}
        else:
            raise ParameterError(f"{key} in {where}", value, "a table")
    for key, value in flat.items():
        if key not in known and f"{key.split('.')[0]}.*" not in known:
            raise ParameterError(f"key in {where}", key, _one_of(known, key))
        if key in ("data.start", "data.end") and type(value) is dt.date:
            flat[key] = value.isoformat()
    return flat


def inside(name: str, flat: Mapping[str, Any]) -> Table:
    """What the flat table has inside one of its tables."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): flat[key] for key in flat if key.startswith(prefix)}


def _one_of(known: Sequence[str], key: str) -> str:
    """What was expected instead of this key."""
    similar = [name for name in known if name.endswith(f".{key}")]
    similar += difflib.get_close_matches(key.lower(), known, n=1)
    return f"one of {', '.join(known)}" + (f" (did you mean {similar[0]}?)" if similar else "")
