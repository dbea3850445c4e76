"""Group commit: what waits together is committed together, and nobody is told before."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import anyio
import numpy as np
import pytest

from demur_server.store import writer
from demur_server.store.durable import DurableStore
from demur_server.store.link import Change
from demur_server.store.sqlite import SqliteLink
from demur_server.store.writer import Admission, Outcome, Writer
from store_kit import (
    ACCEPTED,
    STUDY,
    Crash,
    Fuse,
    PostgresPlace,
    PostgresServer,
    SqlitePlace,
    a_round,
    batch,
    random_batch,
    sent,
)

SMALL, LARGE = a_round(STUDY), a_round(STUDY, 2, dimension=1 << 15)


@pytest.fixture
async def store(quick_path: Path) -> AsyncIterator[DurableStore]:
    made = await SqlitePlace(quick_path).open()
    await made.add_study(STUDY)
    await made.add_round(SMALL, sums_length=2)
    await made.add_round(LARGE, sums_length=1 << 15)
    yield made
    await made.close()


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rounds that each commit changed."""
    seen: list[int] = []
    original = SqliteLink.count

    def count(self: SqliteLink, changes: Sequence[Change]) -> set[int]:
        seen.append(len(changes))
        time.sleep(0.002)  # a disk takes its time
        return original(self, changes)

    monkeypatch.setattr(SqliteLink, "count", count)
    return seen


async def test_reports_that_wait_together_share_a_commit(
    store: DurableStore, commits: list[int]
) -> None:
    told: list[list[int]] = []

    async def hand_in(who: int) -> None:
        told.append(await store.admit(SMALL.hash, batch(sent(who))))

    async with anyio.create_task_group() as tasks:
        for who in range(200):
            tasks.start_soon(hand_in, who)

    assert told == [[ACCEPTED]] * 200
    assert 1 <= len(commits) <= 5
    assert (await store.counted(SMALL.hash)).reports == 200


async def test_several_rounds_share_a_commit(store: DurableStore, commits: list[int]) -> None:
    async def hand_in(who: int) -> None:
        if who % 2:
            await store.admit(SMALL.hash, batch(sent(who)))
        else:
            rng = np.random.default_rng(who)
            await store.admit(LARGE.hash, random_batch(rng, 1, dimension=1 << 15))

    await store.admit(SMALL.hash, batch(sent(200)))  # the thread is busy while the rest come
    async with anyio.create_task_group() as tasks:
        for who in range(40):
            tasks.start_soon(hand_in, who)

    assert 2 in commits


async def test_a_commit_takes_up_no_more_than_so_many_reports_and_words(
    store: DurableStore, monkeypatch: pytest.MonkeyPatch, commits: list[int]
) -> None:
    monkeypatch.setattr(writer, "GROUP_REPORTS", 30)

    async def hand_in(who: int) -> None:
        assert await store.admit(SMALL.hash, batch(*map(sent, range(who, who + 10)))) == [1] * 10

    async with anyio.create_task_group() as tasks:
        for who in range(0, 200, 10):
            tasks.start_soon(hand_in, who)

    assert len(commits) >= 7


async def test_large_sums_wait_for_company_and_a_caller_who_waits_for_each_answer_does_not(
    store: DurableStore, commits: list[int]
) -> None:
    rng = np.random.default_rng(1)
    reports = [random_batch(rng, 1, dimension=1 << 15) for _ in range(64)]

    async def hand_in(number: int) -> None:
        await anyio.sleep(0.0004 * number)
        await store.admit(LARGE.hash, reports[number])

    async with anyio.create_task_group() as tasks:
        for number in range(48):
            tasks.start_soon(hand_in, number)
    together = len(commits)
    before = store._clerk.patience_s
    waited: list[float] = []

    def patience_s(admission: Admission) -> float:
        waited.append(before(admission))
        return waited[-1]

    store._writer._patience_s = patience_s
    for each in reports[48:]:
        await store.admit(LARGE.hash, each)

    assert together <= 16  # of 48
    assert len(waited) <= 1  # of 16
    assert len(commits) - together == 16


async def test_things_are_done_in_the_order_in_which_they_were_asked_for() -> None:
    order: list[object] = []

    def count(admissions: Sequence[Admission]) -> list[Outcome]:
        order.append([each.round_hash for each in admissions])
        return [[ACCEPTED]] * len(admissions)

    made = Writer(count)
    gate = threading.Event()
    asked: list[asyncio.Future[object]] = [asyncio.ensure_future(made.call(gate.wait))]
    await asyncio.sleep(0)
    for number in range(7):
        if number in (2, 5):
            asked.append(asyncio.ensure_future(made.call(partial(order.append, number))))
        else:
            admission = Admission(round_hash=bytes([number]), batch=batch(sent(number)))
            asked.append(asyncio.ensure_future(made.admit(admission)))
        await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*asked)
    await made.stop(lambda: order.append("last"))

    assert order == [[b"\x00", b"\x01"], 2, [b"\x03", b"\x04"], 5, [b"\x06"], "last"]


async def test_what_was_begun_is_finished_before_a_store_closes(quick_path: Path) -> None:
    place = SqlitePlace(quick_path)
    store = await place.open()
    await store.add_study(STUDY)
    await store.add_round(SMALL, sums_length=2)
    told: list[list[int]] = []

    async def hand_in(who: int) -> None:
        told.append(await store.admit(SMALL.hash, batch(sent(who))))

    async with anyio.create_task_group() as tasks:
        for who in range(50):
            tasks.start_soon(hand_in, who)
        await anyio.lowlevel.checkpoint()
        await store.close()
    store = await place.open()

    assert told == [[ACCEPTED]] * 50
    assert (await store.counted(SMALL.hash)).reports == 50
    await store.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_fuse_of_the_tests_really_blows(
    kind: str, quick_path: Path, request: pytest.FixtureRequest
) -> None:
    """Or tests that interrupt a store would interrupt nothing."""
    fuse = Fuse()
    if kind == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        place: SqlitePlace | PostgresPlace = PostgresPlace(server)
    else:
        place = SqlitePlace(quick_path)
    store = await place.open(fuse=fuse)
    await store.add_study(STUDY)
    await store.add_round(SMALL, sums_length=2)

    for blown in ("before", "after"):
        fuse.set(1, after=blown == "after", error=place.driver_error())
        assert ACCEPTED not in await store.admit(SMALL.hash, batch(sent(1)))
        assert fuse.blown
        store._clerk._retry_at = 0.0
    fuse.set(1, after=False, error=Crash())
    with pytest.raises(Exception, match="the store has stopped"):
        await store.admit(SMALL.hash, batch(sent(2)))
    await place.crash(store)
