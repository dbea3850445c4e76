"""What `demur admin` does, on the store itself, whether or not a collector runs on it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demur_proto.checks import check_integer, check_text
from demur_proto.errors import ParameterError, StateError, StorageError, UnsupportedError
from demur_proto.transport.credentials import DEVICE_ID_BYTES, write_token
from demur_server.admin.data_folder import is_held, write_secret_file
from demur_server.collector.keys import KeyFolder
from demur_server.config import ServerConfig
from demur_server.grpc.access import hash_secret, new_named, new_token
from demur_server.store import records
from demur_server.store.base import NamedCredential, Role
from demur_server.store.inspect import SideDoor, postgres_door, sqlite_door
from demur_server.store.schema import tokens

MOST_TOKENS = 1_000_000
TOKENS_AT_ONCE = 1_000  #: in one transaction: a running collector waits for each
LONGEST_REASON = 200


@contextmanager
def open_door(config: ServerConfig) -> Iterator[SideDoor]:
    """Into the store that a configuration names.

    Raises:
        DemurError: see `sqlite_door` and `postgres_door`.
        UnsupportedError: the driver of PostgreSQL is not installed.
    """
    if config.store.postgres is None:
        with sqlite_door(config.sqlite_path) as door:
            yield door
        return
    try:
        import psycopg  # noqa: F401
    except ModuleNotFoundError:
        raise UnsupportedError(
            "a PostgreSQL store needs psycopg; install it with: pip install 'demur[postgres]'"
        ) from None
    with postgres_door(config.store.postgres) as door:
        yield door


def make_tokens(door: SideDoor, *, count: int, out: Path | None = None) -> list[str]:
    """New enrolment tokens, as they are written down. The store keeps their hashes only.

    Args:
        door: into the store.
        count: how many.
        out: a file to write them to, one a line, before the store knows the last of them.

    Raises:
        ParameterError: the count is not from 1 to 1,000,000.
        StateError: the file exists; the tokens that the store kept by then nobody knows.
        StorageError: the file cannot be written, or the store is in trouble; the tokens that it kept by then nobody knows.
    """
    check_integer("count", count, 1, MOST_TOKENS)
    made = [new_token() for _ in range(count)]
    texts = [write_token(token) for token in made]
    for at in range(0, count, TOKENS_AT_ONCE):
        with door.changing() as sql:
            rows = [{"hash": hash_secret(token)} for token in made[at : at + TOKENS_AT_ONCE]]
            sql.execute(tokens.insert(), rows)
            if out is not None and at + TOKENS_AT_ONCE >= count:
                write_secret_file(out, "\n".join(texts))
    return texts


def revoke(door: SideDoor, device: str, *, reason: str) -> None:
    """Refuse a device from now on, for ever.

    Args:
        door: into the store; a running collector takes it up within seconds.
        device: its id, 32 hexadecimal digits.
        reason: why, in public.

    Raises:
        ParameterError: that is no id, or no reason.
        NotFoundError: it was never enrolled.
    """
    try:
        device_id = bytes.fromhex(device)
    except ValueError:
        device_id = b""
    if len(device_id) != DEVICE_ID_BYTES:
        came = f"a text of {len(device)} characters"  # not the text: it may be a credential
        raise ParameterError("device", came, "a device id: 32 hexadecimal digits")
    check_text("reason", reason, longest=LONGEST_REASON)
    with door.changing() as sql:
        records.revoke_device(sql, device_id, reason)


def list_devices(door: SideDoor) -> list[tuple[bytes, str | None]]:
    """Every device by id; with the reason if it is revoked."""
    with door.looking() as sql:
        return records.all_devices(sql)


def make_credential(door: SideDoor, name: str, *, role: Role, out: Path | None = None) -> str:
    """A new credential for an analyst or a gateway, as it is written down.

    Args:
        door: into the store, which keeps its hash only.
        name: whose it is; 1 to 100 printable characters.
        role: what it is for.
        out: a file to write it to before the store knows it.

    Raises:
        ParameterError: the name is none.
        StateError: there is one of this name, or the file exists.
        StorageError: the file or the store cannot be written.
    """
    check_text("name", name, longest=100)
    secret, kept = new_named(name, role)
    with door.changing() as sql:
        records.add_credential(sql, kept)
        if out is not None:
            write_secret_file(out, secret.text)
    return secret.text


def remove_credential(door: SideDoor, name: str) -> None:
    """Let nobody in with this credential any more.

    Raises:
        NotFoundError: there is none of this name.
    """
    with door.changing() as sql:
        records.remove_credential(sql, name)


def list_credentials(door: SideDoor) -> list[NamedCredential]:
    """Every named credential, by name."""
    with door.looking() as sql:
        return records.all_credentials(sql)


def check_restorable(config: ServerConfig) -> None:
    """Refuse to restore over anything.

    Raises:
        StateError: a collector runs on the folder, or it holds more than keys.
        StorageError: it cannot be read, or is open to others.
    """
    folder = config.folder
    if is_held(folder):
        raise StateError(f"a collector runs on {folder}; stop it, or restore into another folder")
    try:
        there = sorted(each.name for each in folder.iterdir()) if folder.exists() else []
        others = [name for name in there if name != "keys"]
    except OSError as error:
        raise StorageError(f"{folder} cannot be read: {error.strerror}") from None
    if others:
        raise StateError(
            f"{folder} holds {others[0]} and is kept; restore into an empty folder (keys/ may be "
            "there already)"
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{folder} cannot be made: {error.strerror}") from None
    KeyFolder(config.keys_folder)
