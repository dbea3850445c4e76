"""Channels and streams to a collector."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import grpc

from demur_proto.channels import ClientTls, open_channel

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.keepalive_time_ms", 30_000),
)


def connected(
    target: str, *, tls: ClientTls | None = None, insecure_plaintext: bool = False
) -> AbstractAsyncContextManager[grpc.aio.Channel]:
    """A channel to a collector; as `demur_proto.channels.open_channel`, with a device's options.

    Args:
        target: `HOST:PORT`.
        tls: how to know the collector; None for plaintext, which stays on this machine.
        insecure_plaintext: allow plaintext to another machine, where anybody on the way can read
            the credential and use it.

    Raises:
        ParameterError: not a target, or plaintext that would leave this machine.
        AccessError: the connection fails because of a certificate.
    """
    return open_channel(
        target, tls=tls, insecure_plaintext=insecure_plaintext, options=CHANNEL_OPTIONS
    )


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
