"""The folder of a collector: who holds it, what is made in it first, and where its collector listens."""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from demur_proto.errors import ParameterError, StateError, StorageError
from demur_proto.transport.credentials import NamedSecret, read_credential
from demur_server.collector.keys import sync_folder
from demur_server.grpc.access import hash_secret, new_named
from demur_server.store.base import NamedCredential, Role, Store
from demur_server.store.sqlite import FileLock

FIRST_ANALYST = "analyst"  #: the name of the credential that is made at the first start


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where a running collector listens."""

    collector: str  #: HOST:PORT for devices and gateways
    analyst: str  #: HOST:PORT


class DataFolder:
    """A folder that belongs to one process for as long as this object is held.

    Args:
        path: made if need be, for its owner only.

    Raises:
        StateError: another process has it.
        StorageError: it cannot be made or written, or others may write to it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.is_new = not path.exists()
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.name == "posix" and path.stat().st_mode & 0o022:
                raise StorageError(
                    f"others may write to {path}, and so put another store or key there; "
                    "chmod go-w it"
                )
            self._lock = FileLock(path / "collector.lock")
        except BlockingIOError:
            raise StateError(
                f"{path} is in use by another collector; stop that one, or name another folder"
            ) from None
        except OSError as error:
            raise StorageError(
                f"nothing can be kept in {path}: {error.strerror}; name another folder"
            ) from None
        self._listening = path / "listening.json"

    def release(self) -> None:
        """Let others have it."""
        with suppress(OSError):
            self._listening.unlink()
        self._lock.release()

    def say_listening(self, listening: Listening) -> None:
        """Leave word where the collector listens, for commands on this machine.

        Raises:
            StorageError: it cannot be written.
        """
        new = self._listening.with_suffix(".new")
        try:
            new.unlink(missing_ok=True)  # of a process that ended meanwhile
            handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(handle, "w", encoding="ascii") as file:
                file.write(json.dumps(asdict(listening)))
            os.replace(new, self._listening)
        except OSError as error:
            raise StorageError(f"{new} cannot be written: {error.strerror}") from None

    async def first_analyst(self, store: Store) -> Path | None:
        """Make an analyst's credential unless there is one, and say in which file it is.

        The file comes first, so that whatever interrupts this, it can be done again.

        Raises:
            StorageError: the file or the store cannot be written.
            ParameterError: the file is there and holds something else.
        """
        if any(each.role is Role.ANALYST for each in await store.credentials()):
            return None
        path = credential_file(self.path)
        if path.exists():
            secret = read_secret_file(path)
            kept = NamedCredential(
                name=FIRST_ANALYST, role=Role.ANALYST, credential_hash=hash_secret(secret.secret)
            )
        else:
            secret, kept = new_named(FIRST_ANALYST, Role.ANALYST)
            self._write_whole(path, secret.text)
        await store.add_credential(kept)
        return path

    def _write_whole(self, path: Path, text: str) -> None:
        """Write a secret down so that a process that ends meanwhile leaves all of it or none."""
        new = path.with_suffix(".new")
        try:
            new.unlink(missing_ok=True)  # half-written when a process ended; nobody has used it
            write_secret_file(new, text)
            os.replace(new, path)
            sync_folder(self.path)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror}") from None


def credential_file(folder: Path) -> Path:
    """Where the credential made at the first start is."""
    return folder / "analyst.credential"


def is_held(folder: Path) -> bool:
    """Whether a collector runs on this folder now."""
    if not (folder / "collector.lock").exists():
        return False
    try:
        FileLock(folder / "collector.lock").release()
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def find_listening(folder: Path) -> Listening | None:
    """Where the collector on this folder listens, if one runs."""
    if not is_held(folder):
        return None  # whatever is written there is of one that was killed
    try:
        return Listening(**json.loads((folder / "listening.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def read_secret_file(path: Path) -> NamedSecret:
    """The credential of an analyst or a gateway from its file.

    Raises:
        StorageError: the file cannot be read.
        ParameterError: it holds something else.
    """
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise StorageError(f"the credential {path} cannot be read: {error.strerror}") from None
    try:
        secret = read_credential(text)
    except ParameterError as error:
        raise ParameterError(f"credential in {path}", error.value, error.expected) from None
    if not isinstance(secret, NamedSecret):
        raise ParameterError(
            f"credential in {path}", "a device's", "an analyst's, which begins with demur_named_"
        )
    return secret


def write_secret_file(path: Path, text: str) -> None:
    """Write a secret down for its owner only, for good, and over nothing.

    Raises:
        StateError: the file exists.
        StorageError: it cannot be written.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w", encoding="ascii") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise StateError(f"{path} exists and is kept; name another file, or move it away") from None
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from None
