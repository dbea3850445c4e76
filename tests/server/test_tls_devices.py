"""A device with a certificate of its own, at a collector that lets in nobody without one."""

from pathlib import Path

import pytest

from access_kit import opened
from demur_client.agent import fetch_study
from demur_client.enrolment import channel_of, enrol_device
from demur_client.ledger.base import Identity
from demur_client.ledger.file import LedgerFile
from demur_client.policy import OwnerPolicy
from demur_proto.errors import AccessError, ParameterError
from demur_proto.study import Study
from demur_proto.transport.channels import ClientTls
from demur_proto.wire.definition import Defined
from demur_server.grpc.tls import Authority, Issued, ServerTls


def put(folder: Path, name: str, issued: Issued) -> tuple[Path, Path]:
    """Where a certificate and its key are."""
    paths = folder / f"{name}.pem", folder / f"{name}.key"
    for path, content in zip(paths, (issued.certificate, issued.key), strict=True):
        path.write_bytes(content)
    return paths


async def test_it_is_shown_at_every_visit_as_the_files_are_then(
    study: Defined[Study], tmp_path: Path
) -> None:
    ours, theirs, policy = Authority(), Authority(), OwnerPolicy()
    ca, _ = put(tmp_path, "ca", ours.issued)
    server = ServerTls.read(*put(tmp_path, "server", ours.server(["127.0.0.1"])), client_ca=ca)
    certificate, key = put(tmp_path, "tablet", ours.client("tablet"))
    tls = ClientTls.read(ca, certificate=certificate, key=key)

    async with opened(study, tls=server) as house:
        target, token = f"127.0.0.1:{house.ports.collector}", await house.token()
        with LedgerFile(tmp_path / "ledger") as ledger:
            await enrol_device(ledger, policy, target=target, token=token, tls=tls)
        with LedgerFile(tmp_path / "ledger") as ledger:
            identity = ledger.identity
        assert identity is not None
        async with channel_of(identity, policy) as channel:
            assert await fetch_study(channel, credential=identity.credential) == study

        put(tmp_path, "tablet", theirs.client("tablet"))
        with pytest.raises(AccessError, match=str(certificate)):
            async with channel_of(identity, policy) as channel:
                await fetch_study(channel, credential=identity.credential)

    key.unlink()
    with pytest.raises(AccessError, match=str(key)):
        channel_of(identity, policy)


def test_a_certificate_without_its_key_is_no_identity() -> None:
    with pytest.raises(ParameterError, match="both, or neither"):
        Identity(target="127.0.0.1:1", own_certificate="tablet.pem")
