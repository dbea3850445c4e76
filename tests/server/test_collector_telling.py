"""Whoever watches, visits or waits is told of everything once, and nobody of what does not concern them."""

import anyio
import anyio.lowlevel

from collector_kit import DEADLINE_S, Ask, numbers, send
from demur_proto.study import Study
from demur_proto.wire.definition import Defined
from demur_server.collector.collector import Collector


async def test_watchers_see_every_release_once_in_order_whenever_they_came(
    collector: Collector, study: Defined[Study], ask: Ask
) -> None:
    seen: dict[str, list[int]] = {}

    async def watch(name: str, count: int, first: int) -> None:
        seen[name] = await numbers(collector, study, count, first)

    async def release(number: int) -> None:
        asked = await collector.open_round(ask(number).definition)
        await collector.close_round(asked.hash)

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch, "first", 6, 1)
            await anyio.wait_all_tasks_blocked()
            for number in (1, 2, 3):
                await release(number)
            tasks.start_soon(watch, "late", 6, 1)
            tasks.start_soon(watch, "from the fifth", 2, 5)
            await anyio.wait_all_tasks_blocked()
            for number in (4, 5, 6):
                await release(number)

    assert seen == {
        "first": [1, 2, 3, 4, 5, 6],
        "late": [1, 2, 3, 4, 5, 6],
        "from the fifth": [5, 6],
    }


async def test_releases_published_out_of_turn_are_watched_as_published_and_then_in_order(
    collector: Collector, study: Defined[Study], ask: Ask
) -> None:
    rounds = [await collector.open_round(ask(number).definition) for number in (1, 2, 3)]
    seen: list[int] = []

    async def watch() -> None:
        seen.extend(await numbers(collector, study, 3, 1))

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            for turn in (1, 0, 2):
                await anyio.wait_all_tasks_blocked()
                await collector.close_round(rounds[turn].hash)

    assert seen == [2, 1, 3]
    with anyio.fail_after(DEADLINE_S):
        assert await numbers(collector, study, 3, 1) == [1, 2, 3]


async def test_visitors_are_told_of_open_rounds_only_and_of_new_ones_as_they_open(
    collector: Collector, study: Defined[Study], ask: Ask
) -> None:
    first, second, third, fourth = (ask(number) for number in (1, 2, 3, 4))
    for asked in (first, second, third):
        await collector.open_round(asked.definition)
    await collector.close_round(second.hash)
    told: dict[int, list[int]] = {0: [], 2: [], 9: []}

    async def visit(after: int, last: int) -> None:
        async for asked in collector.open_rounds(study.hash, after_round=after):
            told[after].append(asked.value.number)
            if asked.value.number == last:
                break

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(visit, 0, 4)
            tasks.start_soon(visit, 2, 4)
            tasks.start_soon(visit, 9, 10)
            await anyio.wait_all_tasks_blocked()
            await collector.open_round(fourth.definition)
            for number in range(5, 11):
                await collector.open_round(ask(number).definition)

    assert told == {0: [1, 3, 4], 2: [3, 4], 9: [10]}


async def test_a_report_wakes_nobody_but_those_who_wait_for_it(
    collector: Collector, ask: Ask
) -> None:
    asked = await collector.open_round(ask(1).definition)
    woken: list[str] = []

    async def wait(name: str, news: anyio.Event) -> None:
        await news.wait()
        woken.append(name)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait, "visitor", collector._opened.next)
        tasks.start_soon(wait, "watcher", collector._published.next)
        tasks.start_soon(wait, "closer", collector._known.find(asked.hash).news.next)
        await anyio.wait_all_tasks_blocked()
        await send(collector, asked, [1, 2], [[1], [2]])
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()

    assert woken == ["closer"]
