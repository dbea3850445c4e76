"""Calls to the other side, whose failures become errors of ours."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.lowlevel
import grpc

from demur_proto.errors import ConnectionLost
from demur_proto.status import error_of

CALL_S = 30.0  #: deadline of a single short call
PEER = "the collector"  #: what errors call the other side of every call there is


@asynccontextmanager
async def calling(peer: str) -> AsyncIterator[None]:
    """Around awaits of gRPC calls: a failure becomes one of our errors.

    A cancelled call raises a CancelledError of gRPC's own making, which the cancel scope that
    caused it does not recognise: it would pass through `move_on_after` and end the whole task.
    Here the scope gets its own back.

    Args:
        peer: what errors call the other side.

    Raises:
        ConnectionLost: the other side went away, or the channel was closed under the call.
        DemurError: it refused.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise error_of(error, peer=peer) from None
    except asyncio.CancelledError:
        await anyio.lowlevel.checkpoint_if_cancelled()
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ConnectionLost(f"lost {peer}: the channel was closed") from None
