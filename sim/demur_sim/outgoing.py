"""What leaves a worker: its cohort's reports as bytes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from demur_proto.arrays import Integers, Vector
from demur_proto.definition import REPORT_ID_BYTES, Defined, ReportIds
from demur_proto.frames import MAXIMUM_FRAME_BYTES, MAXIMUM_FRAME_REPORTS
from demur_proto.models.definition import ModelDefinition
from demur_proto.round import Round
from demur_proto.words import Payload, encoded_words
from demur_sim.cohort import Cohort


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
