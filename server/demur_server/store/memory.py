"""A store that lasts as long as its process."""

from dataclasses import dataclass, field, replace

import numpy as np

from demur_proto.errors import NotFoundError, StateError
from demur_proto.queries import ModelQuery
from demur_proto.release import Release
from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.v1 import report_pb2
from demur_proto.wire.definition import Defined
from demur_server.store.base import (
    MOST_WAITING,
    Batch,
    Counted,
    Counting,
    DeviceState,
    KeptRound,
    NamedCredential,
    Totals,
    no_model,
)


@dataclass(slots=True, repr=False)
class _Round:
    """A round, and what it has counted."""

    asked: Defined[Round]
    open_access: bool
    totals: Totals  # of a closed round
    counting: Counting | None  # of an open one


@dataclass(slots=True, repr=False)
class _Identities:
    """Who may do what."""

    tokens: dict[bytes, tuple[bytes, bytes] | None] = field(default_factory=dict)
    devices: dict[bytes, str | None] = field(default_factory=dict)  # why it was revoked
    credentials: dict[str, NamedCredential] = field(default_factory=dict)


class MemoryStore:
    """Keeps everything in memory. One event loop at a time may use it."""

    def __init__(self) -> None:
        self._studies: dict[bytes, Defined[Study]] = {}
        self._rounds: dict[bytes, _Round] = {}
        self._releases: dict[bytes, Release] = {}
        self._models: dict[bytes, bytes] = {}
        self._identities = _Identities()

    async def add_study(self, study: Defined[Study]) -> None:
        """Keep a study."""
        self._studies.setdefault(study.hash, study)

    async def studies(self) -> list[bytes]:
        """The definitions of all studies."""
        return [study.definition for study in self._studies.values()]

    async def add_model(self, model_hash: bytes, definition: bytes) -> None:
        """Keep a model."""
        self._models.setdefault(model_hash, definition)
        named = self._named_models()
        waiting = [each for each in self._models if each not in named]
        for each in waiting[:-MOST_WAITING]:
            del self._models[each]

    async def model(self, model_hash: bytes) -> bytes | None:
        """The definition of a model."""
        return self._models.get(model_hash)

    def _named_models(self) -> set[bytes]:
        """By open rounds."""
        queries = [each.asked.value.query for each in self._rounds.values() if each.counting]
        return {query.model_hash for query in queries if isinstance(query, ModelQuery)}

    async def add_round(
        self, asked: Defined[Round], *, sums_length: int, open_access: bool = False
    ) -> None:
        """Keep a round, open and empty."""
        if asked.hash in self._rounds:
            return
        study_hash, number = asked.value.study_hash, asked.value.number
        if study_hash not in self._studies:
            raise NotFoundError(f"there is no study {study_hash.hex()[:16]}")
        if any(
            (kept.asked.value.study_hash, kept.asked.value.number) == (study_hash, number)
            for kept in self._rounds.values()
        ):
            raise StateError(f"round {number} cannot open: the study has another one")
        query = asked.value.query
        if isinstance(query, ModelQuery) and query.model_hash not in self._models:
            raise no_model(query.model_hash)
        counting = Counting(sums_length=sums_length)
        self._rounds[asked.hash] = _Round(asked, open_access, _totals(counting), counting)

    async def rounds(self) -> list[KeptRound]:
        """Every round, by study and number."""
        order = {study_hash: place for place, study_hash in enumerate(self._studies)}
        kept = [
            KeptRound(
                study_hash=each.asked.value.study_hash,
                round_hash=each.asked.hash,
                definition=each.asked.definition,
                open_access=each.open_access,
                shards=1,
                mine=each.counting.reports if each.counting else each.totals.reports,
                closed=each.counting is None,
                released=each.asked.hash in self._releases,
            )
            for each in sorted(self._rounds.values(), key=lambda each: each.asked.value.number)
        ]
        return sorted(kept, key=lambda each: order[each.study_hash])

    async def admit(self, round_hash: bytes, batch: Batch) -> list[int]:
        """Count each report exactly once."""
        counting = self._round(round_hash).counting
        if counting is None:
            return [report_pb2.DISPOSITION_ROUND_CLOSED] * len(batch.report_ids)
        dispositions, _ = counting.admit(batch)
        return dispositions

    async def counted(self, round_hash: bytes) -> Counted:
        """How many reports a round has so far."""
        kept = self._round(round_hash)
        state = kept.totals if kept.counting is None else kept.counting
        return Counted(
            reports=state.reports, conflicts=state.conflicts, closed=kept.counting is None
        )

    async def totals(self, round_hash: bytes) -> Totals:
        """What a round has counted so far."""
        kept = self._round(round_hash)
        return _copied(kept.totals) if kept.counting is None else _totals(kept.counting)

    async def close_round(self, round_hash: bytes, *, void: bool = False) -> Totals:
        """Close a round, for ever."""
        kept = self._round(round_hash)
        if kept.counting is not None:
            if void:
                kept.counting = Counting(sums_length=len(kept.counting.sums))
            kept.totals = replace(_totals(kept.counting), closed=True)
            kept.counting = None
            query = kept.asked.value.query
            if isinstance(query, ModelQuery) and query.model_hash not in self._named_models():
                self._models.pop(query.model_hash, None)
        return _copied(kept.totals)

    async def add_release(self, release: Release) -> Release:
        """Keep a release unless the round has one."""
        kept = self._round(release.round_hash)
        if kept.counting is not None:
            raise StateError(f"round {release.number} is still open")
        if release.round_hash not in self._releases:
            self._releases[release.round_hash] = release
            kept.totals = replace(kept.totals, sums=np.zeros(0, dtype=np.int64))
        return self._releases[release.round_hash]

    async def release(self, round_hash: bytes) -> Release | None:
        """The release of a round."""
        return self._releases.get(round_hash)

    async def releases(self, study_hash: bytes, *, from_number: int = 1) -> list[Release]:
        """The releases of a study from a round's number on, by number."""
        mine = (
            release
            for release in self._releases.values()
            if release.study_hash == study_hash and release.number >= from_number
        )
        return sorted(mine, key=lambda release: release.number)

    async def add_token(self, token_hash: bytes) -> None:
        """Keep an unused token."""
        self._identities.tokens.setdefault(token_hash, None)

    async def redeem_token(self, token_hash: bytes, *, nonce_hash: bytes, device_id: bytes) -> bool:
        """Use a token up and enrol a device with it."""
        tokens, use = self._identities.tokens, (nonce_hash, device_id)
        if token_hash not in tokens or tokens[token_hash] not in (None, use):
            return False
        tokens[token_hash] = use
        self._identities.devices.setdefault(device_id, None)
        return True

    async def device_state(self, device_id: bytes) -> DeviceState | None:
        """What is known about a device."""
        if device_id not in self._identities.devices:
            return None
        revoked = self._identities.devices[device_id] is not None
        return DeviceState.REVOKED if revoked else DeviceState.ENROLLED

    async def revoke_device(self, device_id: bytes, *, reason: str) -> None:
        """Refuse a device from now on."""
        if device_id not in self._identities.devices:
            raise NotFoundError(f"there is no device {device_id.hex()}")
        if self._identities.devices[device_id] is None:
            self._identities.devices[device_id] = reason

    async def revoked_devices(self) -> dict[bytes, str]:
        """Every revoked device with the reason."""
        return {
            device: reason
            for device, reason in self._identities.devices.items()
            if reason is not None
        }

    async def add_credential(self, credential: NamedCredential) -> None:
        """Keep a named credential."""
        if credential.name in self._identities.credentials:
            raise StateError(f"there is a credential {credential.name!r} already")
        self._identities.credentials[credential.name] = credential

    async def remove_credential(self, name: str) -> None:
        """Forget a named credential."""
        if self._identities.credentials.pop(name, None) is None:
            raise NotFoundError(f"there is no credential {name!r}")

    async def credentials(self) -> list[NamedCredential]:
        """Every named credential, by name."""
        return [each for _, each in sorted(self._identities.credentials.items())]

    async def close(self) -> None:
        """Nothing to let go of."""

    def _round(self, round_hash: bytes) -> _Round:
        try:
            return self._rounds[round_hash]
        except KeyError:
            raise NotFoundError(f"there is no round {round_hash.hex()[:16]}") from None


def _totals(counting: Counting) -> Totals:
    return Totals(
        reports=counting.reports,
        conflicts=counting.conflicts,
        sums=counting.sums.copy(),
        closed=False,
    )


def _copied(totals: Totals) -> Totals:
    return replace(totals, sums=totals.sums.copy())
