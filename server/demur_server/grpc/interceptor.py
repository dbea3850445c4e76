"""The door of one port: lets calls in while there is room, and shows out who may no longer stay."""

import asyncio
import inspect
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import anyio
import grpc
from google.protobuf.message import DecodeError

from demur_proto.checks import check_integer
from demur_proto.errors import AccessError, BusyError, DemurError, StorageError, WireError, ours_in
from demur_proto.transport.calls import REFUSED, STATUS, TROUBLE
from demur_server.grpc.access import Access, Caller, Kind, MetadataItems, serve_for

HEALTH = "/grpc.health.v1.Health/"  #: asked by anybody, it answers even when there is no room


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many calls may be open at once on one port. Every open stream is one.

    Raises:
        ParameterError: a limit is not an integer above zero.
    """

    all_calls: int = 10_000
    each_device: int = 8
    each_named: int = 1_000  #: of one analyst's or gateway's credential
    anybody: int = 256  #: without a credential, where others need one

    def __post_init__(self) -> None:
        for name in self.__slots__:
            check_integer(name, getattr(self, name), 1)


@dataclass(eq=False, slots=True, kw_only=True)
class OpenCall:
    """A call that was let in."""

    caller: Caller
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Around the work for it: cancelling it shows the caller out."""


class Door:
    """Counts the calls of one port, each for as long as gRPC attends to it."""

    def __init__(self, access: Access, *, limits: Limits) -> None:
        self._access = access
        self._limits = limits
        self._calls: dict[Caller, set[OpenCall]] = {}
        self._open = 0

    @property
    def open_calls(self) -> int:
        """How many calls there are now, health checks apart."""
        return self._open

    def enter(self, method: str, metadata: MetadataItems) -> OpenCall:
        """Let in the call that the current task attends to, until that task is done.

        Raises:
            AccessError: its caller may not make it.
            BusyError: there is no room.
        """
        call = OpenCall(caller=self._access.admit(method, metadata))
        task = asyncio.current_task()
        if task is None or (method.startswith(HEALTH) and call.caller.kind is Kind.ANYBODY):
            return call
        mine = self._calls.get(call.caller, set())
        if self._open >= self._limits.all_calls or len(mine) >= self._limit(call.caller):
            raise BusyError("too many calls at once; try again later")
        self._calls.setdefault(call.caller, mine).add(call)
        self._open += 1
        # Not when the servicer returns: it is not even asked before the request has come.
        task.add_done_callback(lambda _: self._leave(call))
        return call

    def show_out(self) -> None:
        """End the calls of those who may no longer stay."""
        for caller, calls in self._calls.items():
            if not self._access.still_admits(caller):
                for call in calls:
                    call.scope.cancel()

    def _leave(self, call: OpenCall) -> None:
        mine = self._calls[call.caller]
        mine.discard(call)
        if not mine:
            del self._calls[call.caller]
        self._open -= 1

    def _limit(self, caller: Caller) -> int:
        if caller.kind is Kind.DEVICE:
            return self._limits.each_device
        if caller.kind is Kind.ANYBODY:
            return self._limits.all_calls if self._access.is_open else self._limits.anybody
        return self._limits.each_named


# The outermost layer of every call: callers are let in, our errors become statuses, no more gets out.
#
# Without it, a servicer that lets a cancellation escape leaves its client hanging until the
# deadline, and any other exception reaches the client as UNKNOWN with its text.

LONGEST_DETAILS = 1000  #: characters; details travel in a header, and a client refuses large ones
PATIENCE_S = 10.0  #: how long a caller may take to send the first message

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]


class Guard(grpc.aio.ServerInterceptor):
    """Decodes requests and encodes responses itself; every way to fail is one clean status.

    To gRPC every method looks like one that streams both ways: it would else wait for the request
    before anybody could refuse the caller or lose patience.

    Args:
        door: asked before anything of a call is read.
        patience_s: how long a caller may take to send the first message.
    """

    def __init__(self, door: Door, *, patience_s: float = PATIENCE_S) -> None:
        self._door = door
        self._patience_s = patience_s

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        """Let a call in, and wrap its handler; or answer that it is refused."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method: Any = handler_call_details.method
        metadata: Any = handler_call_details.invocation_metadata
        try:
            call = self._door.enter(method, metadata)
        except Exception as error:  # noqa: BLE001  else gRPC would tell the caller all about it
            return _refusing(*_status_of(error))
        return _guarded(handler, call, self._patience_s)


def _refusing(code: grpc.StatusCode, details: str) -> "Handler":
    async def refuse(requests: AsyncIterator[bytes], context: Context) -> None:
        await _abort(context, code, details)

    return grpc.stream_stream_rpc_method_handler(refuse)


def _guarded(handler: "Handler", call: OpenCall, patience_s: float) -> "Handler":
    behaviour: Any = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )
    decode: Callable[[bytes], Any] = handler.request_deserializer or bytes
    encode: Callable[[Any], bytes] = handler.response_serializer or bytes

    async def answer(asked: Any, context: Context) -> None:
        if handler.response_streaming:
            await _written(behaviour, asked, context)
        else:
            await context.write(await behaviour(asked, context))

    async def serve(context: Context) -> None:
        requests = Requests(context, decode, patience_s)
        if handler.request_streaming:
            await answer(requests, context)
            return
        request = await anext(requests, None)
        if request is None:
            raise WireError("the request is missing")
        await answer(request, context)

    async def many_to_many(requests: AsyncIterator[bytes], context: Context) -> None:
        await _answered(lambda: serve(context), context, call)

    return grpc.stream_stream_rpc_method_handler(many_to_many, None, encode)


Message = TypeVar("Message")
Other = TypeVar("Other")


class Requests(Generic[Message]):
    """The messages of a call, read and decoded one by one as they are asked for.

    Args:
        context: the call.
        decode: makes a message of its bytes.
        patience_s: how long the first may take, seconds.
    """

    def __init__(
        self, context: Context, decode: Callable[[bytes], Message], patience_s: float
    ) -> None:
        self._context = context
        self._decode: Callable[[bytes], Any] = decode
        self._patience_s = patience_s
        self._begun = False

    def decoded_by(self, decode: Callable[[bytes], Other]) -> "Requests[Other]":
        """These, decoded in another way from now on."""
        self._decode = decode
        return cast("Requests[Other]", self)

    def __aiter__(self) -> "Requests[Message]":
        return self

    async def __anext__(self) -> Message:
        message: Any = await (self._context.read() if self._begun else self._first())
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        decoded: Message = self._decode(message)
        return decoded

    async def _first(self) -> Any:
        self._begun = True
        message: Any = None
        with anyio.move_on_after(self._patience_s) as patience:
            message = await self._context.read()
        if patience.cancelled_caught:
            raise WireError(f"the first message did not come within {self._patience_s:g} s")
        return message


async def _written(behaviour: Any, request: Any, context: Context) -> None:
    """Run a method with many responses: a coroutine that writes them, or a generator of them."""
    if not inspect.isasyncgenfunction(behaviour):
        await behaviour(request, context)
        return
    async with aclosing(behaviour(request, context)) as responses:
        async for response in responses:
            await context.write(response)


async def _answered(
    answer: Callable[[], Awaitable[None]], context: Context, call: OpenCall
) -> None:
    """Run a servicer method; whatever goes wrong ends the call with one status."""
    cause: BaseException | None = None
    try:
        serve_for(call.caller)
        # Else the first message takes them along; were that cut short by the scope, the status would
        # take them along once more, gRPC would refuse to send it, and the client would wait for ever.
        await context.send_initial_metadata(())
        with call.scope:
            await answer()
        if call.scope.cancelled_caught:
            raise AccessError(REFUSED)
        return
    except BaseException as error:
        cause = _cause(error)
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # The client has left, or the server stops: there is nobody left to answer.
            raise asyncio.CancelledError from None
        if isinstance(cause, grpc.aio.BaseError) and not isinstance(cause, grpc.aio.UsageError):
            raise cause from None  # the connection broke, or the call was answered already
        if not isinstance(cause, Exception | asyncio.CancelledError):
            raise
        status = _status_of(error)
    finally:
        # An error's traceback holds this frame. If the frame held the error too, both would stay, with
        # all that the call had in hand, until the garbage collector happens to look.
        cause = None
    # Not while the error is handled, for the same reason: gRPC keeps what an abort raises.
    await _abort(context, *status)


def _status_of(error: BaseException) -> tuple[grpc.StatusCode, str]:
    """What to answer; of a bug, nothing but that there is one."""
    cause = _cause(error)
    if isinstance(cause, StorageError):  # anybody may ask to enrol, and read what we answer
        if not str(cause).startswith("the store "):  # which has logged it, once
            logger.error("a call ended: %s", cause)
        return STATUS[StorageError], TROUBLE
    if isinstance(cause, DemurError) and type(cause) in STATUS:
        return STATUS[type(cause)], str(cause)
    if isinstance(cause, DecodeError):
        return grpc.StatusCode.INVALID_ARGUMENT, "the message does not parse"
    logger.error("a bug ended a call: %s\n%s", type(cause).__name__, _whereabouts(error))
    return grpc.StatusCode.INTERNAL, "internal error"


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
