"""Certificates for development: an authority, and what it signs."""

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from demur_proto.checks import check_integer, check_text
from demur_proto.errors import ParameterError

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
