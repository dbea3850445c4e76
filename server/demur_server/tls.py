"""What a server proves with who it is, from files."""

import datetime
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes

from demur_proto.channels import read_pem
from demur_proto.errors import AccessError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """A server's certificate, its key, and who may vouch for clients. Made by `ServerTls.read`."""

    certificate: bytes = field(repr=False)  #: PEM, the server's own first
    key: bytes = field(repr=False)  #: PEM
    client_ca: bytes | None = field(default=None, repr=False)  #: PEM; None asks for no certificate

    @classmethod
    def read(
        cls,
        certificate: Path,
        key: Path,
        *,
        client_ca: Path | None = None,
        now: datetime.datetime | None = None,
    ) -> "ServerTls":
        """Read and check the files.

        Args:
            certificate: the server's certificate, then those that lead to its CA, in PEM form.
            key: its private key, not encrypted.
            client_ca: the CAs of which every client must have a certificate (mTLS); by default
                clients need none.
            now: the time by which certificates are judged; by default the clock's.

        Raises:
            AccessError: a file cannot be read, holds something else, has expired or is not valid
                yet; or the key does not fit.
        """
        now = now or datetime.datetime.now(datetime.UTC)
        chain = _certificates(certificate, now)
        held = _key(key)
        if _public(chain[0].public_key()) != _public(held.public_key()):
            raise AccessError(
                f"the key in {key} does not fit the certificate in {certificate}; take the two "
                "that were made together"
            )
        if client_ca is not None:
            for each in _certificates(client_ca, now):
                _check_authority(each, client_ca)
        return cls(
            certificate=read_pem(certificate),
            key=read_pem(key),
            client_ca=None if client_ca is None else read_pem(client_ca),
        )

    def credentials(self) -> grpc.ServerCredentials:
        """For gRPC."""
        return grpc.ssl_server_credentials(
            [(self.key, self.certificate)],
            root_certificates=self.client_ca,
            require_client_auth=self.client_ca is not None,
        )


def _certificates(path: Path, now: datetime.datetime) -> list[x509.Certificate]:
    try:
        found = x509.load_pem_x509_certificates(read_pem(path))
    except ValueError:
        raise AccessError(
            f"{path} holds no certificate in PEM form; it should begin with "
            "-----BEGIN CERTIFICATE-----"
        ) from None
    for each in found:
        if each.not_valid_after_utc < now:
            raise AccessError(
                f"the certificate in {path} expired on {each.not_valid_after_utc:%Y-%m-%d}; put a "
                "new one there (demur certs makes some for development)"
            )
        if each.not_valid_before_utc > now:
            raise AccessError(
                f"the certificate in {path} is valid from {each.not_valid_before_utc:%Y-%m-%d} "
                "only; check this machine's clock"
            )
    return found


def _key(path: Path) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(read_pem(path), password=None)
    except TypeError:
        raise AccessError(
            f"the key in {path} is encrypted; take one that is not, readable by the server only"
        ) from None
    except ValueError:
        raise AccessError(f"{path} holds no private key in PEM form") from None


def _public(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _check_authority(certificate: x509.Certificate, path: Path) -> None:
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except x509.ExtensionNotFound:
        return  # an old one, which does not say
    if not constraints.value.ca:
        raise AccessError(
            f"{path} holds a certificate that cannot sign others; name the one of the CA"
        )
