"""Certificates made for development, and files that are not what they should be."""

import argparse
import datetime
import json
import os
import ssl
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from demur_proto.errors import AccessError, ParameterError, StateError, StorageError
from demur_proto.transport.channels import ClientTls
from demur_server.commands.certs import make_folder
from demur_server.grpc.tls import Authority, ServerTls
from demur_sim.cli import main

NOW = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
DAY = datetime.timedelta(days=1)
HOUR = datetime.timedelta(hours=1)


# ---- demur certs -----------------------------------------------------------------------------


def test_what_certs_makes_serves_and_connects(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "certs"

    assert main(["certs", str(folder)]) == 0

    ServerTls.read(folder / "server.pem", folder / "server.key", client_ca=folder / "ca.pem")
    ClientTls.read(folder / "ca.pem", certificate=folder / "client.pem", key=folder / "client.key")
    names = {"ca.pem", "ca.key", "server.pem", "server.key", "client.pem", "client.key"}
    assert {path.name for path in folder.iterdir()} == names


def test_an_openssl_that_is_strict_accepts_the_certificates(tmp_path: Path) -> None:
    """By the standard library in memory, with all that later Pythons check by default."""
    make_folder(tmp_path, hosts=("127.0.0.1", "a.example.org"), clients=("phone",), days=3)
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    server_side.load_verify_locations(tmp_path / "ca.pem")
    server_side.verify_mode = ssl.CERT_REQUIRED
    client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_side.load_cert_chain(tmp_path / "phone.pem", tmp_path / "phone.key")
    client_side.load_verify_locations(tmp_path / "ca.pem")
    for context in (server_side, client_side):
        context.verify_flags |= ssl.VERIFY_X509_STRICT

    for name in ("127.0.0.1", "a.example.org"):
        assert shake_hands(client_side, server_side, name)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake_hands(client_side, server_side, "b.example.org")


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> bool:
    """A whole handshake without a socket."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(back, there, server_hostname=name),
        server.wrap_bio(there, back, server_side=True),
    ]
    done = [False, False]
    for _ in range(10):
        for i, end in enumerate(ends):
            try:
                end.do_handshake()
                done[i] = True
            except ssl.SSLWantReadError:
                pass
    return all(done)


def test_only_their_owner_can_read_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    before = os.umask(0)
    try:
        make_folder(folder, hosts=("localhost",), clients=("a", "b"), days=1)
    finally:
        os.umask(before)

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = list(folder.iterdir())
    assert len(files) == 8
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


@pytest.mark.parametrize("taken", ["ca.pem", "ca.key", "server.pem", "client.key"])
def test_no_file_is_ever_overwritten(
    tmp_path: Path, taken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / taken).write_text("mine")

    assert main(["certs", str(tmp_path)]) == 1

    assert capsys.readouterr().err == (
        f"demur: error: {tmp_path / taken} exists and is kept; name another folder, or move it "
        "away\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == [taken]
    assert (tmp_path / taken).read_text() == "mine"


def test_not_even_what_a_link_leads_to_is_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    folder = tmp_path / "certs"
    folder.mkdir()
    (folder / "ca.key").symlink_to(target)

    with pytest.raises(StateError, match="exists and is kept"):
        make_folder(folder, hosts=("localhost",), clients=(), days=1)

    assert not target.exists()


def test_where_nothing_can_be_written_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot be written: .*; name another folder"):
        make_folder(tmp_path / "file" / "certs", hosts=("a",), clients=(), days=1)

    (tmp_path / "certs").mkdir()
    long = "c" * 60
    with pytest.raises(ParameterError):
        make_folder(tmp_path / "certs", hosts=("a",), clients=(long + "c",), days=1)
    assert not list((tmp_path / "certs").iterdir())


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--days", "0"], "days must be an integer >= 1 and <= 3650, got 0"),
        (["--days", "3651"], "days must be an integer >= 1 and <= 3650, got 3651"),
        (["--days", "soon"], "argument --days: invalid int value: 'soon'"),
        (["--host", ""], "host must be a name or an address, without a port, got ''"),
        (["--host", "a:443"], "without a port, got 'a:443'"),
        (["--host", "127.0.0.256"], "without a port, got '127.0.0.256'"),
        (["--host", "*.example.org"], "without a port, got '*.example.org'"),
        (["--host", "-a.org"], "expected one argument"),
        (["--host", "ä.org"], "without a port, got 'ä.org'"),
        (["--client", "../a"], "client must be 1 to 60 letters, digits, - and _"),
        (["--client", "ca"], "and neither ca nor server, got 'ca'"),
        (["--client", "Server"], "and neither ca nor server, got 'Server'"),
        (["--client", ""], "client must be 1 to 60 letters, digits, - and _"),
    ],
)
def test_wrong_arguments_are_one_clear_line_and_nothing_is_made(
    tmp_path: Path, arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "certs"
    try:
        code = main(["certs", str(folder), *arguments])
    except SystemExit as stop:
        code = int(str(stop.code))

    said = capsys.readouterr().err
    assert code == 2
    assert complaint in said
    assert said.count("\n") == 1
    assert not folder.exists()


def test_the_json_twin_names_every_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "certs"
    arguments = ["--json", "--host", "a.org", "--host", "::1", "--client", "x", "--client", "y"]

    assert main(["certs", str(folder), *arguments, "--days", "7"]) == 0

    told = json.loads(capsys.readouterr().out)
    pairs = [told["ca"], told["server"], *told["clients"].values()]
    named = {Path(path) for pair in pairs for path in pair.values()}
    assert named == set(folder.iterdir())
    assert (told["hosts"], told["days"], list(told["clients"])) == (["a.org", "::1"], 7, ["x", "y"])


def test_people_are_told_what_each_file_is_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certs", str(tmp_path / "certs"), "--host", "a.org"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} == set(map(str, (tmp_path / "certs").iterdir()))
    assert any("for the server: a.org" in line for line in lines)


# ---- what is in a certificate ----------------------------------------------------------------


def test_a_certificate_says_what_it_may_be_used_for() -> None:
    authority = Authority(days=10, now=NOW)
    server = x509.load_pem_x509_certificate(authority.server(["a.org", "10.0.0.1"]).certificate)
    client = x509.load_pem_x509_certificate(authority.client("phone").certificate)
    ca = x509.load_pem_x509_certificate(authority.issued.certificate)

    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["a.org"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]
    for certificate, purpose in (
        (server, ExtendedKeyUsageOID.SERVER_AUTH),
        (client, ExtendedKeyUsageOID.CLIENT_AUTH),
    ):
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(usage) == [purpose]
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        assert not basic.ca
        certificate.verify_directly_issued_by(ca)
    basic = ca.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (basic.ca, basic.path_length) == (True, 0)
    for each in (ca, server, client):
        assert each.not_valid_before_utc == NOW - HOUR
        assert each.not_valid_after_utc == NOW + 10 * DAY
    assert len({each.serial_number for each in (ca, server, client)}) == 3


def test_no_private_key_is_shown() -> None:
    issued = Authority().client("phone")

    assert "PRIVATE" not in repr(issued)
    assert "certificate=" in repr(issued)


# ---- files that are wrong --------------------------------------------------------------------

Making = Callable[[Path, Path, Path], object]
"""From a CA file, a certificate file and a key file."""


def serving(ca: Path, certificate: Path, key: Path) -> object:
    return ServerTls.read(certificate, key, client_ca=ca, now=NOW)


def connecting(ca: Path, certificate: Path, key: Path) -> object:
    return ClientTls.read(ca, certificate=certificate, key=key)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    authority = Authority(days=3650, now=NOW - 3649 * DAY)
    issued = authority.server(["a.org"])
    paths = tmp_path / "ca.pem", tmp_path / "own.pem", tmp_path / "own.key"
    contents = (authority.issued.certificate, issued.certificate, issued.key)
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return paths


Files = tuple[Path, Path, Path]


@pytest.mark.parametrize("make", [serving, connecting])
def test_right_files_are_right(files: Files, make: Making) -> None:
    made = make(*files)

    assert "PRIVATE" not in repr(made)
    assert "CERTIFICATE" not in repr(made)


@pytest.mark.parametrize("make", [serving, connecting])
@pytest.mark.parametrize("which", range(3))
def test_a_file_that_cannot_be_read_is_named(files: Files, make: Making, which: int) -> None:
    files[which].unlink()
    with pytest.raises(AccessError) as caught:
        make(*files)
    assert str(caught.value) == (
        f"{files[which]} cannot be read: No such file or directory; name a file in PEM form"
    )

    files[which].mkdir()
    with pytest.raises(AccessError, match="cannot be read: Is a directory; name a file"):
        make(*files)


@pytest.mark.parametrize("make", [serving, connecting])
@pytest.mark.parametrize(
    "content", [b"", b"nothing", b"\xff\x00", b"-----BEGIN CERTIFICATE-----\n"]
)
@pytest.mark.parametrize("which", range(2))
def test_a_file_that_holds_no_certificate_is_named(
    files: Files, make: Making, which: int, content: bytes
) -> None:
    files[which].write_bytes(content)

    with pytest.raises(AccessError) as caught:
        make(*files)
    assert str(caught.value) == (
        f"{files[which]} holds no certificate in PEM form; it should begin with "
        "-----BEGIN CERTIFICATE-----"
    )


@pytest.mark.parametrize("make", [serving, connecting])
@pytest.mark.parametrize("content", [b"", b"nothing", b"-----BEGIN PRIVATE KEY-----\n"])
def test_a_file_that_holds_no_key_is_named(files: Files, make: Making, content: bytes) -> None:
    files[2].write_bytes(content)

    with pytest.raises(AccessError) as caught:
        make(*files)
    assert str(caught.value) == f"{files[2]} holds no private key in PEM form"


@pytest.mark.parametrize("make", [serving, connecting])
def test_a_key_that_does_not_fit_is_named_with_its_certificate(files: Files, make: Making) -> None:
    files[2].write_bytes(Authority().client("another").key)

    with pytest.raises(AccessError) as caught:
        make(*files)
    assert str(caught.value) == (
        f"the key in {files[2]} does not fit the certificate in {files[1]}; take the two that were "
        "made together"
    )


@pytest.mark.parametrize("make", [serving, connecting])
def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_a_password(
    files: Files, make: Making
) -> None:
    key = serialization.load_pem_private_key(files[2].read_bytes(), password=None)
    files[2].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"1234"),
        )
    )

    with pytest.raises(AccessError, match=rf"the key in {files[2]} is encrypted; take one that is"):
        make(*files)


def test_what_has_expired_or_is_not_valid_yet_is_not_served_with(files: Files) -> None:
    ca, certificate, key = files
    for now, said in (
        (NOW + 2 * DAY, f"expired on {NOW + DAY:%Y-%m-%d}; put a new one there (demur certs makes"),
        (
            NOW - 4000 * DAY,
            f"is valid from {NOW - 3649 * DAY - HOUR:%Y-%m-%d} only; check this machine's clock",
        ),
    ):
        with pytest.raises(AccessError) as caught:
            ServerTls.read(certificate, key, now=now)
        assert str(certificate) in str(caught.value)
        assert said in str(caught.value)

    old = Authority(days=1, now=NOW - 9 * DAY)
    ca.write_bytes(old.issued.certificate)
    with pytest.raises(AccessError, match=f"{ca} expired on {NOW - 8 * DAY:%Y-%m-%d}; put"):
        ServerTls.read(certificate, key, client_ca=ca, now=NOW)


def test_a_ca_that_has_expired_is_not_connected_with(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(
        Authority(days=1, now=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)).issued.certificate
    )

    with pytest.raises(AccessError) as caught:
        ClientTls.read(ca)

    assert str(caught.value) == (
        f"the certificate in {ca} expired on Jan  2 00:00:00 2020 GMT; get a new one from whoever "
        "runs the collector"
    )


def test_a_servers_own_certificate_is_no_client_ca(files: Files) -> None:
    _, certificate, key = files

    with pytest.raises(AccessError, match="holds a certificate that cannot sign others; name the"):
        ServerTls.read(certificate, key, client_ca=certificate, now=NOW)


def test_a_certificate_alone_or_a_key_alone_is_refused(files: Files) -> None:
    ca, certificate, key = files

    for pair in ({"certificate": certificate}, {"key": key}):
        with pytest.raises(ParameterError, match="certificate and key must be both, or neither"):
            ClientTls.read(ca, **pair)


def test_hosts_and_names_of_certificates_are_checked() -> None:
    authority = Authority()

    with pytest.raises(ParameterError, match="hosts must be at least one name or address"):
        authority.server([])
    for wrong in ("", "a" * 61, "a\nb"):
        with pytest.raises(ParameterError, match="name must be 1 to 60 printable characters"):
            authority.client(wrong)
    for days in (0, 3651, 1.5, True):
        with pytest.raises(ParameterError, match="days must be an integer"):
            Authority(days=days)  # type: ignore[arg-type]


def test_the_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    from demur_server.commands import certs as certs_command

    parser = argparse.ArgumentParser(prog="demur")
    certs_command.add_commands(parser.add_subparsers())
    with pytest.raises(SystemExit):
        parser.parse_args(["certs", "--help"])

    assert "for anything but development" in " ".join(capsys.readouterr().out.split())
