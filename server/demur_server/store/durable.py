"""A store on a database: what is asked on the event loop is done on the store's own thread."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from demur_proto.release import Release
from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.wire.definition import Defined
from demur_server.store import records
from demur_server.store.base import (
    Batch,
    Counted,
    DeviceState,
    KeptRound,
    NamedCredential,
    Totals,
)
from demur_server.store.link import Database, Link
from demur_server.store.records import of_study
from demur_server.store.schema import rounds
from demur_server.store.worker import TRY_LATER, Admission, Clerk, Writer

Value = TypeVar("Value")


class DurableStore:
    """Keeps everything in a database. Made by `DurableStore.open`."""

    def __init__(self, clerk: Clerk) -> None:
        self._clerk = clerk
        self._writer = Writer(clerk.count, patience_s=clerk.patience_s)

    @classmethod
    async def open(cls, database: Database) -> "DurableStore":
        """Open a store, and read what its open rounds have counted.

        Raises:
            StorageError: it cannot be reached, read or written, or it is damaged.
            StateError: another collector has it.
            UnsupportedError: its schema is newer than this version.
        """
        store = cls(Clerk(database))
        try:
            await store._writer.call(store._clerk.connect)
        except BaseException:
            await store.close()
            raise
        return store

    async def add_study(self, study: Defined[Study]) -> None:
        """Keep a study."""
        await self._write(lambda link: records.add_study(link.sql, study))

    async def studies(self) -> list[bytes]:
        """The definitions of all studies."""
        return await self._do(lambda link: records.study_definitions(link.sql))

    async def add_model(self, model_hash: bytes, definition: bytes) -> None:
        """Keep a model."""
        await self._write(lambda link: records.add_model(link.sql, model_hash, definition))

    async def model(self, model_hash: bytes) -> bytes | None:
        """The definition of a model."""
        return await self._do(lambda link: records.find_model(link.sql, model_hash))

    async def add_round(
        self, asked: Defined[Round], *, sums_length: int, open_access: bool = False
    ) -> None:
        """Keep a round, open and empty."""
        await self._do(
            lambda link: self._clerk.add_round(
                link, asked, sums_length=sums_length, open_access=open_access
            ),
            writes=True,
        )

    async def rounds(self) -> list[KeptRound]:
        """Every round, by study and number."""
        return await self._do(lambda link: records.kept_rounds(link.sql, shard=link.shard))

    async def admit(self, round_hash: bytes, batch: Batch) -> list[int]:
        """Count each report exactly once."""
        dispositions = await self._writer.admit(Admission(round_hash=round_hash, batch=batch))
        return [TRY_LATER] * len(batch.report_ids) if dispositions is None else dispositions

    async def counted(self, round_hash: bytes) -> Counted:
        """How many reports a round has."""
        return await self._do(lambda link: self._clerk.counted(link, round_hash))

    async def totals(self, round_hash: bytes) -> Totals:
        """What a round has counted so far."""
        return await self._do(lambda link: self._clerk.totals(link, round_hash))

    async def close_round(self, round_hash: bytes, *, void: bool = False) -> Totals:
        """Close a round, for ever."""
        return await self._do(
            lambda link: self._clerk.close_round(link, round_hash, void=void), writes=True
        )

    async def add_release(self, release: Release) -> Release:
        """Keep a release unless the round has one."""
        return await self._do(lambda link: self._clerk.add_release(link, release), writes=True)

    async def release(self, round_hash: bytes) -> Release | None:
        """The release of a round."""
        condition = rounds.c.hash == round_hash
        found = await self._do(lambda link: records.find_releases(link.sql, condition))
        return found[0] if found else None

    async def releases(self, study_hash: bytes, *, from_number: int = 1) -> list[Release]:
        """The releases of a study from a round's number on, by number."""
        conditions = of_study(study_hash, from_number=from_number)
        return list(await self._do(lambda link: records.find_releases(link.sql, *conditions)))

    async def add_token(self, token_hash: bytes) -> None:
        """Keep an unused token."""
        await self._write(lambda link: records.add_token(link.sql, token_hash))

    async def redeem_token(self, token_hash: bytes, *, nonce_hash: bytes, device_id: bytes) -> bool:
        """Use a token up and enrol a device with it."""
        use = {"nonce_hash": nonce_hash, "device_id": device_id}
        return await self._write(lambda link: records.redeem_token(link.sql, token_hash, **use))

    async def device_state(self, device_id: bytes) -> DeviceState | None:
        """What is known about a device."""
        return await self._do(lambda link: records.device_state(link.sql, device_id))

    async def revoke_device(self, device_id: bytes, *, reason: str) -> None:
        """Refuse a device from now on."""
        await self._write(lambda link: records.revoke_device(link.sql, device_id, reason))

    async def revoked_devices(self) -> dict[bytes, str]:
        """Every revoked device with the reason."""
        return await self._do(lambda link: records.revoked_devices(link.sql))

    async def add_credential(self, credential: NamedCredential) -> None:
        """Keep a named credential."""
        await self._write(lambda link: records.add_credential(link.sql, credential))

    async def remove_credential(self, name: str) -> None:
        """Forget a named credential."""
        await self._write(lambda link: records.remove_credential(link.sql, name))

    async def credentials(self) -> list[NamedCredential]:
        """Every named credential, by name."""
        return await self._do(lambda link: records.all_credentials(link.sql))

    async def close(self) -> None:
        """Finish what was begun and let go of the database."""
        await self._writer.stop(last=self._clerk.close)

    async def _do(self, work: Callable[[Link], Value], *, writes: bool = False) -> Value:
        return await self._writer.call(partial(self._clerk.call, work, writes=writes))

    async def _write(self, work: Callable[[Link], Value]) -> Value:
        def whole(link: Link) -> Value:
            with link.transaction():
                return work(link)

        return await self._do(whole, writes=True)
