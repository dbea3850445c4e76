"""What a client sees when a servicer goes wrong: planted bugs behind a real server."""

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import grpc
import pytest
from google.protobuf.message import DecodeError

from demur_proto import errors
from demur_proto.errors import (
    DemurError,
    NotFoundError,
    ParameterError,
    StateError,
    StorageError,
    WireError,
)
from demur_proto.transport.calls import STATUS, TROUBLE
from demur_server.grpc.access import ANYBODY, Caller, MetadataItems, OpenAccess
from demur_server.grpc.interceptor import Door, Guard, Limits

DEADLINE_S = 10.0
PROMPT_S = 3.0
SERVICE = "test.Planted"
SECRET = "7117"
OURS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]

Context = grpc.aio.ServicerContext[Any, Any]
# Raw bytes and planted methods: there is nothing here for the types of gRPC to check.
Handler = Any
Channel = Any
ONE_TO_ONE: Any = grpc.unary_unary_rpc_method_handler
ONE_TO_MANY: Any = grpc.unary_stream_rpc_method_handler
MANY_TO_ONE: Any = grpc.stream_unary_rpc_method_handler
MANY_TO_MANY: Any = grpc.stream_stream_rpc_method_handler


class Nobody(DemurError):
    """One of ours that the table does not know."""


BUGS: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError(SECRET),
    "KeyError": lambda: KeyError(SECRET.encode()),
    "TimeoutError": lambda: TimeoutError(SECRET),
    "CancelledError": lambda: asyncio.CancelledError(SECRET),
    "ExceptionGroup": lambda: ExceptionGroup(SECRET, [ValueError(SECRET), TypeError(SECRET)]),
    "group with a cancellation": lambda: BaseExceptionGroup(
        SECRET, [asyncio.CancelledError(SECRET), ValueError(SECRET)]
    ),
    "AssertionError": lambda: AssertionError(SECRET),
    "StopAsyncIteration": lambda: StopAsyncIteration(SECRET),
    "UsageError": lambda: grpc.aio.UsageError(SECRET),
    "an error of ours without a status": lambda: Nobody(SECRET),
    "an error with a cause": lambda: chained(),
}


def chained() -> BaseException:
    try:
        raise ValueError(SECRET)
    except ValueError as cause:
        error = RuntimeError(SECRET)
        error.__cause__ = cause
        return error


def kinds(raised: Callable[[], BaseException]) -> dict[str, Handler]:
    """The four kinds of methods, and both ways to stream, each ending with an error."""

    async def unary(request: bytes, context: Context) -> bytes:
        raise raised()

    async def writing(request: bytes, context: Context) -> None:
        await context.write(b"before")
        raise raised()

    async def generating(request: bytes, context: Context) -> AsyncIterator[bytes]:
        yield b"before"
        raise raised()

    async def reading(requests: AsyncIterator[bytes], context: Context) -> bytes:
        async for _ in requests:
            raise raised()
        return b""

    async def both(requests: AsyncIterator[bytes], context: Context) -> None:
        async for _ in requests:
            await context.write(b"before")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anyio.sleep, DEADLINE_S)
                raise raised()

    return {
        "unary": ONE_TO_ONE(unary),
        "writing": ONE_TO_MANY(writing),
        "generating": ONE_TO_MANY(generating),
        "reading": MANY_TO_ONE(reading),
        "both": MANY_TO_MANY(both),
    }


METHODS = sorted(kinds(RuntimeError))


class Everything(OpenAccess):
    """There is no rule for what is planted here."""

    def admit(self, method: str, metadata: MetadataItems) -> Caller:
        return ANYBODY


@asynccontextmanager
async def planted(
    methods: dict[str, Handler], *, access: OpenAccess | None = None
) -> AsyncIterator[Channel]:
    door = Door(access or Everything(), limits=Limits())
    server = grpc.aio.server(interceptors=[Guard(door)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(None)


async def answers(channel: Channel, method: str, request: bytes = b"?") -> list[bytes]:
    """Call a method by its kind; what came before the end."""
    path = f"/{SERVICE}/{method}"
    if method == "unary":
        return [await channel.unary_unary(path)(request, timeout=DEADLINE_S)]
    if method == "reading":
        sending = channel.stream_unary(path)(timeout=DEADLINE_S)
        await sending.write(request)
        return [await sending]
    got = []
    if method == "both":
        streaming = channel.stream_stream(path)(timeout=DEADLINE_S)
        await streaming.write(request)
    else:
        streaming = channel.unary_stream(path)(request, timeout=DEADLINE_S)
    while (message := await streaming.read()) is not grpc.aio.EOF:
        got.append(message)
    return got


async def failure(channel: Channel, method: str, request: bytes = b"?") -> Any:
    started = time.monotonic()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answers(channel, method, request)
    assert time.monotonic() - started < PROMPT_S
    return caught.value


# ---- bugs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
async def test_a_bug_reaches_the_client_at_once_as_internal_and_says_nothing(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    for name, bug in BUGS.items():
        caplog.clear()
        async with planted(kinds(bug)) as channel:
            error = await failure(channel, method)

        assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, "internal error"), name
        assert SECRET not in repr(error), name
        # The log says which bug and where, but not with what: that may be a report.
        messages = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
        assert len(messages) == 1, name
        assert "a bug ended a call" in messages[0]
        assert "raise raised()" in messages[0]
        assert SECRET not in caplog.text


async def test_what_was_streamed_before_a_bug_still_arrives() -> None:
    async with planted(kinds(ValueError)) as channel:
        for method in ("writing", "generating", "both"):
            path = f"/{SERVICE}/{method}"
            if method == "both":
                call = channel.stream_stream(path)(timeout=DEADLINE_S)
                await call.write(b"?")
            else:
                call = channel.unary_stream(path)(b"?", timeout=DEADLINE_S)

            assert await call.read() == b"before"


async def test_an_answer_that_cannot_be_encoded_is_a_bug_too() -> None:
    def encode(answer: object) -> bytes:
        raise TypeError(SECRET)

    async def unary(request: bytes, context: Context) -> object:
        return object()

    async def writing(request: bytes, context: Context) -> None:
        await context.write(object())

    methods = {
        "unary": ONE_TO_ONE(
            unary,
            response_serializer=encode,
        ),
        "writing": ONE_TO_MANY(
            writing,
            response_serializer=encode,
        ),
    }
    async with planted(methods) as channel:
        for method in methods:
            error = await failure(channel, method)

            assert (error.code(), error.details()) == (
                grpc.StatusCode.INTERNAL,
                "internal error",
            )


async def test_the_next_call_works_after_a_bug() -> None:
    async def unary(request: bytes, context: Context) -> bytes:
        if request == b"bad":
            raise asyncio.CancelledError
        return b"fine"

    handler = ONE_TO_ONE(unary)
    async with planted({"unary": handler}) as channel:
        await failure(channel, "unary", b"bad")

        assert await answers(channel, "unary", b"good") == [b"fine"]


async def test_a_bug_at_the_door_says_nothing_either(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(OpenAccess):
        def admit(self, method: str, metadata: MetadataItems) -> Caller:
            raise KeyError(SECRET)

    async with planted(kinds(StateError), access=Broken()) as channel:
        for method in METHODS:
            error = await failure(channel, method)

            assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, "internal error")
    assert "a bug ended a call: KeyError" in caplog.text
    assert SECRET not in caplog.text


# ---- errors on purpose -----------------------------------------------------------------------


def test_the_table_has_a_status_for_every_error_of_ours() -> None:
    assert set(OURS) - {DemurError} == set(STATUS)


@pytest.mark.parametrize(("text", "logged"), [("the store is in trouble: db7", 0), ("key x", 1)])
async def test_what_is_wrong_with_a_store_is_for_its_operator_only(
    text: str, logged: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with planted(kinds(lambda: StorageError(text))) as channel:
        error = await failure(channel, METHODS[0])

    assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, TROUBLE)
    messages = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert messages == [f"a call ended: {text}"] * logged


@pytest.mark.parametrize(
    "kind", [each for each in STATUS if each is not StorageError], ids=lambda kind: kind.__name__
)
async def test_an_error_of_ours_becomes_its_status_with_its_text(
    kind: type[DemurError], caplog: pytest.LogCaptureFixture
) -> None:
    def raised() -> DemurError:
        if kind is ParameterError:
            return ParameterError("clip", 0, "> 0")
        return kind("a clear line")

    async with planted(kinds(raised)) as channel:
        for method in METHODS:
            error = await failure(channel, method)

            assert (error.code(), error.details()) == (STATUS[kind], str(raised()))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_an_error_of_ours_is_found_in_groups_of_groups() -> None:
    def raised() -> BaseException:
        inner = ExceptionGroup("inner", [KeyError(SECRET), StateError("the round is closed")])
        return ExceptionGroup("outer", [ValueError(SECRET), inner])

    async with planted(kinds(raised)) as channel:
        error = await failure(channel, "both")

    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert error.details() == "the round is closed"


async def test_a_very_long_text_is_cut_before_it_bursts_the_header() -> None:
    async with planted(kinds(lambda: WireError("é" * 1_000_000))) as channel:
        error = await failure(channel, "unary")

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == "é" * 1000 + "…"


async def test_a_message_that_does_not_parse_is_the_callers_mistake() -> None:
    def decode(data: bytes) -> bytes:
        raise DecodeError(SECRET)

    async def unary(request: bytes, context: Context) -> bytes:
        return b""

    async def reading(requests: AsyncIterator[bytes], context: Context) -> bytes:
        return b"".join([request async for request in requests])

    methods = {
        "unary": ONE_TO_ONE(unary, decode),
        "reading": MANY_TO_ONE(reading, decode),
    }
    async with planted(methods) as channel:
        for method in methods:
            error = await failure(channel, method)

            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert error.details() == "the message does not parse"


async def test_a_status_that_a_servicer_chose_itself_stays() -> None:
    async def unary(request: bytes, context: Context) -> bytes:
        await context.abort(grpc.StatusCode.DATA_LOSS, "chosen")

    async def writing(request: bytes, context: Context) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(context.abort, grpc.StatusCode.DATA_LOSS, "chosen")

    methods = {
        "unary": ONE_TO_ONE(unary),
        "writing": ONE_TO_MANY(writing),
    }
    async with planted(methods) as channel:
        for method in methods:
            error = await failure(channel, method)

            assert (error.code(), error.details()) == (grpc.StatusCode.DATA_LOSS, "chosen")


async def test_an_unknown_method_is_unimplemented() -> None:
    async with planted({}) as channel:
        error = await failure(channel, "unary")

    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


# ---- clients that leave ----------------------------------------------------------------------


@pytest.mark.parametrize("method", ["unary", "writing", "generating", "both"])
async def test_a_client_that_leaves_ends_the_method_quietly(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    started, ended = anyio.Event(), anyio.Event()

    async def wait() -> None:
        started.set()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anyio.sleep, DEADLINE_S)
                await anyio.sleep(DEADLINE_S)
        finally:
            ended.set()

    async def unary(request: bytes, context: Context) -> bytes:
        await wait()
        return b""

    async def writing(request: bytes, context: Context) -> None:
        await wait()

    async def generating(request: bytes, context: Context) -> AsyncIterator[bytes]:
        await wait()
        yield b""

    methods = {
        "unary": ONE_TO_ONE(unary),
        "writing": ONE_TO_MANY(writing),
        "generating": ONE_TO_MANY(generating),
        "both": MANY_TO_MANY(writing),
    }
    async with planted(methods) as channel:
        path = f"/{SERVICE}/{method}"
        if method == "unary":
            call = channel.unary_unary(path)(b"?", timeout=DEADLINE_S)
        elif method == "both":
            call = channel.stream_stream(path)(timeout=DEADLINE_S)
            await call.write(b"?")
        else:
            call = channel.unary_stream(path)(b"?", timeout=DEADLINE_S)
        with anyio.fail_after(DEADLINE_S):
            await started.wait()
            call.cancel()
            await ended.wait()
        await anyio.wait_all_tasks_blocked()

    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_client_that_leaves_while_it_is_written_to_ends_the_method_quietly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended = anyio.Event()

    async def writing(request: bytes, context: Context) -> None:
        async def flood() -> None:
            while True:
                await context.write(bytes(50_000))

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(flood)
        finally:
            ended.set()

    handler = ONE_TO_MANY(writing)
    async with planted({"writing": handler}) as channel:
        for _ in range(10):
            ended = anyio.Event()
            call = channel.unary_stream(f"/{SERVICE}/writing")(b"?", timeout=DEADLINE_S)
            await call.read()
            call.cancel()
            with anyio.fail_after(DEADLINE_S):
                await ended.wait()
        await anyio.wait_all_tasks_blocked()

    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_an_error_during_the_farewell_is_not_sent_and_hangs_nobody() -> None:
    ended = anyio.Event()

    async def writing(request: bytes, context: Context) -> None:
        await context.write(b"hello")
        try:
            await anyio.sleep(DEADLINE_S)
        finally:
            ended.set()
            raise NotFoundError("too late")

    handler = ONE_TO_MANY(writing)
    async with planted({"writing": handler}) as channel:
        call = channel.unary_stream(f"/{SERVICE}/writing")(b"?", timeout=DEADLINE_S)
        await call.read()
        call.cancel()
        with anyio.fail_after(DEADLINE_S):
            await ended.wait()
