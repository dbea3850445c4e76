"""A caller that can also call wrongly: the other end of the wire for a collector that is tried out."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
import grpc
from google.protobuf.message import Message

from demur_proto.transport.credentials import METADATA_KEY, Metadata
from demur_proto.v1 import collector_pb2
from demur_proto.wire.definition import PROTOCOL_VERSION

SERVICE = "/demur_proto.v1.Collector/"
CALL_S = 10.0
NOTHING_S = 0.25  #: what is not there by then does not come

Answer = TypeVar("Answer")
Stream = grpc.aio.StreamStreamCall[Any, Any]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a call ended."""

    code: str  #: name of the gRPC status
    details: str

    def __str__(self) -> str:
        return f"{self.code} ({self.details})"


RESET = {"CANCELLED", "INTERNAL", "UNAVAILABLE"}  #: how a stream ends that has no status of its own
TRIES = 3  #: of such a stream


def shown(*credentials: bytes) -> Metadata:
    """What goes with a call that shows these credentials."""
    return tuple((METADATA_KEY, each) for each in credentials)


def serialised(message: Message | bytes) -> bytes:
    """A message's bytes, or bytes that need not be one."""
    return message if isinstance(message, bytes) else message.SerializeToString()


class Knocker:
    """Calls a collector, in any way that is asked for."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        unary, stream = channel.unary_unary, channel.stream_stream
        self._enrol: Any = unary(
            f"{SERVICE}Enrol", serialised, collector_pb2.EnrolResponse.FromString
        )
        self._study: Any = unary(
            f"{SERVICE}GetStudy", serialised, collector_pb2.GetStudyResponse.FromString
        )
        self._visit: Any = stream(
            f"{SERVICE}Visit", serialised, collector_pb2.VisitResponse.FromString
        )
        self._frames: Any = stream(
            f"{SERVICE}SubmitFrames", serialised, collector_pb2.SubmitFramesResponse.FromString
        )

    async def enrol(self, token: bytes, nonce: bytes) -> collector_pb2.EnrolResponse | Ending:
        """Trade a token, or learn how the call ended."""
        request = collector_pb2.EnrolRequest(
            protocol_version=PROTOCOL_VERSION, token=token, nonce=nonce
        )
        call: Awaitable[collector_pb2.EnrolResponse] = self._enrol(request, timeout=CALL_S)
        return await _answer(call)

    async def study(
        self, study_hash: bytes, metadata: Metadata, *, version: int = PROTOCOL_VERSION
    ) -> collector_pb2.GetStudyResponse | Ending:
        """Fetch a study, or learn how the call ended."""
        request = collector_pb2.GetStudyRequest(protocol_version=version, study_hash=study_hash)
        call: Awaitable[collector_pb2.GetStudyResponse] = self._study(
            request, timeout=CALL_S, metadata=metadata
        )
        return await _answer(call)

    async def ended(
        self, metadata: Metadata, message: Message, *, frames: bool = False
    ) -> Ending | None:
        """How a stream ends that begins with this message; None where it goes on.

        One that is refused while it still sends may be reset before its status comes. Then it is asked
        again: a refusal has a status nearly always.
        """
        ending: Ending | None = None
        for _ in range(TRIES):
            async with self.visiting(metadata, message, frames=frames) as visiting:
                ending = await visiting.ending()
            if ending is None or ending.code not in RESET:
                break
        return ending

    @asynccontextmanager
    async def visiting(
        self, metadata: Metadata, *messages: Message | bytes, frames: bool = False
    ) -> AsyncIterator["Visiting"]:
        """A stream that begins with these messages; it is broken off with the block."""
        call: Stream = (self._frames if frames else self._visit)(metadata=metadata)
        visiting = Visiting(call)
        try:
            for message in messages:
                await visiting.write(message)
            yield visiting
        finally:
            call.cancel()


class Visiting:
    """An open stream."""

    def __init__(self, call: Stream) -> None:
        self._call = call

    async def write(self, message: Message | bytes) -> None:
        """Send a message; where the stream has ended, `read` will say so."""
        with suppress(grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            await self._call.write(message)

    async def read(self, timeout_s: float = CALL_S) -> Any:
        """The next message; an `Ending` where there is none, None where nothing comes in time."""
        with anyio.move_on_after(timeout_s):
            try:
                message = await self._call.read()
            except grpc.aio.AioRpcError as error:
                return _ending(error)
            if message is grpc.aio.EOF:
                return Ending("OK", await self._call.details() or "")
            return message
        return None

    async def ending(self) -> Ending | None:
        """How it ends, whatever comes before; None where it goes on."""
        while True:
            message = await self.read()
            if message is None or isinstance(message, Ending):
                return message

    async def receipt(self) -> Any:
        """The next receipt, passing over rounds; an `Ending` or None where there is none."""
        while True:
            message = await self.read()
            if message is None or isinstance(message, Ending):
                return message
            if message.WhichOneof("message") == "receipt":
                return message.receipt


def hello(study_hash: bytes, *, after_round: int = 0, version: int = PROTOCOL_VERSION) -> Any:
    """The first message of a visit."""
    return collector_pb2.VisitRequest(hello=_hello(study_hash, after_round, version))


def frames_hello(study_hash: bytes) -> Any:
    """The first message of a gateway."""
    return collector_pb2.SubmitFramesRequest(hello=_hello(study_hash, 0, PROTOCOL_VERSION))


def same_words(endings: Sequence[object]) -> bool:
    """Whether all calls ended as UNAUTHENTICATED, with one text."""
    return len(set(endings)) == 1 and all(
        isinstance(each, Ending) and each.code == "UNAUTHENTICATED" for each in endings
    )


def _hello(study_hash: bytes, after_round: int, version: int) -> collector_pb2.Hello:
    return collector_pb2.Hello(
        protocol_version=version, study_hash=study_hash, after_round=after_round
    )


async def _answer(call: Awaitable[Answer]) -> Answer | Ending:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        return _ending(error)


def _ending(error: grpc.aio.AioRpcError) -> Ending:
    return Ending(error.code().name, error.details() or "")
