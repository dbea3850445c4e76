"""What a server proves with who it is, from files."""

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from demur_proto.checks import check_integer, check_text
from demur_proto.errors import AccessError, ParameterError
from demur_proto.transport.channels import read_pem


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


# Certificates for development: an authority, and what it signs.

LONGEST_DAYS = 3650
CLOCKS_APART = datetime.timedelta(hours=1)  #: how far another machine's clock may be behind


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A certificate and its private key, in PEM form."""

    certificate: bytes
    key: bytes = field(repr=False)


class Authority:
    """Signs certificates for servers and clients, as long as it is in memory.

    Args:
        days: how long it and what it signs are valid, from 1 to 3650.
        now: the time from which they are; by default an hour ago.

    Raises:
        ParameterError: the days are out of range.
    """

    def __init__(self, *, days: int = 365, now: datetime.datetime | None = None) -> None:
        check_integer("days", days, 1, LONGEST_DAYS)
        self._from = (now or datetime.datetime.now(datetime.UTC)) - CLOCKS_APART
        self._until = self._from + CLOCKS_APART + datetime.timedelta(days=days)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("demur development authority")
        built = self._begun(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        built = built.add_extension(_usage(signs_certificates=True), critical=True)
        self._certificate = built.sign(self._key, hashes.SHA256())

    @property
    def issued(self) -> Issued:
        """The authority's own certificate and key."""
        return _written(self._certificate, self._key)

    def server(self, hosts: Sequence[str]) -> Issued:
        """A certificate for a server.

        Args:
            hosts: the names and addresses by which clients reach it; at least one.

        Raises:
            ParameterError: one is neither a name nor an address.
        """
        if not hosts:
            raise ParameterError("hosts", hosts, "at least one name or address")
        names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
        return self._signed(hosts[0], ExtendedKeyUsageOID.SERVER_AUTH, names)

    def client(self, name: str) -> Issued:
        """A certificate for a client.

        Args:
            name: what it is called, 1 to 60 printable characters.

        Raises:
            ParameterError: it is not called that.
        """
        check_text("name", name, longest=60)
        return self._signed(name, ExtendedKeyUsageOID.CLIENT_AUTH, None)

    def _signed(
        self,
        name: str,
        purpose: x509.ObjectIdentifier,
        names: x509.SubjectAlternativeName | None,
    ) -> Issued:
        key = ec.generate_private_key(ec.SECP256R1())
        built = self._begun(_name(name), key)
        built = built.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        built = built.add_extension(_usage(signs_certificates=False), critical=True)
        built = built.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        if names is not None:
            built = built.add_extension(names, critical=False)
        return _written(built.sign(self._key, hashes.SHA256()), key)

    def _begun(self, name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._from)
            .not_valid_after(self._until)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(issuer, False)
        )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.split(".")  # of digits alone, the last one is of a mistyped address
    if len(host) > 253 or labels[-1].isdigit() or not all(map(_is_label, labels)):
        raise ParameterError("host", host, "a name or an address, without a port")
    return x509.DNSName(host)


def _is_label(label: str) -> bool:
    plain = label.isascii() and label.replace("-", "a").isalnum()
    return plain and len(label) <= 63 and not label.startswith("-") and not label.endswith("-")


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _written(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Issued:
    return Issued(
        certificate=certificate.public_bytes(serialization.Encoding.PEM),
        key=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
