"""A collector on its two loopback ports."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import aio as health

from demur_proto.errors import StateError
from demur_proto.frames import MAXIMUM_FRAME_BYTES
from demur_proto.v1 import analyst_pb2_grpc, collector_pb2_grpc
from demur_server.analyst_service import AnalystService
from demur_server.collector import Collector
from demur_server.interceptor import Guard
from demur_server.service import CollectorService

HOST = "127.0.0.1"  # nobody is authenticated yet, so nothing else is offered
OPTIONS = (
    ("grpc.so_reuseport", 0),  # or two collectors would silently share a port
    ("grpc.max_receive_message_length", MAXIMUM_FRAME_BYTES + 65536),
    ("grpc.max_pending_requests", 1 << 16),
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
        StateError: a port is in use.
    """
    device_side, analyst_side = _server(), _server()
    collector_pb2_grpc.add_CollectorServicer_to_server(CollectorService(collector), device_side)
    analyst_pb2_grpc.add_AnalystServicer_to_server(AnalystService(collector), analyst_side)
    ports = Ports(
        collector=_bind(device_side, collector_port), analyst=_bind(analyst_side, analyst_port)
    )
    async with anyio.create_task_group() as tasks:
        await device_side.start()
        await analyst_side.start()
        tasks.start_soon(collector.close_due_rounds)
        try:
            yield ports
        finally:
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await analyst_side.stop(drain_s)
                await device_side.stop(drain_s)


def _server() -> grpc.aio.Server:
    server = grpc.aio.server(interceptors=[Guard()], options=OPTIONS)
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
    return server


def _bind(server: grpc.aio.Server, port: int) -> int:
    try:
        return server.add_insecure_port(f"{HOST}:{port}")
    except RuntimeError:
        raise StateError(f"port {port} on {HOST} is in use; choose another, or 0") from None
