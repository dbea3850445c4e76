"""What the tests of a collector without a socket share: a slow store, reports, and who watches."""

import random
from collections.abc import Callable, Sequence

import anyio
import anyio.lowlevel
import numpy as np

from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.queries.registry import mechanism_for
from demur_proto.release import Release
from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.wire.definition import Defined
from demur_proto.wire.words import encode_words
from demur_server.collector.collector import Collector
from demur_server.store.base import Batch, Totals
from demur_server.store.memory import MemoryStore

DEADLINE_S = 10.0

Ask = Callable[..., Defined[Round]]


def gaussian_for(study: Study, asked: Round) -> GaussianLinear:
    mechanism = mechanism_for(study, asked)
    assert isinstance(mechanism, GaussianLinear)
    return mechanism


class SlowStore(MemoryStore):
    """Takes its time before and after every step, now more and now less, like one with a disk."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._rng = random.Random(seed)

    async def _pause(self) -> None:
        for _ in range(self._rng.randrange(6)):
            await anyio.lowlevel.checkpoint()

    async def admit(self, round_hash: bytes, batch: Batch) -> list[int]:
        await self._pause()
        admitted = await super().admit(round_hash, batch)
        await self._pause()
        return admitted

    async def totals(self, round_hash: bytes) -> Totals:
        await self._pause()
        totals = await super().totals(round_hash)
        await self._pause()
        return totals

    async def close_round(self, round_hash: bytes, *, void: bool = False) -> Totals:
        await self._pause()
        counting = await super().close_round(round_hash, void=void)
        await self._pause()
        return counting

    async def add_release(self, release: Release) -> Release:
        await self._pause()
        return await super().add_release(release)

    async def releases(self, study_hash: bytes, *, from_number: int = 1) -> list[Release]:
        await self._pause()
        releases = await super().releases(study_hash, from_number=from_number)
        await self._pause()
        return releases


async def slow_collector(study: Defined[Study]) -> Collector:
    made = Collector(SlowStore(), open_access=True)
    await made.create_study(study.definition)
    return made


def ids(*who: int) -> bytes:
    return b"".join(number.to_bytes(16, "big") for number in who)


async def send(
    collector: Collector, asked: Defined[Round], who: Sequence[int], rows: Sequence[Sequence[int]]
) -> list[int]:
    words = encode_words(np.array(rows, dtype=np.int64), asked.value.word_type)
    return await collector.intake.submit(asked.hash, ids(*who), words)


async def numbers(collector: Collector, study: Defined[Study], count: int, first: int) -> list[int]:
    seen: list[int] = []
    async for release in collector.watch_releases(study.hash, from_number=first):
        seen.append(release.number)
        if len(seen) == count:
            break
    return seen
