"""A served collector that wants credentials, and callers with and without."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from demur_client.connection import connected
from demur_proto.study import Study
from demur_proto.transport.channels import ClientTls
from demur_proto.transport.credentials import (
    METADATA_KEY,
    Credential,
    DeviceCredential,
    NamedSecret,
)
from demur_proto.wire.definition import Defined
from demur_server.collector.collector import Collector
from demur_server.collector.keys import MemoryKeys
from demur_server.grpc.access import CredentialAccess, hash_secret, new_named, new_token
from demur_server.grpc.serving import Ports, served
from demur_server.store.base import Role
from demur_server.store.memory import MemoryStore

DEADLINE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class House:
    """A collector that wants credentials, with all that belongs to it."""

    store: MemoryStore
    collector: Collector
    access: CredentialAccess
    master_key: bytes
    ports: Ports

    async def token(self) -> bytes:
        """A new enrolment token."""
        token = new_token()
        await self.store.add_token(hash_secret(token))
        return token

    async def device(self) -> DeviceCredential:
        """A newly enrolled device."""
        return await self.access.enrol(await self.token(), secrets.token_bytes(16))

    async def named(self, name: str, role: Role) -> NamedSecret:
        """A new named credential, known at once."""
        secret, kept = new_named(name, role)
        await self.store.add_credential(kept)
        await self.access.refresh()
        return secret

    async def revoke(self, device: DeviceCredential) -> None:
        """Revoke a device; it takes effect at the next refresh."""
        await self.store.revoke_device(device.device_id, reason="lost")


@asynccontextmanager
async def opened(study: Defined[Study], **options: Any) -> AsyncIterator[House]:
    """Serve a collector that wants credentials and has one study."""
    store, keys = MemoryStore(), MemoryKeys()
    collector = Collector(store, keys=keys)
    await collector.create_study(study.definition)
    access = CredentialAccess(store, master_key=keys.master())
    options = {"drain_s": 0.1, **options}
    async with served(collector, access=access, **options) as ports:
        yield House(
            store=store,
            collector=collector,
            access=access,
            master_key=keys.master(),
            ports=ports,
        )


@asynccontextmanager
async def reached(port: int, *, tls: ClientTls | None = None) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a port of this machine."""
    async with connected(f"127.0.0.1:{port}", tls=tls) as channel:
        yield channel


def shown(*credentials: Credential | bytes) -> list[tuple[str, bytes]]:
    """Metadata that shows these, right or wrong."""
    return [(METADATA_KEY, each if isinstance(each, bytes) else each.wire) for each in credentials]


Outcome = tuple[grpc.StatusCode, str]
OK: Outcome = (grpc.StatusCode.OK, "")
CROSSED: Outcome = (grpc.StatusCode.INTERNAL, "Internal error from Core")
"""What gRPC says, about once in a thousand, where a request and the end of its call cross."""


async def outcome(
    channel: grpc.aio.Channel,
    path: str,
    request: bytes | None,
    metadata: Sequence[tuple[str, str | bytes]] = (),
) -> Outcome:
    """Make any call with one request, or none; OK as soon as there is an answer to it."""
    got = CROSSED
    while got == CROSSED:
        got = await _tried(channel, path, request, metadata)
    return got


async def _tried(
    channel: grpc.aio.Channel,
    path: str,
    request: bytes | None,
    metadata: Sequence[tuple[str, str | bytes]],
) -> Outcome:
    raw: Any = channel.stream_stream(path)
    call = raw(timeout=DEADLINE_S, metadata=tuple(metadata))
    try:
        if request is not None:
            await call.write(request)
        if await call.read() is not grpc.aio.EOF:
            return OK
        return await call.code(), await call.details()
    except grpc.aio.AioRpcError as error:
        beside = tuple(error.trailing_metadata()) or ""  # that would tell refusals apart
        return error.code(), f"{error.details()}{beside}"
    except asyncio.InvalidStateError:  # it had ended before the request was written
        return await call.code(), await call.details()
    finally:
        call.cancel()
