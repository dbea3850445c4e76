"""Enrolment: a token that works once, and the credential that a device gets for it.

A device's secret follows from its id and the master key, so the store keeps none.
"""

import hashlib
import secrets
from collections.abc import Iterable

from demur_proto.credentials import (
    DEVICE_ID_BYTES,
    NONCE_BYTES,
    SECRET_BYTES,
    TOKEN_BYTES,
    DeviceCredential,
    NamedSecret,
)
from demur_proto.errors import AccessError, WireError
from demur_proto.hmacs import PreparedKey, derive_keys, prepare_key
from demur_proto.status import REFUSED
from demur_server.store.base import NamedCredential, Role, Store

DEVICE_TAG = b"demur.device\x00"
ENROL_TAG = b"demur.enrol\x00"


def new_token() -> bytes:
    """An enrolment token, 32 random bytes. Whoever has it can enrol one device."""
    return secrets.token_bytes(TOKEN_BYTES)


def new_named(name: str, role: Role) -> tuple[NamedSecret, NamedCredential]:
    """A credential for a person or gateway: what its holder keeps, and what the store keeps."""
    secret = NamedSecret(secret=secrets.token_bytes(SECRET_BYTES))
    kept = NamedCredential(name=name, role=role, credential_hash=hash_secret(secret.secret))
    return secret, kept


def hash_secret(secret: bytes) -> bytes:
    """What a store keeps of a token, a nonce or a named secret: its SHA-256.

    Each is random and long enough that nobody can try them all, so a slow hash would add nothing.
    """
    return hashlib.sha256(secret).digest()


def device_secrets(master: PreparedKey, device_ids: Iterable[bytes]) -> list[bytes]:
    """The secrets of devices: HMAC-SHA256(master key, "demur.device" ‖ 0 ‖ device id).

    >>> import hmac
    >>> [secret] = device_secrets(prepare_key(bytes(32)), [bytes(16)])
    >>> secret == hmac.digest(bytes(32), b"demur.device" + bytes(17), "sha256")
    True
    """
    return derive_keys(master, [DEVICE_TAG + device_id for device_id in device_ids])


class Enrolment:
    """Trades tokens for credentials.

    Args:
        store: knows the tokens.
        master_key: 32 bytes, kept outside the store.
    """

    def __init__(self, store: Store, *, master_key: bytes) -> None:
        self._store = store
        self._master = prepare_key(master_key)

    async def enrol(self, token: bytes, nonce: bytes) -> DeviceCredential:
        """The credential of the device that asks with this token; again, the same.

        The device id is the first 16 bytes of HMAC-SHA256(master key, "demur.enrol" ‖ 0 ‖ token ‖
        nonce), so a second answer to the same question needs no memory of the first.

        Raises:
            WireError: the nonce is not 16 bytes.
            AccessError: the token is unknown, or was used with another nonce.
            StorageError: the store is in trouble; ask again with the same nonce.
        """
        if len(nonce) != NONCE_BYTES:
            raise WireError(f"a nonce is {NONCE_BYTES} bytes, got {len(nonce)}")
        [derived] = derive_keys(self._master, [ENROL_TAG + token + nonce])
        device_id = derived[:DEVICE_ID_BYTES]
        known = len(token) == TOKEN_BYTES and await self._store.redeem_token(
            hash_secret(token), nonce_hash=hash_secret(nonce), device_id=device_id
        )
        if not known:
            raise AccessError(REFUSED)
        [secret] = device_secrets(self._master, [device_id])
        return DeviceCredential(device_id=device_id, secret=secret)
