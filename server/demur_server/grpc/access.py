"""Enrolment: a token that works once, and the credential that a device gets for it.

A device's secret follows from its id and the master key, so the store keeps none.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from demur_proto.errors import AccessError, StateError, WireError
from demur_proto.transport.calls import REFUSED
from demur_proto.transport.credentials import (
    DEVICE_ID_BYTES,
    METADATA_KEY,
    NONCE_BYTES,
    PROOF_BYTES,
    SECRET_BYTES,
    TOKEN_BYTES,
    DeviceCredential,
    NamedSecret,
    make_proofs,
)
from demur_proto.v1 import report_pb2
from demur_proto.wire.definition import REPORT_ID_BYTES
from demur_proto.wire.hmacs import PreparedKey, derive_keys, hash_payloads, prepare_key
from demur_proto.wire.words import Payload
from demur_server.collector.intake import split
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


# Who made the reports that a gateway brings: a proof for each, checked many at a time.


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Senders:
    """Who made the reports of a frame."""

    devices: bytes | None  #: 16 bytes each; None under open access
    payload_hashes: list[bytes] | None  #: SHA-256 of each report's words, where they were needed
    unproven: tuple[int, ...]  #: reports that must not be counted


UNKNOWN_SENDERS = Senders(devices=None, payload_hashes=None, unproven=())


def check_senders(
    frame: report_pb2.ReportFrame,
    master: PreparedKey,
    *,
    reports: int,
    revoked: AbstractSet[bytes],
    words: Payload | None = None,
) -> Senders:
    """Check the proof of every report in a frame.

    Args:
        frame: within its limits, `check_frame`.
        master: the key from which device secrets follow.
        reports: how many the frame holds.
        revoked: devices whose reports are not taken.
        words: those of the frame, if the caller has read them; each reading copies them.

    Raises:
        WireError: not every report has a device id and a proof, or their words are not equally
            long.
    """
    if len(frame.device_ids) != reports * DEVICE_ID_BYTES or len(frame.proofs) != (
        reports * PROOF_BYTES
    ):
        raise WireError("every report in a frame needs the id of its device, and a proof")
    if not reports:
        return Senders(devices=b"", payload_hashes=[], unproven=())
    words = frame.words if words is None else words
    if not words or len(words) % reports:
        raise WireError(f"{len(words)} bytes are no words of {reports} reports")
    payload_hashes = hash_payloads(words, reports=reports)
    return Senders(
        devices=frame.device_ids,
        payload_hashes=payload_hashes,
        unproven=_unproven(
            master,
            frame.round_hash,
            split(frame.report_ids, REPORT_ID_BYTES),
            payload_hashes,
            devices=frame.device_ids,
            proofs=frame.proofs,
            revoked=revoked,
        ),
    )


def check_chunk_sender(chunk: report_pb2.ReportChunk) -> None:
    """See that a chunk from a gateway says who made its report.

    Raises:
        WireError: it lacks the id of a device, or a proof.
    """
    if len(chunk.device_id) != DEVICE_ID_BYTES or len(chunk.proof) != PROOF_BYTES:
        raise WireError("every chunk in a frame needs the id of its device, and a proof")


def check_sender(
    chunk: report_pb2.ReportChunk,
    payload_hash: bytes,
    master: PreparedKey,
    *,
    revoked: AbstractSet[bytes],
) -> Senders:
    """Check the proof of a report that a gateway brought in chunks; as `check_senders`.

    Args:
        chunk: any of them.
        payload_hash: SHA-256 of the words of all of them.
        master: the key from which device secrets follow.
        revoked: devices whose reports are not taken.
    """
    return Senders(
        devices=chunk.device_id,
        payload_hashes=[payload_hash],
        unproven=_unproven(
            master,
            chunk.round_hash,
            [chunk.report_id],
            [payload_hash],
            devices=chunk.device_id,
            proofs=chunk.proof,
            revoked=revoked,
        ),
    )


def _unproven(
    master: PreparedKey,
    round_hash: bytes,
    report_ids: Sequence[bytes],
    payload_hashes: Sequence[bytes],
    *,
    devices: bytes,
    proofs: bytes,
    revoked: AbstractSet[bytes],
) -> tuple[int, ...]:
    """Which reports nobody proves to have made, or a revoked device made."""
    makers = split(devices, DEVICE_ID_BYTES)
    keys = map(prepare_key, device_secrets(master, makers))
    right = make_proofs(keys, round_hash, report_ids, payload_hashes)
    all_right = hmac.compare_digest(b"".join(right), proofs)  # nearly always
    if all_right and revoked.isdisjoint(makers):
        return ()
    shown = split(proofs, PROOF_BYTES)
    return tuple(
        i
        for i, maker in enumerate(makers)
        if not hmac.compare_digest(right[i], shown[i]) or maker in revoked
    )


# Who may call what.

MetadataItems = Iterable[tuple[str, str | bytes]]


class Kind(StrEnum):
    """Kinds of callers."""

    ANYBODY = "anybody"  #: who shows no credential, or whose credential nobody looked at
    DEVICE = "device"
    GATEWAY = "gateway"
    ANALYST = "analyst"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who makes a call."""

    kind: Kind
    key: bytes = field(default=b"", repr=False)  #: tells callers of a kind apart
    device_id: bytes | None = None  #: of a device


ANYBODY = Caller(kind=Kind.ANYBODY)
ROLES = {Role.ANALYST: Kind.ANALYST, Role.GATEWAY: Kind.GATEWAY}

ALL = frozenset(Kind)
KNOWN = ALL - {Kind.ANYBODY}
RULES: Mapping[str, frozenset[Kind]] = {
    "/demur_proto.v1.Collector/Enrol": ALL,  # it looks at a token itself
    "/demur_proto.v1.Collector/GetStudy": frozenset({Kind.DEVICE, Kind.GATEWAY}),
    "/demur_proto.v1.Collector/GetModel": frozenset({Kind.DEVICE, Kind.GATEWAY}),
    "/demur_proto.v1.Collector/Visit": frozenset({Kind.DEVICE}),
    "/demur_proto.v1.Collector/SubmitFrames": frozenset({Kind.GATEWAY}),
    "/demur_proto.v1.Analyst/CreateStudy": frozenset({Kind.ANALYST}),
    "/demur_proto.v1.Analyst/ListStudies": frozenset({Kind.ANALYST}),
    "/demur_proto.v1.Analyst/PublishModel": frozenset({Kind.ANALYST}),
    "/demur_proto.v1.Analyst/OpenRound": frozenset({Kind.ANALYST}),
    "/demur_proto.v1.Analyst/ListRounds": frozenset({Kind.ANALYST}),
    "/demur_proto.v1.Analyst/GetRound": frozenset({Kind.ANALYST}),
    "/demur_proto.v1.Analyst/CloseRound": frozenset({Kind.ANALYST}),
    "/demur_proto.v1.Analyst/GetRelease": frozenset({Kind.ANALYST}),
    "/demur_proto.v1.Analyst/WatchReleases": frozenset({Kind.ANALYST}),
    "/grpc.health.v1.Health/Check": ALL,
    "/grpc.health.v1.Health/List": ALL,
    "/grpc.health.v1.Health/Watch": KNOWN,  # a stream that stays open
}
"""Who may make each call. What is not in this table, nobody may."""

_caller: ContextVar[Caller] = ContextVar("caller")


def caller_now() -> Caller:
    """Who makes the call that the current task serves.

    Raises:
        LookupError: nobody was let in; a bug.
    """
    return _caller.get()


def serve_for(caller: Caller) -> None:
    """From now on the current task serves this caller."""
    _caller.set(caller)


class Access(Protocol):
    """Decides who may call what, and who made a report."""

    @property
    def is_open(self) -> bool:
        """Whether reports are taken from anybody."""

    async def refresh(self) -> None:
        """Take up what the store knows by now.

        Raises:
            StorageError: the store is in trouble; what was known stays.
        """

    def admit(self, method: str, metadata: MetadataItems) -> Caller:
        """Let a call in.

        Raises:
            AccessError: whatever was wrong, with one and the same text.
        """

    def still_admits(self, caller: Caller) -> bool:
        """Whether a caller who was let in may stay."""

    async def enrol(self, token: bytes, nonce: bytes) -> DeviceCredential:
        """Trade a token for a credential; `Enrolment.enrol`."""

    def senders(
        self, frame: report_pb2.ReportFrame, *, reports: int, words: Payload | None = None
    ) -> Senders:
        """Who made the reports of a frame, and which of them nobody proves to have made."""

    def refuses(self, chunk: report_pb2.ReportChunk) -> bool:
        """Whether the report of a gateway's chunk will not be taken, whatever its words are.

        Raises:
            WireError: the chunk does not say who made the report.
        """

    def sender(self, chunk: report_pb2.ReportChunk, payload_hash: bytes) -> Senders:
        """Who made the report of a gateway's chunks, once all have come."""


class OpenAccess:
    """Lets everybody in and authenticates nobody. For simulations, on loopback only."""

    is_open = True

    async def refresh(self) -> None:
        """Nothing is known."""

    def admit(self, method: str, metadata: MetadataItems) -> Caller:
        """Let any call in that there is a rule for."""
        if method not in RULES:
            raise AccessError(REFUSED)
        return ANYBODY

    def still_admits(self, caller: Caller) -> bool:
        """Always."""
        return True

    async def enrol(self, token: bytes, nonce: bytes) -> DeviceCredential:
        """Refuse.

        Raises:
            StateError: always.
        """
        raise StateError("this collector takes reports from anybody: there is nothing to enrol for")

    def senders(
        self, frame: report_pb2.ReportFrame, *, reports: int, words: Payload | None = None
    ) -> Senders:
        """Unknown, all of them."""
        return UNKNOWN_SENDERS

    def refuses(self, chunk: report_pb2.ReportChunk) -> bool:
        """Never."""
        return False

    def sender(self, chunk: report_pb2.ReportChunk, payload_hash: bytes) -> Senders:
        """Unknown."""
        return UNKNOWN_SENDERS


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Known:
    """What the store said when it was asked last."""

    revoked: frozenset[bytes]
    named: tuple[NamedCredential, ...]


class CredentialAccess:
    """Lets in who shows a credential that fits the call.

    Who was revoked is known from the last `refresh`, so that no call waits for a database; serving
    refreshes every second. Before the first one nobody is let in.

    Args:
        store: knows tokens, named credentials and who was revoked.
        master_key: 32 bytes, from which device credentials follow.
    """

    is_open = False

    def __init__(self, store: Store, *, master_key: bytes) -> None:
        self._store = store
        self._master = prepare_key(master_key)
        self._enrolment = Enrolment(store, master_key=master_key)
        self._known: _Known | None = None

    async def refresh(self) -> None:
        """Take up revocations and named credentials.

        Raises:
            StorageError: the store is in trouble; what was known stays.
        """
        revoked = frozenset(await self._store.revoked_devices())
        named = tuple(await self._store.credentials())
        self._known = _Known(revoked=revoked, named=named)

    def admit(self, method: str, metadata: MetadataItems) -> Caller:
        """Let a call in."""
        allowed = RULES.get(method, frozenset())
        if Kind.ANYBODY in allowed:
            return ANYBODY
        shown = [value for key, value in metadata if key == METADATA_KEY]
        caller = self._caller(shown[0]) if len(shown) == 1 else None
        if caller is None or caller.kind not in allowed or not self.still_admits(caller):
            raise AccessError(REFUSED)
        return caller

    def still_admits(self, caller: Caller) -> bool:
        """Whether a caller's credential has been neither revoked nor removed."""
        if caller.kind is Kind.ANYBODY:
            return True
        if self._known is None:
            return False
        if caller.kind is Kind.DEVICE:
            return caller.device_id not in self._known.revoked
        return any(
            each.credential_hash == caller.key and ROLES[each.role] is caller.kind
            for each in self._known.named
        )

    async def enrol(self, token: bytes, nonce: bytes) -> DeviceCredential:
        """Trade a token for a credential."""
        return await self._enrolment.enrol(token, nonce)

    def senders(
        self, frame: report_pb2.ReportFrame, *, reports: int, words: Payload | None = None
    ) -> Senders:
        """Who made the reports of a frame; a revoked device proves nothing any more.

        Raises:
            WireError: not every report has a device id and a proof.
        """
        return check_senders(
            frame, self._master, reports=reports, revoked=self._revoked, words=words
        )

    def refuses(self, chunk: report_pb2.ReportChunk) -> bool:
        """Whether the device is revoked.

        Raises:
            WireError: the chunk lacks the id of a device, or a proof.
        """
        check_chunk_sender(chunk)
        return chunk.device_id in self._revoked

    def sender(self, chunk: report_pb2.ReportChunk, payload_hash: bytes) -> Senders:
        """Who made a report that came in chunks; as `senders`."""
        return check_sender(chunk, payload_hash, self._master, revoked=self._revoked)

    @property
    def _revoked(self) -> frozenset[bytes]:
        return frozenset() if self._known is None else self._known.revoked

    def _caller(self, shown: str | bytes) -> Caller | None:
        """Whose credential this is, if it is anybody's."""
        if not isinstance(shown, bytes) or self._known is None:
            return None
        if len(shown) == DEVICE_ID_BYTES + SECRET_BYTES:
            device_id, secret = shown[:DEVICE_ID_BYTES], shown[DEVICE_ID_BYTES:]
            [right] = device_secrets(self._master, [device_id])
            if not hmac.compare_digest(right, secret):
                return None
            return Caller(kind=Kind.DEVICE, key=device_id, device_id=device_id)
        shown_hash = hash_secret(shown)
        found = None
        for each in self._known.named:  # all of them: the time must not tell where it was
            if hmac.compare_digest(each.credential_hash, shown_hash):
                found = Caller(kind=ROLES[each.role], key=each.credential_hash)
        return found
