"""The analyst's side: ask a question, see the release, ask the next one."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import grpc

from demur_proto.asking import check_affordable, next_histogram, next_round
from demur_proto.calls import PEER, calling
from demur_proto.definition import Defined, define_round, define_study
from demur_proto.errors import StateError
from demur_proto.release import Release
from demur_proto.round import Feature, Randomiser, Round
from demur_proto.study import Study
from demur_proto.v1 import analyst_pb2, analyst_pb2_grpc
from demur_proto.version import PROTOCOL_VERSION

CALL_S = 30.0  #: deadline of a single short call
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 16 << 20),  # a release is many times as large as a report
    ("grpc.enable_http_proxy", 0),
)


class Analyst:
    """One analyst, one study, any number of adaptively chosen questions.

    Made by `Analyst.create`; `study` is what devices must pin.
    """

    def __init__(self, stub: "analyst_pb2_grpc.AnalystAsyncStub", study: Defined[Study]) -> None:
        self.study = study
        self._stub = stub
        self._rounds = 0

    @classmethod
    @asynccontextmanager
    async def create(cls, target: str, study: Study) -> "AsyncIterator[Analyst]":
        """Fix a new study at a collector on this machine.

        Args:
            target: the collector's analyst port, `127.0.0.1:PORT`.
            study: the contract.

        Raises:
            ConnectionLost: there is no collector.
            DemurError: it refuses the study.
        """
        defined = define_study(study)
        async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
            stub = analyst_pb2_grpc.AnalystStub(channel)
            request = analyst_pb2.CreateStudyRequest(
                protocol_version=PROTOCOL_VERSION, definition=defined.definition
            )
            async with calling(PEER):
                await stub.CreateStudy(request, timeout=CALL_S)
            yield cls(stub, defined)

    async def open(
        self,
        *features: Feature,
        dimension: int | None = None,
        clip: float = 1.0,
        on_grid: bool = False,
        answer_after_ms: int = 0,
    ) -> Defined[Round]:
        """Put a question to every device: the sum over people of these features.

        Args:
            features: what to add up, one after the other.
            dimension: coordinates of all features together; one each by default.
            clip: ℓ₂ radius of one person's value, data units.
            on_grid: every possible value is a multiple of the study's grid step.
            answer_after_ms: when devices send, after they received the round.

        Raises:
            ParameterError: an argument is outside its range.
            DemurError: the collector refuses the round, or went away.
        """
        return await self._open(
            next_round(
                self.study,
                features,
                number=self._rounds + 1,
                dimension=dimension,
                clip=clip,
                on_grid=on_grid,
                answer_after_ms=answer_after_ms,
            )
        )

    async def open_histogram(
        self,
        feature: Feature,
        *,
        categories: int,
        mechanism: Randomiser,
        epsilon: float,
        answer_after_ms: int = 0,
    ) -> Defined[Round]:
        """Put a question to every device: which category of a feature is its owner's?

        Args:
            feature: gives each person's category, 0 to categories − 1.
            categories: k, how many there are; >= 2.
            mechanism: how devices randomise their category.
            epsilon: ε of the mechanism, nats; > 0.
            answer_after_ms: when devices send, after they received the round.

        Raises:
            ParameterError: an argument is outside its range, the study has no histograms, or no
                device could afford a single answer.
            DemurError: the collector refuses the round, or went away.
        """
        return await self._open(
            next_histogram(
                self.study,
                feature,
                number=self._rounds + 1,
                categories=categories,
                mechanism=mechanism,
                epsilon=epsilon,
                answer_after_ms=answer_after_ms,
            )
        )

    async def _open(self, asked: Round) -> Defined[Round]:
        check_affordable(self.study.value, asked)
        defined = define_round(asked)
        request = analyst_pb2.OpenRoundRequest(definition=defined.definition)
        async with calling(PEER):
            await self._stub.OpenRound(request, timeout=CALL_S)
        self._rounds += 1
        return defined

    async def close(
        self, asked: Defined[Round], *, after_reports: int = 0, timeout_s: float = CALL_S
    ) -> Release:
        """Close a round, once it has this many reports, and return its release.

        Raises:
            StateError: it did not get them in time; it stays open.
            DemurError: the collector went away.
        """
        request = analyst_pb2.CloseRoundRequest(round_hash=asked.hash, after_reports=after_reports)
        async with calling(PEER):
            try:
                response = await self._stub.CloseRound(request, timeout=timeout_s)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise
                raise StateError(
                    f"round {asked.value.number} did not get {after_reports} reports within "
                    f"{timeout_s:g} s; it stays open"
                ) from None
        return Release.of(response.release)

    async def ask(
        self,
        *features: Feature,
        dimension: int | None = None,
        clip: float = 1.0,
        on_grid: bool = False,
        reports: int | None = None,
        timeout_s: float = 60.0,
    ) -> Release:
        """Ask a question, wait for the reports, and return the release.

        Args:
            features: what to add up over people, one after the other.
            dimension: coordinates of all features together; one each by default.
            clip: ℓ₂ radius of one person's value, data units.
            on_grid: every possible value is a multiple of the study's grid step.
            reports: how many to wait for; by default the study's minimum cohort.
            timeout_s: how long to wait for them, seconds.

        Raises:
            StateError: they did not come in time.
            DemurError: the collector refuses, or went away.
        """
        asked = await self.open(*features, dimension=dimension, clip=clip, on_grid=on_grid)
        return await self._close(asked, reports, timeout_s)

    async def ask_histogram(
        self,
        feature: Feature,
        *,
        categories: int,
        mechanism: Randomiser,
        epsilon: float,
        reports: int | None = None,
        timeout_s: float = 60.0,
    ) -> Release:
        """Ask for categories, wait for the reports, and return the release with their counts.

        Args:
            feature: gives each person's category, 0 to categories − 1.
            categories: k, how many there are; >= 2.
            mechanism: how devices randomise their category.
            epsilon: ε of the mechanism, nats; > 0.
            reports: how many to wait for; by default the study's minimum cohort.
            timeout_s: how long to wait for them, seconds.

        Raises:
            StateError: they did not come in time.
            DemurError: the collector refuses, or went away.
        """
        asked = await self.open_histogram(
            feature, categories=categories, mechanism=mechanism, epsilon=epsilon
        )
        return await self._close(asked, reports, timeout_s)

    async def _close(self, asked: Defined[Round], reports: int | None, timeout_s: float) -> Release:
        wanted = self.study.value.minimum_cohort if reports is None else reports
        return await self.close(asked, after_reports=wanted, timeout_s=timeout_s)

    async def watch(self, *, from_number: int = 1) -> AsyncGenerator[Release, None]:
        """Every release of the study from a round's number on, then each new one.

        Raises:
            DemurError: the collector went away.
        """
        request = analyst_pb2.WatchReleasesRequest(
            study_hash=self.study.hash, from_number=from_number
        )
        call = self._stub.WatchReleases(request)
        try:
            while True:
                async with calling(PEER):
                    response = await call.read()
                if not isinstance(response, analyst_pb2.WatchReleasesResponse):
                    return  # the collector has ended the stream
                yield Release.of(response.release)
        finally:
            call.cancel()
