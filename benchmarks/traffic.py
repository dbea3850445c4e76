"""Messages made beforehand, sent over many streams, with the time that each answer took."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

CHANNELS = 4  #: connections that the streams are spread over
LARGEST_MESSAGE = 2 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """What one stream sends."""

    messages: Sequence[bytes]
    hello: bytes  #: goes first, and its answer is waited for before the clock starts
    metadata: Any = ()


@dataclass(slots=True, kw_only=True)
class Sent:
    """What came of it."""

    seconds: float = 0.0  #: from the first message to the last answer
    client_s: float = 0.0  #: processor time of this process meanwhile
    latencies_s: list[float] = field(default_factory=list)  #: of each message
    answers: list[bytes] = field(default_factory=list)

    def latency_ms(self, share: float) -> float:
        """The latency that this share of the messages did not exceed."""
        ranked = sorted(self.latencies_s)
        return 1000 * ranked[min(len(ranked) - 1, int(share * len(ranked)))]


async def send(
    target: str,
    path: str,
    streams: Sequence[Stream],
    *,
    at_once: int = 1,
    per_s: float | None = None,
) -> Sent:
    """Send every stream's messages and wait for an answer to each.

    Args:
        target: host and port.
        path: the method.
        streams: what to send.
        at_once: how many messages of a stream may wait for their answers. The latency of a message
            starts when it is handed to gRPC.
        per_s: instead, send so many a second over all streams, whether or not answers come. The
            latency of a message starts when it is due, so one that had to wait its turn counts all of
            its waiting.
    """
    sent = Sent()
    async with opened(target, path, streams) as calls:
        await asyncio.gather(*map(_greet, calls, streams))
        started, busy = time.perf_counter(), time.process_time()
        if per_s is not None:
            every_s = len(streams) / per_s
            tasks = [
                _paced(call, each, sent, started + number / per_s, every_s)
                for number, (call, each) in enumerate(zip(calls, streams, strict=True))
            ]
        elif at_once == 1:
            tasks = [_in_turn(*each, sent) for each in zip(calls, streams, strict=True)]
        else:
            tasks = [_ahead(*each, sent, at_once) for each in zip(calls, streams, strict=True)]
        await asyncio.gather(*tasks)
        sent.seconds = time.perf_counter() - started
        sent.client_s = time.process_time() - busy
    return sent


async def pour(target: str, path: str, streams: Sequence[Stream]) -> Sent:
    """Send every stream's messages and hear, once for each stream, that all were read."""
    sent = Sent()

    async def one(call: Any, stream: Stream) -> None:
        for message in stream.messages:
            await call.write(message)
        await call.done_writing()
        await call.read()

    async with opened(target, path, streams) as calls:
        await asyncio.gather(
            *(call.write(each.hello) for call, each in zip(calls, streams, strict=True))
        )
        started, busy = time.perf_counter(), time.process_time()
        await asyncio.gather(*map(one, calls, streams))
        sent.seconds = time.perf_counter() - started
        sent.client_s = time.process_time() - busy
    return sent


async def visit(target: str, path: str, streams: Sequence[Stream], *, at_once: int) -> float:
    """Seconds to open every stream, exchange its messages in turn and end it; some at a time."""
    waiting = list(reversed(streams))

    async def caller(channel: grpc.aio.Channel) -> None:
        raw: Any = channel.stream_stream(path)
        while waiting:
            each = waiting.pop()
            call = raw(metadata=each.metadata)
            await _greet(call, each)
            for message in each.messages:
                await call.write(message)
                await call.read()
            await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass

    async with connected(target, CHANNELS) as channels:
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        started = time.perf_counter()
        await asyncio.gather(*(caller(channels[n % CHANNELS]) for n in range(at_once)))
        return time.perf_counter() - started


@asynccontextmanager
async def connected(target: str, count: int) -> AsyncIterator[list[grpc.aio.Channel]]:
    """Connections, none of them shared."""
    options = (
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", LARGEST_MESSAGE),
    )
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(grpc.aio.insecure_channel(target, options=options))
            for _ in range(count)
        ]


@asynccontextmanager
async def opened(target: str, path: str, streams: Sequence[Stream]) -> AsyncIterator[list[Any]]:
    """A call for each stream, spread over a few connections; they are cancelled in the end."""
    async with connected(target, min(CHANNELS, len(streams))) as channels:
        calls: list[Any] = []
        for number, each in enumerate(streams):
            raw: Any = channels[number % len(channels)].stream_stream(path)
            calls.append(raw(metadata=each.metadata))
        try:
            yield calls
        finally:
            for call in calls:
                call.cancel()


async def _greet(call: Any, stream: Stream) -> None:
    await call.write(stream.hello)
    await call.read()


async def _in_turn(call: Any, stream: Stream, sent: Sent) -> None:
    clock = time.perf_counter
    for message in stream.messages:
        started = clock()
        await call.write(message)
        sent.answers.append(await call.read())
        sent.latencies_s.append(clock() - started)


async def _ahead(call: Any, stream: Stream, sent: Sent, at_once: int) -> None:
    starts: list[float] = []
    room = asyncio.Semaphore(at_once)
    reading = asyncio.create_task(_read(call, len(stream.messages), sent, starts, room))
    for message in stream.messages:
        await room.acquire()
        starts.append(time.perf_counter())
        await call.write(message)
    await reading


async def _paced(call: Any, stream: Stream, sent: Sent, first: float, every_s: float) -> None:
    due = [first + number * every_s for number in range(len(stream.messages))]
    room = asyncio.Semaphore(0)
    reading = asyncio.create_task(_read(call, len(due), sent, due, room))
    for message, at in zip(stream.messages, due, strict=True):
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
        await call.write(message)
    await reading


async def _read(
    call: Any, answers: int, sent: Sent, starts: list[float], room: asyncio.Semaphore
) -> None:
    for number in range(answers):
        sent.answers.append(await call.read())
        sent.latencies_s.append(time.perf_counter() - starts[number])
        room.release()
