"""The analyst's gRPC face of a collector: translate, delegate, translate back."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, TypeVar

import anyio.to_thread
import grpc

from demur_proto.release import Release
from demur_proto.v1 import analyst_pb2, analyst_pb2_grpc
from demur_proto.version import check_version
from demur_server.collector import Collector
from demur_server.intake import LARGE_BYTES
from demur_server.publishing import read_header, read_pieces

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
