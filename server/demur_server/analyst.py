"""An analyst: ask a question, see the release, ask the next one."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio

from demur_proto.checks import check_integer
from demur_proto.errors import StateError
from demur_proto.models.definition import DefinedModel
from demur_proto.queries import ModelQuery, Query, RunningCount
from demur_proto.queries.registry import mechanism_for
from demur_proto.release import Release, Withheld
from demur_proto.round import DEFAULT_SLOT_MS, LATEST_ANSWER_MS, Round, check_query, round_of
from demur_proto.study import Study
from demur_proto.transport.calls import CALL_S, PEER, calling
from demur_proto.transport.channels import ClientTls, open_channel
from demur_proto.transport.credentials import NamedSecret, metadata_of
from demur_proto.v1 import analyst_pb2, analyst_pb2_grpc
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_server.analyst_calls import (
    CHANNEL_OPTIONS,
    check_waiting,
    closed,
    fixed,
    last_count,
    listed,
)
from demur_server.collector.models import model_messages
from demur_server.parsing import choose_study

MODEL_S = 300.0  #: deadline of handing over a model


class Analyst:
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

    async def open(self, query: Query) -> Defined[Round]:
        """Put a question to every device.

        Args:
            query: what is asked. One about a model that has it with it, as `Gradient.about(model)` has,
                publishes the model first; without it, the model must have been published.

        Raises:
            ParameterError: the study does not allow the query, or no device could afford an answer.
            StateError: it is a running count, and not its next position.
            NotFoundError: the collector does not keep its model.
            DemurError: the collector refuses the round, or went away.
        """
        check_query(query)
        if isinstance(query, ModelQuery) and query.model is not None:
            query.check_kind(self.study.value)
            await self.publish_model(query.model)
        async with self._opening:
            if self._unsure:
                self._rounds = (await fixed(self._stub, self.study, self._metadata)).rounds
                self._unsure = False
            asked = round_of(
                self.study, query, number=self._rounds + 1, answer_after_ms=self.answer_after_ms
            )
            asked.query.check_affordable(self.study.value, asked.weight)
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
        self, query: Query, *, reports: int | None = None, timeout_s: float = 60.0
    ) -> Release:
        """Ask a question, wait for the reports, and return the release.

        Args:
            query: as in `open`.
            reports: how many to wait for; by default the study's minimum cohort.
            timeout_s: how long to wait for them, seconds.

        Raises:
            ParameterError: an argument is outside its range; nothing was asked.
            StateError: the reports did not come in time, and the round stays open; or as `open`.
            DemurError: the collector refuses, or went away.
        """
        check_waiting(reports, timeout_s)
        asked = await self.open(query)
        wanted = self.study.value.minimum_cohort if reports is None else reports
        return await self.close(asked, after_reports=wanted, timeout_s=timeout_s)

    async def publish_model(self, model: DefinedModel) -> None:
        """Hand a model with its parameters to the collector, for rounds to name.

        The same again changes nothing. The collector forgets it when no open round names it any more,
        so each round needs it published before: `open` does, where the query has it with it.

        Args:
            model: it becomes public.

        Raises:
            DemurError: the collector refuses it, or went away.
        """
        async with calling(PEER):
            await self._stub.PublishModel(
                model_messages(model), timeout=MODEL_S, metadata=self._metadata
            )

    async def next_of(self, feature: str) -> RunningCount | None:
        """What the next round of a feature's running count asks, as the collector knows it.

        The last such count of the study is meant, and goes on in segments twice as long when one is
        over. Ask it with `ask(replace(next, feature=feature))`.

        Args:
            feature: its name; the parameters are those of the last round.

        Returns:
            None where nobody has asked for a running count of it.

        Raises:
            StateError: its last round is still open; or was withheld, so that only another count can
                be begun.
            DemurError: the collector refuses, or went away.
        """
        query, _ = await self.next_or_others(feature)
        return query

    async def next_or_others(self, feature: str) -> tuple[RunningCount | None, tuple[str, ...]]:
        """The same, and what else is counted where nobody has asked for a running count of it.

        Returns:
            What `next_of` does; and with None the features that the study has running counts of, each
            once and the last one first.

        Raises:
            StateError: as `next_of`.
            DemurError: likewise.
        """
        found, others = await last_count(self._stub, self.study, feature, metadata=self._metadata)
        if found is None:
            return None, others
        query, release = found
        if release.withheld is not Withheld.NOTHING:
            raise StateError(
                f"round {release.number} of the running count was withheld, and nothing can go on with "
                "it; begin another count (demur ask --anew)"
            )
        return replace(query, segment=query.segment.following(release.number)), ()

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
