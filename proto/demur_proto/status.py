"""One table from our errors to gRPC statuses, and back."""

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
