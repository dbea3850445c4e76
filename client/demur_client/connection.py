"""Channels and streams to a collector."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from demur_proto.errors import ParameterError

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.enable_http_proxy", 0),
)
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})


@asynccontextmanager
async def connected(target: str) -> AsyncIterator[grpc.aio.Channel]:
    """A plaintext channel to a collector on this machine.

    Devices have no credentials yet, so only loopback addresses are accepted.

    Args:
        target: `127.0.0.1:PORT`, `localhost:PORT` or `[::1]:PORT`.

    Raises:
        ParameterError: another address.
    """
    host, _, port = target.rpartition(":")
    if host not in LOOPBACK_HOSTS or not port.isdigit():
        raise ParameterError("target", target, "a loopback address with a port")
    async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        yield channel


async def send(call: grpc.aio.StreamStreamCall[Any, Any], message: object) -> None:
    """Write to a stream; where it has ended, raise the status it ended with.

    Raises:
        grpc.aio.AioRpcError: the stream has ended.
    """
    try:
        await call.write(message)
    except asyncio.InvalidStateError:  # what grpc says of a stream that ended meanwhile
        code, details = await call.code(), await call.details()
        raise grpc.aio.AioRpcError(
            code, await call.initial_metadata(), await call.trailing_metadata(), details
        ) from None
