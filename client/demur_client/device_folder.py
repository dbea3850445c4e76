"""The folder of a device: its ledger, its owner's policy, and how it reaches its collector."""

import hashlib
import logging
import os
import re
import signal
import ssl
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import final

import anyio
import grpc

from demur_client.connection import connected
from demur_client.enrolment import enrol, new_nonce
from demur_client.ledger.base import Identity, Ledger
from demur_client.ledger.file import LedgerFile
from demur_client.ledger.looking import LedgerCopy
from demur_client.policy import OwnerPolicy
from demur_client.policy_file import SourceConfig, load_policy, template
from demur_client.running import Agent
from demur_proto.channels import ClientTls, is_loopback, split_target
from demur_proto.credentials import DeviceCredential
from demur_proto.errors import AccessError, ParameterError, StateError, StorageError, ours_in

LEDGER = "ledger.sqlite"
POLICY = "policy.toml"
KEPT = Path("the certificate that was kept at enrolment")  #: what errors call it
logger = logging.getLogger(__name__)

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")


@final
class DeviceFolder:
    """Where one device keeps everything.

    Args:
        path: of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger_path = path / LEDGER
        self.policy_path = path / POLICY

    def make(self) -> None:
        """Make the folder, for its owner only, with a policy and a ledger.

        What is there already stays.

        Raises:
            StateError: there is a device already.
            StorageError: it cannot be made.
        """
        if self.ledger_path.exists():
            raise StateError(f"{self.path} holds a device already; name another --folder")
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self.policy_path.exists():
                handle = os.open(self.policy_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with open(handle, "w", encoding="utf-8") as file:
                    file.write(template())
        except OSError as error:
            raise StorageError(
                f"nothing can be kept in {self.path}: {error.strerror}; name another --folder"
            ) from None
        policy, _ = self.policy()
        self._open(policy).close()

    def policy(self) -> tuple[OwnerPolicy, SourceConfig]:
        """What the owner's policy says, and where the data are.

        Raises:
            ParameterError: as `load_policy`.
            StateError: there is no device in this folder.
        """
        if not self.path.is_dir():
            raise StateError(f"{self.path} holds no device; make one with: demur device init")
        return load_policy(self.policy_path)

    def ledger(self) -> LedgerFile:
        """The ledger, held to the policy's lifetime cap, for this process alone.

        Raises:
            StateError: there is no device in this folder, or another process has it.
            StorageError: it cannot be used.
        """
        policy, _ = self.policy()
        return self._open(policy)

    def look(self) -> LedgerCopy:
        """What the ledger holds now, whether the device runs or not.

        Raises:
            StateError: there is no device in this folder.
            NotFoundError, StorageError: there is no ledger, or it cannot be read.
        """
        policy, _ = self.policy()
        return LedgerCopy(self.ledger_path, caps=[policy.lifetime_cap])

    def _open(self, policy: OwnerPolicy) -> LedgerFile:
        return LedgerFile(self.ledger_path, caps=[policy.lifetime_cap])


def channel_of(
    identity: Identity, policy: OwnerPolicy
) -> AbstractAsyncContextManager[grpc.aio.Channel]:
    """A channel to the device's own collector, known by the certificate that was kept.

    Raises:
        AccessError: the policy does not let this certificate vouch.
        ParameterError: plaintext would leave this machine.
    """
    tls = None
    if identity.certificate is not None:
        tls = ClientTls(ca_file=KEPT, ca=pinned(identity.certificate, policy.certificates))
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
        tls: how to know the collector; None for plaintext, on this machine only. Its CA is kept.

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
    identity = Identity(target=target, certificate=tls.ca if tls else None, nonce=nonce)
    async with channel_of(identity, policy) as channel:
        ledger.keep_identity(identity)
        credential = await enrol(channel, token, nonce=nonce)
    ledger.keep_identity(
        Identity(target=target, certificate=identity.certificate, credential=credential)
    )
    return credential


async def run_folder(folder: DeviceFolder) -> None:
    """Run the device of a folder until the process is told to stop (SIGINT or SIGTERM).

    Raises:
        StateError: it is not enrolled, there is none, or it runs already.
        PolicyError: its owner's policy refuses every study.
        AccessError: the collector does not know it, or is not the right one.
        StorageError: its ledger cannot be used.
    """
    policy, source = folder.policy()
    with folder.ledger() as ledger:
        identity = ledger.identity
        if identity is None or identity.credential is None:
            raise StateError(
                f"the device in {folder.path} is not enrolled; do that first: demur device enrol"
            )
        agent = Agent(
            ledger,
            source.open(),
            policy=policy,
            open_channel=partial(channel_of, identity, policy),
            credential=identity.credential,
        )
        logger.info("started")
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_end_on_signal, tasks.cancel_scope)
                await agent.run()
        except BaseExceptionGroup as group:
            error = ours_in(group)
            if error is None:
                raise
            raise error from None
        logger.info("stopped")


async def _end_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()
            return
