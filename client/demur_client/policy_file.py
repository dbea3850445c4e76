"""The file in which an owner says what a device takes part in, and where its data are."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from demur_client.policy import OwnerPolicy, QuietHours
from demur_client.sources.base import DataSource, FunctionSource
from demur_client.sources.folder import FolderSource
from demur_client.sources.sql import Limits, TableSource, check_features
from demur_proto.checks import check_text, expected_name
from demur_proto.errors import ParameterError

LARGEST_FILE = 1 << 20  #: bytes
LONGEST_PATH = 4096
PLACES = ("database", "folder")
LIMITS = tuple(each.name for each in fields(Limits))
POLICY = tuple(each.name for each in fields(OwnerPolicy))
LEDGER = ("counter",)
TABLES = ("source", "features", "ledger")

TEMPLATE = """\
# What this device takes part in. Whatever is outside is refused, for everybody to see, before any
# data are read. A line that is left out, or begins with #, has the value shown.

# opt_out = false              # true: take part in nothing
# views = ["local"]            # add "aggregate" only where the collector is trusted
# mechanisms = [{mechanisms}]
# questions = [{questions}]
# largest_epsilon = {largest_epsilon}        # of one study, nats
# largest_delta = {largest_delta}
# lifetime_epsilon = {lifetime_epsilon}       # of all studies together
# smallest_sigma = 0.0         # noise of a Gaussian round, as a multiple of its clip
# largest_round_epsilon = {largest_round_epsilon}  # of one histogram
# smallest_cohort = {smallest_cohort}
# studies = []                 # hashes, 64 hexadecimal digits each; none: any study inside the rest
# certificates = []            # SHA-256 of those that may vouch for the collector; none: the kept one
# quiet_hours = []             # such as "22:00-07:00", by this device's clock: nobody is visited
# shortest_slot_ms = {shortest_slot_ms}      # shorter slots are refused, and rounds without one
# evaluation_memory_mib = {evaluation_memory_mib}  # what one evaluation of the data may take: memory,
# evaluation_processor_s = {evaluation_processor_s}  # processor time in whole seconds,
# evaluation_wall_s = {evaluation_wall_s}     # and time, of which a slot leaves four fifths at most
# fill_processor = true        # false: save the battery, and let times tell how busy an evaluation was

# Where this owner's data are: a SQLite database, or a folder of CSV files.
# [source]
# database = "data.sqlite"
# time_limit_s = 0.7

# What may be asked, and the one SELECT that answers it. :period is the feature's own parameter.
# [features]
# active = "SELECT count(*) > 0 FROM visits WHERE day = :period"

# A file elsewhere that knows how far the ledger has come, so that an old copy of the ledger is not believed.
# [ledger]
# counter = "/var/lib/demur-counter/mark"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """Where the data are, and what may be asked of them.

    Raises:
        ParameterError: there are queries and no data, or both kinds of data.
    """

    database: Path | None = None  #: SQLite
    folder: Path | None = None  #: CSV or Parquet files
    features: Mapping[str, str]  #: names to queries
    limits: Limits

    def __post_init__(self) -> None:
        if self.database and self.folder:
            raise ParameterError("source", "both", "a database or a folder")
        if self.features and not (self.database or self.folder):
            raise ParameterError("source", "nothing", "a database or a folder, for the features")
        check_features(self.features)

    def open(self) -> DataSource:
        """The source; without any data one that knows no feature."""
        if self.database:
            return TableSource(self.database, self.features, limits=self.limits)
        if self.folder:
            return FolderSource(self.folder, self.features, limits=self.limits)
        return FunctionSource({})


def template() -> str:
    """A policy file that says what holds without one."""
    default = OwnerPolicy()
    shown = {name: getattr(default, name) for name in POLICY}
    for name in ("mechanisms", "questions"):
        shown[name] = ", ".join(f'"{each}"' for each in shown[name])
    return TEMPLATE.format(**shown)


def load_policy(path: Path) -> tuple[OwnerPolicy, SourceConfig]:
    """What a file says; what it leaves out has its default.

    The keys are the fields of `OwnerPolicy`. The table `source` names the data, by a path from the
    file's own folder, and limits; the table `features` maps names to queries. What `ledger` says is for
    `load_counter`. No data are looked at.

    Args:
        path: a TOML file.

    Raises:
        ParameterError: it cannot be read or is not TOML, there is no such key, or a value is of
            another type or outside its range. The error names the key.
    """
    table = _read(path)
    try:
        source, features, ledger = (_inside(table.pop(name, {}), name) for name in TABLES)
        _check_keys(table, (*POLICY, *TABLES), "")
        _check_keys(source, (*PLACES, *LIMITS), "source.")
        _check_keys(ledger, LEDGER, "ledger.")
        policy = OwnerPolicy(**{key: _value(key, value) for key, value in table.items()})
        if not policy.shortest_slot_ms:
            raise ParameterError("shortest_slot_ms", 0, "at least 1")
        for name in PLACES:
            if name in source:
                check_text(f"source.{name}", source[name], longest=LONGEST_PATH)
        places = {name: path.parent / source[name] for name in PLACES if name in source}
        limits = Limits(**{name: source[name] for name in LIMITS if name in source})
        return policy, SourceConfig(**places, features=features, limits=limits)
    except ParameterError as error:
        raise ParameterError(f"{error.name} in {path}", error.value, error.expected) from None


def load_counter(path: Path) -> Path | None:
    """The file of the counter that a policy names, by a path from the policy's own folder; or None.

    Args:
        path: as for `load_policy`, and read by that before.

    Raises:
        ParameterError: it is no path, or one in the policy's folder, of which copies are made whole.
    """
    ledger = _inside(_read(path).get("ledger", {}), "ledger")
    if "counter" not in ledger:
        return None
    check_text("ledger.counter", ledger["counter"], longest=LONGEST_PATH)
    try:
        counter: Path = (path.parent / ledger["counter"]).resolve()
    except (OSError, RuntimeError):  # links that lead to themselves
        expected = "a path that leads somewhere"
        raise ParameterError(f"ledger.counter in {path}", ledger["counter"], expected) from None
    if counter.is_relative_to(path.parent.resolve()):
        expected = f"a file outside {path.parent}, which no copy of that folder takes along"
        raise ParameterError(f"ledger.counter in {path}", ledger["counter"], expected)
    return counter


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.exists() and not path.is_file():  # a pipe would never end
            raise ParameterError("policy", str(path), "a TOML file")
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise ParameterError("policy", str(path), "a TOML file of at most 1 MiB")
        return tomllib.loads(content.decode("utf-8-sig"))
    except ParameterError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise ParameterError("policy", str(path), f"a file that can be read ({reason})") from None
    except (ValueError, RecursionError) as error:  # of UTF-8, of TOML
        raise ParameterError("policy", str(path), f"a TOML file ({error})") from None


def _inside(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ParameterError(name, value, f"a table: [{name}]")
    return value


def _check_keys(table: Mapping[str, Any], known: tuple[str, ...], prefix: str) -> None:
    for key in table:
        if key not in known:
            raise ParameterError(f"{prefix}key", key, expected_name(known, key))


def _value(key: str, value: Any) -> Any:
    """What a key of the file means to a policy."""
    default = getattr(OwnerPolicy(), key)
    if isinstance(default, tuple):
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise ParameterError(key, value, "a list of texts")
        if key == "quiet_hours":
            return tuple(map(QuietHours.read, value))
        if key in ("studies", "certificates"):
            return tuple(_hash(key, each) for each in value)
        return tuple(value)
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ParameterError(key, value, "true or false")
    elif isinstance(default, float):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ParameterError(key, value, "a number")
        try:
            return float(value)
        except OverflowError:
            raise ParameterError(key, "an integer beyond all doubles", "a number") from None
    return value


def _hash(key: str, text: str) -> bytes:
    try:
        made = bytes.fromhex(text.replace(":", ""))
    except ValueError:
        made = b""
    if len(made) != 32:
        raise ParameterError(key, text, "a SHA-256 hash of 64 hexadecimal digits")
    return made
