"""The outermost layer of every call: our errors become statuses, and nothing else gets out.

Without it, a servicer that lets a cancellation escape leaves its client hanging until the
deadline, and any other exception reaches the client as UNKNOWN with its text.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from demur_proto.errors import DemurError
from demur_proto.status import STATUS

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]


class Guard(grpc.aio.ServerInterceptor):
    """Decodes requests itself and turns every way to fail into one clean status."""

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        """Wrap the handler of one call."""
        handler = await continuation(handler_call_details)
        return handler if handler is None else _guarded(handler)


def _guarded(handler: "Handler") -> "Handler":
    decode = handler.request_deserializer or bytes
    encode = handler.response_serializer
    if handler.request_streaming and handler.response_streaming:

        async def both(requests: AsyncIterator[bytes], context: Context) -> None:
            await _answered(handler.stream_stream, _decoded(requests, decode), context)

        return grpc.stream_stream_rpc_method_handler(both, None, encode)
    if handler.response_streaming:

        async def streaming(request: bytes, context: Context) -> None:
            await _answered(handler.unary_stream, request, context, decode=decode)

        return grpc.unary_stream_rpc_method_handler(streaming, None, encode)
    if handler.request_streaming:

        async def collecting(requests: AsyncIterator[bytes], context: Context) -> Any:
            return await _answered(handler.stream_unary, _decoded(requests, decode), context)

        return grpc.stream_unary_rpc_method_handler(collecting, None, encode)

    async def unary(request: bytes, context: Context) -> Any:
        return await _answered(handler.unary_unary, request, context, decode=decode)

    return grpc.unary_unary_rpc_method_handler(unary, None, encode)


async def _decoded(
    requests: AsyncIterator[bytes], decode: Callable[[bytes], Any]
) -> AsyncIterator[Any]:
    async for request in requests:
        yield decode(request)


async def _answered(
    behaviour: Any, request: Any, context: Context, *, decode: Callable[[bytes], Any] | None = None
) -> Any:
    """Run a servicer method; whatever goes wrong ends the call with one status."""
    try:
        if decode is not None:
            request = decode(request)
        if not inspect.isasyncgenfunction(behaviour):
            return await behaviour(request, context)
        async for response in behaviour(request, context):
            await context.write(response)
    except BaseException as error:
        cause = _cause(error)
        if isinstance(cause, DemurError):
            await context.abort(STATUS[type(cause)], str(cause))
        if isinstance(cause, DecodeError):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the message does not parse")
        task = asyncio.current_task()
        if isinstance(cause, asyncio.CancelledError) and task is not None and task.cancelling():
            raise  # the call itself was cancelled: there is nobody left to answer
        if not isinstance(cause, Exception | asyncio.CancelledError):
            raise
        if not isinstance(cause, grpc.aio.AbortError):
            logger.exception("a bug ended a call")
            await context.abort(grpc.StatusCode.INTERNAL, "internal error")
        raise
    return None


def _cause(error: BaseException) -> BaseException:
    """The error to answer with: of a group, the first of our own, else the first."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [_cause(member) for member in error.exceptions]
    return next((leaf for leaf in leaves if isinstance(leaf, DemurError)), leaves[0])
