"""A real collector in a process of its own."""

from multiprocessing.connection import Connection

import anyio

from demur_server.collector import Collector
from demur_server.serving import served
from demur_server.store.memory import MemoryStore
from demur_sim.children import peak_rss_mb, say


def collect(pipe: Connection, collector_port: int) -> None:
    """Serve until told to stop: says its ports first, its peak memory last."""
    anyio.run(_collect, pipe, collector_port)


async def _collect(pipe: Connection, collector_port: int) -> None:
    async with served(
        Collector(MemoryStore(), open_access=True), collector_port=collector_port
    ) as ports:
        say(pipe, ports)
        await anyio.wait_readable(pipe)  # told to stop, or the parent is gone
    say(pipe, peak_rss_mb())
