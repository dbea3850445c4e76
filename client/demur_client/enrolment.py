"""How a device becomes known to its collector."""

import secrets

import grpc

from demur_proto.calls import CALL_S, PEER, calling
from demur_proto.credentials import NONCE_BYTES, TOKEN_BYTES, DeviceCredential
from demur_proto.errors import ParameterError, WireError
from demur_proto.v1 import collector_pb2, collector_pb2_grpc
from demur_proto.version import PROTOCOL_VERSION


def new_nonce() -> bytes:
    """16 random bytes to enrol with. Keep them until the credential is kept."""
    return secrets.token_bytes(NONCE_BYTES)


async def enrol(
    channel: grpc.aio.Channel, token: bytes, *, nonce: bytes | None = None
) -> DeviceCredential:
    """Trade a token, which works once, for this device's credential.

    When the answer is lost, ask again with the same nonce: the same credential comes. With another
    nonce the token is used up. So whoever may be interrupted draws a nonce and keeps it first.

    Args:
        channel: to the collector.
        token: 32 bytes, from whoever runs the collector.
        nonce: 16 random bytes; drawn when not given.

    Raises:
        ParameterError: the token is not 32 bytes, or the nonce not 16.
        AccessError: the token is unknown, or was used with another nonce.
        ConnectionLost: the collector went away; ask again with the same nonce.
        DemurError: the collector enrols nobody, or broke the protocol.
    """
    nonce = new_nonce() if nonce is None else nonce
    for name, value, length in (("token", token, TOKEN_BYTES), ("nonce", nonce, NONCE_BYTES)):
        if len(value) != length:
            raise ParameterError(name, f"{len(value)} bytes", f"{length} bytes")
    request = collector_pb2.EnrolRequest(
        protocol_version=PROTOCOL_VERSION, token=token, nonce=nonce
    )
    async with calling(PEER):
        response = await collector_pb2_grpc.CollectorStub(channel).Enrol(request, timeout=CALL_S)
    try:
        return DeviceCredential(device_id=response.device_id, secret=response.secret)
    except ParameterError:
        raise WireError(f"{PEER} answered with no credential") from None
