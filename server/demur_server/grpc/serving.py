"""A collector on its two ports."""

import errno
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import aio as health

from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError, StateError, StorageError
from demur_proto.transport.channels import is_loopback
from demur_proto.v1 import analyst_pb2_grpc, collector_pb2_grpc
from demur_proto.wire.frames import MAXIMUM_FRAME_BYTES, MAXIMUM_PROVEN_BYTES
from demur_server.collector.chunks import Assembler
from demur_server.collector.collector import Collector
from demur_server.grpc.access import Access, OpenAccess
from demur_server.grpc.interceptor import PATIENCE_S, Door, Guard, Limits
from demur_server.grpc.services import AnalystService, CollectorService

if TYPE_CHECKING:
    from demur_server.grpc.tls import ServerTls


HOST = "127.0.0.1"
REFRESH_S = 1.0  #: how long after a revocation its device or person may still be let in
PENDING_CALLS = 1 << 16  #: calls that may wait to be taken up; gRPC's own limit cancels the rest
OPTIONS = (
    ("grpc.so_reuseport", 0),  # or two collectors would silently share a port
    ("grpc.server.max_pending_requests", PENDING_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS),
    ("grpc.server_handshake_timeout_ms", 10_000),  # who connects and says nothing is dropped
    ("grpc.max_connection_idle_ms", 300_000),  # who stays without a call as well
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)

logger = logging.getLogger(__name__)

_Service = CollectorService | AnalystService


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where a collector listens."""

    collector: int  #: devices and gateways
    analyst: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where one server is to listen, and how."""

    host: str
    port: int
    tls: "ServerTls | None"
    largest_message: int  # bytes


@asynccontextmanager
async def served(
    collector: Collector,
    *,
    access: Access | None = None,
    host: str = HOST,
    collector_port: int = 0,
    analyst_host: str | None = None,
    analyst_port: int = 0,
    tls: "ServerTls | None" = None,
    analyst_tls: "ServerTls | None" = None,
    insecure_plaintext: bool = False,
    limits: Limits | None = None,
    assembler: Assembler | None = None,
    patience_s: float = PATIENCE_S,
    drain_s: float = 1.0,
) -> AsyncIterator[Ports]:
    """Serve a collector for as long as the block lasts.

    Args:
        collector: what to serve.
        access: who may call; may be left out only for a collector under open access.
        host: the address to listen on.
        collector_port: for devices and gateways; 0 takes a free one.
        analyst_host: the same for analysts; by default the same.
        analyst_port: for analysts; 0 takes a free one.
        tls: what to prove with who this is; None for plaintext.
        analyst_tls: the same for analysts; by default the same.
        insecure_plaintext: allow plaintext beyond this machine. Whoever is on the way then reads
            every credential and report, and can use the credentials.
        limits: how many calls may be open on each port.
        assembler: puts reports together that come in chunks; one with its own limits by default.
        patience_s: how long a caller may take to send the first message, seconds.
        drain_s: how long open calls may go on at the end, seconds.

    Raises:
        ParameterError: a port is not a number from 0 to 65535; plaintext or open access beyond this
            machine; or `access` is not what the collector is made for.
        StateError: a port is in use, or the host is not this machine's.
        StorageError: it cannot be read who may call.
    """
    if access is None and collector.open_access:
        access = OpenAccess()
    if access is None or access.is_open != collector.open_access:
        raise ParameterError(
            "access", access, "that of the collector: open for an open one, else by credentials"
        )
    beside = 0 if access.is_open else MAXIMUM_PROVEN_BYTES
    limit = MAXIMUM_FRAME_BYTES + 65536
    places = [
        _Place(host=host, port=collector_port, tls=tls, largest_message=limit + beside),
        _Place(
            host=analyst_host or host,
            port=analyst_port,
            tls=analyst_tls or tls,
            largest_message=limit,
        ),
    ]
    for place in places:
        _check_place(place, access, insecure_plaintext=insecure_plaintext)
    await access.refresh()
    doors = [Door(access, limits=limits or Limits()) for _ in places]
    services: list[_Service] = [
        CollectorService(collector, access, assembler or Assembler()),
        AnalystService(collector),
    ]
    servers: list[grpc.aio.Server] = []
    raised: Exception | None = None
    try:
        ports = [
            await _listen(servers, place, service, Guard(door, patience_s=patience_s))
            for place, service, door in zip(places, services, doors, strict=True)
        ]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(collector.close_due_rounds)
            if not access.is_open:
                tasks.start_soon(_keep_up, access, doors)
            try:
                yield Ports(collector=ports[0], analyst=ports[1])
            except Exception as error:  # noqa: BLE001  raised below, outside the group
                raised = error
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as stopping:
                for server in servers:
                    stopping.start_soon(server.stop, drain_s)
    if raised is not None:
        raise raised  # as it was: a group would hide it from the caller's except


async def _keep_up(access: Access, doors: Sequence[Door]) -> None:
    """Let new people in and show revoked ones out, soon after the store knows of it."""
    while True:
        await anyio.sleep(REFRESH_S)
        try:
            await access.refresh()
        except StorageError as error:
            logger.error("cannot read who may call: %s", error)
            continue
        for door in doors:
            door.show_out()


def _check_place(place: _Place, access: Access, *, insecure_plaintext: bool) -> None:
    check_integer("port", place.port, 0, 65535)
    if is_loopback(place.host):
        return
    if access.is_open:
        raise ParameterError(
            "host", place.host, "a loopback address: under open access whoever reaches it is let in"
        )
    if place.tls is None and not insecure_plaintext:
        raise ParameterError(
            "host",
            place.host,
            "a loopback address as long as there is no certificate to serve with; name one, or "
            "allow insecure_plaintext",
        )


async def _listen(
    servers: list[grpc.aio.Server],
    place: _Place,
    service: _Service,
    guard: Guard,
) -> int:
    """Start a server, put it where it will be stopped, and say on which port it listens."""
    _check_free(place)
    options = (*OPTIONS, ("grpc.max_receive_message_length", place.largest_message))
    server = grpc.aio.server(interceptors=[guard], options=options)
    servers.append(server)
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
    if isinstance(service, CollectorService):
        collector_pb2_grpc.add_CollectorServicer_to_server(service, server)
    else:
        analyst_pb2_grpc.add_AnalystServicer_to_server(service, server)
    bracketed = f"[{place.host}]" if ":" in place.host else place.host
    address = f"{bracketed}:{place.port}"
    try:
        if place.tls is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, place.tls.credentials())
    except RuntimeError:  # somebody took it since
        raise _in_use(place) from None
    finally:
        # Even without a port: a server that never started cannot be stopped. It keeps what it has
        # for ever, and its last word, a debug message about itself, can crash the process.
        await server.start()


def _check_free(place: _Place) -> None:
    """Refuse a port in use before gRPC does, which says less and writes to stderr."""
    try:
        found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise StateError(f"{place.host} is no address of this machine; name one that is") from None
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except PermissionError:
            raise StateError(
                f"port {place.port} on {place.host} is not permitted; choose another, or 0"
            ) from None
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise StateError(
                    f"{place.host} is no address of this machine; name one that is"
                ) from None
            raise _in_use(place) from None


def _in_use(place: _Place) -> StateError:
    return StateError(f"port {place.port} on {place.host} is in use; choose another, or 0")
