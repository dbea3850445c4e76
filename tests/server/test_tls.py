"""Real TLS on loopback: who is trusted, and what is said when somebody is not."""

import datetime
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import grpc
import pytest

from access_kit import House, opened
from demur_client.agent import fetch_study
from demur_client.connection import connected
from demur_client.enrolment import enrol
from demur_proto.errors import AccessError, ConnectionLost, ParameterError
from demur_proto.queries import Feature, Linear
from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.transport.channels import ClientTls, is_loopback, split_target
from demur_proto.transport.credentials import DeviceCredential
from demur_proto.wire.definition import Defined
from demur_server.analyst import Analyst
from demur_server.grpc.tls import Authority, Issued, ServerTls
from demur_server.store.base import Role

LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)

Ask = Callable[..., Defined[Round]]


class Shelf:
    """Certificates as files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ours, self.theirs = Authority(), Authority()
        self.old = Authority(days=2, now=LONG_AGO)
        self.soon = Authority(now=datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=9))

    def put(self, name: str, issued: Issued) -> tuple[Path, Path]:
        """Where the certificate and the key are."""
        paths = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        for path, content in zip(paths, (issued.certificate, issued.key), strict=True):
            path.write_bytes(content)
        return paths

    def ca(self, name: str, authority: Authority) -> Path:
        return self.put(f"{name}-ca", authority.issued)[0]

    def server(self, *hosts: str, client_ca: Path | None = None) -> ServerTls:
        """What a server of these names proves who it is with."""
        certificate, key = self.put("server", self.ours.server(hosts or ("127.0.0.1",)))
        return ServerTls.read(certificate, key, client_ca=client_ca)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("shelf"))


@pytest.fixture
def trusting(shelf: Shelf) -> ClientTls:
    """A client that knows our CA, and shows nothing."""
    return ClientTls.read(shelf.ca("ours", shelf.ours))


async def fetched(house: House, tls: ClientTls | None, *, host: str = "127.0.0.1") -> str:
    """Fetch a study in every respect as a device does; what is said if it fails."""
    credential = await house.device()
    try:
        async with connected(f"{host}:{house.ports.collector}", tls=tls) as channel:
            await fetch_study(channel, credential=credential)
    except AccessError as error:
        return str(error).replace(str(house.ports.collector), "PORT")
    return "let in"


# ---- those who are let in --------------------------------------------------------------------


async def test_devices_and_analysts_work_over_tls_as_they_do_without(
    shelf: Shelf, trusting: ClientTls, study: Defined[Study], ask: Ask
) -> None:
    async with opened(study, tls=shelf.server()) as house:
        analyst = await house.named("analyst", Role.ANALYST)
        async with connected(f"127.0.0.1:{house.ports.collector}", tls=trusting) as channel:
            credential = await enrol(channel, await house.token())
            assert isinstance(credential, DeviceCredential)
            assert await fetch_study(channel, credential=credential) == study
        async with Analyst.create(
            f"127.0.0.1:{house.ports.analyst}", study.value, credential=analyst, tls=trusting
        ) as asking:
            asked = await asking.open(Linear([Feature(name="x")], on_grid=True))
            assert (await asking.close(asked)).reports == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_server_is_known_by_each_name_in_its_certificate(
    shelf: Shelf, trusting: ClientTls, study: Defined[Study], host: str
) -> None:
    async with opened(study, tls=shelf.server("localhost", "127.0.0.1", "::1")) as house:
        assert await fetched(house, trusting, host=host) == "let in"


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6 here")
async def test_a_server_is_reached_by_ipv6(
    shelf: Shelf, trusting: ClientTls, study: Defined[Study]
) -> None:
    async with opened(study, host="::1", tls=shelf.server("::1")) as house:
        assert await fetched(house, trusting, host="[::1]") == "let in"


async def test_a_client_with_a_certificate_of_the_client_ca_is_let_in(
    shelf: Shelf, study: Defined[Study]
) -> None:
    ca = shelf.ca("ours", shelf.ours)
    certificate, key = shelf.put("client", shelf.ours.client("phone"))
    both = ClientTls.read(ca, certificate=certificate, key=key)

    async with opened(study, tls=shelf.server(client_ca=ca)) as house:
        assert await fetched(house, both) == "let in"


async def test_a_certificate_is_no_credential(shelf: Shelf, study: Defined[Study]) -> None:
    ca = shelf.ca("ours", shelf.ours)
    certificate, key = shelf.put("client", shelf.ours.client("phone"))
    both = ClientTls.read(ca, certificate=certificate, key=key)

    async with (
        opened(study, tls=shelf.server(client_ca=ca)) as house,
        connected(f"127.0.0.1:{house.ports.collector}", tls=both) as channel,
    ):
        with pytest.raises(AccessError, match="not let in"):
            await fetch_study(channel)


async def test_devices_may_need_no_certificate_where_analysts_need_one(
    shelf: Shelf, trusting: ClientTls, study: Defined[Study]
) -> None:
    ca = shelf.ca("ours", shelf.ours)
    certificate, key = shelf.put("analyst", shelf.ours.client("analyst"))
    both = ClientTls.read(ca, certificate=certificate, key=key)
    tls = shelf.server()

    async with opened(study, tls=tls, analyst_tls=shelf.server(client_ca=ca)) as house:
        analyst = await house.named("analyst", Role.ANALYST)
        target = f"127.0.0.1:{house.ports.analyst}"
        assert await fetched(house, trusting) == "let in"
        async with Analyst.create(target, study.value, credential=analyst, tls=both):
            pass
        with pytest.raises(AccessError, match="wants a client certificate"):
            async with Analyst.create(target, study.value, credential=analyst, tls=trusting):
                pass


# ---- those who are not -----------------------------------------------------------------------


async def test_a_server_that_the_ca_does_not_vouch_for_is_not_talked_to(
    shelf: Shelf, study: Defined[Study]
) -> None:
    ca = shelf.ca("theirs", shelf.theirs)

    async with opened(study, tls=shelf.server()) as house:
        said = await fetched(house, ClientTls.read(ca))

    assert said == (
        f"the CA in {ca} does not vouch for 127.0.0.1:PORT (unable to get local issuer "
        "certificate); get the right CA file from whoever runs the collector"
    )


@pytest.mark.parametrize("names", [("example.org",), ("127.0.0.2", "localhost")])
async def test_a_server_with_a_certificate_for_another_name_is_not_talked_to(
    shelf: Shelf, trusting: ClientTls, study: Defined[Study], names: tuple[str, ...]
) -> None:
    async with opened(study, tls=shelf.server(*names)) as house:
        said = await fetched(house, trusting)

    assert said == (
        "the certificate of 127.0.0.1:PORT is not for 127.0.0.1; use a name that it is for, or "
        "have one made for this name too"
    )


@asynccontextmanager
async def badly_served(issued: Issued) -> AsyncIterator[int]:
    """A bare gRPC server with a certificate that ours would refuse to serve with."""
    server = grpc.aio.server()
    credentials = grpc.ssl_server_credentials([(issued.key, issued.certificate)])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


async def test_an_expired_certificate_of_a_server_is_not_trusted(shelf: Shelf) -> None:
    """Its CA is valid still: it was made in the same second, for other years."""
    young = Authority()
    young._from = LONG_AGO
    young._until = LONG_AGO + datetime.timedelta(days=9)
    ca = shelf.ca("young", young)

    async with badly_served(young.server(["127.0.0.1"])) as port:
        with pytest.raises(AccessError) as caught:
            async with connected(f"127.0.0.1:{port}", tls=ClientTls.read(ca)) as channel:
                await fetch_study(channel)

    assert str(caught.value) == (
        f"the certificate of 127.0.0.1:{port} has expired; whoever runs the collector must renew it"
    )


async def test_a_certificate_of_the_future_is_not_trusted(shelf: Shelf) -> None:
    ahead = Authority()
    ahead._from = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    ca = shelf.ca("ahead", ahead)

    async with badly_served(ahead.server(["127.0.0.1"])) as port:
        with pytest.raises(AccessError, match="is not valid yet; check this machine's clock"):
            async with connected(f"127.0.0.1:{port}", tls=ClientTls.read(ca)) as channel:
                await fetch_study(channel)


@pytest.mark.parametrize("which", ["none", "another CA's", "expired", "a server's"])
async def test_a_client_without_the_right_certificate_is_told_which_file_is_wrong(
    shelf: Shelf, study: Defined[Study], which: str
) -> None:
    ca = shelf.ca("ours", shelf.ours)
    client_ca = shelf.put("old", shelf.old.issued)[0] if which == "expired" else ca
    issued = {
        "another CA's": shelf.theirs.client("phone"),
        "expired": shelf.old.client("phone"),
        "a server's": shelf.ours.server(["127.0.0.1"]),
    }
    shown = "and got none"
    tls = ClientTls.read(ca)
    if which in issued:
        certificate, key = shelf.put("wrong", issued[which])
        tls = ClientTls.read(ca, certificate=certificate, key=key)
        shown = f"not the one in {certificate}"
    certificate, key = shelf.put("server", shelf.ours.server(["127.0.0.1"]))
    serving = ServerTls(
        certificate=certificate.read_bytes(),
        key=key.read_bytes(),
        client_ca=client_ca.read_bytes(),
    )

    async with opened(study, tls=serving) as house:
        said = await fetched(house, tls)

    assert said == (
        "127.0.0.1:PORT wants a client certificate that its client CA signed and that has not "
        f"expired, {shown}; get one from whoever runs the collector"
    )


async def test_tls_and_plaintext_do_not_understand_each_other_and_say_so(
    shelf: Shelf, trusting: ClientTls, study: Defined[Study]
) -> None:
    async with opened(study) as house:
        said = await fetched(house, trusting)
    assert said == (
        "127.0.0.1:PORT does not speak TLS; serve it with a certificate, or connect without "
        f"{trusting.ca_file}"
    )

    async with opened(study, tls=shelf.server()) as house:
        said = await fetched(house, None)
    assert said == "127.0.0.1:PORT speaks TLS only; connect with the file of its CA"


async def test_a_collector_that_is_gone_is_lost_and_nothing_is_wrong_with_a_file(
    shelf: Shelf, trusting: ClientTls, study: Defined[Study]
) -> None:
    async with opened(study, tls=shelf.server()) as house:
        gone = house.ports.collector

    for tls in (trusting, None):
        with pytest.raises(ConnectionLost, match="unavailable"):
            async with connected(f"127.0.0.1:{gone}", tls=tls) as channel:
                await fetch_study(channel)


async def test_a_lost_call_to_a_collector_that_is_well_stays_a_lost_connection(
    shelf: Shelf, trusting: ClientTls, study: Defined[Study]
) -> None:
    for tls, serving in ((trusting, shelf.server()), (None, None)):
        async with opened(study, tls=serving) as house:
            with pytest.raises(ConnectionLost, match="of another kind"):
                async with connected(f"127.0.0.1:{house.ports.collector}", tls=tls):
                    raise ConnectionLost("of another kind")


@contextmanager
def deaf() -> Iterator[int]:
    """A port where somebody accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        kept: list[socket.socket] = []

        def accept() -> None:
            try:
                while True:
                    kept.append(listening.accept()[0])
            except OSError:
                pass

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        for each in kept:
            each.close()


async def test_a_port_where_nobody_speaks_does_not_hold_a_device_up(
    trusting: ClientTls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("demur_proto.transport.channels.PROBE_S", 0.1)
    with deaf() as port, anyio.fail_after(5.0), pytest.raises(ConnectionLost, match="timed out"):
        async with connected(f"127.0.0.1:{port}", tls=trusting):
            raise ConnectionLost("timed out")


# ---- targets ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "host", "port"),
    [
        ("127.0.0.1:80", "127.0.0.1", 80),
        ("localhost:1", "localhost", 1),
        ("[::1]:65535", "::1", 65535),
        ("a.example.org:443", "a.example.org", 443),
    ],
)
def test_a_target_is_a_host_and_a_port(target: str, host: str, port: int) -> None:
    assert split_target(target) == (host, port)


@pytest.mark.parametrize(
    "target",
    [
        *("", ":", ":1", "a", "a:", "a:0", "a:65536", "a:-1", "a:1.0", "a:٣", "a:1e3", "a: 1"),
        *("::1:80", "[::1]", "[::1:80", "::1]:80", "a b:1", "dns:///a:1", "unix:/tmp/x:1"),
        *("user@host:1", "a\n:1"),
    ],
)
async def test_what_is_no_target_is_refused_even_with_tls(trusting: ClientTls, target: str) -> None:
    for tls in (None, trusting):
        with pytest.raises(ParameterError, match="target must be"):
            async with connected(target, tls=tls, insecure_plaintext=True):
                pass


@pytest.mark.parametrize("target", ["10.0.0.1:80", "example.org:443", "0.0.0.0:80", "[::]:80"])
async def test_plaintext_leaves_this_machine_only_when_told_to_in_so_many_words(
    trusting: ClientTls, target: str
) -> None:
    with pytest.raises(ParameterError, match="a loopback address with a port, unless TLS is used"):
        async with connected(target):
            pass
    async with connected(target, insecure_plaintext=True):
        pass
    async with connected(target, tls=trusting):
        pass


def test_loopback_is_what_stays_on_this_machine() -> None:
    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        assert is_loopback(host)
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org", "", "1"):
        assert not is_loopback(host)
