"""Who may call what."""

import hmac
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from demur_proto.credentials import (
    DEVICE_ID_BYTES,
    METADATA_KEY,
    SECRET_BYTES,
    DeviceCredential,
)
from demur_proto.errors import AccessError, StateError
from demur_proto.hmacs import prepare_key
from demur_proto.status import REFUSED
from demur_proto.v1 import report_pb2
from demur_proto.words import Payload
from demur_server.proofs import (
    UNKNOWN_SENDERS,
    Senders,
    check_chunk_sender,
    check_sender,
    check_senders,
)
from demur_server.store.base import NamedCredential, Role, Store
from demur_server.tokens import Enrolment, device_secrets, hash_secret

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
