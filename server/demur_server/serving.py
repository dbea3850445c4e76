"""A collector on its two loopback ports."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import aio as health

from demur_proto.checks import check_integer
from demur_proto.errors import StateError
from demur_proto.frames import MAXIMUM_FRAME_BYTES
from demur_proto.v1 import analyst_pb2_grpc, collector_pb2_grpc
from demur_server.analyst_service import AnalystService
from demur_server.collector import Collector
from demur_server.interceptor import Guard
from demur_server.service import CollectorService

HOST = "127.0.0.1"  # nobody is authenticated yet, so nothing else is offered
PENDING_CALLS = 1 << 16  #: calls that may wait to be taken up; gRPC's own limit cancels the rest
OPTIONS = (
    ("grpc.so_reuseport", 0),  # or two collectors would silently share a port
    ("grpc.max_receive_message_length", MAXIMUM_FRAME_BYTES + 65536),
    ("grpc.server.max_pending_requests", PENDING_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where a collector listens."""

    collector: int  #: devices and gateways
    analyst: int


@asynccontextmanager
async def served(
    collector: Collector, *, collector_port: int = 0, analyst_port: int = 0, drain_s: float = 1.0
) -> AsyncIterator[Ports]:
    """Serve a collector to this machine for as long as the block lasts.

    Args:
        collector: what to serve.
        collector_port: for devices and gateways; 0 takes a free one.
        analyst_port: for analysts; 0 takes a free one.
        drain_s: how long open calls may go on at the end, seconds.

    Raises:
        ParameterError: a port is not a number from 0 to 65535.
        StateError: a port is in use.
    """
    servers: list[grpc.aio.Server] = []
    raised: Exception | None = None
    try:
        ports = Ports(
            collector=await _listen(servers, collector_port, CollectorService(collector)),
            analyst=await _listen(servers, analyst_port, AnalystService(collector)),
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(collector.close_due_rounds)
            try:
                yield ports
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


async def _listen(
    servers: list[grpc.aio.Server], port: int, service: CollectorService | AnalystService
) -> int:
    """Start a server, put it where it will be stopped, and say on which port it listens."""
    check_integer("port", port, 0, 65535)
    _check_free(port)
    server = grpc.aio.server(interceptors=[Guard()], options=OPTIONS)
    servers.append(server)
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
    if isinstance(service, CollectorService):
        collector_pb2_grpc.add_CollectorServicer_to_server(service, server)
    else:
        analyst_pb2_grpc.add_AnalystServicer_to_server(service, server)
    try:
        return server.add_insecure_port(f"{HOST}:{port}")
    except RuntimeError:  # somebody took it since
        raise StateError(f"port {port} on {HOST} is in use; choose another, or 0") from None
    finally:
        # Even without a port: a server that never started cannot be stopped. It keeps what it has
        # for ever, and its last word, a debug message about itself, can crash the process.
        await server.start()


def _check_free(port: int) -> None:
    """Refuse a port in use before gRPC does, which says less and writes to stderr."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
    except PermissionError:
        raise StateError(f"port {port} on {HOST} is not permitted; choose another, or 0") from None
    except OSError:
        raise StateError(f"port {port} on {HOST} is in use; choose another, or 0") from None
