"""Group commit: what waits together is committed together, and nobody is told before."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import numpy as np
import pytest

from demur_server.store import worker as writer
from demur_server.store.durable import DurableStore
from demur_server.store.link import Change
from demur_server.store.sqlite import SqliteLink
from demur_server.store.worker import Admission, Outcome, Writer
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


class Slow:
    """Counts nothing, when it is let."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.groups: list[int] = []

    def count(self, admissions: Sequence[Admission]) -> list[Outcome]:
        self.groups.append(len(admissions))
        self.gate.wait()
        return [[ACCEPTED] * len(each.batch.report_ids) for each in admissions]


def weighing(words: int, *, reports: int = 1) -> Admission:
    """Reports of so many words each, which take no memory."""
    one = batch(sent(1))
    rows = np.broadcast_to(np.zeros(1, dtype=np.int64), (reports, words))
    return Admission(
        round_hash=b"round", batch=replace(one, report_ids=one.report_ids * reports, words=rows)
    )


async def asked_for(made: Writer, *admissions: Admission) -> list["asyncio.Task[list[int] | None]"]:
    """Hand them in, in order, and wait for none."""
    tasks = [asyncio.ensure_future(made.admit(each)) for each in admissions]
    await asyncio.sleep(0.02)
    return tasks


async def test_a_store_that_closes_waits_for_no_company() -> None:
    slow = Slow()
    made = Writer(slow.count, patience_s=lambda _: 60.0)
    first = await asked_for(made, weighing(1))
    rest = await asked_for(made, weighing(1), weighing(1))
    slow.gate.set()
    await asyncio.sleep(0.05)
    gathering = list(slow.groups)

    with anyio.fail_after(5):
        await made.stop(lambda: None)
        told = [await each for each in (*first, *rest)]

    assert gathering == [1]
    assert slow.groups == [1, 2]
    assert told == [[ACCEPTED]] * 3


async def test_a_call_is_not_kept_waiting_by_reports_that_wait_for_company() -> None:
    slow = Slow()
    made = Writer(slow.count, patience_s=lambda _: 60.0)
    await asked_for(made, weighing(1))
    await asked_for(made, weighing(1), weighing(1))
    slow.gate.set()

    with anyio.fail_after(5):
        assert await made.call(lambda: "done") == "done"

    assert slow.groups == [1, 2]
    await made.stop(lambda: None)


@pytest.mark.parametrize(
    "full",
    [weighing(10**7), weighing(1, reports=writer.GROUP_REPORTS), weighing(writer.GROUP_WORDS)],
)
async def test_a_full_group_waits_for_no_company(full: Admission) -> None:
    slow = Slow()
    made = Writer(slow.count, patience_s=lambda _: 60.0)
    await asked_for(made, weighing(1))
    rest = await asked_for(made, full, full)
    slow.gate.set()

    with anyio.fail_after(5):
        told = [await each for each in rest]

    assert slow.groups == [1, 1, 1]
    assert told == [[ACCEPTED] * full.batch.words.shape[0]] * 2
    await made.stop(lambda: None)


async def test_what_is_too_much_is_put_off_until_there_is_room_and_one_report_always_fits() -> None:
    slow = Slow()
    made = Writer(slow.count)
    enormous = weighing(writer.WAITING_WORDS + 1)

    [alone] = await asked_for(made, enormous)
    put_off = [await made.admit(each) for each in (weighing(1), enormous)]
    slow.gate.set()
    counted = await alone
    await asyncio.sleep(0.02)

    assert put_off == [None, None]
    assert counted == [ACCEPTED]
    assert await made.admit(enormous) == [ACCEPTED]
    await made.stop(lambda: None)


@pytest.mark.parametrize("how", ["counted", "failed", "cancelled"])
async def test_room_is_given_back_however_reports_end(how: str) -> None:
    slow = Slow()

    def count(admissions: Sequence[Admission]) -> list[Outcome]:
        slow.count(admissions)
        if how == "failed":
            raise ValueError("a bug")
        return [[ACCEPTED] * len(each.batch.report_ids) for each in admissions]

    made = Writer(count)
    much = weighing(1, reports=writer.WAITING_REPORTS // 2)
    tasks = await asked_for(made, much, much)
    assert await made.admit(weighing(1)) is None
    if how == "cancelled":
        for each in tasks:
            each.cancel()
    slow.gate.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    await made.call(lambda: None)  # behind all of them

    assert (made._waiting_reports, made._waiting_words) == (0, 0)
    await made.stop(lambda: None)


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
