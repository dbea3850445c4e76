"""What gRPC costs by itself: a server of the same kind that does nothing, in a process of its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import grpc

from demur_sim.engine.children import Child

ECHO = "/bare.Bare/Echo"  #: every message comes back
ANSWER = "/bare.Bare/Answer"  #: every message is answered with an empty one
SINK = "/bare.Bare/Sink"  #: every message is read; one empty answer at the end
LARGEST_MESSAGE = 2 << 20


def serve(pipe: Any) -> None:
    """Serve until the pipe says otherwise."""
    anyio.run(_serve, pipe)


async def _serve(pipe: Any) -> None:
    async def echo(requests: AsyncIterator[bytes], context: Any) -> None:
        async for request in requests:
            await context.write(request)

    async def answer(requests: AsyncIterator[bytes], context: Any) -> None:
        async for _ in requests:
            await context.write(b"")

    async def sink(requests: AsyncIterator[bytes], context: Any) -> None:
        async for _ in requests:
            pass
        await context.write(b"")

    methods: dict[str, Any] = {
        "Echo": grpc.stream_stream_rpc_method_handler(echo),
        "Answer": grpc.stream_stream_rpc_method_handler(answer),
        "Sink": grpc.stream_stream_rpc_method_handler(sink),
    }
    server = grpc.aio.server(options=(("grpc.max_receive_message_length", LARGEST_MESSAGE),))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bare.Bare", methods)])
    pipe.send(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    await anyio.wait_readable(pipe)
    await server.stop(None)


@asynccontextmanager
async def bare_server() -> AsyncIterator[str]:
    """Run one for as long as the block lasts, and say where it listens."""
    child = Child("bare server", serve)
    try:
        yield f"127.0.0.1:{await child.hear()}"
        child.tell("stop")
    finally:
        child.end()
