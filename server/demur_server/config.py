"""What a collector process is told: from TOML and the command line to checked values."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, get_type_hints
from urllib.parse import parse_qsl, urlsplit

from demur_proto.checks import check_integer, check_text, expected_name
from demur_proto.errors import ParameterError
from demur_proto.transport.channels import is_loopback
from demur_server.grpc.interceptor import Limits

LONGEST_DRAIN_S = 8  #: so that a collector that is told to stop has stopped within ten seconds
LONGEST_TEXT = 4096
LARGEST_FILE = 1 << 20  #: bytes
MOST_MIB = 1 << 20  #: a terabyte


class AccessMode(StrEnum):
    """Whose reports and questions are taken."""

    CREDENTIALS = "credentials"  #: of those who show one that fits
    OPEN = "open"  #: anybody's; for simulations, on loopback only


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Where studies, rounds and releases are kept.

    Raises:
        ParameterError: a field is outside its range, or two of them contradict each other.
    """

    sqlite: Path | None = None  #: a file; by default `store.sqlite` in the data folder
    postgres: str | None = field(default=None, repr=False)  #: a PostgreSQL address, instead
    shard: int = 0  #: which part of the devices this process counts, with `postgres`
    shards: int = 1  #: how many processes share the database

    def __post_init__(self) -> None:
        if self.postgres is not None:
            if not self.postgres.strip() or not self.postgres.isprintable():
                raise ParameterError(  # never what came: it may hold a password
                    "store.postgres", "something else", "an address: postgresql://user@host/name"
                )
            if self.sqlite is not None:
                raise ParameterError(
                    "store.sqlite", str(self.sqlite), "left out where there is store.postgres"
                )
        check_integer("store.shards", self.shards, 1, 256)
        check_integer("store.shard", self.shard, 0, self.shards - 1)
        if self.shards > 1 and self.postgres is None:
            raise ParameterError("store.shards", self.shards, "1 without store.postgres")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenConfig:
    """Where devices and analysts reach the collector.

    Raises:
        ParameterError: a field is outside its range, or two of them contradict each other.
    """

    host: str = "127.0.0.1"  #: for devices and gateways
    port: int = 0  #: 0 takes a free one
    analyst_host: str | None = None  #: by default the same as for devices
    analyst_port: int = 0  #: 0 takes a free one

    def __post_init__(self) -> None:
        check_text("listen.host", self.host, longest=253)
        if self.analyst_host is not None:
            check_text("listen.analyst_host", self.analyst_host, longest=253)
        for name in ("port", "analyst_port"):
            check_integer(f"listen.{name}", getattr(self, name), 0, 65535)
        if self.port == self.analyst_port != 0 and self.analyst_host in (None, self.host):
            raise ParameterError(
                "listen.analyst_port", self.analyst_port, "another than listen.port"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """Files in PEM form that prove to callers who this is; none for plaintext."""

    certificate: Path | None = None  #: the server's own, then those that lead to its CA
    key: Path | None = None  #: its private key, not encrypted
    client_ca: Path | None = None  #: the CAs of which callers must have a certificate (mTLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Everything that a collector process is told.

    Raises:
        ParameterError: a field is outside its range, or two of them contradict each other.

    >>> ServerConfig().sqlite_path.as_posix()
    'demur-data/store.sqlite'
    """

    folder: Path = Path("demur-data")  #: holds the keys and, by default, the store
    access: AccessMode = AccessMode.CREDENTIALS
    insecure_plaintext: bool = False  #: allow plaintext beyond this machine
    drain_s: int = 5  #: how long open calls may go on once told to stop, seconds; 0 to 8
    store: StoreConfig = field(default_factory=StoreConfig)
    listen: ListenConfig = field(default_factory=ListenConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)  #: on both ports
    analyst_tls: TlsConfig = field(default_factory=TlsConfig)  #: on the analysts' port, instead
    limits: Limits = field(default_factory=Limits)
    large_reports_mib: int = 256  #: memory for reports that come in chunks, MiB

    def __post_init__(self) -> None:
        if self.access not in list(AccessMode):
            raise ParameterError("access", self.access, " or ".join(AccessMode))
        object.__setattr__(self, "access", AccessMode(self.access))
        check_integer("drain_s", self.drain_s, 0, LONGEST_DRAIN_S)
        check_integer("large_reports_mib", self.large_reports_mib, 1, MOST_MIB)
        for name in ("tls", "analyst_tls"):
            files: TlsConfig = getattr(self, name)
            if files.certificate is None and (files.key or files.client_ca):
                raise ParameterError(f"{name}.certificate", None, "a file, as the others are given")
            if files.certificate is not None and files.key is None:
                raise ParameterError(
                    f"{name}.key", None, f"the file of the key of {name}.certificate"
                )
        analyst_host = self.listen.analyst_host or self.listen.host
        analyst_secure = bool(self.analyst_tls.certificate or self.tls.certificate)
        self._check_host("listen.host", self.listen.host, secure=bool(self.tls.certificate))
        name = "listen.analyst_host" if self.listen.analyst_host else "listen.host"
        self._check_host(name, analyst_host, secure=analyst_secure)
        if self.insecure_plaintext and self.tls.certificate:
            raise ParameterError(
                "insecure_plaintext", True, "left out where tls.certificate protects both ports"
            )

    def _check_host(self, name: str, host: str, *, secure: bool) -> None:
        if is_loopback(host):
            return
        if self.access is AccessMode.OPEN:
            raise ParameterError(
                name, host, "a loopback address under open access, which lets in whoever reaches it"
            )
        if not secure and not self.insecure_plaintext:
            raise ParameterError(
                name, host, "a loopback address, unless tls.certificate and tls.key are given, or "
                "insecure_plaintext is wanted"
            )  # fmt: skip

    @property
    def sqlite_path(self) -> Path:
        """The file of the store, where it is SQLite's."""
        return self.store.sqlite or self.folder / "store.sqlite"

    @property
    def keys_folder(self) -> Path:
        """Where keys are: never inside the store."""
        return self.folder / "keys"


_TABLES: Mapping[str, type[Any]] = {
    "store": StoreConfig,
    "listen": ListenConfig,
    "tls": TlsConfig,
    "analyst_tls": TlsConfig,
    "limits": Limits,
}
_PLAIN = {key: kind for key, kind in get_type_hints(ServerConfig).items() if key not in _TABLES}
_TYPES: Mapping[str, Any] = _PLAIN | {
    f"{table}.{key}": kind
    for table, made in _TABLES.items()
    for key, kind in get_type_hints(made).items()
    if key in {each.name for each in fields(made)}
}
"""Every key that there is, dotted, and its type."""


def load_config(
    path: Path | None = None, *, overrides: Mapping[str, Any] | None = None
) -> ServerConfig:
    """What a file says, with some keys replaced.

    The file holds the fields of `ServerConfig` as keys, and those of each part in a table of its
    name; what it leaves out has its default. Relative paths in it start from its own folder.

    Args:
        path: a TOML file; None for the defaults.
        overrides: dotted keys, as in `listen.port`, to what replaces them; None replaces nothing.
            Relative paths start from the current folder.

    Raises:
        ParameterError: the file cannot be read or is not TOML; or there is no such key, or a value
            is of another type or outside its range. The error names the key.
    """
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    where = "on the command line" if path is None else f"in {path}"
    table = {} if path is None else _flat(_read(path), where=where)
    if path is not None:
        for key, value in table.items():
            if _is_path(key) and isinstance(value, str) and value:  # an empty one is refused below
                table[key] = str(path.parent / value)
    # One way of keeping the store replaces the other, as one value of a key does.
    if "store.postgres" in given:
        table.pop("store.sqlite", None)
    table |= given
    if _has_password(given.get("store.postgres")):
        raise ParameterError(  # never what came
            "store.postgres on the command line",
            "an address with a password",
            "one without: whoever may list processes reads it; put the password into PGPASSFILE",
        )
    try:
        typed = {key: _typed(key, value) for key, value in table.items()}
        parts = {name: made(**_inside(name, typed)) for name, made in _TABLES.items()}
        plain = {key: value for key, value in typed.items() if "." not in key}
        return replace(ServerConfig(), **plain, **parts)
    except ParameterError as error:
        name = error.name if error.name not in _limit_names() else f"limits.{error.name}"
        source = "on the command line" if name in given else where
        raise ParameterError(f"{name} {source}", error.value, error.expected) from None


def _has_password(address: object) -> bool:
    """Whether an address of a database, a URL or KEYWORD=VALUE pairs, holds a password."""
    if not isinstance(address, str):
        return False
    try:
        parts = urlsplit(address)
        inside = bool(parts.password) or "password" in dict(parse_qsl(parts.query))
    except ValueError:  # no URL
        inside = False
    return inside or re.search(r"(?:^|\s)password\s*=", address) is not None


def _limit_names() -> set[str]:
    return {each.name for each in fields(Limits)}


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.exists() and not path.is_file():  # a pipe that nobody writes to never ends
            what = "a folder" if path.is_dir() else "no file"
            raise ParameterError("--config", str(path), f"a TOML file (it is {what})")
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise ParameterError("--config", str(path), "a TOML file of at most 1 MiB")
        return tomllib.loads(content.decode("utf-8-sig"))
    except ParameterError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise ParameterError(
            "--config", str(path), f"a TOML file that can be read ({reason})"
        ) from None
    except (ValueError, RecursionError) as error:  # of UTF-8, of TOML
        # Not the text itself: a line of it may hold a password.
        raise ParameterError("--config", str(path), f"a TOML file ({_position(error)})") from None


def _position(error: BaseException) -> str:
    """What is wrong with a file, without quoting it."""
    if isinstance(error, tomllib.TOMLDecodeError):
        _, _, place = str(error).rpartition(" (at ")
        return f"it cannot be parsed at {place.rstrip(')')}" if place else "it cannot be parsed"
    return "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else "it cannot be parsed"


def _flat(table: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Dotted keys to values; every key is one that there is."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if "." in key:  # in quotes, past the table that it belongs to
            raise ParameterError(f"key {where}", key, expected_name(_TYPES, key))
        if key not in _TABLES:
            flat[key] = value
        elif isinstance(value, Mapping):
            flat |= {f"{key}.{name}": each for name, each in value.items()}
        else:
            raise ParameterError(f"{key} {where}", value, f"a table: [{key}]")
    for key in flat:
        if key not in _TYPES:
            raise ParameterError(f"key {where}", key, expected_name(_TYPES, key))
    return flat


def _typed(key: str, value: Any) -> Any:
    """The value, as the type of its key."""
    kind = _TYPES[key]
    if _is_path(key):
        if isinstance(value, Path):
            return value
        check_text(key, value, longest=LONGEST_TEXT)
        return Path(value)
    if kind is bool:
        if not isinstance(value, bool):
            raise ParameterError(key, value, "true or false")
    elif kind is int:
        if type(value) is not int:
            raise ParameterError(key, value, "an integer")
    elif key == "store.postgres":
        if not isinstance(value, str):
            raise ParameterError(key, type(value).__name__, "an address in quotes")
    elif not isinstance(value, str):
        raise ParameterError(key, value, "a text in quotes")
    return value


def _is_path(key: str) -> bool:
    return _TYPES[key] in (Path, Path | None)


def _inside(name: str, flat: Mapping[str, Any]) -> dict[str, Any]:
    prefix = f"{name}."
    return {key.removeprefix(prefix): flat[key] for key in flat if key.startswith(prefix)}
