"""The keys of a collector, in a folder beside its store: a backup of the store has none.

A round's digests are HMACs under a key of its own. While the key lives, whoever has it and the
store can test a guess at what a device sent; so it is destroyed when the round closes.
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from demur_proto.errors import StorageError

KEY_BYTES = 32


class Keys(Protocol):
    """Keeps keys. Every method may touch a disk, and returns when that is done for good."""

    def master(self) -> bytes:
        """The key from which device credentials follow, 32 bytes; made when first asked for."""

    def make(self, round_hash: bytes) -> bytes:
        """The digest key of a round, 32 bytes; made if there is none."""

    def find(self, round_hash: bytes) -> bytes | None:
        """The digest key of a round, if there is one."""

    def destroy(self, round_hash: bytes) -> None:
        """Forget the digest key of a round, for ever; again, nothing happens."""

    def rounds(self) -> list[bytes]:
        """The hashes of the rounds that have a key."""


class MemoryKeys:
    """Keys that last as long as the process."""

    def __init__(self) -> None:
        self._master = secrets.token_bytes(KEY_BYTES)
        self._rounds: dict[bytes, bytes] = {}

    def master(self) -> bytes:
        """The key from which device credentials follow."""
        return self._master

    def make(self, round_hash: bytes) -> bytes:
        """The digest key of a round; made if there is none."""
        return self._rounds.setdefault(round_hash, secrets.token_bytes(KEY_BYTES))

    def find(self, round_hash: bytes) -> bytes | None:
        """The digest key of a round, if there is one."""
        return self._rounds.get(round_hash)

    def destroy(self, round_hash: bytes) -> None:
        """Forget the digest key of a round."""
        self._rounds.pop(round_hash, None)

    def rounds(self) -> list[bytes]:
        """The hashes of the rounds that have a key."""
        return list(self._rounds)


class KeyFolder:
    """Keys in a folder that only its owner can read: `master.key` and `rounds/HASH.key`.

    Raises:
        StorageError: the folder cannot be made, or is open to others.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rounds = folder / "rounds"
        try:
            for made in (folder, self._rounds):
                made.mkdir(mode=0o700, parents=True, exist_ok=True)
                _check_private(made)
                sync_folder(made.parent)
            for leftover in [*folder.glob("*.new"), *self._rounds.glob("*.new")]:
                _destroy(leftover)  # half-written when a process ended; nobody has used it
        except OSError as error:
            raise StorageError(f"no keys can be kept in {folder}: {error.strerror}") from None

    def master(self) -> bytes:
        """The key from which device credentials follow; made when first asked for.

        Raises:
            StorageError: it cannot be read or written, or is not 32 bytes.
        """
        return _read_or_make(self._folder / "master.key")

    def make(self, round_hash: bytes) -> bytes:
        """The digest key of a round; made if there is none.

        Raises:
            StorageError: it cannot be read or written, or is not 32 bytes.
        """
        return _read_or_make(self._path(round_hash))

    def find(self, round_hash: bytes) -> bytes | None:
        """The digest key of a round, if there is one.

        Raises:
            StorageError: it cannot be read, or is not 32 bytes.
        """
        return _read(self._path(round_hash))

    def destroy(self, round_hash: bytes) -> None:
        """Overwrite the digest key of a round, then remove it.

        A file system that copies on write, or a disk that spreads its wear, may keep the old block:
        keep the folder where neither does, or encrypted.

        Raises:
            StorageError: it cannot be removed; it may be there still.
        """
        path = self._path(round_hash)
        try:
            _destroy(path)
        except OSError as error:
            raise StorageError(f"the key {path} cannot be destroyed: {error.strerror}") from None

    def rounds(self) -> list[bytes]:
        """The hashes of the rounds that have a key."""
        found = []
        for path in self._rounds.glob("*.key"):
            with suppress(ValueError):  # somebody else's file
                found.append(bytes.fromhex(path.stem))
        return sorted(found)

    def _path(self, round_hash: bytes) -> Path:
        return self._rounds / f"{round_hash.hex()}.key"


def _read(path: Path) -> bytes | None:
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"the key {path} cannot be read: {error.strerror}") from None
    if len(key) != KEY_BYTES:
        raise StorageError(f"the key {path} must be {KEY_BYTES} bytes, and is {len(key)}")
    return key


def _read_or_make(path: Path) -> bytes:
    kept = _read(path)
    if kept is not None:
        return kept
    key = secrets.token_bytes(KEY_BYTES)
    new = path.with_suffix(".new")
    try:
        # Whole and durable under another name first: a crash must not leave half a key.
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _BINARY, 0o600)
        with open(handle, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
        sync_folder(path.parent)
    except OSError as error:
        raise StorageError(f"the key {path} cannot be written: {error.strerror}") from None
    return key


def _destroy(path: Path) -> None:
    try:
        with open(path, "r+b", buffering=0) as file:
            file.write(bytes(max(KEY_BYTES, path.stat().st_size)))
            os.fsync(file.fileno())
        path.unlink()
    except FileNotFoundError:
        return
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable, where the platform lets a folder be opened."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check_private(folder: Path) -> None:
    if os.name == "posix" and folder.stat().st_mode & 0o077:
        raise StorageError(f"{folder} holds keys and is open to others; chmod 700 it")


_BINARY = getattr(os, "O_BINARY", 0)
