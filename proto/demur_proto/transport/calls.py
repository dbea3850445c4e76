"""One table from our errors to gRPC statuses, and back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.lowlevel
import grpc

from demur_proto.errors import (
    AccessError,
    BusyError,
    ConnectionLost,
    DataError,
    DemurError,
    NotFoundError,
    ParameterError,
    PolicyError,
    StateError,
    StorageError,
    UnsupportedError,
    VersionError,
    WireError,
)

REFUSED = "not let in: the credential for this call is missing, wrong, revoked or for another use"
"""What every refusal says, whatever was wrong: whoever guesses learns nothing."""

TROUBLE = "the collector can keep or read nothing for now; try again later"
"""All that callers are told of a `StorageError`: which file, host or user is its operator's business."""

NO_SUCH_CALL = "Method not found!"
"""What gRPC itself says where a port does not serve a call."""

STATUS: dict[type[DemurError], grpc.StatusCode] = {
    ParameterError: grpc.StatusCode.INVALID_ARGUMENT,
    DataError: grpc.StatusCode.INVALID_ARGUMENT,
    WireError: grpc.StatusCode.INVALID_ARGUMENT,
    VersionError: grpc.StatusCode.FAILED_PRECONDITION,
    UnsupportedError: grpc.StatusCode.UNIMPLEMENTED,
    NotFoundError: grpc.StatusCode.NOT_FOUND,
    StateError: grpc.StatusCode.FAILED_PRECONDITION,
    StorageError: grpc.StatusCode.UNAVAILABLE,
    AccessError: grpc.StatusCode.UNAUTHENTICATED,
    PolicyError: grpc.StatusCode.FAILED_PRECONDITION,
    BusyError: grpc.StatusCode.UNAVAILABLE,
    ConnectionLost: grpc.StatusCode.UNAVAILABLE,
}

ERRORS: dict[grpc.StatusCode, type[DemurError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: WireError,
    grpc.StatusCode.FAILED_PRECONDITION: StateError,
    grpc.StatusCode.UNIMPLEMENTED: UnsupportedError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.UNAUTHENTICATED: AccessError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: WireError,  # a message too large; again, it still is
}


def error_of(error: grpc.RpcError, *, peer: str) -> DemurError:
    """What a failed call means to the caller, as one of our errors.

    Whatever leaves open whether the call took effect is a `ConnectionLost`.
    """
    if not isinstance(error, grpc.aio.AioRpcError):
        return ConnectionLost(f"lost {peer}: {error}")
    if error.details() == NO_SUCH_CALL:
        return UnsupportedError(
            f"{peer} does not serve this call here; devices and analysts have a port each"
        )
    kind = ERRORS.get(error.code())
    if kind is not None:
        return kind(error.details() or error.code().name)
    return ConnectionLost(f"lost {peer}: {error.code().name.lower()} ({error.details()})")


# Calls to the other side, whose failures become errors of ours.

CALL_S = 30.0  #: deadline of a single short call
PEER = "the collector"  #: what errors call the other side of every call there is


@asynccontextmanager
async def calling(peer: str) -> AsyncIterator[None]:
    """Around awaits of gRPC calls: a failure becomes one of our errors.

    A cancelled call raises a CancelledError of gRPC's own making, which the cancel scope that
    caused it does not recognise: it would pass through `move_on_after` and end the whole task.
    Here the scope gets its own back.

    Args:
        peer: what errors call the other side.

    Raises:
        ConnectionLost: the other side went away, or the channel was closed under the call.
        DemurError: it refused.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise error_of(error, peer=peer) from None
    except asyncio.CancelledError:
        await anyio.lowlevel.checkpoint_if_cancelled()
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ConnectionLost(f"lost {peer}: the channel was closed") from None
