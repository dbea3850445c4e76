"""Single reports that are counted together."""

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from demur_proto.errors import StateError, StorageError, WireError
from demur_proto.round import Round
from demur_proto.v1 import report_pb2
from demur_proto.wire.definition import Defined
from demur_proto.wire.words import encode_words
from demur_server.collector.collector import Collector
from demur_server.collector.intake import MOST, Gathering

ACCEPTED = report_pb2.DISPOSITION_ACCEPTED
DUPLICATE = report_pb2.DISPOSITION_DUPLICATE
CONFLICT = report_pb2.DISPOSITION_CONFLICT
INVALID = report_pb2.DISPOSITION_INVALID
ROUND = bytes(32)

Ask = Callable[..., Defined[Round]]


def named(number: int) -> bytes:
    return number.to_bytes(16, "big")


class Counter:
    """Counts when it is told to, and keeps which reports came together."""

    def __init__(self) -> None:
        self.groups: list[list[bytes]] = []
        self.go_on = asyncio.Event()

    async def __call__(
        self, round_hash: bytes, report_ids: bytes, words: bytes, devices: bytes | None
    ) -> list[int]:
        ids = [report_ids[at : at + 16] for at in range(0, len(report_ids), 16)]
        self.groups.append(ids)
        await self.go_on.wait()
        return [each[-1] for each in ids]


async def brought(gathering: Gathering, numbers: list[int]) -> list[int | BaseException]:
    """Each from a caller of its own, all at the same time."""
    return await asyncio.gather(
        *(gathering.add(ROUND, named(n), bytes([n % 256]), device=named(n)) for n in numbers),
        return_exceptions=True,
    )


async def test_reports_gather_while_others_are_counted() -> None:
    counter = Counter()
    gathering = Gathering(counter)
    first = asyncio.create_task(brought(gathering, [0]))
    await asyncio.sleep(0.01)

    others = asyncio.create_task(brought(gathering, list(range(1, 50))))
    await asyncio.sleep(0.01)
    counter.go_on.set()

    assert await first == [0]
    assert await others == list(range(1, 50))
    assert [len(each) for each in counter.groups] == [1, 49]


async def test_a_group_is_never_larger_than_a_frame() -> None:
    counter = Counter()
    counter.go_on.set()

    outcomes = await brought(Gathering(counter), list(range(2 * MOST + 1)))

    assert outcomes == [n % 256 for n in range(2 * MOST + 1)]
    assert max(map(len, counter.groups)) <= MOST


async def test_rounds_are_not_mixed() -> None:
    seen: set[tuple[bytes, bytes, bytes | None]] = set()

    async def count(
        round_hash: bytes, report_ids: bytes, words: bytes, devices: bytes | None
    ) -> list[int]:
        seen.add((round_hash, report_ids, devices))
        return [ACCEPTED] * (len(report_ids) // 16)

    gathering = Gathering(count)
    hashes = [bytes([n]) * 32 for n in range(5)]

    await asyncio.gather(*(gathering.add(h, named(h[0]), b"", device=None) for h in hashes))

    assert seen == {(h, named(h[0]), None) for h in hashes}


async def test_one_that_is_refused_does_not_harm_the_others() -> None:
    async def count(
        round_hash: bytes, report_ids: bytes, words: bytes, devices: bytes | None
    ) -> list[int]:
        if named(3) in report_ids:
            raise StateError("a device of another shard")
        return [ACCEPTED] * (len(report_ids) // 16)

    outcomes = await brought(Gathering(count), [1, 2, 3, 4])

    assert outcomes[:2] + outcomes[3:] == [ACCEPTED] * 3
    assert isinstance(outcomes[2], StateError)


async def test_those_beside_a_refused_one_do_not_wait_for_one_another() -> None:
    together, refused = asyncio.Barrier(4), []

    async def count(
        round_hash: bytes, report_ids: bytes, words: bytes, devices: bytes | None
    ) -> list[int]:
        if len(report_ids) > 16:
            refused.append(report_ids)
            raise StateError("a device of another shard")
        await together.wait()
        return [ACCEPTED]

    async with asyncio.timeout(5):
        outcomes = await brought(Gathering(count), [1, 2, 3, 4])

    assert outcomes == [ACCEPTED] * 4
    assert len(refused) == 1


async def test_a_store_that_is_gone_is_told_to_everyone() -> None:
    async def count(*_: object) -> list[int]:
        raise StorageError("the store is closed")

    outcomes = await brought(Gathering(count), [1, 2, 3])

    assert [type(each) for each in outcomes] == [StorageError] * 3


async def test_a_bug_is_told_to_everyone_and_does_not_stop_the_next() -> None:
    broken = True

    async def count(*_: object) -> list[int]:
        if broken:
            raise ZeroDivisionError
        return [ACCEPTED]

    gathering = Gathering(count)

    assert [type(each) for each in await brought(gathering, [1, 2])] == [ZeroDivisionError] * 2
    broken = False
    assert await brought(gathering, [3]) == [ACCEPTED]


async def test_a_caller_that_leaves_harms_nobody() -> None:
    counter = Counter()
    gathering = Gathering(counter)
    callers = [asyncio.create_task(brought(gathering, [n])) for n in range(5)]
    await asyncio.sleep(0.01)

    for leaving in (callers[0], callers[3]):  # one whose report is being counted, one that waits
        leaving.cancel()
    counter.go_on.set()
    told = await asyncio.gather(*callers, return_exceptions=True)

    assert [told[n] for n in (1, 2, 4)] == [[1], [2], [4]]
    assert {each for group in counter.groups for each in group} == {named(n) for n in range(5)}


@pytest.mark.parametrize("steps", range(8))
async def test_a_report_that_comes_just_when_a_group_ends_is_counted(steps: int) -> None:
    counter = Counter()
    gathering = Gathering(counter)
    first = asyncio.create_task(brought(gathering, [0]))
    await asyncio.sleep(0.01)
    counter.go_on.set()
    for _ in range(steps):  # of the event loop, so that in one of them the group has ended just now
        await asyncio.sleep(0)

    async with asyncio.timeout(5):
        outcomes = await brought(gathering, [1])

    assert outcomes == [1]
    assert await first == [0]


@pytest.mark.parametrize("large", [False, True], ids=["together", "alone"])
async def test_single_reports_are_told_what_became_of_each(
    collector: Collector, ask: Ask, *, large: bool
) -> None:
    dimension = 2000 if large else 2
    asked = await collector.open_round(ask(1, dimension=dimension).definition)

    def submitted(who: int, word: int) -> Awaitable[int]:
        words = np.full((1, dimension), word)
        payload = encode_words(words, asked.value.word_type)
        return collector.intake.submit_one(asked.hash, named(who), payload)

    told = await asyncio.gather(
        submitted(1, 5), submitted(2, 6), submitted(1, 5), submitted(2, 7), submitted(3, 1 << 30)
    )
    totals = await collector.totals(asked.hash)

    assert list(told) == [ACCEPTED, ACCEPTED, DUPLICATE, CONFLICT, INVALID]
    assert totals.reports == 2
    assert totals.sums.tolist() == [11] * dimension


async def test_words_of_a_wrong_length_fail_their_own_report_only(
    collector: Collector, ask: Ask
) -> None:
    asked = await collector.open_round(ask(1).definition)
    good, short = encode_words(np.array([[1]]), asked.value.word_type), b"\x01"

    async def submitted(who: int, words: bytes) -> int:
        return await collector.intake.submit_one(asked.hash, named(who), words)

    told = await asyncio.gather(
        *(submitted(n, words) for n, words in enumerate([good, short, good])),
        return_exceptions=True,
    )

    assert [told[0], told[2]] == [ACCEPTED] * 2
    assert isinstance(told[1], WireError)
