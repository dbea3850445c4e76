"""The analyst's side: ask a question, see the release, ask the next one."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import anyio

from demur_proto.asking import check_affordable, next_histogram, next_round
from demur_proto.calls import CALL_S, PEER, calling
from demur_proto.channels import ClientTls, open_channel
from demur_proto.checks import check_integer
from demur_proto.credentials import NamedSecret, metadata_of
from demur_proto.definition import (
    Defined,
    define_round,
    define_study,
)
from demur_proto.mechanisms.of_round import mechanism_for
from demur_proto.release import Release
from demur_proto.round import (
    DEFAULT_SLOT_MS,
    LATEST_ANSWER_MS,
    Feature,
    Randomiser,
    Round,
)
from demur_proto.study import Study
from demur_proto.v1 import analyst_pb2, analyst_pb2_grpc
from demur_server.analyst_calls import CHANNEL_OPTIONS, check_waiting, closed, fixed, listed
from demur_server.choosing import choose_study
from demur_server.counting_questions import CountingQuestions
from demur_server.model_questions import ModelQuestions


class Analyst(ModelQuestions, CountingQuestions):
    """One analyst, one study, any number of adaptively chosen questions.

    Made by `Analyst.create` or `Analyst.resume`; `study` is what devices must pin, and `answer_after_ms`
    is the slot of every round: devices send so long after they received it, and its model.
    """

    def __init__(
        self,
        stub: "analyst_pb2_grpc.AnalystAsyncStub",
        study: Defined[Study],
        *,
        credential: NamedSecret | None = None,
        rounds: int = 0,
        answer_after_ms: int = DEFAULT_SLOT_MS,
    ) -> None:
        check_integer("answer_after_ms", answer_after_ms, 0, LATEST_ANSWER_MS)
        self.study = study
        self.answer_after_ms = answer_after_ms
        self._stub = stub
        self._metadata = metadata_of(credential)
        self._rounds = rounds
        self._unsure = False  # whether the last round that was to be opened was
        self._opening = anyio.Lock()  # rounds are numbered one at a time

    @property
    def rounds(self) -> int:
        """How many rounds the study has had, open ones too, as far as this analyst knows."""
        return self._rounds

    @classmethod
    @asynccontextmanager
    async def create(
        cls,
        target: str,
        study: Study,
        *,
        credential: NamedSecret | None = None,
        tls: ClientTls | None = None,
        insecure_plaintext: bool = False,
        answer_after_ms: int = DEFAULT_SLOT_MS,
    ) -> "AsyncIterator[Analyst]":
        """Fix a study at a collector; one that is fixed there already goes on.

        Args:
            target: the collector's analyst port, `HOST:PORT`.
            study: the contract.
            credential: an analyst's; None where the collector takes questions from anybody.
            tls: how to know the collector; None for plaintext, which stays on this machine.
            insecure_plaintext: allow plaintext to another machine, where anybody on the way can
                read the credential and use it.
            answer_after_ms: when devices send, after they received a round, and its model. 0 is for
                data that are made up: as soon as they can, so that the time shows how long that took.

        Raises:
            ParameterError: not a target, no such slot, or plaintext that would leave this machine.
            AccessError: the credential was refused, or a certificate is wrong.
            ConnectionLost: there is no collector.
            DemurError: it refuses the study.
        """
        defined = define_study(study)
        async with open_channel(
            target, tls=tls, insecure_plaintext=insecure_plaintext, options=CHANNEL_OPTIONS
        ) as channel:
            stub = analyst_pb2_grpc.AnalystStub(channel)
            response = await fixed(stub, defined, metadata_of(credential))
            yield cls(
                stub,
                defined,
                credential=credential,
                rounds=response.rounds,
                answer_after_ms=answer_after_ms,
            )

    @classmethod
    @asynccontextmanager
    async def resume(
        cls,
        target: str,
        study: str | None = None,
        *,
        credential: NamedSecret | None = None,
        tls: ClientTls | None = None,
        insecure_plaintext: bool = False,
        answer_after_ms: int = DEFAULT_SLOT_MS,
    ) -> "AsyncIterator[Analyst]":
        """Go on with a study that a collector has.

        Args:
            target: the collector's analyst port, `HOST:PORT`.
            study: its name, or at least 8 digits of its hash; None for the only one there is.
            credential: an analyst's; None where the collector takes questions from anybody.
            tls: how to know the collector; None for plaintext, which stays on this machine.
            insecure_plaintext: allow plaintext to another machine; see `create`.
            answer_after_ms: as in `create`.

        Raises:
            NotFoundError: there is no such study, or more than one.
            ParameterError: not a target, no such slot, or plaintext that would leave this machine.
            AccessError: the credential was refused, or a certificate is wrong.
            ConnectionLost: there is no collector.
        """
        async with open_channel(
            target, tls=tls, insecure_plaintext=insecure_plaintext, options=CHANNEL_OPTIONS
        ) as channel:
            stub = analyst_pb2_grpc.AnalystStub(channel)
            found, rounds = choose_study(await listed(stub, credential), study)
            yield cls(
                stub, found, credential=credential, rounds=rounds, answer_after_ms=answer_after_ms
            )

    async def open(
        self,
        *features: Feature,
        dimension: int | None = None,
        weights: Sequence[Sequence[float]] | None = None,
        clip: float = 1.0,
        on_grid: bool = False,
    ) -> Defined[Round]:
        """Put a question to every device: the sum over people of these features.

        Args:
            features: what to add up, one after the other.
            dimension: coordinates of all features together; one each by default.
            weights: [d, v], of the v numbers that the features give: a row for each coordinate.
            clip: ℓ₂ radius of one person's value, data units.
            on_grid: every possible value is a multiple of the study's grid step.

        Raises:
            ParameterError: an argument is outside its range.
            DemurError: the collector refuses the round, or went away.
        """
        return await self._open(
            partial(
                next_round,
                self.study,
                features,
                dimension=dimension,
                weights=weights,
                clip=clip,
                on_grid=on_grid,
            )
        )

    async def open_histogram(
        self,
        feature: Feature,
        *,
        categories: int,
        mechanism: Randomiser,
        epsilon: float,
    ) -> Defined[Round]:
        """Put a question to every device: which category of a feature is its owner's?

        Args:
            feature: gives each person's category, 0 to categories − 1.
            categories: k, how many there are; >= 1: see `Histogram`.
            mechanism: how devices randomise their category.
            epsilon: ε of the mechanism, nats; > 0.

        Raises:
            ParameterError: an argument is outside its range, the study has no histograms, or no
                device could afford a single answer.
            DemurError: the collector refuses the round, or went away.
        """
        return await self._open(
            partial(
                next_histogram,
                self.study,
                feature,
                categories=categories,
                mechanism=mechanism,
                epsilon=epsilon,
            )
        )

    async def _open(self, numbered: Callable[..., Round]) -> Defined[Round]:
        async with self._opening:
            if self._unsure:
                self._rounds = (await fixed(self._stub, self.study, self._metadata)).rounds
                self._unsure = False
            asked = numbered(number=self._rounds + 1, answer_after_ms=self.answer_after_ms)
            check_affordable(self.study.value, asked)
            mechanism_for(self.study.value, asked)  # or refuse, before anything is sent
            defined = define_round(asked)
            request = analyst_pb2.OpenRoundRequest(definition=defined.definition)
            self._unsure = True  # an answer may be lost, or whoever waits for it interrupted
            async with calling(PEER):
                await self._stub.OpenRound(request, timeout=CALL_S, metadata=self._metadata)
            self._unsure = False
            self._rounds += 1
        return defined

    async def close(
        self, asked: Defined[Round], *, after_reports: int = 0, timeout_s: float = CALL_S
    ) -> Release:
        """Close a round, once it has this many reports, and return its release.

        Raises:
            ParameterError: an argument is outside its range.
            StateError: it did not get them in time; it stays open.
            DemurError: the collector went away.
        """
        return await closed(
            self._stub,
            asked.hash,
            f"round {asked.value.number}",
            metadata=self._metadata,
            after_reports=after_reports,
            timeout_s=timeout_s,
        )

    async def ask(
        self,
        *features: Feature,
        dimension: int | None = None,
        weights: Sequence[Sequence[float]] | None = None,
        clip: float = 1.0,
        on_grid: bool = False,
        reports: int | None = None,
        timeout_s: float = 60.0,
    ) -> Release:
        """Ask a question, wait for the reports, and return the release.

        Args:
            features: what to add up over people, one after the other.
            dimension: coordinates of all features together; one each by default.
            weights: [d, v], of the v numbers that the features give: a row for each coordinate.
            clip: ℓ₂ radius of one person's value, data units.
            on_grid: every possible value is a multiple of the study's grid step.
            reports: how many to wait for; by default the study's minimum cohort.
            timeout_s: how long to wait for them, seconds.

        Raises:
            ParameterError: an argument is outside its range; nothing was asked.
            StateError: they did not come in time; the round stays open.
            DemurError: the collector refuses, or went away.
        """
        check_waiting(reports, timeout_s)
        asked = await self.open(
            *features,
            dimension=dimension,
            weights=weights,
            clip=clip,
            on_grid=on_grid,
        )
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

        The arguments are those of `open_histogram`, then those of `ask`.

        Raises:
            ParameterError: an argument is outside its range; nothing was asked.
            StateError: they did not come in time; the round stays open.
            DemurError: the collector refuses, or went away.
        """
        check_waiting(reports, timeout_s)
        asked = await self.open_histogram(
            feature,
            categories=categories,
            mechanism=mechanism,
            epsilon=epsilon,
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
        call = self._stub.WatchReleases(request, metadata=self._metadata)
        try:
            while True:
                async with calling(PEER):
                    response = await call.read()
                if not isinstance(response, analyst_pb2.WatchReleasesResponse):
                    return  # the collector has ended the stream
                yield Release.of(response.release)
        finally:
            call.cancel()
