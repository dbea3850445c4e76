"""The outermost layer of every call: our errors become statuses, and nothing else gets out.

Without it, a servicer that lets a cancellation escape leaves its client hanging until the
deadline, and any other exception reaches the client as UNKNOWN with its text.
"""

import asyncio
import inspect
import logging
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from demur_proto.errors import DemurError, ours_in
from demur_proto.status import STATUS

LONGEST_DETAILS = 1000  #: characters; details travel in a header, and a client refuses large ones

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]


class Guard(grpc.aio.ServerInterceptor):
    """Decodes requests and encodes responses itself; every way to fail is one clean status."""

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        """Wrap the handler of one call."""
        handler = await continuation(handler_call_details)
        return handler if handler is None else _guarded(handler)


def _guarded(handler: "Handler") -> "Handler":
    behaviour: Any = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )
    decode: Callable[[bytes], Any] = handler.request_deserializer or bytes
    encode: Callable[[Any], bytes] = handler.response_serializer or bytes

    async def one_to_one(request: bytes, context: Context) -> Any:
        async def answer() -> bytes:
            return encode(await behaviour(decode(request), context))

        return await _answered(answer, context)

    async def many_to_one(requests: AsyncIterator[bytes], context: Context) -> Any:
        async def answer() -> bytes:
            async with aclosing(_decoded(requests, decode)) as decoded:
                return encode(await behaviour(decoded, context))

        return await _answered(answer, context)

    async def one_to_many(request: bytes, context: Context) -> None:
        async def answer() -> None:
            await _written(behaviour, decode(request), context)

        await _answered(answer, context)

    async def many_to_many(requests: AsyncIterator[bytes], context: Context) -> None:
        async def answer() -> None:
            async with aclosing(_decoded(requests, decode)) as decoded:
                await _written(behaviour, decoded, context)

        await _answered(answer, context)

    if handler.request_streaming and handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(many_to_many, None, encode)
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(one_to_many, None, encode)
    if handler.request_streaming:
        return grpc.stream_unary_rpc_method_handler(many_to_one)
    return grpc.unary_unary_rpc_method_handler(one_to_one)


async def _decoded(
    requests: AsyncIterator[bytes], decode: Callable[[bytes], Any]
) -> AsyncGenerator[Any, None]:
    async for request in requests:
        yield decode(request)


async def _written(behaviour: Any, request: Any, context: Context) -> None:
    """Run a method with many responses: a coroutine that writes them, or a generator of them."""
    if not inspect.isasyncgenfunction(behaviour):
        await behaviour(request, context)
        return
    async with aclosing(behaviour(request, context)) as responses:
        async for response in responses:
            await context.write(response)


async def _answered(answer: Callable[[], Awaitable[Any]], context: Context) -> Any:
    """Run a servicer method; whatever goes wrong ends the call with one status."""
    try:
        return await answer()
    except BaseException as error:
        cause = _cause(error)
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # The client has left, or the server stops: there is nobody left to answer.
            raise asyncio.CancelledError from None
        if isinstance(cause, grpc.aio.BaseError) and not isinstance(cause, grpc.aio.UsageError):
            raise cause from None  # the connection broke, or the call was answered already
        if isinstance(cause, DemurError) and type(cause) in STATUS:
            await _abort(context, STATUS[type(cause)], str(cause))
        if isinstance(cause, DecodeError):
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the message does not parse")
        if not isinstance(cause, Exception | asyncio.CancelledError):
            raise
        logger.error("a bug ended a call: %s\n%s", type(cause).__name__, _whereabouts(error))
        await _abort(context, grpc.StatusCode.INTERNAL, "internal error")
        raise


async def _abort(context: Context, code: grpc.StatusCode, details: str) -> None:
    """End the call; raises, always."""
    if len(details) > LONGEST_DETAILS:
        details = details[:LONGEST_DETAILS] + "…"
    await context.abort(code, details)


def _cause(error: BaseException) -> BaseException:
    """The error to answer with: of a group, the first of our own, else the first."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    return ours_in(error) or _cause(error.exceptions[0])


def _whereabouts(error: BaseException) -> str:
    """A traceback without the texts of errors: one may hold a report, and logs never do."""
    lines = [f"{type(error).__name__}:\n", *traceback.format_tb(error.__traceback__)]
    if isinstance(error, BaseExceptionGroup):
        lines += [_whereabouts(member) for member in error.exceptions]
    if error.__cause__ is not None:
        lines += ["caused by ", _whereabouts(error.__cause__)]
    return "".join(lines)
