"""What an analyst asks round by round: running counts."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import anyio

from demur_proto.asking import (
    check_affordable,
    next_error_count,
    next_gradient,
    next_halt_count,
    next_histogram,
    next_prefix,
    next_round,
)
from demur_proto.checks import check_integer
from demur_proto.errors import StateError
from demur_proto.mechanisms.registry import mechanism_for
from demur_proto.models.definition import DefinedModel
from demur_proto.models.gradients import dimension_of
from demur_proto.release import Release, Withheld
from demur_proto.round import DEFAULT_SLOT_MS, LATEST_ANSWER_MS, Feature, Prefix, Randomiser, Round
from demur_proto.running.segments import Admission, Segment
from demur_proto.study import Study
from demur_proto.transport.calls import CALL_S, PEER, calling
from demur_proto.transport.channels import ClientTls, open_channel
from demur_proto.transport.credentials import Metadata, NamedSecret, metadata_of
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


class Questions(ABC):
    """What every question of an `Analyst` is asked with."""

    study: Defined[Study]
    _stub: "analyst_pb2_grpc.AnalystAsyncStub"
    _metadata: Metadata

    @abstractmethod
    async def _open(self, numbered: Callable[..., Round]) -> Defined[Round]:
        """Open the next round, made when its number is known, in the analyst's slot."""

    @abstractmethod
    async def _close(self, asked: Defined[Round], reports: int | None, timeout_s: float) -> Release:
        """Close a round, once it has its reports."""


class CountingQuestions(Questions):
    """That part of an `Analyst`."""

    async def next_of(self, feature: str) -> Prefix | None:
        """What the next round of a feature's running count asks, as the collector knows it.

        The last such count of the study is meant, and goes on in segments twice as long when one is
        over. Ask it with `ask_prefix(feature, next.segment, bound=next.bound)`.

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

    async def next_or_others(self, feature: str) -> tuple[Prefix | None, tuple[str, ...]]:
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

    async def open_prefix(
        self,
        feature: Feature,
        segment: Segment,
        *,
        bound: int = 1,
        admission: Admission = Admission.COMMIT,
    ) -> Defined[Round]:
        """Put a question to every device: what has changed in its owner's state?

        Args:
            feature: the state now, an integer from 0 to `bound`; parameters may differ by round.
            segment: which of the segment's rounds this is; then `segment.following(number)` is the next.
            bound: the largest state; 1 for a Boolean.
            admission: what a device does with a change that does not fit.

        Raises:
            ParameterError: an argument is outside its range, or the round breaks its segment.
            StateError: it is not the segment's next, or the one before is still open.
            DemurError: the collector refuses the round, or went away.
        """
        return await self._open(
            partial(
                next_prefix,
                self.study,
                feature,
                segment,
                bound=bound,
                admission=admission,
            )
        )

    async def open_halt_count(self, halted_study: bytes, segment: Segment) -> Defined[Round]:
        """Put a question to every device: did it ever give another study less than its value?

        Args:
            halted_study: hash of the other study; not of this one, which has a budget for the count.
            segment: as in `open_prefix`.

        Raises:
            ParameterError: as `open_prefix`.
            StateError: likewise.
            DemurError: likewise.
        """
        return await self._open(
            partial(
                next_halt_count,
                self.study,
                halted_study,
                segment,
            )
        )

    async def ask_prefix(
        self,
        feature: Feature,
        segment: Segment,
        *,
        bound: int = 1,
        admission: Admission = Admission.COMMIT,
        reports: int | None = None,
        timeout_s: float = 60.0,
    ) -> Release:
        """Ask what has changed, wait for the reports, and return the running count.

        Args:
            feature: as in `open_prefix`.
            segment: likewise; `segment.following(release.number)` is the next.
            bound: the largest state; 1 for a Boolean.
            admission: what a device does with a change that does not fit.
            reports: how many to wait for; by default the study's minimum cohort.
            timeout_s: how long to wait for them, seconds.

        Raises:
            ParameterError: an argument is outside its range, or the round breaks its segment.
            StateError: as `open_prefix`, or the reports did not come in time.
            DemurError: the collector refuses, or went away.
        """
        check_waiting(reports, timeout_s)
        asked = await self.open_prefix(feature, segment, bound=bound, admission=admission)
        return await self._close(asked, reports, timeout_s)

    async def ask_halt_count(
        self,
        halted_study: bytes,
        segment: Segment,
        *,
        reports: int | None = None,
        timeout_s: float = 60.0,
    ) -> Release:
        """Ask who gave another study less than their value, and return the running count.

        Args:
            halted_study: as in `open_halt_count`.
            segment: likewise.
            reports: how many to wait for; by default the study's minimum cohort.
            timeout_s: how long to wait for them, seconds.

        Raises:
            ParameterError: as `ask_prefix`.
            StateError: likewise.
            DemurError: likewise.
        """
        check_waiting(reports, timeout_s)
        asked = await self.open_halt_count(halted_study, segment)
        return await self._close(asked, reports, timeout_s)


# What an analyst asks about a model: it is published by its hash, and then a round names it.

MODEL_S = 300.0  #: deadline of handing over a model


class ModelQuestions(Questions):
    """That part of an `Analyst`."""

    async def publish_model(self, model: DefinedModel) -> None:
        """Hand a model with its parameters to the collector, for rounds to name.

        The same again changes nothing. The collector forgets it when no open round names it any more,
        so each round needs it published before.

        Args:
            model: it becomes public.

        Raises:
            DemurError: the collector refuses it, or went away.
        """
        async with calling(PEER):
            await self._stub.PublishModel(
                model_messages(model), timeout=MODEL_S, metadata=self._metadata
            )

    async def open_gradient(self, model: DefinedModel, *, clip: float = 1.0) -> Defined[Round]:
        """Put a question to every device: the sum over people of the gradients of a model.

        Args:
            model: published before.
            clip: ℓ₂ radius of one person's gradient, data units.

        Raises:
            ParameterError: an argument is outside its range.
            NotFoundError: the collector does not keep the model.
            DemurError: the collector refuses the round, or went away.
        """
        return await self._open(
            partial(
                next_gradient,
                self.study,
                model.hash,
                dimension=dimension_of(model),
                clip=clip,
            )
        )

    async def open_error_count(
        self, model: DefinedModel, *, on_grid: bool = False
    ) -> Defined[Round]:
        """Put a question to every device: of its owner's examples, the share the model labels wrongly.

        Args:
            model: published before.
            on_grid: every possible share is a multiple of the study's grid step, as where nobody has
                more than one example. A device of which that is not true answers with cover.

        Raises:
            ParameterError: an argument is outside its range.
            NotFoundError: the collector does not keep the model.
            DemurError: the collector refuses the round, or went away.
        """
        return await self._open(
            partial(
                next_error_count,
                self.study,
                model.hash,
                parameters=dimension_of(model),
                on_grid=on_grid,
            )
        )

    async def ask_gradient(
        self,
        model: DefinedModel,
        *,
        clip: float = 1.0,
        reports: int | None = None,
        timeout_s: float = 60.0,
    ) -> Release:
        """Publish a model, ask for its gradients, and return the release with their noisy sum.

        The mean is `gradients.mean_gradient` of it: over the public cohort, never over those who
        contributed, whose number is secret.

        Args:
            model: it becomes public.
            clip: ℓ₂ radius of one person's gradient, data units.
            reports: how many to wait for; by default the study's minimum cohort.
            timeout_s: how long to wait for them, seconds.

        Raises:
            ParameterError: an argument is outside its range; nothing was asked.
            StateError: they did not come in time; the round stays open.
            DemurError: the collector refuses, or went away.
        """
        check_waiting(reports, timeout_s)
        await self.publish_model(model)
        asked = await self.open_gradient(model, clip=clip)
        return await self._close(asked, reports, timeout_s)

    async def ask_error_count(
        self,
        model: DefinedModel,
        *,
        on_grid: bool = False,
        reports: int | None = None,
        timeout_s: float = 60.0,
    ) -> Release:
        """Publish a model, and return the release with the number of people for whom it is wrong.

        Whoever has several examples counts by the share of them that the model labels wrongly.

        Args:
            model: it becomes public.
            on_grid: as in `open_error_count`.
            reports: how many to wait for; by default the study's minimum cohort.
            timeout_s: how long to wait for them, seconds.

        Raises:
            ParameterError: an argument is outside its range; nothing was asked.
            StateError: they did not come in time; the round stays open.
            DemurError: the collector refuses, or went away.
        """
        check_waiting(reports, timeout_s)
        await self.publish_model(model)
        asked = await self.open_error_count(model, on_grid=on_grid)
        return await self._close(asked, reports, timeout_s)


# The analyst's side: ask a question, see the release, ask the next one.


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
