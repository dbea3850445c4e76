"""A collector that does what a script says: the other end of the wire for a device that is tried out."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import grpc
from google.protobuf.message import Message

from demur_proto.errors import StateError
from demur_proto.models.definition import DefinedModel
from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.transport.calls import REFUSED
from demur_proto.transport.credentials import METADATA_KEY, DeviceCredential
from demur_proto.v1 import collector_pb2, report_pb2
from demur_proto.wire.definition import PROTOCOL_VERSION, Defined
from demur_proto.wire.frames import pieces_of

SERVICE = "demur_proto.v1.Collector"
TRANSPORT = ("user-agent", "grpc-", "te", "content-type", "accept-encoding")
"""Metadata that gRPC itself sends, or what such a name begins with."""

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A message of a device, and when it came."""

    message: collector_pb2.VisitRequest
    at_s: float  #: of the monotonic clock


class Visit:
    """One visit of a device, as the script sees it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._arrivals: asyncio.Queue[Arrival | None] = asyncio.Queue()
        self._over = asyncio.Event()
        self.lost = False  #: the stream is to end as if the connection had
        self.hello = collector_pb2.Hello()

    async def welcome(self, rounds: int = 0) -> None:
        """Answer the hello."""
        message = collector_pb2.Welcome(protocol_version=PROTOCOL_VERSION, rounds=rounds)
        await self.send(collector_pb2.VisitResponse(welcome=message))

    async def push(self, asked: Defined[Round]) -> float:
        """Push a round; returns when that was, of the monotonic clock."""
        return await self.push_bytes(asked.definition)

    async def push_bytes(self, definition: bytes) -> float:
        """Push what claims to be a round."""
        message = collector_pb2.OpenedRound(definition=definition)
        at_s = time.monotonic()
        await self.send(collector_pb2.VisitResponse(opened_round=message))
        return at_s

    async def receipt(self, report_id: bytes, disposition: int) -> None:
        """Say what became of a report."""
        message = report_pb2.Receipt(
            report_id=report_id, disposition=report_pb2.Disposition.ValueType(disposition)
        )
        await self.send(collector_pb2.VisitResponse(receipt=message))

    async def send(self, message: collector_pb2.VisitResponse | bytes) -> None:
        """Write a message, or bytes that need not be one; nothing where the device has gone."""
        try:
            await self._context.write(message)
        except (
            asyncio.InvalidStateError,
            grpc.aio.BaseError,
        ):  # what gRPC says of a stream that ended
            self.gone()

    async def next(self, timeout_s: float) -> Arrival | None:
        """The next message; None where the device has ended the visit, or has gone.

        Raises:
            TimeoutError: neither came in time.
        """
        with anyio.fail_after(timeout_s):
            return await self._arrivals.get()

    def end(self, *, lost: bool = False) -> None:
        """End the visit: in order, or as if the connection were lost."""
        self.lost = self.lost or lost
        self._over.set()

    def gone(self) -> None:
        """Note that nothing more will come."""
        self._arrivals.put_nowait(None)

    async def attend(self, requests: AsyncIterator[collector_pb2.VisitRequest]) -> None:
        """Receive until the script ends the visit."""
        async with anyio.create_task_group() as tasks:

            async def receive() -> None:
                async for message in requests:
                    self._arrivals.put_nowait(Arrival(message=message, at_s=time.monotonic()))
                self.gone()

            tasks.start_soon(receive)
            await self._over.wait()
            tasks.cancel_scope.cancel()


@dataclass(kw_only=True)
class Stand:
    """The scripted collector of one device."""

    study: Defined[Study]
    given: bytes = b""  #: what GetStudy answers, where that is not the study
    models: Mapping[bytes, DefinedModel] = field(default_factory=dict)  #: by their hashes
    lose_enrolments: int = 0  #: so many answers to Enrol are lost
    enrolment_lost: Callable[[], Awaitable[None]] | None = None  #: called when one is
    credential: DeviceCredential = field(
        default_factory=lambda: DeviceCredential(
            device_id=secrets.token_bytes(16), secret=secrets.token_bytes(32)
        )
    )
    visits: "asyncio.Queue[Visit]" = field(default_factory=asyncio.Queue)
    enrolments: list[collector_pb2.EnrolRequest] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)  #: every call's name, in order
    faults: dict[str, str] = field(default_factory=dict)  #: of the rules about every call
    study_asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def enrol(
        self, request: collector_pb2.EnrolRequest, context: Context
    ) -> collector_pb2.EnrolResponse:
        """Trade the token, or lose the answer."""
        self._note("Enrol", context, credentials=0)
        self._look(request, version=request.protocol_version)
        self.enrolments.append(request)
        if self.lose_enrolments:
            self.lose_enrolments -= 1
            if self.enrolment_lost is not None:
                await self.enrolment_lost()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost")
        return collector_pb2.EnrolResponse(
            device_id=self.credential.device_id, secret=self.credential.secret
        )

    async def get_study(
        self, request: collector_pb2.GetStudyRequest, context: Context
    ) -> collector_pb2.GetStudyResponse:
        """The study, or what is given in its place."""
        await self._admit("GetStudy", context)
        self._look(request, version=request.protocol_version)
        self.study_asked.set()
        return collector_pb2.GetStudyResponse(definition=self.given or self.study.definition)

    async def get_model(
        self, request: collector_pb2.GetModelRequest, context: Context
    ) -> AsyncIterator[collector_pb2.GetModelResponse]:
        """A model that a round names, in pieces."""
        await self._admit("GetModel", context)
        self._look(request, version=request.protocol_version)
        model = self.models.get(request.model_hash)
        if model is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no round names this model")
        for piece in pieces_of(model.definition):
            yield collector_pb2.GetModelResponse(piece=piece)

    async def visit(
        self, requests: AsyncIterator[collector_pb2.VisitRequest], context: Context
    ) -> None:
        """Hand the visit to the script, and wait until that has ended it."""
        await self._admit("Visit", context)
        first = await anext(requests, None)
        if first is None or first.WhichOneof("message") != "hello":
            self.faults.setdefault("fields", "a visit did not begin with a hello")
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a hello comes first")
        self._look(first, version=first.hello.protocol_version)
        visit = Visit(context)
        visit.hello = first.hello
        self.visits.put_nowait(visit)
        try:
            await visit.attend(requests)
        finally:
            visit.gone()
        if visit.lost:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection is lost")

    def look(self, arrival: Arrival) -> None:
        """Look for fields that no schema has."""
        self._look(arrival.message)

    async def _admit(self, name: str, context: Context) -> None:
        if not self._note(name, context, credentials=1):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, REFUSED)

    def _note(self, name: str, context: Context, *, credentials: int) -> bool:
        """Note a call and what came beside it; whether the credential is right."""
        self.calls.append(name)
        shown = []
        for key, value in context.invocation_metadata() or ():
            if key == METADATA_KEY:
                shown.append(value)
            elif not key.startswith(TRANSPORT):
                self.faults.setdefault("credential", f"{name} carries the metadata {key!r}")
        right = shown == [self.credential.wire] * credentials
        if not right:
            self.faults.setdefault(
                "credential", f"{name} shows {len(shown)} credentials, or another"
            )
        return right

    def _look(self, message: Message, *, version: int = PROTOCOL_VERSION) -> None:
        if version != PROTOCOL_VERSION:
            self.faults.setdefault("fields", f"protocol version {version}")
        size = message.ByteSize()
        message.DiscardUnknownFields()
        if message.ByteSize() != size:
            self.faults.setdefault("fields", "a message has a field that the schema does not have")


@asynccontextmanager
async def standing(stand: Stand, host: str, port: int) -> AsyncIterator[int]:
    """Serve a stand; gives the port.

    Raises:
        StateError: the port cannot be had.
    """
    server = grpc.aio.server(
        options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 4 << 20)]
    )
    server.add_generic_rpc_handlers(_handlers(stand))
    try:
        bound = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise StateError(
            f"{host}:{port} cannot be listened on; take another port, or 0 for any that is free"
        ) from error
    await server.start()
    try:
        yield bound
    finally:
        with anyio.CancelScope(shield=True):
            await server.stop(0)


def _handlers(stand: Stand) -> Sequence[grpc.GenericRpcHandler]:
    def serialised(message: Message | bytes) -> bytes:
        return message if isinstance(message, bytes) else message.SerializeToString()

    calls: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Enrol": grpc.unary_unary_rpc_method_handler(
            stand.enrol, collector_pb2.EnrolRequest.FromString, serialised
        ),
        "GetStudy": grpc.unary_unary_rpc_method_handler(
            stand.get_study, collector_pb2.GetStudyRequest.FromString, serialised
        ),
        "GetModel": grpc.unary_stream_rpc_method_handler(
            stand.get_model, collector_pb2.GetModelRequest.FromString, serialised
        ),
        "Visit": grpc.stream_stream_rpc_method_handler(
            stand.visit, collector_pb2.VisitRequest.FromString, serialised
        ),
    }
    return (grpc.method_handlers_generic_handler(SERVICE, calls),)
