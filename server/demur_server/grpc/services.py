"""Words taken out of a message's bytes without a copy.

Protobuf copies a field twice, when it parses a message and when it is asked for the field. The words of
large reports stay where gRPC has put them instead, and only what is around them is parsed.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

import anyio
import anyio.to_thread
import grpc

from demur_proto.errors import WireError
from demur_proto.release import Release
from demur_proto.v1 import (
    analyst_pb2,
    analyst_pb2_grpc,
    collector_pb2,
    collector_pb2_grpc,
    report_pb2,
)
from demur_proto.wire.definition import PROTOCOL_VERSION, check_version
from demur_proto.wire.frames import LARGEST_FRAMED_BYTES, check_frame, pieces_of
from demur_proto.wire.words import Payload, varint
from demur_server.collector.chunks import Assembler
from demur_server.collector.collector import Collector
from demur_server.collector.intake import LARGE_BYTES
from demur_server.collector.models import read_header, read_pieces
from demur_server.grpc.access import Access, caller_now
from demur_server.grpc.interceptor import Requests

WORTH_BYTES = 1 << 15  #: of a message; in a smaller one, words are copied as quickly

_VARINT, _LENGTH = 0, 2  # wire types: https://protobuf.dev/programming-guides/encoding/#structure
_LONGEST = {_VARINT: 10, _LENGTH: 5}  # bytes that a number takes, or a length

Message_co = TypeVar("Message_co", covariant=True)


class Kind(Protocol[Message_co]):
    """A class of messages."""

    def FromString(self, data: bytes, /) -> Message_co:
        """Parse one."""


def lifting(
    kind: Kind[Message_co], *, field: int, inner: int
) -> Callable[[bytes], tuple[Message_co, memoryview | None]]:
    """Something that parses messages, and lifts a field out of large ones.

    Args:
        kind: of messages.
        field: see `lift`.
        inner: likewise.

    Returns:
        What makes of a message's bytes the message, and the field that it now lacks; None: it has all.
    """

    def decode(data: bytes) -> tuple[Message_co, memoryview | None]:
        found = lift(data, field, inner) if len(data) >= WORTH_BYTES else None
        if found is None:
            return kind.FromString(data), None
        return kind.FromString(found[0]), found[1]

    return decode


def lift(data: bytes, field: int, inner: int) -> tuple[bytes, memoryview] | None:
    """Take one field of a message within a message out of it.

    Args:
        data: a message that holds nothing but another one.
        field: the number of that other one, below 16.
        inner: the number of its field of bytes, below 16.

    Returns:
        The message without the field, and the field's bytes, a part of `data`. None unless `data` is
        of just this form, with the field in it once; what it means is then for protobuf to say.

    >>> rest, lifted = lift(bytes.fromhex("12060a01aa1a01bb"), 2, 3)
    >>> rest.hex(), lifted.hex()
    ('12030a01aa', 'bb')
    """
    if not data or data[0] != field << 3 | _LENGTH:
        return None
    start, size = _number(data, 1, _LONGEST[_LENGTH])
    if start + size != len(data):
        return None
    at, lifted = start, None
    while at < len(data):
        begin, key = at, data[at]
        longest = _LONGEST.get(key & 7)
        if not 8 <= key < 0x80 or longest is None:
            return None
        first, size = _number(data, at + 1, longest)
        at = first + size if key & 7 == _LENGTH else first
        if not first or at > len(data):
            return None
        if key == inner << 3 | _LENGTH:
            if lifted is not None:
                return None
            lifted = begin, first, at
    if lifted is None:
        return None
    begin, first, end = lifted
    rest = data[start:begin] + data[end:]
    return data[:1] + varint(len(rest)) + rest, memoryview(data)[first:end]


def _number(data: bytes, at: int, longest: int) -> tuple[int, int]:
    """Where the number at this place ends, and the number; 0 and 0: it is too long or broken off."""
    value = 0
    for shift, byte in enumerate(data[at : at + longest]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return at + shift + 1, value
    return 0, 0


# The analyst's gRPC face of a collector: translate, delegate, translate back.

Context = grpc.aio.ServicerContext[Any, Any]


class AnalystService(analyst_pb2_grpc.AnalystServicer):
    """Serves one collector to analysts."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    async def CreateStudy(
        self, request: analyst_pb2.CreateStudyRequest, context: Context
    ) -> analyst_pb2.CreateStudyResponse:
        """Fix a study."""
        check_version(request.protocol_version)
        study = await self._collector.create_study(request.definition)
        opened = self._collector.rounds_opened(study.hash)
        return analyst_pb2.CreateStudyResponse(study_hash=study.hash, rounds=opened)

    async def ListStudies(
        self, request: analyst_pb2.ListStudiesRequest, context: Context
    ) -> AsyncIterator[analyst_pb2.ListStudiesResponse]:
        """Every study, to go on with one."""
        check_version(request.protocol_version)
        for study in self._collector.studies():
            opened = self._collector.rounds_opened(study.hash)
            yield analyst_pb2.ListStudiesResponse(definition=study.definition, rounds=opened)

    async def PublishModel(
        self, request_iterator: AsyncIterator[analyst_pb2.PublishModelRequest], context: Context
    ) -> analyst_pb2.PublishModelResponse:
        """Take in a model, in pieces."""
        header = await read_header(request_iterator)
        models = self._collector.models
        if not await models.is_kept(header.model_hash):  # else it need not come again
            definition = await read_pieces(request_iterator, header)
            await models.publish(header.model_hash, definition)
        return analyst_pb2.PublishModelResponse(model_hash=header.model_hash)

    async def OpenRound(
        self, request: analyst_pb2.OpenRoundRequest, context: Context
    ) -> analyst_pb2.OpenRoundResponse:
        """Put one question to every device."""
        asked = await self._collector.open_round(request.definition)
        return analyst_pb2.OpenRoundResponse(round_hash=asked.hash)

    async def ListRounds(
        self, request: analyst_pb2.ListRoundsRequest, context: Context
    ) -> AsyncIterator[analyst_pb2.ListRoundsResponse]:
        """Every round of a study, the newest first."""
        for each in reversed(self._collector.rounds(request.study_hash)):
            yield analyst_pb2.ListRoundsResponse(
                definition=each.asked.definition, released=each.released
            )

    async def GetRound(
        self, request: analyst_pb2.GetRoundRequest, context: Context
    ) -> analyst_pb2.GetRoundResponse:
        """How many reports a round has."""
        counted = await self._collector.counted(request.round_hash)
        return analyst_pb2.GetRoundResponse(reports=counted.reports, closed=counted.closed)

    async def CloseRound(
        self, request: analyst_pb2.CloseRoundRequest, context: Context
    ) -> analyst_pb2.CloseRoundResponse:
        """Close a round, for ever, and publish its release."""
        release = await self._collector.close_round(
            request.round_hash, after_reports=request.after_reports
        )
        return await _telling(analyst_pb2.CloseRoundResponse, release)

    async def GetRelease(
        self, request: analyst_pb2.GetReleaseRequest, context: Context
    ) -> analyst_pb2.GetReleaseResponse:
        """Fetch the release of a closed round."""
        release = await self._collector.release(request.round_hash)
        return await _telling(analyst_pb2.GetReleaseResponse, release)

    async def WatchReleases(
        self, request: analyst_pb2.WatchReleasesRequest, context: Context
    ) -> AsyncIterator[analyst_pb2.WatchReleasesResponse]:
        """Every release of a study, then each new one."""
        published = self._collector.watch_releases(
            request.study_hash, from_number=max(1, request.from_number)
        )
        async with aclosing(published) as releases:
            async for release in releases:
                yield await _telling(analyst_pb2.WatchReleasesResponse, release)


Response = TypeVar(
    "Response",
    analyst_pb2.CloseRoundResponse,
    analyst_pb2.GetReleaseResponse,
    analyst_pb2.WatchReleasesResponse,
)


async def _telling(kind: type[Response], release: Release) -> Response:
    """A response with a release; a large one is made on a thread, while the loop serves others."""

    def make() -> Response:
        return kind(release=release.message())

    large = release.sums.nbytes > LARGE_BYTES
    return await anyio.to_thread.run_sync(make) if large else make()


# The devices' gRPC face of a collector: translate, delegate, translate back.


class CollectorService(collector_pb2_grpc.CollectorServicer):
    """Serves one collector to devices and gateways."""

    def __init__(self, collector: Collector, access: Access, assembler: Assembler) -> None:
        self._collector = collector
        self._access = access
        self._assembler = assembler

    async def Enrol(
        self, request: collector_pb2.EnrolRequest, context: Context
    ) -> collector_pb2.EnrolResponse:
        """Trade a token for a device's credential."""
        check_version(request.protocol_version)
        credential = await self._access.enrol(request.token, request.nonce)
        return collector_pb2.EnrolResponse(device_id=credential.device_id, secret=credential.secret)

    async def GetStudy(
        self, request: collector_pb2.GetStudyRequest, context: Context
    ) -> collector_pb2.GetStudyResponse:
        """Fetch a study's definition."""
        check_version(request.protocol_version)
        study = self._collector.study(request.study_hash)
        return collector_pb2.GetStudyResponse(definition=study.definition)

    async def GetModel(
        self, request: collector_pb2.GetModelRequest, context: Context
    ) -> AsyncIterator[collector_pb2.GetModelResponse]:
        """Fetch the model that a round names, in pieces."""
        check_version(request.protocol_version)
        definition = await self._collector.models.definition(request.model_hash)
        for piece in pieces_of(definition):
            yield collector_pb2.GetModelResponse(piece=piece)

    async def Visit(  # type: ignore[override]  # grpc also takes a coroutine that writes
        self, request_iterator: Requests[collector_pb2.VisitRequest], context: Context
    ) -> None:
        """One device's visit: whatever it sends is its own."""
        kind = collector_pb2.VisitResponse
        requests = request_iterator.decoded_by(_read_visit)
        device_id = caller_now().device_id

        async def receive(write: Write) -> None:
            async for request, words in requests:
                match request.WhichOneof("message"):
                    case "report":
                        report = request.report
                        report_id = report.report_id
                        disposition = await self._submitted(report, report_id, words, device_id)
                    case "chunk":
                        report_id = request.chunk.report_id
                        disposition = await self._submit_chunks(
                            request.chunk, requests, device_id=device_id
                        )
                    case _:
                        raise WireError("after its hello a device sends reports, and nothing else")
                response = kind()
                receipt = response.receipt  # filled in place, it is not copied
                receipt.report_id = report_id
                receipt.disposition = _value_of(disposition)
                await write(response)

        hello = await _first_hello(requests)
        await self._attend(hello, receive, context, kind)

    async def SubmitFrames(  # type: ignore[override]  # as above
        self, request_iterator: Requests[collector_pb2.SubmitFramesRequest], context: Context
    ) -> None:
        """The same, for many devices at once.

        A gateway must read while it sends. Receipts that it leaves unread fill its stream's window
        (64 KiB at first, some MiB once it has grown), and then no more of its frames are taken. Other
        streams do not notice, and nothing is lost.
        """
        kind = collector_pb2.SubmitFramesResponse
        requests = request_iterator.decoded_by(_read_frames)

        async def receive(write: Write) -> None:
            async for request, words in requests:
                match request.WhichOneof("message"):
                    case "frame":
                        number = request.frame.frame_number
                        dispositions = await self._submit_frame(request.frame, words)
                    case "chunk":
                        number = request.chunk.frame_number
                        dispositions = [
                            await self._submit_chunks(request.chunk, requests, from_gateway=True)
                        ]
                    case _:
                        raise WireError("after its hello a gateway sends frames, and nothing else")
                receipt = report_pb2.FrameReceipt(frame_number=number)
                receipt.dispositions.extend(map(_value_of, dispositions))
                await write(kind(receipt=receipt))

        hello = await _first_hello(requests)
        await self._attend(hello, receive, context, kind)

    def _submitted(
        self,
        report: report_pb2.Report,
        report_id: bytes,
        lifted: Payload | None,
        device_id: bytes | None,
    ) -> Awaitable[int]:
        """Have a report counted that came in one message."""
        words = report.words if lifted is None else lifted  # the former is a copy, each time
        if len(words) > LARGEST_FRAMED_BYTES:
            raise WireError(
                f"a report of {len(words)} bytes comes in chunks: one message holds "
                f"{LARGEST_FRAMED_BYTES}"
            )
        if len(report_id) != 16:
            raise WireError(f"a report id is 16 bytes, got {len(report_id)}")
        return self._collector.intake.submit_one(
            report.round_hash, report_id, words, device=device_id
        )

    async def _submit_chunks(
        self,
        first: report_pb2.ReportChunk,
        requests: Requests[tuple[Any, Any]],
        *,
        device_id: bytes | None = None,
        from_gateway: bool = False,
    ) -> int:
        """Receive the other chunks of a report, and count it."""

        async def next_chunk() -> report_pb2.ReportChunk | None:
            following = await anext(requests, None)
            if following is None or following[0].WhichOneof("message") != "chunk":
                return None
            chunk: report_pb2.ReportChunk = following[0].chunk
            return chunk

        form = self._collector.intake.form(first.round_hash)
        verdict = self._collector.intake.settled(first.round_hash)
        if from_gateway and self._access.refuses(first):
            verdict = report_pb2.DISPOSITION_INVALID
        async with self._assembler.assembled(
            first, next_chunk, form=form, from_gateway=from_gateway, verdict=verdict
        ) as whole:
            if isinstance(whole, int):
                return whole
            if from_gateway:
                sender = self._access.sender(first, whole.payload_hash)
                if sender.unproven:
                    return report_pb2.DISPOSITION_INVALID
                device_id = sender.devices
            return await self._collector.intake.submit_whole(
                first.round_hash, first.report_id, whole, device=device_id
            )

    async def _submit_frame(
        self, frame: report_pb2.ReportFrame, lifted: Payload | None
    ) -> list[int]:
        """Count the reports of a frame whose makers are proven; the others are INVALID."""
        words = frame.words if lifted is None else lifted  # the former is a copy, each time
        reports = check_frame(frame, words=words)
        senders = self._access.senders(frame, reports=reports, words=words)
        if not senders.unproven:
            return await self._collector.intake.submit(
                frame.round_hash,
                frame.report_ids,
                words,
                devices=senders.devices,
                payload_hashes=senders.payload_hashes,
            )
        unproven = frozenset(senders.unproven)
        proven = [i for i in range(reports) if i not in unproven]
        devices, hashes = senders.devices or b"", senders.payload_hashes or []
        admitted = await self._collector.intake.submit(
            frame.round_hash,
            _chosen(frame.report_ids, proven, reports=reports),
            _chosen(words, proven, reports=reports),
            devices=_chosen(devices, proven, reports=reports),
            payload_hashes=[hashes[i] for i in proven],
        )
        dispositions = [int(report_pb2.DISPOSITION_INVALID)] * reports
        for i, disposition in zip(proven, admitted, strict=True):
            dispositions[i] = disposition
        return dispositions

    async def _attend(
        self,
        hello: collector_pb2.Hello,
        receive: "Callable[[Write], Awaitable[None]]",
        context: Context,
        kind: type[collector_pb2.VisitResponse] | type[collector_pb2.SubmitFramesResponse],
    ) -> None:
        """Push rounds while receiving reports, until the other side has sent its last."""
        check_version(hello.protocol_version)
        study_hash = self._collector.study(hello.study_hash).hash
        # gRPC allows one write at a time. asyncio's lock: anyio's costs a tenth of a whole report.
        writing = asyncio.Lock()
        acquire, release, send = writing.acquire, writing.release, context.write

        async def write(response: object) -> None:
            await acquire()  # `async with` makes two more coroutines
            try:
                await send(response)
            finally:
                release()

        async def push() -> None:
            opened = self._collector.open_rounds(study_hash, after_round=hello.after_round)
            async with aclosing(opened) as rounds:
                async for asked in rounds:
                    message = collector_pb2.OpenedRound(definition=asked.definition)
                    await write(kind(opened_round=message))

        welcome = collector_pb2.Welcome(
            protocol_version=PROTOCOL_VERSION, rounds=self._collector.rounds_opened(study_hash)
        )
        await write(kind(welcome=welcome))
        async with anyio.create_task_group() as tasks:

            async def receive_all() -> None:
                await receive(write)
                tasks.cancel_scope.cancel()

            # This task has half a dozen coroutines below this one, and each would be gone through
            # whenever a report goes on. Receiving has a task that begins here; rounds are pushed seldom.
            tasks.start_soon(receive_all)
            await push()


Write = Callable[[object], Awaitable[None]]


_value_of = report_pb2.Disposition.ValueType

# The fields `words` of a report in a visit, and of a frame.
_read_visit = lifting(collector_pb2.VisitRequest, field=2, inner=3)
_read_frames = lifting(collector_pb2.SubmitFramesRequest, field=2, inner=4)


async def _first_hello(requests: Requests[tuple[Any, Any]]) -> collector_pb2.Hello:
    first = await anext(requests, None)
    if first is None or first[0].WhichOneof("message") != "hello":
        raise WireError("the first message of a stream is a hello")
    hello: collector_pb2.Hello = first[0].hello
    return hello


def _chosen(data: Payload, chosen: list[int], *, reports: int) -> bytes:
    """What a field with equal parts for each report says of some of them."""
    size = len(data) // reports
    return b"".join([data[i * size : (i + 1) * size] for i in chosen])
