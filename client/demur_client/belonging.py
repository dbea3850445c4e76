"""Whom a device belongs to: how it becomes known to its collector, and reaches it ever after."""

import hashlib
import re
import ssl
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import grpc

from demur_client.connection import connected
from demur_client.enrolment import enrol, new_nonce
from demur_client.evaluator.opening import DeployedEvaluator
from demur_client.ledger.base import Identity, Ledger
from demur_client.policy import OwnerPolicy
from demur_client.running import Agent
from demur_proto.channels import ClientTls, is_loopback, read_pem, split_target
from demur_proto.credentials import DeviceCredential
from demur_proto.errors import AccessError, ParameterError, StateError

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
