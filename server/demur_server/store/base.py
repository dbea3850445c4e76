"""The interface that every store implements."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import repeat
from typing import Protocol

import numpy as np

from demur_proto.arrays import Integers, Words
from demur_proto.errors import NotFoundError
from demur_proto.release import Release
from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.v1 import report_pb2
from demur_proto.wire.definition import Defined


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """How many reports a round has."""

    reports: int
    conflicts: int  #: reports refused as CONFLICT while it was open
    closed: bool


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Totals:
    """What a round has counted."""

    reports: int
    conflicts: int  #: reports refused as CONFLICT while it was open
    sums: Integers  #: what the tallies add up to, exactly [s]; empty once its release is kept
    closed: bool


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Batch:
    """Reports of one round that are valid on their own; whether they count is the store's word."""

    report_ids: list[bytes]  #: 16 bytes each
    digests: list[bytes]  #: HMACs of the payloads under the round's key, 16 bytes each
    devices: list[bytes]  #: who sent each, 16 bytes each
    words: Words  #: of the reports [n, w]
    tally: Callable[[Words], Integers]  #: what some of these rows add to the sums [s]
    capacity: int  #: reports of the round, in all, before 64-bit sums could overflow


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRound:
    """A round as a store remembers it."""

    study_hash: bytes
    round_hash: bytes
    definition: bytes  #: exactly as written by the analyst
    open_access: bool  #: its reports were taken from anybody
    shards: int  #: how many collectors count it, each its part of the devices
    mine: int  #: reports that *this* collector has counted; other shards have their own
    closed: bool
    released: bool  #: its release is kept; a closed round without one was interrupted


MOST_WAITING = 8  #: models that are kept without an open round that names them


def no_model(model_hash: bytes) -> NotFoundError:
    """The error for a model that is not kept."""
    return NotFoundError(f"there is no model {model_hash.hex()[:16]}; publish it first")


class DeviceState(StrEnum):
    """What a store knows about a device."""

    ENROLLED = "enrolled"
    REVOKED = "revoked"


class Role(StrEnum):
    """What a named credential may do."""

    ANALYST = "analyst"
    GATEWAY = "gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCredential:
    """A credential that people hold, known by its hash."""

    name: str
    role: Role
    credential_hash: bytes  #: SHA-256 of 32 random bytes: there is nothing to guess


class Store(Protocol):
    """Keeps what a collector must not forget, and decides which report counts.

    Every method is atomic, and what it returns is durable as far as the store is. When a database
    is out of reach or its disk is full, `admit` answers TRY_LATER and every other method raises
    StorageError; nothing is half-done, and the same call may be made again.
    """

    # ---- studies, models and rounds ----------------------------------------------------------

    async def add_study(self, study: Defined[Study]) -> None:
        """Keep a study; again, it changes nothing."""

    async def studies(self) -> list[bytes]:
        """The definitions of all studies, in the order in which they were fixed."""

    async def add_model(self, model_hash: bytes, definition: bytes) -> None:
        """Keep a model; again, it changes nothing.

        Of the models that no open round names, the newest MOST_WAITING stay, and the others are
        forgotten.

        Args:
            model_hash: of the definition.
            definition: exactly as the analyst wrote it.
        """

    async def model(self, model_hash: bytes) -> bytes | None:
        """The definition of a model; None: it is not kept."""

    async def add_round(
        self, asked: Defined[Round], *, sums_length: int, open_access: bool = False
    ) -> None:
        """Keep a round, open and empty; again, it changes nothing.

        Args:
            asked: the round; its study is kept already.
            sums_length: how many sums its reports add up to.
            open_access: reports are taken from anybody, unauthenticated.

        Raises:
            NotFoundError: its study, or the model that it names, is not kept.
            StateError: its study has another round of this number.
        """

    async def rounds(self) -> list[KeptRound]:
        """Every round, by study as in `studies` and then by number."""

    # ---- counting ----------------------------------------------------------------------------

    async def admit(self, round_hash: bytes, batch: Batch) -> list[int]:
        """Count each report exactly once; one disposition each, in order.

        ACCEPTED is new. DUPLICATE: this id was counted before, with this digest and device.
        CONFLICT: this id with another digest or device was, or another id of this device.
        ROUND_CLOSED: too late, for ever. INVALID: it would exceed the capacity. TRY_LATER: the
        store is in trouble and has counted none of the reports that it says this of.

        Raises:
            NotFoundError: no such round.
            StateError: a device belongs to another shard than this store's; nothing was counted.
        """

    async def counted(self, round_hash: bytes) -> Counted:
        """How many reports a round has so far, on all shards.

        Raises:
            NotFoundError: no such round.
        """

    async def totals(self, round_hash: bytes) -> Totals:
        """What a round has counted so far, on all shards.

        Raises:
            NotFoundError: no such round.
        """

    async def close_round(self, round_hash: bytes, *, void: bool = False) -> Totals:
        """Close a round, for ever, and forget its ids, digests and devices.

        The model that it names is forgotten too, unless another open round names it.

        Again, the same totals, except that the sums are gone once the release is kept.

        Args:
            round_hash: the round.
            void: if it is open, forget in the same step what it has counted: it must not be released.

        Raises:
            NotFoundError: no such round.
        """

    # ---- releases ----------------------------------------------------------------------------

    async def add_release(self, release: Release) -> Release:
        """Keep a release unless its round has one; what is kept is returned.

        The round's sums are forgotten in the same step: what a release withholds is nowhere.

        Raises:
            NotFoundError: no such round.
            StateError: the round is open.
        """

    async def release(self, round_hash: bytes) -> Release | None:
        """The release of a round, if it has one."""

    async def releases(self, study_hash: bytes, *, from_number: int = 1) -> list[Release]:
        """The releases of a study from a round's number on, by number."""

    # ---- who may do what ---------------------------------------------------------------------

    async def add_token(self, token_hash: bytes) -> None:
        """Keep an enrolment token that nobody has used; again, it changes nothing.

        Args:
            token_hash: SHA-256 of the token.
        """

    async def redeem_token(self, token_hash: bytes, *, nonce_hash: bytes, device_id: bytes) -> bool:
        """Use a token up and enrol a device with it, in one step.

        Returns:
            True if the token was unused, or was used with the same nonce and device (a response
            was lost, and the same answer may be given again); False if it is unknown, or was used
            otherwise.
        """

    async def device_state(self, device_id: bytes) -> DeviceState | None:
        """What is known about a device; None: it was never enrolled."""

    async def revoke_device(self, device_id: bytes, *, reason: str) -> None:
        """Refuse a device from now on, for ever; the first reason is kept.

        Args:
            device_id: whom.
            reason: why, in public: it must not depend on what the device reported.

        Raises:
            NotFoundError: it was never enrolled.
        """

    async def revoked_devices(self) -> dict[bytes, str]:
        """Every revoked device with the reason."""

    async def add_credential(self, credential: NamedCredential) -> None:
        """Keep a named credential.

        Raises:
            StateError: there is one of this name.
        """

    async def remove_credential(self, name: str) -> None:
        """Forget a named credential.

        Raises:
            NotFoundError: there is none of this name.
        """

    async def credentials(self) -> list[NamedCredential]:
        """Every named credential, by name."""

    # ---- the end -----------------------------------------------------------------------------

    async def close(self) -> None:
        """Finish what was begun and let go of files and connections; again, nothing happens."""


# A round while it counts: the one place where it is decided whether a report counts.

ACCEPTED = int(report_pb2.DISPOSITION_ACCEPTED)
DUPLICATE = int(report_pb2.DISPOSITION_DUPLICATE)
CONFLICT = int(report_pb2.DISPOSITION_CONFLICT)
INVALID = int(report_pb2.DISPOSITION_INVALID)


class Counting:
    """What an open round has counted, and from whom."""

    __slots__ = ("_digests", "_ids", "conflicts", "reports", "sums")

    def __init__(self, *, sums_length: int) -> None:
        self.sums = np.zeros(sums_length, dtype=np.int64)
        self.reports = 0
        self.conflicts = 0
        self._digests: dict[bytes, bytes] = {}  # by report id
        self._ids: dict[bytes, bytes] = {}  # by device

    def recall(
        self, report_ids: Sequence[bytes], digests: Iterable[bytes], devices: Iterable[bytes]
    ) -> None:
        """Know reports that were counted earlier; sums and numbers are set apart."""
        self._digests.update(zip(report_ids, digests, strict=True))
        self._ids.update(zip(devices, report_ids, strict=True))

    def admit(self, batch: Batch, *, shards: int = 1) -> tuple[list[int], Sequence[int]]:
        """Count what is new.

        Args:
            batch: the reports.
            shards: among how many the round's capacity is divided, in equal parts.

        Returns:
            One disposition each, in order, and the rows that were counted.
        """
        ids, digests, devices = batch.report_ids, batch.digests, batch.devices
        capacity = batch.capacity // shards
        if (
            self.reports + len(ids) <= capacity
            and self._digests.keys().isdisjoint(ids)
            and self._ids.keys().isdisjoint(devices)
            and len(set(ids)) == len(ids)
            and len(set(devices)) == len(devices)
        ):
            dispositions = list(repeat(ACCEPTED, len(ids)))
            fresh: Sequence[int] = range(len(ids))
            self.recall(ids, digests, devices)
            self.reports += len(ids)
        else:
            dispositions = [
                self._admit_one(*report, capacity)
                for report in zip(ids, digests, devices, strict=True)
            ]
            fresh = [row for row, each in enumerate(dispositions) if each == ACCEPTED]
            self.conflicts += dispositions.count(CONFLICT)
        if len(fresh) == len(ids):
            self.sums += batch.tally(batch.words)
        elif fresh:
            self.sums += batch.tally(batch.words[list(fresh)])
        return dispositions, fresh

    def _admit_one(self, report_id: bytes, digest: bytes, device: bytes, capacity: int) -> int:
        known = self._digests.get(report_id)
        if known is not None:
            same = known == digest and self._ids.get(device) == report_id
            return DUPLICATE if same else CONFLICT
        if device in self._ids:
            return CONFLICT
        if self.reports >= capacity:
            return INVALID
        self._digests[report_id] = digest
        self._ids[device] = report_id
        self.reports += 1
        return ACCEPTED
