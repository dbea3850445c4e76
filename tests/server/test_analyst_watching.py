"""The analyst's side over real gRPC on loopback: watching, and losing each other."""

import logging
from contextlib import AsyncExitStack

import anyio
import pytest

from analyst_kit import DEADLINE_S, X, send, watched
from cancel_kit import cancelled
from demur_proto.errors import ConnectionLost, StateError
from demur_proto.queries import Linear
from demur_proto.release import Release
from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.wire.definition import Defined
from demur_server.analyst import Analyst
from demur_server.collector.collector import Collector
from demur_server.grpc.serving import served
from demur_server.store.memory import MemoryStore


async def test_every_watcher_gets_every_release_in_order_with_those_before_it_came(
    analyst: Analyst, collector: Collector
) -> None:
    seen: dict[str, list[Release]] = {}

    async def watch(name: str, count: int, first: int = 1) -> None:
        seen[name] = await watched(analyst, count, from_number=first)

    async def release() -> Release:
        asked = await analyst.open(Linear([X], on_grid=True))
        await send(collector, asked, asked.value.number, 5)
        return await analyst.close(asked)

    async with anyio.create_task_group() as tasks:
        for early in range(3):
            tasks.start_soon(watch, f"early {early}", 6)
        published = [await release() for _ in range(3)]
        tasks.start_soon(watch, "late", 6)
        tasks.start_soon(watch, "from nought", 6, 0)
        tasks.start_soon(watch, "from the third", 4, 3)
        published += [await release() for _ in range(3)]
    after = await watched(analyst, 6)

    assert [release.number for release in published] == [1, 2, 3, 4, 5, 6]
    assert seen.pop("from the third") == published[2:]
    assert all(releases == published for releases in (*seen.values(), after))


async def test_a_watcher_that_stops_leaves_the_others_be(analyst: Analyst) -> None:
    seen: list[Release] = []

    async def watch() -> None:
        seen.extend(await watched(analyst, 2))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await cancelled(0.05, lambda: watched(analyst, 1))
        for _ in range(2):
            await analyst.close(await analyst.open(Linear([X], on_grid=True)))

    assert [release.number for release in seen] == [1, 2]


# ---- losing each other -----------------------------------------------------------------------


async def test_without_a_collector_there_is_one_clear_line(study: Defined[Study]) -> None:
    async with served(Collector(MemoryStore(), open_access=True)) as ports:
        gone = ports.analyst

    with pytest.raises(ConnectionLost, match=r"^lost the collector: unavailable") as caught:
        async with Analyst.create(f"127.0.0.1:{gone}", study.value, answer_after_ms=0):
            pass

    assert "\n" not in str(caught.value)


async def test_an_analyst_whose_collector_stops_is_told(study: Defined[Study]) -> None:
    lost: list[str] = []

    async def watch(analyst: Analyst) -> None:
        with pytest.raises(ConnectionLost) as caught:
            await watched(analyst, 1)
        lost.append(str(caught.value))

    async def close(analyst: Analyst, asked: Defined[Round]) -> None:
        with pytest.raises(ConnectionLost) as caught:
            await analyst.close(asked, after_reports=1, timeout_s=DEADLINE_S)
        lost.append(str(caught.value))

    async with (
        AsyncExitStack() as channels,  # they outlive the collector
        anyio.create_task_group() as tasks,
        served(Collector(MemoryStore(), open_access=True), drain_s=0.05) as ports,
    ):
        made = Analyst.create(f"127.0.0.1:{ports.analyst}", study.value, answer_after_ms=0)
        analyst = await channels.enter_async_context(made)
        asked = await analyst.open(Linear([X], on_grid=True))
        tasks.start_soon(watch, analyst)
        tasks.start_soon(close, analyst, asked)
        await anyio.sleep(0.05)

    assert len(lost) == 2
    assert all(line.startswith("lost the collector: ") for line in lost)


async def test_cancelling_a_call_cancels_nothing_else(
    analyst: Analyst, collector: Collector
) -> None:
    asked = await analyst.open(Linear([X], on_grid=True))

    for _ in range(3):
        await cancelled(0.02, lambda: analyst.close(asked, after_reports=1))
        await cancelled(0.02, lambda: watched(analyst, 1))
        await cancelled(0.0, lambda: analyst.open(Linear([X], on_grid=True)))
        await cancelled(0.02, lambda: analyst.ask(Linear([X], on_grid=True)))

    assert not (await collector.totals(asked.hash)).closed
    await send(collector, asked, 5, 6)
    assert (await analyst.close(asked)).sums.tolist() == [11]


async def test_a_call_in_a_cancelled_group_ends_with_its_group(analyst: Analyst) -> None:
    asked = await analyst.open(Linear([X], on_grid=True))

    async def group() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: analyst.close(asked, after_reports=1))
            tasks.start_soon(watched, analyst, 1)

    await cancelled(0.02, group)


async def test_no_bug_is_logged_when_analysts_come_and_go(
    analyst: Analyst, caplog: pytest.LogCaptureFixture
) -> None:
    asked = await analyst.open(Linear([X], on_grid=True))

    for _ in range(3):
        await cancelled(0.02, lambda: watched(analyst, 1))
        with pytest.raises(StateError):
            await analyst.close(asked, after_reports=1, timeout_s=0.02)
    await anyio.sleep(0.02)

    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
