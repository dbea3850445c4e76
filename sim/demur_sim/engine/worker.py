"""Records what a watcher of the network sees of each device: no words, no ids."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import anyio
import grpc
import numpy as np
from anyio.streams.memory import MemoryObjectSendStream

from demur_client.agent import COUNTED, fetch_study
from demur_client.connection import connected, send
from demur_client.models import ModelCache
from demur_proto.arrays import Flags, Integers, Vector
from demur_proto.errors import ConnectionLost, StateError
from demur_proto.models.definition import ModelDefinition
from demur_proto.queries import ModelQuery
from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.transport.calls import PEER, calling
from demur_proto.v1 import collector_pb2, report_pb2
from demur_proto.wire.definition import (
    PROTOCOL_VERSION,
    REPORT_ID_BYTES,
    Defined,
    ReportIds,
    read_round,
)
from demur_proto.wire.frames import (
    MAXIMUM_FRAME_BYTES,
    MAXIMUM_FRAME_REPORTS,
    FrameBytes,
    frames_in_bytes,
)
from demur_proto.wire.words import Payload, encoded_words
from demur_sim.engine.children import peak_rss_mb, say
from demur_sim.engine.cohort import Cohort
from demur_sim.engine.observer import Messages
from demur_sim.engine.running_counts import Flagged
from demur_sim.people.populations import Population
from demur_sim.people.presence import Turnout
from demur_sim.scenario import Refusal


class Recorder:
    """Messages of a fixed set of devices, round by round."""

    def __init__(self, *, devices: int) -> None:
        self._devices = devices
        self._rounds: dict[int, _Row] = {}

    def received(self, round_number: int) -> None:
        """A round reached these devices; it counts as watched even if none of them answers."""
        self._row(round_number)

    def sent(self, round_number: int, people: Integers, *, size_bytes: int, time_s: float) -> None:
        """These devices each sent a message of this size, this long after the round came."""
        row = self._row(round_number)
        row.sent[people] = True
        row.size_bytes[people] = size_bytes
        row.time_s[people] = time_s

    def answered(self, round_number: int, people: Integers, dispositions: Integers) -> None:
        """The collector answered them."""
        self._row(round_number).status[people] = dispositions

    def messages(self) -> Messages:
        """All of it, rounds in order.

        Raises:
            StateError: no round was watched.
        """
        if not self._rounds:
            raise StateError("no round was watched, so there are no messages")
        rows = [self._rounds[number] for number in sorted(self._rounds)]
        return Messages(
            sent=np.stack([row.sent for row in rows], axis=1),
            size_bytes=np.stack([row.size_bytes for row in rows], axis=1),
            status=np.stack([row.status for row in rows], axis=1),
            time_s=np.stack([row.time_s for row in rows], axis=1),
        )

    def _row(self, round_number: int) -> "_Row":
        return self._rounds.setdefault(round_number, _Row(self._devices))


class _Row:
    """One round."""

    def __init__(self, devices: int) -> None:
        self.sent = np.zeros(devices, dtype=np.bool_)
        self.size_bytes = np.zeros(devices, dtype=np.int32)
        self.status = np.zeros(devices, dtype=np.int8)
        self.time_s = np.full(devices, np.nan)


# What leaves a worker: its cohort's reports as bytes.


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Outgoing:
    """Reports of some people to one round."""

    people: Integers  #: who sent them, numbered within the cohort [n]
    report_ids: bytes  #: 16 bytes each
    words: tuple[Payload, ...]  #: encoded, report by report, in as many pieces as they lie in
    contributed: Vector  #: simulator's truth: see `cohort.BlockAnswer`; 0 where it is late
    late: bool  #: sent once the round is closed

    @property
    def size_bytes(self) -> int:
        """Of ids and words."""
        return len(self.report_ids) + sum(map(len, self.words))


def outgoing(
    cohort: Cohort,
    ids: Mapping[int, ReportIds],
    asked: Defined[Round],
    model: ModelDefinition | None,
) -> Iterator[Outgoing]:
    """Everyone's reports to a round, as many portions at a time as one frame holds; late ones by themselves.

    Args:
        cohort: who answers.
        ids: the report ids of each of its blocks, by number.
        asked: the round.
        model: the one that a gradient round names.
    """
    waiting: list[Outgoing] = []
    for portion in _portions(cohort, ids, asked, model):
        if portion.late:
            yield portion
            continue
        if not _fit_a_frame([*waiting, portion]):
            yield from _together(waiting)
            waiting = []
        waiting.append(portion)
    yield from _together(waiting)


def _fit_a_frame(portions: Sequence[Outgoing]) -> bool:
    reports = sum(len(each.people) for each in portions)
    size = sum(each.size_bytes for each in portions)
    return reports <= MAXIMUM_FRAME_REPORTS and size <= MAXIMUM_FRAME_BYTES


def _together(portions: Sequence[Outgoing]) -> Iterable[Outgoing]:
    """All portions as one, if there are any. A frame costs the same however little it holds."""
    if len(portions) < 2:
        return portions
    return [
        Outgoing(
            people=np.concatenate([each.people for each in portions]),
            report_ids=b"".join([each.report_ids for each in portions]),
            words=tuple(piece for each in portions for piece in each.words),
            contributed=np.sum([each.contributed for each in portions], axis=0),
            late=False,
        )
    ]


def _portions(
    cohort: Cohort,
    ids: Mapping[int, ReportIds],
    asked: Defined[Round],
    model: ModelDefinition | None,
) -> Iterator[Outgoing]:
    """Everyone's reports to a round, portion by portion."""
    at = 0
    ids_of_block, block = b"", -1
    for answer in cohort.answers(asked.value, model):
        everybody = np.arange(at, at + len(answer.sent))
        at += len(answer.sent)
        if answer.block != block:
            block = answer.block
            ids_of_block = ids[block].of(asked.hash)
        start, stop = answer.people.start, answer.people.stop
        report_ids = ids_of_block[REPORT_ID_BYTES * start : REPORT_ID_BYTES * stop]
        whole = np.frombuffer(report_ids, dtype=f"V{REPORT_ID_BYTES}")
        yield Outgoing(
            people=everybody[answer.sent],
            report_ids=report_ids if answer.sent.all() else whole[answer.sent].tobytes(),
            words=(encoded_words(answer.words, asked.value.word_type),),
            contributed=answer.contributed,
            late=False,
        )
        if answer.late.any():
            yield Outgoing(
                people=everybody[answer.late],
                report_ids=whole[answer.late].tobytes(),
                words=(encoded_words(answer.late_words, asked.value.word_type),),
                contributed=np.zeros_like(answer.contributed),
                late=True,
            )


# Some blocks of a cohort in a process of their own, behind one framed stream.

Call = grpc.aio.StreamStreamCall[bytes, collector_pb2.SubmitFramesResponse]  # bytes of requests

RETRY_S = 0.05  #: pause before a frame is sent again after TRY_LATER
IN_VAIN = frozenset({report_pb2.DISPOSITION_ROUND_CLOSED})  #: what becomes of reports that are late


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """Another study that the same people are in, and whose running counts may be about the first."""

    study_hash: bytes
    seed: int  #: its own


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Work:
    """What a worker needs to know."""

    target: str  #: the collector
    study_hash: bytes
    population: Population  #: the people of its blocks only
    first_block: int
    seed: int
    refusal: Refusal
    record: bool  #: keep what a watcher would see
    companions: tuple[Companion, ...] = ()
    turnout: Turnout | None = None  #: who is there; None: everybody


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Answered:
    """A worker's word to its parent after each round. The truth never goes to the collector."""

    study_hash: bytes
    number: int
    contributed: Vector  #: simulator's truth: see `round_sums.given_sums`
    first_report: float  #: `time.monotonic` when the first report left
    last_receipt: float
    refused: int  #: simulator's truth: how many were ever refused, this round included


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Finished:
    """A worker's last word."""

    refused: Flags  #: simulator's truth, device by device
    spent: Integers  #: likewise, budget units
    beside: Mapping[bytes, tuple[Flags, Integers]]  #: refused and spent in other studies
    recorder: Recorder | None
    peak_rss_mb: float


def work(pipe: Connection) -> None:
    """Take over a `Work`, then answer rounds until told to stop."""
    anyio.run(_work, pipe, pipe.recv())


async def _work(pipe: Connection, task: Work) -> None:
    async with connected(task.target) as channel:
        study = await fetch_study(channel, study_hash=task.study_hash)
        gateway = _Gateway(pipe, channel, task, study, seed=task.seed)
        halted = {study.hash: gateway.cohort.covered}
        beside = {}
        for companion in task.companions:
            other = await fetch_study(channel, study_hash=companion.study_hash)
            beside[other.hash] = _Gateway(
                pipe, channel, task, other, seed=companion.seed, beside=halted
            )
        gateways = [gateway, *beside.values()]
        calls = [_submit_frames(channel) for _ in gateways]
        try:
            async with anyio.create_task_group() as tasks:
                for each, call in zip(gateways, calls, strict=True):
                    tasks.start_soon(each.run, call)
                await anyio.wait_readable(pipe)  # told to stop, or the parent is gone
                tasks.cancel_scope.cancel()
        finally:
            for call in calls:
                call.cancel()
    say(
        pipe,
        Finished(
            refused=gateway.cohort.refused(),
            spent=gateway.cohort.spent(),
            beside={
                key: (each.cohort.refused(), each.cohort.spent()) for key, each in beside.items()
            },
            recorder=gateway.recorder,
            peak_rss_mb=peak_rss_mb(),
        ),
    )


def _submit_frames(channel: grpc.aio.Channel) -> Call:
    """The stub's method, for requests that are bytes already."""
    service = collector_pb2.DESCRIPTOR.services_by_name["Collector"].full_name
    method: Any = channel.stream_stream(
        f"/{service}/SubmitFrames",
        response_deserializer=collector_pb2.SubmitFramesResponse.FromString,
    )
    call: Call = method()
    return call


@dataclass(frozen=True, slots=True, repr=False)
class _Sent:
    """A frame on its way."""

    frame: FrameBytes
    number: int  # of its round
    people: Integers  # whose reports it holds
    expected: frozenset[report_pb2.Disposition.ValueType]  # dispositions: what may become of them


@dataclass(frozen=True, slots=True, repr=False)
class _Batch:
    """Reports that leave together."""

    asked: Defined[Round]
    reports: Outgoing
    received_s: float  # when the round was


class _Gateway:
    """Speaks for all devices of a cohort on one stream."""

    def __init__(
        self,
        pipe: Connection,
        channel: grpc.aio.Channel,
        task: Work,
        study: Defined[Study],
        *,
        seed: int,
        beside: Mapping[bytes, Flagged] | None = None,
    ) -> None:
        self.cohort = Cohort(
            study,
            task.population,
            seed=seed,
            refusal=task.refusal,
            first_block=task.first_block,
            beside=beside,
            turnout=task.turnout,
        )
        self.recorder = Recorder(devices=task.population.devices) if task.record else None
        self._pipe = pipe
        self._channel = channel
        self._models = ModelCache()
        self._study = study
        self._ids = {block.number: block.report_ids() for block in self.cohort.blocks}
        self._frames: dict[int, _Sent] = {}
        self._again: list[_Sent] = []  # to be sent again, in vain so far
        self._next_frame = 1
        self._late: list[_Batch] = []  # of the last round; sent when the next one opens, or never
        self._news = anyio.Event()

    async def run(self, call: Call) -> None:
        """Answer every round that the collector opens."""
        hello = collector_pb2.Hello(protocol_version=PROTOCOL_VERSION, study_hash=self._study.hash)
        async with calling(PEER):
            await send(call, collector_pb2.SubmitFramesRequest(hello=hello).SerializeToString())
        # Without a limit: whoever reads must never wait for whoever writes.
        opened, incoming = anyio.create_memory_object_stream[Defined[Round]](math.inf)
        async with anyio.create_task_group() as tasks, opened, incoming:
            tasks.start_soon(self._read, call, opened)
            async for asked in incoming:
                await self._answer(call, asked)

    async def _read(self, call: Call, opened: MemoryObjectSendStream[Defined[Round]]) -> None:
        """Take in rounds and receipts while frames go out: either alone could block the other."""
        while True:
            async with calling(PEER):
                message = await call.read()
            if not isinstance(message, collector_pb2.SubmitFramesResponse):
                raise ConnectionLost(f"{PEER} ended the stream")
            kind = message.WhichOneof("message")
            if kind == "opened_round":
                definition = message.opened_round.definition
                await opened.send(read_round(definition, study=self._study))
            elif kind == "receipt":
                self._settle(message.receipt)

    async def _answer(self, call: Call, asked: Defined[Round]) -> None:
        received = time.monotonic()
        number = asked.value.number
        contributed: Vector | None = None
        first_report = 0.0
        if self.recorder:
            self.recorder.received(number)
        model = await self._model(asked)
        late, self._late = self._late, []
        for batch in late:  # a round is open, so that the last one is closed
            await self._send_batch(call, batch, expected=IN_VAIN)
        for answer in outgoing(self.cohort, self._ids, asked, model):
            mine = answer.contributed
            contributed = mine if contributed is None else contributed + mine
            batch = _Batch(asked, answer, received)
            if answer.late:
                self._late.append(batch)
            else:
                first = await self._send_batch(call, batch, expected=frozenset(COUNTED))
                first_report = first_report or first
        while self._frames:
            self._news = anyio.Event()
            again, self._again = self._again, []
            if again:
                await anyio.sleep(RETRY_S)
                for sent in again:
                    await self._send(call, sent.frame)
            else:
                await self._news.wait()
        say(
            self._pipe,
            Answered(
                study_hash=self._study.hash,
                number=number,
                contributed=np.zeros(0) if contributed is None else contributed,
                first_report=first_report,
                last_receipt=time.monotonic(),
                refused=int(np.count_nonzero(self.cohort.refused())),
            ),
        )

    async def _send_batch(
        self, call: Call, batch: _Batch, *, expected: frozenset[report_pb2.Disposition.ValueType]
    ) -> float:
        """Send reports in frames; when the first of them left, by `time.monotonic`, or 0.

        Args:
            call: of the stream.
            batch: the reports.
            expected: what the collector may say of them.
        """
        first_s, reports, number = 0.0, batch.reports, batch.asked.value.number
        if not len(reports.people):
            return first_s
        for frame in frames_in_bytes(
            batch.asked.hash, reports.report_ids, reports.words, first_number=self._next_frame
        ):
            people = reports.people[frame.reports]
            self._frames[frame.number] = _Sent(frame, number, people, expected)
            self._next_frame = frame.number + 1
            first_s = first_s or time.monotonic()
            if self.recorder:
                self.recorder.sent(
                    number,
                    people,
                    size_bytes=reports.size_bytes // len(reports.people),
                    time_s=time.monotonic() - batch.received_s,
                )
            await self._send(call, frame)
        return first_s

    async def _model(self, asked: Defined[Round]) -> ModelDefinition | None:
        """The model that a round names, fetched as a device fetches it."""
        query = asked.value.query
        if not isinstance(query, ModelQuery):
            return None
        return (await self._models.of(self._channel, query)).value

    async def _send(self, call: Call, frame: FrameBytes) -> None:
        """Only the one who answers sends: gRPC allows one write at a time."""
        async with calling(PEER):
            for message in frame.messages:
                await send(call, message)

    def _settle(self, receipt: report_pb2.FrameReceipt) -> None:
        """Take in what became of a frame."""
        sent = self._frames.get(receipt.frame_number)
        if sent is None:
            raise StateError(f"{PEER} acknowledged a frame that was never sent")
        dispositions = set(receipt.dispositions)
        if report_pb2.DISPOSITION_TRY_LATER in dispositions:
            self._again.append(sent)
            self._news.set()
            return
        if self.recorder:
            self.recorder.answered(sent.number, sent.people, np.array(receipt.dispositions))
        if not dispositions <= sent.expected:
            names = sorted(map(report_pb2.Disposition.Name, dispositions - sent.expected))
            raise StateError(f"round {sent.number}: {PEER} answered {', '.join(names)}")
        del self._frames[receipt.frame_number]
        if not self._frames:
            self._news.set()
