"""How a device becomes known to its collector."""

import hashlib
import re
import secrets
import ssl
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import grpc

from demur_client.agent import Agent
from demur_client.connection import connected
from demur_client.evaluator.opening import DeployedEvaluator
from demur_client.ledger.base import Identity, Ledger
from demur_client.policy import OwnerPolicy
from demur_proto.errors import AccessError, ParameterError, StateError, WireError
from demur_proto.transport.calls import CALL_S, PEER, calling
from demur_proto.transport.channels import ClientTls, is_loopback, read_pem, split_target
from demur_proto.transport.credentials import NONCE_BYTES, TOKEN_BYTES, DeviceCredential
from demur_proto.v1 import collector_pb2, collector_pb2_grpc
from demur_proto.wire.definition import PROTOCOL_VERSION


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


# Whom a device belongs to: how it becomes known to its collector, and reaches it ever after.

KEPT = Path("the certificate that was kept at enrolment")  #: what errors call it

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")


def channel_of(
    identity: Identity, policy: OwnerPolicy
) -> AbstractAsyncContextManager[grpc.aio.Channel]:
    """A channel to the device's own collector, known by the certificate that was kept.

    Raises:
        AccessError: the policy does not let this certificate vouch, or the device's own or its key
            cannot be read.
        ParameterError: plaintext would leave this machine.
    """
    tls = None
    if identity.certificate is not None:
        ca = pinned(identity.certificate, policy.certificates)
        tls = ClientTls(ca_file=KEPT, ca=ca)
        if identity.own_certificate and identity.own_key:
            own, key = Path(identity.own_certificate), Path(identity.own_key)
            tls = replace(
                tls,
                certificate_file=own,
                certificate=read_pem(own),
                key_file=key,
                key=read_pem(key),
            )
    elif policy.certificates:
        raise AccessError(
            "the policy names certificates, and the device was enrolled without one (certificates)"
        )
    return connected(identity.target, tls=tls)


def pinned(pem: bytes, pins: Sequence[bytes]) -> bytes:
    """The certificates that may vouch: all of them where the policy names none.

    Args:
        pem: certificates in PEM form.
        pins: SHA-256 of those that the policy names.

    Returns:
        PEM, of which nothing is left that was not looked at.

    Raises:
        AccessError: one of them is not among those that the policy names, or there is none.
    """
    if not pins:
        return pem
    found = _CERTIFICATE.findall(pem.decode("ascii", errors="replace"))
    for text in found:
        digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(text)).digest()
        if digest not in pins:
            raise AccessError(
                f"the policy does not let the certificate {digest.hex()} vouch for the collector "
                "(certificates)"
            )
    if not found:
        raise AccessError("the policy names certificates, and none was kept (certificates)")
    return "\n".join(found).encode()


async def enrol_device(
    ledger: Ledger, policy: OwnerPolicy, *, target: str, token: bytes, tls: ClientTls | None = None
) -> DeviceCredential:
    """Make a device known to a collector, and keep how.

    What may be lost on the way is drawn and kept first: after an interruption the same again gives
    the same credential.

    Args:
        ledger: the device's.
        policy: its owner's.
        target: the collector's HOST:PORT.
        token: 32 bytes, from whoever runs the collector.
        tls: how to know the collector, and to be known to it; None for plaintext, on this machine
            only. Its CA is kept, and where the device's own certificate and key are.

    Raises:
        StateError: it is enrolled already.
        AccessError: the token does not work, or the policy refuses the certificate.
        ConnectionLost: the collector went away; do the same again.
        ParameterError, DemurError: as `enrol` and `connected`.
    """
    known = ledger.identity
    if known is not None and known.credential is not None:
        raise StateError(
            f"the device is enrolled at {known.target} already; before it can be anew, "
            "demur device forget --all erases what it knows"
        )
    host, _ = split_target(target)
    if tls is None and not is_loopback(host):
        raise ParameterError("--target", target, "on this machine, unless --ca names a certificate")
    nonce = new_nonce() if known is None or known.nonce is None else known.nonce
    own = (tls.certificate_file, tls.key_file) if tls else (None, None)
    own_certificate, own_key = (str(path.resolve()) if path else None for path in own)
    identity = Identity(
        target=target,
        certificate=tls.ca if tls else None,
        own_certificate=own_certificate,
        own_key=own_key,
        nonce=nonce,
    )
    async with channel_of(identity, policy) as channel:
        ledger.keep_identity(identity)
        credential = await enrol(channel, token, nonce=nonce)
    ledger.keep_identity(replace(identity, nonce=None, credential=credential))
    return credential


def agent_of(ledger: Ledger, evaluator: DeployedEvaluator, *, policy: OwnerPolicy) -> Agent:
    """What runs an enrolled device, with the exact sampler and no way to seed it.

    Args:
        ledger: the device's.
        evaluator: of its owner's data; nothing else may look at them on a person's device.
        policy: its owner's.

    Raises:
        ParameterError: the policy accepts rounds without a slot, which show how long a value took.
        StateError: it is not enrolled, or its ledger could not be read and the identity is lost.
    """
    if not policy.shortest_slot_ms:
        raise ParameterError(
            "shortest_slot_ms",
            0,
            "at least 1: without a slot a report's time tells of its owner's data",
        )
    identity = ledger.identity
    if identity is None or identity.credential is None:
        if ledger.doubt:
            raise StateError(
                f"{ledger.doubt}, and no identity could be saved from it: the device is not enrolled any "
                "more. demur device enrol does that anew; every budget stays spent"
            )
        raise StateError("the device is not enrolled; do that first: demur device enrol")
    return Agent(
        ledger,
        evaluator,
        policy=policy,
        open_channel=partial(channel_of, identity, policy),
        credential=identity.credential,
    )
