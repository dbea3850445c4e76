"""Credentials: what a caller shows, how it is written down, and what a device proves with it."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from demur_proto.errors import ParameterError
from demur_proto.wire.hmacs import TAG_BYTES, PreparedKey, hmac_each, prepare_key

METADATA_KEY = "demur-credential-bin"  #: gRPC metadata whose name ends in -bin holds any bytes
DEVICE_ID_BYTES = 16
SECRET_BYTES = 32
TOKEN_BYTES = 32
NONCE_BYTES = 16
PROOF_BYTES = TAG_BYTES
PROOF_TAG = b"demur.report\x00"

_DEVICE_PREFIX = "demur_device_"
_NAMED_PREFIX = "demur_named_"
_TOKEN_PREFIX = "demur_token_"

Metadata = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCredential:
    """What makes a device known to its collector.

    Raises:
        ParameterError: the id is not 16 bytes, or the secret not 32.
    """

    device_id: bytes  #: 16 bytes, public
    secret: bytes = field(repr=False)  #: 32 bytes, given at enrolment

    def __post_init__(self) -> None:
        _check_length("device_id", self.device_id, DEVICE_ID_BYTES)
        _check_length("secret", self.secret, SECRET_BYTES)

    @property
    def wire(self) -> bytes:
        """As it travels: id, then secret."""
        return self.device_id + self.secret

    @property
    def text(self) -> str:
        """As it is written down; a secret.

        >>> DeviceCredential(device_id=bytes(16), secret=bytes(32)).text[:20]
        'demur_device_0000000'
        """
        return _DEVICE_PREFIX + self.wire.hex()

    def proof(self, round_hash: bytes, report_id: bytes, words: bytes) -> bytes:
        """Proves to a collector, through a gateway that need not be trusted, who made a report.

            first 16 bytes of HMAC-SHA256(secret, "demur.report" ‖ 0 ‖ round hash ‖ report id ‖
                                          SHA-256(words))

        >>> credential = DeviceCredential(device_id=bytes(16), secret=bytes(32))
        >>> credential.proof(bytes(32), bytes(16), b"").hex()
        '1aae25225d679e06d1299022f60b48f5'
        """
        keys, payload_hash = [prepare_key(self.secret)], hashlib.sha256(words).digest()
        return make_proofs(keys, round_hash, [report_id], [payload_hash])[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSecret:
    """What the holder of a named credential shows: an analyst, or a gateway.

    Raises:
        ParameterError: it is not 32 bytes.
    """

    secret: bytes = field(repr=False)  #: 32 random bytes

    def __post_init__(self) -> None:
        _check_length("secret", self.secret, SECRET_BYTES)

    @property
    def wire(self) -> bytes:
        """As it travels."""
        return self.secret

    @property
    def text(self) -> str:
        """As it is written down; a secret."""
        return _NAMED_PREFIX + self.secret.hex()


Credential = DeviceCredential | NamedSecret


def metadata_of(credential: Credential | None) -> Metadata:
    """What goes with every call to a collector; nothing without a credential.

    >>> metadata_of(None)
    ()
    """
    return () if credential is None else ((METADATA_KEY, credential.wire),)


def read_credential(text: str) -> Credential:
    """A credential from what was written down.

    Raises:
        ParameterError: it is none; the text is not repeated.

    >>> read_credential(" demur_named_" + 64 * "0")
    NamedSecret()
    """
    text = text.strip()
    device = _unprefixed(text, _DEVICE_PREFIX, DEVICE_ID_BYTES + SECRET_BYTES)
    if device is not None:
        return DeviceCredential(device_id=device[:DEVICE_ID_BYTES], secret=device[DEVICE_ID_BYTES:])
    named = _unprefixed(text, _NAMED_PREFIX, SECRET_BYTES)
    if named is None:
        raise ParameterError(
            "credential",
            f"a text of {len(text)} characters",
            f"{_DEVICE_PREFIX} and 96 hexadecimal digits, or {_NAMED_PREFIX} and 64",
        )
    return NamedSecret(secret=named)


def write_token(token: bytes) -> str:
    """An enrolment token as it is written down; a secret until it is used.

    >>> write_token(bytes(32)) == "demur_token_" + 64 * "0"
    True
    """
    _check_length("token", token, TOKEN_BYTES)
    return _TOKEN_PREFIX + token.hex()


def read_token(text: str) -> bytes:
    """An enrolment token from what was written down.

    Raises:
        ParameterError: it is none; the text is not repeated.
    """
    token = _unprefixed(text.strip(), _TOKEN_PREFIX, TOKEN_BYTES)
    if token is None:
        raise ParameterError(
            "token",
            f"a text of {len(text.strip())} characters",
            f"{_TOKEN_PREFIX} and 64 hexadecimal digits",
        )
    return token


def make_proofs(
    keys: Iterable[PreparedKey],
    round_hash: bytes,
    report_ids: Sequence[bytes],
    payload_hashes: Iterable[bytes],
) -> list[bytes]:
    """The proofs of many devices' reports to one round: `DeviceCredential.proof` of each.

    Args:
        keys: each device's secret, prepared.
        round_hash: the round, 32 bytes.
        report_ids: 16 bytes each.
        payload_hashes: SHA-256 of each report's words.
    """
    prefix = PROOF_TAG + round_hash
    messages = [
        prefix + report_id + payload
        for report_id, payload in zip(report_ids, payload_hashes, strict=True)
    ]
    return hmac_each(keys, messages)


def _check_length(name: str, value: bytes, length: int) -> None:
    if not isinstance(value, bytes) or len(value) != length:
        came = f"{len(value)} bytes" if isinstance(value, bytes) else type(value).__name__
        raise ParameterError(name, came, f"{length} bytes")


def _unprefixed(text: str, prefix: str, length: int) -> bytes | None:
    digits = text.removeprefix(prefix)
    if digits == text or len(digits) != 2 * length:
        return None
    try:
        return bytes.fromhex(digits) if digits.isalnum() else None  # fromhex passes over spaces
    except ValueError:
        return None
