"""However a round closes, its release holds every report that was accepted, and no other."""

import logging
import time

import anyio
import anyio.lowlevel
import pytest

from collector_kit import DEADLINE_S, Ask, numbers, send, slow_collector
from demur_proto.errors import StateError
from demur_proto.release import Release, Withheld
from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.wire.definition import Defined
from demur_server.collector.collector import Collector
from store_kit import ACCEPTED, ROUND_CLOSED


async def test_after_the_close_every_report_is_too_late_for_ever(
    collector: Collector, ask: Ask
) -> None:
    asked = await collector.open_round(ask(1).definition)
    await send(collector, asked, [1, 2], [[1], [2]])
    release = await collector.close_round(asked.hash)

    late = [
        await send(collector, asked, [1], [[1]]),  # counted before
        await send(collector, asked, [1], [[9]]),  # would have been a conflict
        await send(collector, asked, [3], [[1 << 30]]),  # would have been invalid
        await send(collector, asked, [4], [[4]]),
    ]

    assert late == [[ROUND_CLOSED]] * 4
    assert await collector.close_round(asked.hash) == release
    assert release.sums.tolist() == [3]


async def test_closing_twice_at_once_gives_one_release(study: Defined[Study], ask: Ask) -> None:
    collector = await slow_collector(study)
    asked = await collector.open_round(ask(1).definition)
    await send(collector, asked, [1, 2], [[1], [2]])
    releases: list[Release] = []

    async def close() -> None:
        releases.append(await collector.close_round(asked.hash))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(close)

    assert all(release is releases[0] for release in releases)


async def test_every_accepted_report_is_in_the_release_however_the_close_falls(
    study: Defined[Study], ask: Ask
) -> None:
    collector = await slow_collector(study)
    accepted: list[int] = []

    async def hand_in(asked: Defined[Round], who: int) -> None:
        for _ in range(who % 8):
            await anyio.lowlevel.checkpoint()
        if await send(collector, asked, [who], [[1 << who]]) == [ACCEPTED]:
            accepted.append(1 << who)

    async def close(asked: Defined[Round], delay: int) -> None:
        for _ in range(delay):
            await anyio.lowlevel.checkpoint()
        await collector.close_round(asked.hash)

    for number in range(1, 15):
        asked = await collector.open_round(ask(number).definition)
        await send(collector, asked, [13, 14], [[0], [0]])
        accepted.clear()
        async with anyio.create_task_group() as tasks:
            for who in range(12):
                tasks.start_soon(hand_in, asked, who)
            tasks.start_soon(close, asked, number)

        release = await collector.release(asked.hash)

        assert release.sums.tolist() == [sum(accepted)]
        assert release.reports == 2 + len(accepted)


async def test_below_the_minimum_cohort_nothing_of_the_sums_gets_out(
    collector: Collector, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    asked = await collector.open_round(ask(1).definition)
    await send(collector, asked, [1], [[7117]])

    release = await collector.close_round(asked.hash)

    assert release.withheld is Withheld.BELOW_MINIMUM_COHORT
    assert release.reports == 1
    assert (release.sums.size, release.estimate.size) == (0, 0)
    message = release.message()
    assert (message.sums, list(message.estimate)) == (b"", [])
    told = repr(release) + repr(message) + repr(message.SerializeToString()) + caplog.text
    assert "7117" not in told
    assert str(7117 / 128) not in told
    assert (7117).to_bytes(2, "little") not in message.SerializeToString()


async def test_closing_waits_for_the_reports_asked_for_and_not_for_more(
    collector: Collector, ask: Ask
) -> None:
    asked = await collector.open_round(ask(1).definition)
    releases: list[Release] = []

    async def close() -> None:
        releases.append(await collector.close_round(asked.hash, after_reports=3))

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(close)
            await anyio.wait_all_tasks_blocked()
            for who in (1, 2, 2, 1):  # duplicates do not count
                await send(collector, asked, [who], [[who]])
                await anyio.wait_all_tasks_blocked()
                assert not releases
            await send(collector, asked, [3], [[3]])

    assert [release.reports for release in releases] == [3]


async def test_no_report_slips_by_a_close_that_waits_for_it(
    study: Defined[Study], ask: Ask
) -> None:
    collector = await slow_collector(study)

    async def hand_in(asked: Defined[Round], who: int) -> None:
        await send(collector, asked, [who], [[1]])

    for number in range(1, 101):
        asked = await collector.open_round(ask(number).definition)
        with anyio.fail_after(DEADLINE_S):
            async with anyio.create_task_group() as tasks:
                for who in (1, 2, 3):
                    tasks.start_soon(hand_in, asked, who)
                release = await collector.close_round(asked.hash, after_reports=3)

        assert release.reports == 3


async def test_no_release_slips_by_a_watcher(study: Defined[Study], ask: Ask) -> None:
    collector = await slow_collector(study)
    seen: list[int] = []

    async def watch() -> None:
        seen.extend(await numbers(collector, study, 100, 1))

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            for number in range(1, 101):
                asked = await collector.open_round(ask(number).definition)
                await collector.close_round(asked.hash)

    assert seen == list(range(1, 101))


async def test_a_close_that_stops_waiting_leaves_the_round_open(
    collector: Collector, ask: Ask
) -> None:
    asked = await collector.open_round(ask(1).definition)

    with anyio.move_on_after(0.02) as waiting:
        await collector.close_round(asked.hash, after_reports=1)

    assert waiting.cancelled_caught
    assert await send(collector, asked, [1], [[1]]) == [ACCEPTED]
    with pytest.raises(StateError, match="round 1 is still open"):
        await collector.release(asked.hash)


async def test_a_waiting_close_gives_the_release_of_whoever_closed_first(
    collector: Collector, ask: Ask
) -> None:
    asked = await collector.open_round(ask(1).definition)
    releases: list[Release] = []

    async def wait() -> None:
        releases.append(await collector.close_round(asked.hash, after_reports=99))

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            release = await collector.close_round(asked.hash)

    assert releases == [release]


async def test_the_digest_key_is_gone_once_the_round_is_closed(
    collector: Collector, ask: Ask
) -> None:
    asked = await collector.open_round(ask(1).definition)
    assert collector._known.find(asked.hash).digest_key is not None

    await collector.close_round(asked.hash)

    assert collector._known.find(asked.hash).digest_key is None


async def test_rounds_close_at_the_time_they_name(collector: Collector, ask: Ask) -> None:
    now_ms = int(time.time() * 1000)
    rounds = [
        ask(1, close_unix_ms=now_ms + 1_200),
        ask(2, close_unix_ms=now_ms + 600),
        ask(3, close_unix_ms=now_ms - 1000),
        ask(4, close_unix_ms=now_ms + 3_600_000),
        ask(5),
    ]

    closed: list[tuple[int, float]] = []
    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(collector.close_due_rounds)
            await anyio.wait_all_tasks_blocked()
            for asked in rounds:
                await collector.open_round(asked.definition)
                await send(collector, asked, [1, 2], [[1], [2]])
            async for release in collector.watch_releases(rounds[0].value.study_hash):
                closed.append((release.number, time.time() * 1000))
                if len(closed) == 3:
                    break
            tasks.cancel_scope.cancel()

    assert [number for number, _ in closed] == [3, 2, 1]
    assert closed[1][1] >= now_ms + 600
    assert closed[2][1] >= now_ms + 1_200
    assert not (await collector.totals(rounds[3].hash)).closed
    assert not (await collector.totals(rounds[4].hash)).closed
