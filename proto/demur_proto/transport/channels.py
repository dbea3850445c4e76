"""Channels to a collector: TLS from files, plaintext on loopback only, and why one cannot connect."""

import asyncio
import ipaddress
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import anyio
import grpc

from demur_proto.errors import AccessError, ConnectionLost, ParameterError

PROBE_S = 3.0  #: how long to look for why a connection failed
AGAIN_S = 0.2
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # of HTTP/2
EXPIRED = 10  # X509_V_ERR_CERT_HAS_EXPIRED
NOT_YET_VALID = 9  # X509_V_ERR_CERT_NOT_YET_VALID
OTHER_NAME = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """How a caller knows its collector, and is known to it. Made by `ClientTls.read`."""

    ca_file: Path
    ca: bytes = field(repr=False)  #: certificates in PEM form
    certificate_file: Path | None = None
    certificate: bytes | None = field(default=None, repr=False)
    key_file: Path | None = None
    key: bytes | None = field(default=None, repr=False)

    @classmethod
    def read(
        cls, ca: Path, *, certificate: Path | None = None, key: Path | None = None
    ) -> "ClientTls":
        """Read and check the files.

        Args:
            ca: the certificates of the authorities that may vouch for the collector, in PEM form.
            certificate: the caller's own, where the collector asks for one.
            key: its private key, not encrypted.

        Raises:
            ParameterError: a certificate without a key, or the reverse.
            AccessError: a file cannot be read, holds something else, or has expired; or the key
                does not fit.
        """
        if (certificate is None) != (key is None):
            raise ParameterError(
                "certificate and key", "one of them", "both, or neither: one is of no use alone"
            )
        made = cls(
            ca_file=ca,
            ca=read_pem(ca),
            certificate_file=certificate,
            certificate=None if certificate is None else read_pem(certificate),
            key_file=key,
            key=None if key is None else read_pem(key),
        )
        context = made._context()
        for each in context.get_ca_certs():
            until = str(each["notAfter"])
            if ssl.cert_time_to_seconds(until) < time.time():
                raise AccessError(
                    f"the certificate in {ca} expired on {until}; get a new one from whoever "
                    "runs the collector"
                )
        return made

    def credentials(self) -> grpc.ChannelCredentials:
        """For gRPC."""
        return grpc.ssl_channel_credentials(self.ca, self.key, self.certificate)

    def _context(self) -> ssl.SSLContext:
        """For the standard library, which says better what is wrong."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _trust(context, self.ca, self.ca_file)
        if self.certificate_file and self.key_file and self.certificate is not None:
            _trust(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), self.certificate, self.certificate_file)
            _present(context, self.certificate_file, self.key_file)
        return context


@asynccontextmanager
async def open_channel(
    target: str,
    *,
    tls: ClientTls | None = None,
    insecure_plaintext: bool = False,
    options: Sequence[tuple[str, Any]] = (),
) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a collector.

    Args:
        target: `HOST:PORT`; an IPv6 address stands in brackets.
        tls: how to know the collector; None for plaintext.
        insecure_plaintext: allow plaintext to another machine. Whoever is on the way then reads
            the credential and every report, and can use the credential.
        options: of gRPC.

    Raises:
        ParameterError: not a target, or plaintext that would leave this machine.
        AccessError: the connection fails because of a certificate; instead of a `ConnectionLost`
            that leaves the block.
    """
    host, port = split_target(target)
    if tls is None and not insecure_plaintext and not is_loopback(host):
        raise ParameterError(
            "target", target, "a loopback address with a port, unless TLS is used (a CA file)"
        )
    options = [("grpc.enable_http_proxy", 0), *options]
    if tls is None:
        channel = grpc.aio.insecure_channel(target, options=options)
    else:
        channel = grpc.aio.secure_channel(target, tls.credentials(), options=options)
    async with channel:
        try:
            yield channel
        except ConnectionLost:
            await _explain(target, host, port, tls)
            raise


def split_target(target: str) -> tuple[str, int]:
    """Host and port.

    Raises:
        ParameterError: it is not HOST:PORT.

    >>> split_target("[::1]:443")
    ('::1', 443)
    """
    host, _, port = target.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    plain = host.isprintable() and not any(sign in host for sign in "/@[] ")
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else 0
    if not host or not plain or (":" in host) != bracketed or not 0 < number <= 65535:
        raise ParameterError("target", target, "HOST:PORT, or a loopback address with a port")
    return host, number


def is_loopback(host: str) -> bool:
    """Whether what is sent there stays on this machine.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("a.org")
    (True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_pem(path: Path) -> bytes:
    """The bytes of a file with certificates or a key.

    Raises:
        AccessError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise AccessError(
            f"{path} cannot be read: {error.strerror}; name a file in PEM form"
        ) from None


def _trust(context: ssl.SSLContext, certificates: bytes, path: Path) -> None:
    try:
        context.load_verify_locations(cadata=certificates.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise AccessError(
            f"{path} holds no certificate in PEM form; it should begin with "
            "-----BEGIN CERTIFICATE-----"
        ) from None


def _present(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    def ask_nobody() -> NoReturn:
        raise AccessError(f"the key in {key} is encrypted; take one that is not, readable by you")

    try:
        context.load_cert_chain(certificate, key, password=ask_nobody)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise AccessError(
                f"the key in {key} does not fit the certificate in {certificate}; take the two "
                "that were made together"
            ) from None
        raise AccessError(f"{key} holds no private key in PEM form") from None


async def _explain(target: str, host: str, port: int, tls: ClientTls | None) -> None:
    """Raise a reason for a failed connection that only a change of files can remove, if any.

    gRPC says it in words of its own, or not at all; so the handshake is made once more.
    """
    try:
        with anyio.fail_after(PROBE_S):
            answered = await _answers(host, port, tls)
            if not answered and tls is not None:  # perhaps it was just going away
                await anyio.sleep(AGAIN_S)
                answered = await _answers(host, port, tls)
    except ssl.SSLCertVerificationError as error:
        if tls is not None:
            raise AccessError(_unverified(target, host, error, tls)) from None
        return
    except ssl.SSLError:
        if tls is not None:
            raise AccessError(
                f"{target} does not speak TLS; serve it with a certificate, or connect without "
                f"{tls.ca_file}"
            ) from None
        return
    except (OSError, TimeoutError):
        return  # nobody is there
    if tls is None:
        raise AccessError(f"{target} speaks TLS only; connect with the file of its CA")
    if not answered:
        shown = f"not the one in {tls.certificate_file}" if tls.certificate_file else "and got none"
        raise AccessError(
            f"{target} wants a client certificate that its client CA signed and that has not "
            f"expired, {shown}; get one from whoever runs the collector"
        )


async def _answers(host: str, port: int, tls: ClientTls | None) -> bool:
    """Whether a server that speaks TLS goes on once it has seen our certificate, or none."""
    if tls is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context = tls._context()
    context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host)
    try:
        writer.write(HELLO)
        return bool(await reader.read(1))
    except OSError:
        return False
    finally:
        writer.transport.abort()


def _unverified(target: str, host: str, error: ssl.SSLCertVerificationError, tls: ClientTls) -> str:
    code = error.verify_code
    if code == EXPIRED:
        return f"the certificate of {target} has expired; whoever runs the collector must renew it"
    if code == NOT_YET_VALID:
        return f"the certificate of {target} is not valid yet; check this machine's clock"
    if code in OTHER_NAME:
        return (
            f"the certificate of {target} is not for {host}; use a name that it is for, or have "
            "one made for this name too"
        )
    return (
        f"the CA in {tls.ca_file} does not vouch for {target} ({error.verify_message}); get the "
        "right CA file from whoever runs the collector"
    )
