"""Reports made before any clock starts: ids, words, proofs and whole messages."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collector_process import MASTER_KEY
from demur_proto.arrays import Integers
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.queries import Feature, Linear
from demur_proto.queries.registry import mechanism_for
from demur_proto.round import Round, round_of
from demur_proto.study import Study, View, design_study
from demur_proto.transport.credentials import METADATA_KEY, NamedSecret, make_proofs, metadata_of
from demur_proto.v1 import collector_pb2, report_pb2
from demur_proto.wire.definition import PROTOCOL_VERSION, Defined, define_round, define_study
from demur_proto.wire.frames import split_frames
from demur_proto.wire.hmacs import hash_payloads, prepare_key
from demur_proto.wire.words import encode_words
from demur_server.collector.intake import split
from demur_server.grpc.access import device_secrets
from traffic import Stream

ALL = slice(None)
ID_BYTES = 16
MASTER = prepare_key(MASTER_KEY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A study, and rounds of it that are all open."""

    study: Defined[Study]
    rounds: tuple[Defined[Round], ...]

    def hello(self) -> collector_pb2.Hello:
        """What a stream begins with; no round is pushed, since the messages are made already."""
        return collector_pb2.Hello(
            protocol_version=PROTOCOL_VERSION,
            study_hash=self.study.hash,
            after_round=len(self.rounds),
        )

    def draw(self, rng: np.random.Generator, reports: int) -> tuple[bytes, Integers]:
        """Words and their sums: uniform over all that are valid, so that hardly two are alike.

        Real noise repeats itself more, and equal words of a frame are hashed only once.
        """
        mechanism = mechanism_for(self.study.value, self.rounds[0].value)
        assert isinstance(mechanism, GaussianLinear)
        limit = mechanism.word_limit
        words = rng.integers(-limit, limit + 1, (reports, mechanism.report_length))
        return encode_words(words, self.rounds[0].value.word_type), words.sum(axis=0)


def question(*, dimension: int = 1, rounds: int = 1) -> Question:
    """A linear question to `dimension` coordinates, the collector not trusted."""
    study = define_study(
        design_study(
            name="bench",
            epsilon=1.0,
            delta=1e-6,
            answers=15,
            minimum_cohort=1000,
            view=View.LOCAL,
            maximum_dimension=dimension,
        )
    )
    asked = tuple(
        define_round(
            round_of(study, Linear([Feature(name="x")], dimension=dimension), number=n + 1)
        )
        for n in range(rounds)
    )
    return Question(study=study, rounds=asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """Reports in frames, and what they add up to."""

    asked: Question
    messages: tuple[bytes, ...]
    reports: int
    sums: list[int]

    def streams(self, count: int, gateway: NamedSecret, part: slice = ALL) -> list[Stream]:
        """The frames, or a part of them, dealt out to streams."""
        messages = self.messages[part]
        hello = collector_pb2.SubmitFramesRequest(hello=self.asked.hello()).SerializeToString()
        return [
            Stream(messages=messages[n::count], hello=hello, metadata=metadata_of(gateway))
            for n in range(count)
        ]


def make_frames(asked: Question, *, reports: int) -> Frames:
    """As full as frames may be, each report from a device of its own with its proof."""
    rng = np.random.default_rng(1)
    messages: list[bytes] = []
    sums = np.zeros(mechanism_for(asked.study.value, asked.rounds[0].value).sums_length, np.int64)
    at_once = 4096  # a frame is made at a time: a million proofs at once take much memory
    for start in range(0, reports, at_once):
        count = min(at_once, reports - start)
        words, added = asked.draw(rng, count)
        sums += added
        report_ids, devices = rng.bytes(ID_BYTES * count), rng.bytes(ID_BYTES * count)
        proofs = make_proofs(
            map(prepare_key, device_secrets(MASTER, split(devices, ID_BYTES))),
            asked.rounds[0].hash,
            split(report_ids, ID_BYTES),
            hash_payloads(words, reports=count),
        )
        frames = split_frames(
            asked.rounds[0].hash,
            report_ids,
            words,
            first_number=len(messages) + 1,
            device_ids=devices,
            proofs=b"".join(proofs),
        )
        messages += [
            collector_pb2.SubmitFramesRequest(frame=frame).SerializeToString() for frame in frames
        ]
    return Frames(asked=asked, messages=tuple(messages), reports=reports, sums=sums.tolist())


def device_streams(asked: Question, *, devices: int, rounds: int, seed: int) -> list[Stream]:
    """One stream for each device, with one report to each of the first rounds, a message each."""
    rng = np.random.default_rng(seed)
    hello = collector_pb2.VisitRequest(hello=asked.hello()).SerializeToString()
    ids = split(rng.bytes(ID_BYTES * devices), ID_BYTES)
    return [
        Stream(
            messages=_answers(asked.rounds[:rounds], asked.draw(rng, rounds)[0], rng),
            hello=hello,
            metadata=((METADATA_KEY, device_id + secret),),
        )
        for device_id, secret in zip(ids, device_secrets(MASTER, ids), strict=True)
    ]


def _answers(
    rounds: Sequence[Defined[Round]], words: bytes, rng: np.random.Generator
) -> tuple[bytes, ...]:
    payloads = split(words, len(words) // len(rounds))
    return tuple(
        collector_pb2.VisitRequest(
            report=report_pb2.Report(
                round_hash=each.hash, report_id=rng.bytes(ID_BYTES), words=payload
            )
        ).SerializeToString()
        for each, payload in zip(rounds, payloads, strict=True)
    )


def accepted_frames(answers: Sequence[bytes]) -> int:
    """How many reports these receipts say were counted, now and for the first time."""
    accepted = 0
    for answer in answers:
        response = collector_pb2.SubmitFramesResponse.FromString(answer)
        accepted += list(response.receipt.dispositions).count(report_pb2.DISPOSITION_ACCEPTED)
    return accepted


def accepted_visits(answers: Sequence[bytes]) -> int:
    """The same for receipts of single reports."""
    return sum(
        collector_pb2.VisitResponse.FromString(answer).receipt.disposition
        == report_pb2.DISPOSITION_ACCEPTED
        for answer in answers
    )
