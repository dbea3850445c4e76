"""What leaves a worker: its cohort's reports as bytes, worked out while others are being sent."""

from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import TypeVar

import anyio
import anyio.to_thread
import numpy as np

from demur_proto.arrays import Integers
from demur_proto.definition import REPORT_ID_BYTES, Defined, ReportIds
from demur_proto.models.definition import ModelDefinition
from demur_proto.round import Round
from demur_proto.words import encode_words
from demur_sim.cohort import Cohort

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Outgoing:
    """Reports of some people to one round."""

    people: Integers  #: who sent them, numbered within the cohort [n]
    report_ids: bytes  #: 16 bytes each
    words: bytes  #: encoded, report by report
    contributed: Integers  #: simulator's truth: see `cohort.given_sums`


def outgoing(
    cohort: Cohort,
    ids: Mapping[int, ReportIds],
    asked: Defined[Round],
    model: ModelDefinition | None,
) -> Generator[Outgoing, None, None]:
    """Everyone's reports to a round, portion by portion.

    Args:
        cohort: who answers.
        ids: the report ids of each of its blocks, by number.
        asked: the round.
        model: the one that a gradient round names.
    """
    at = 0
    ids_of_block, block = b"", -1
    for answer in cohort.answers(asked.value, model):
        people = np.arange(at, at + len(answer.sent))[answer.sent]
        at += len(answer.sent)
        if answer.block != block:
            block = answer.block
            ids_of_block = ids[block].of(asked.hash)
        start, stop = answer.people.start, answer.people.stop
        report_ids = ids_of_block[REPORT_ID_BYTES * start : REPORT_ID_BYTES * stop]
        if len(people) < len(answer.sent):
            whole = np.frombuffer(report_ids, dtype=f"V{REPORT_ID_BYTES}")
            report_ids = whole[answer.sent].tobytes()
        yield Outgoing(
            people=people,
            report_ids=report_ids,
            words=encode_words(answer.words, asked.value.word_type),
            contributed=answer.contributed,
        )


@asynccontextmanager
async def worked_ahead(
    items: Generator[Item, None, None], *, on_thread: bool
) -> AsyncIterator[AsyncIterator[Item]]:
    """What a generator gives, the next worked out on a thread while the last is used.

    Args:
        items: closed when the block ends.
        on_thread: otherwise each is worked out when it is asked for: the way to a thread and back
            takes longer than a small one.
    """
    if not on_thread:
        with closing(items):
            yield _one_by_one(items)
        return
    ready, taken = anyio.create_memory_object_stream[Item](1)

    async def work() -> None:
        with ready:
            while (item := await anyio.to_thread.run_sync(next, items, None)) is not None:
                await ready.send(item)

    with closing(items), taken:  # once nobody works on them any more
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            try:
                yield taken
            finally:
                tasks.cancel_scope.cancel()  # nobody takes what is not worked out yet


async def _one_by_one(items: Generator[Item, None, None]) -> AsyncIterator[Item]:
    for item in items:
        yield item
