"""Channels and streams to a collector."""

import asyncio
import secrets
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import grpc

from demur_proto.checks import check_positive
from demur_proto.errors import ParameterError
from demur_proto.transport.channels import ClientTls, open_channel

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.keepalive_time_ms", 30_000),
)


def connected(
    target: str, *, tls: ClientTls | None = None, insecure_plaintext: bool = False
) -> AbstractAsyncContextManager[grpc.aio.Channel]:
    """A channel to a collector; as `demur_proto.transport.channels.open_channel`, with a device's options.

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


# How long to wait before trying again: longer each time, and never all devices at once.


@dataclass(slots=True, kw_only=True)
class Backoff:
    """Full jitter: a wait is uniform between 0 and a bound that doubles with each failure.

        bound of failure n = min(longest, first · 2ⁿ), n = 0, 1, …

    The waits are public, so they are never drawn from where noise comes from.

    Raises:
        ParameterError: a bound is not a finite number above 0, or they are the wrong way round.

    Source: Brooker 2015, "Exponential Backoff And Jitter", AWS Architecture Blog.

    >>> backoff = Backoff(first_s=1.0, longest_s=5.0)
    >>> [backoff.next_bound_s() for _ in range(4)]
    [1.0, 2.0, 4.0, 5.0]
    """

    first_s: float  #: bound of the first wait, seconds; > 0
    longest_s: float  #: bound of all waits, seconds; >= first_s
    failures: int = field(default=0, init=False)  #: one after the other, so far

    def __post_init__(self) -> None:
        check_positive("first_s", self.first_s)
        check_positive("longest_s", self.longest_s)
        if self.longest_s < self.first_s:
            raise ParameterError("longest_s", self.longest_s, f">= first_s {self.first_s}")

    def next_bound_s(self) -> float:
        """The bound of the next wait, seconds; each call counts as a failure."""
        doublings = min(self.failures, 1000)
        self.failures += 1
        return min(self.longest_s, self.first_s * 2.0**doublings)

    def next_s(self) -> float:
        """The next wait, seconds; each call counts as a failure."""
        return self.next_bound_s() * secrets.randbelow(1 << 32) / (1 << 32)

    def reset(self) -> None:
        """Start over, once something has worked."""
        self.failures = 0
