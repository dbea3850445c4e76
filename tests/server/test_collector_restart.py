"""A collector that ends, however it ends, goes on where it stopped."""

import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import numpy as np
import pytest

from demur_proto.errors import NotFoundError, StateError, StorageError, WireError
from demur_proto.release import Release, Withheld
from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.wire.definition import Defined
from demur_proto.wire.words import encode_words
from demur_server.collector import collector as collector_module
from demur_server.collector.collector import Collector
from demur_server.collector.keys import KeyFolder
from demur_server.store import worker as clerk
from demur_server.store.durable import DurableStore
from store_kit import (
    ACCEPTED,
    CONFLICT,
    DUPLICATE,
    ROUND_CLOSED,
    TRY_LATER,
    Crash,
    Fuse,
    PostgresPlace,
    PostgresServer,
    SqlitePlace,
    bury,
)

Ask = Callable[..., Defined[Round]]


class Home:
    """Where a collector lives: its store and its keys."""

    def __init__(self, place: SqlitePlace | PostgresPlace, folder: Path, **shard: int) -> None:
        self.place = place
        self.keys_folder = folder
        self.shard = shard
        self.fuse = Fuse()
        self.store: DurableStore

    async def start(self, *, open_access: bool = False, keys: KeyFolder | None = None) -> Collector:
        self.store = await self.place.open(fuse=self.fuse, **self.shard)
        made = Collector(
            self.store, keys=keys or KeyFolder(self.keys_folder), open_access=open_access
        )
        await made.refresh()
        return made

    async def crash(self) -> None:
        self.fuse.defuse()
        await self.place.crash(self.store)

    async def restart(self, *, open_access: bool = False) -> Collector:
        await self.store.close()
        return await self.start(open_access=open_access)

    def keys(self) -> list[bytes]:
        return KeyFolder(self.keys_folder).rounds()


@pytest.fixture
async def home(quick_path: Path) -> AsyncIterator[Home]:
    (quick_path / "store").mkdir()
    made = Home(SqlitePlace(quick_path / "store"), quick_path / "keys")
    yield made
    made.fuse.defuse()
    await bury(made.store)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long between attempts to get a database back."""
    monkeypatch.setattr(clerk, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(clerk, "LAST_RETRY_S", 0.02)
    monkeypatch.setattr(collector_module, "RETRY_S", 0.01)


def ids(*who: int) -> bytes:
    return b"".join(number.to_bytes(16, "big") for number in who)


async def send(
    collector: Collector,
    asked: Defined[Round],
    who: Sequence[int],
    words: Sequence[int],
    *,
    devices: bytes | None = None,
) -> list[int]:
    """Reports of one word each, from devices of the same names."""
    data = encode_words(np.array([[word] for word in words]), asked.value.word_type)
    return await collector.intake.submit(asked.hash, ids(*who), data, devices=devices or ids(*who))


async def released(collector: Collector, study: Defined[Study]) -> list[Release]:
    """Every release that a watcher sees: those that are kept, and whatever follows at once."""
    watching = collector.watch_releases(study.hash)
    kept = len(await collector._store.releases(study.hash))
    with anyio.fail_after(20):
        seen = [await anext(watching) for _ in range(kept)]
    with anyio.move_on_after(0.05):
        async for release in watching:
            seen.append(release)
    return seen


async def test_everything_goes_on_after_a_restart(
    home: Home, study: Defined[Study], ask: Ask
) -> None:
    collector = await home.start()
    await collector.create_study(study.definition)
    first, second = [await collector.open_round(ask(number).definition) for number in (1, 2)]
    await send(collector, first, [1, 2], [10, 20])
    await send(collector, second, [1], [5])
    release = await collector.close_round(first.hash)

    for ending in (home.store.close, home.crash):
        await ending()
        collector = await home.start()

        assert collector.study(b"") == study
        assert collector.rounds_opened(study.hash) == 2
        assert await collector.release(first.hash) == release
        assert await collector.close_round(first.hash) == release
        assert await send(collector, first, [1, 3], [10, 30]) == [ROUND_CLOSED] * 2
        assert await send(collector, second, [1, 1], [5, 6]) == [DUPLICATE, CONFLICT]
        told = collector.open_rounds(study.hash)
        assert (await anext(told)) == second
        await told.aclose()
        with pytest.raises(StateError, match="the next number is 3"):
            await collector.open_round(ask(4).definition)
        assert await collector.open_round(second.definition) == second
        assert home.keys() == [second.hash]

    assert await send(collector, second, [2], [7]) == [ACCEPTED]
    assert (await collector.close_round(second.hash)).sums.tolist() == [12]
    assert home.keys() == []


class FailingKeys(KeyFolder):
    """Fails, or ends the process, when a key is to be destroyed: before or after that is done."""

    def __init__(self, folder: Path, *, after: bool) -> None:
        super().__init__(folder)
        self._after = after

    def destroy(self, round_hash: bytes) -> None:
        if self._after:
            super().destroy(round_hash)
        raise StorageError("the key cannot be destroyed")


async def test_a_release_is_published_once_wherever_a_process_ends_while_it_closes(
    home: Home, study: Defined[Study], ask: Ask
) -> None:
    interrupted = 0
    for statement in range(40):  # after this many, which is before the next one
        home.place.clear()
        collector = await home.start()
        await collector.create_study(study.definition)
        asked = await collector.open_round(ask(1).definition)
        await send(collector, asked, [1, 2, 3], [10, 20, 30])
        home.fuse.set(statement or 1, after=statement > 0, error=Crash())
        with suppress(StorageError):
            await collector.close_round(asked.hash)
        blown = home.fuse.blown
        await home.crash()
        collector = await home.start()
        if not (await collector.totals(asked.hash)).closed:
            assert home.keys() == [asked.hash]
            assert await send(collector, asked, [1, 4], [10, 40]) == [DUPLICATE, ACCEPTED]
            expected = 100
        else:
            assert home.keys() == []
            assert await send(collector, asked, [1, 4], [10, 40]) == [ROUND_CLOSED] * 2
            assert len(await released(collector, study)) == 1  # at once, by the restart
            expected = 60
        release = await collector.close_round(asked.hash)
        collector = await home.restart()

        assert release.sums.tolist() == [expected]
        assert await released(collector, study) == [release]
        assert home.keys() == []
        await home.store.close()
        interrupted += blown
        if not blown:
            break
    assert interrupted >= 12  # there is that much to do


@pytest.mark.parametrize("after", [False, True])
async def test_a_key_that_cannot_be_destroyed_holds_the_release_back_until_it_can(
    home: Home, study: Defined[Study], ask: Ask, after: bool
) -> None:
    collector = await home.start(keys=FailingKeys(home.keys_folder, after=after))
    await collector.create_study(study.definition)
    asked = await collector.open_round(ask(1).definition)
    await send(collector, asked, [1, 2], [10, 20])

    for _ in range(2):
        with pytest.raises(StorageError, match="the key cannot be destroyed"):
            await collector.close_round(asked.hash)
    assert await send(collector, asked, [3], [30]) == [ROUND_CLOSED]
    assert await released(collector, study) == []
    assert home.keys() == ([] if after else [asked.hash])
    collector = await home.restart()

    assert [release.sums.tolist() for release in await released(collector, study)] == [[30]]
    assert home.keys() == []


async def test_a_key_without_an_open_round_is_destroyed_at_the_start(
    home: Home, study: Defined[Study], ask: Ask
) -> None:
    collector = await home.start()
    await collector.create_study(study.definition)
    closed = await collector.open_round(ask(1).definition)
    await collector.close_round(closed.hash)
    keys = KeyFolder(home.keys_folder)
    keys.make(closed.hash)  # as if the process had ended before it was destroyed
    keys.make(ask(2).hash)  # or between making it and opening its round
    master = keys.master()

    await home.restart()

    assert home.keys() == []
    assert KeyFolder(home.keys_folder).master() == master


@pytest.mark.parametrize("open_access", [False, True])
async def test_an_open_round_without_its_key_can_only_be_closed_and_is_withheld(
    home: Home,
    study: Defined[Study],
    ask: Ask,
    open_access: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    collector = await home.start()
    await collector.create_study(study.definition)
    counted, empty = [await collector.open_round(ask(number).definition) for number in (1, 2)]
    await send(collector, counted, [1, 2], [10, 20])
    for asked in (counted, empty):
        KeyFolder(home.keys_folder).destroy(asked.hash)

    collector = await home.restart(open_access=open_access)

    for asked in (counted, empty):  # the copy may be from before the first report
        assert await send(collector, asked, [1, 3], [10, 30]) == [TRY_LATER] * 2
    released = [await collector.close_round(asked.hash) for asked in (counted, empty)]
    assert [(each.reports, each.sums.size) for each in released] == [(0, 0)] * 2
    assert await send(collector, counted, [1], [10]) == [ROUND_CLOSED]
    alarms = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    gone = "can only be closed, and will be withheld: its digest key is gone"
    assert alarms == [f"round {number} {gone}" for number in (1, 2)]
    collector = await home.restart()
    assert [await collector.release(asked.hash) for asked in (counted, empty)] == released


@pytest.mark.parametrize("open_at_first", [True, False])
async def test_a_round_that_was_opened_with_other_access_can_only_be_closed(
    home: Home,
    study: Defined[Study],
    ask: Ask,
    open_at_first: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    collector = await home.start(open_access=open_at_first)
    await collector.create_study(study.definition)
    asked = await collector.open_round(ask(1).definition)
    await send(collector, asked, [1, 2], [10, 20])

    collector = await home.restart(open_access=not open_at_first)

    assert await send(collector, asked, [1, 3], [10, 30]) == [TRY_LATER] * 2
    assert (await collector.close_round(asked.hash)).sums.tolist() == [30]
    assert "round 1 can only be closed: it was opened with other access" in caplog.text


async def test_a_round_that_fell_due_meanwhile_closes_at_the_start(
    home: Home, study: Defined[Study], ask: Ask
) -> None:
    collector = await home.start()
    await collector.create_study(study.definition)
    soon = int(time.time() * 1000) + 200
    asked = await collector.open_round(ask(1, close_unix_ms=soon).definition)
    await send(collector, asked, [1, 2], [10, 20])
    await home.crash()
    await anyio.sleep(0.25)

    collector = await home.start()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(collector.close_due_rounds)
            release = await anext(collector.watch_releases(study.hash))
            tasks.cancel_scope.cancel()

    assert release.sums.tolist() == [30]


async def test_a_clock_that_is_set_back_orders_nothing_and_loses_nothing(
    home: Home, study: Defined[Study], ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_800_000_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    collector = await home.start()
    await collector.create_study(study.definition)
    rounds, releases = [], []
    for number in range(1, 6):
        close_ms = int((now[0] + 3600) * 1000) if number == 5 else 0
        rounds.append(await collector.open_round(ask(number, close_unix_ms=close_ms).definition))
        await send(collector, rounds[-1], [1, 2], [number, 10 * number])
        now[0] -= 365 * 86_400
        if number % 2:
            await home.crash()
            collector = await home.start()
        assert await send(collector, rounds[-1], [1], [number]) == [DUPLICATE]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(collector.close_due_rounds)
        for asked in rounds[3::-1]:
            releases.append(await collector.close_round(asked.hash))
            now[0] -= 86_400
        await anyio.sleep(0.02)
        tasks.cancel_scope.cancel()

    assert [int(release.sums[0]) for release in reversed(releases)] == [11, 22, 33, 44]
    assert await released(collector, study) == releases[::-1]
    assert not (await collector.totals(rounds[4].hash)).closed  # a year early is not due


# ---- trouble ---------------------------------------------------------------------------------


async def test_a_store_in_trouble_is_a_try_later_and_a_due_round_closes_once_it_is_over(
    home: Home, study: Defined[Study], ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    collector = await home.start()
    await collector.create_study(study.definition)
    soon = int(time.time() * 1000) + 300
    asked = await collector.open_round(ask(1, close_unix_ms=soon).definition)
    home.fuse.set(4, after=False, error=home.place.driver_error())

    assert await send(collector, asked, [1, 2], [10, 20]) == [TRY_LATER] * 2
    await anyio.sleep(0.02)
    assert await send(collector, asked, [1, 2], [10, 20]) == [ACCEPTED] * 2
    home.fuse.set(3, after=False, error=home.place.driver_error())
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(collector.close_due_rounds)
            release = await anext(collector.watch_releases(study.hash))
            tasks.cancel_scope.cancel()

    assert release.sums.tolist() == [30]
    assert "round 1 is due and cannot close: the store is in trouble: disk I/O error" in caplog.text
    assert await released(collector, study) == [release]


async def test_opening_that_is_cut_short_may_be_done_again(
    home: Home, study: Defined[Study], ask: Ask
) -> None:
    collector = await home.start()
    await collector.create_study(study.definition)
    for statement in range(1, 12):
        home.fuse.set(statement, after=statement % 2 == 0, error=home.place.driver_error())
        with suppress(StorageError):
            await collector.open_round(ask(1).definition)
        home.fuse.defuse()
        await anyio.sleep(0.025)
    asked = await collector.open_round(ask(1).definition)

    assert await send(collector, asked, [1], [10]) == [ACCEPTED]
    assert home.keys() == [asked.hash]
    collector = await home.restart()
    assert await send(collector, asked, [1], [10]) == [DUPLICATE]


async def test_a_round_that_was_kept_although_its_opener_was_told_of_trouble_blocks_no_other(
    home: Home, study: Defined[Study], ask: Ask
) -> None:
    collector = await home.start()
    await collector.create_study(study.definition)
    lost = ask(1, close_unix_ms=4_000_000_000_000)
    unknown = False
    for statement in range(1, 20):  # until the one that commits
        home.fuse.set(statement, after=True, error=home.place.driver_error())
        with suppress(StorageError):
            await collector.open_round(lost.definition)
        home.fuse.defuse()
        await anyio.sleep(0.025)
        if await home.store.rounds():
            unknown = not collector.rounds_opened(study.hash)
            break
    assert unknown

    with pytest.raises(StateError, match="the study has another one"):
        await collector.open_round(ask(1).definition)

    assert collector.rounds_opened(study.hash) == 1
    assert home.keys() == [lost.hash]
    assert await collector.open_round(ask(2).definition) == ask(2)
    assert await send(collector, lost, [1], [10]) == [ACCEPTED]


# ---- who reports -----------------------------------------------------------------------------


async def test_a_minimum_cohort_counts_devices_and_not_report_ids(
    home: Home, study: Defined[Study], ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    collector = await home.start()
    await collector.create_study(study.definition)
    asked = await collector.open_round(ask(1).definition)
    one = secrets.token_bytes(16)

    told = await send(collector, asked, [7001, 7002], [7101, 7202], devices=one + one)
    home.fuse.set(2, after=True, error=home.place.driver_error())
    await send(collector, asked, [7004], [7404], devices=secrets.token_bytes(16))
    await anyio.sleep(0.03)
    later = await send(collector, asked, [7003], [7303], devices=one)
    release = await collector.close_round(asked.hash)

    assert (told, later) == ([ACCEPTED, CONFLICT], [CONFLICT])
    assert (release.reports, release.withheld) == (1, Withheld.BELOW_MINIMUM_COHORT)
    alarms = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    kinds = "other bytes under a known id, or a second id of one device"
    conflicts = [f"round 1: {count} conflicting reports so far: {kinds}" for count in (1, 2)]
    assert [alarms[0], alarms[-1]] == conflicts
    assert alarms[1].startswith("the store is in trouble: disk I/O error")
    told_at_all = caplog.text + repr(home.store) + repr(vars(home.store)) + repr(release)
    for secret in (one, ids(7001), ids(7002), ids(7003)):
        assert secret.hex() not in told_at_all
        assert repr(secret)[2:-1] not in told_at_all
    assert not re.search(r"7101|7202|7303|7404", told_at_all)


@pytest.mark.parametrize(
    ("devices", "complaint"),
    [
        (None, "must say which device"),
        (b"", "16 bytes for each of 2 reports, got 0"),
        (bytes(16), "16 bytes for each of 2 reports, got 16"),
        (bytes(33), "16 bytes for each of 2 reports, got 33"),
    ],
)
async def test_reports_without_devices_are_refused_unless_anybody_may_report(
    home: Home, study: Defined[Study], ask: Ask, devices: bytes | None, complaint: str
) -> None:
    collector = await home.start()
    await collector.create_study(study.definition)
    asked = await collector.open_round(ask(1).definition)

    with pytest.raises(WireError, match=complaint):
        await collector.intake.submit(asked.hash, ids(1, 2), bytes(8), devices=devices)

    assert (await collector.totals(asked.hash)).reports == 0


# ---- several collectors ----------------------------------------------------------------------


@asynccontextmanager
async def following(collector: Collector) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:

        async def follow() -> None:
            await collector.follow(every_s=0.02)

        tasks.start_soon(follow)
        yield
        tasks.cancel_scope.cancel()


async def test_collectors_that_share_a_database_follow_each_other(
    postgres: PostgresServer, tmp_path: Path, study: Defined[Study], ask: Ask
) -> None:
    place = PostgresPlace(postgres)
    homes = [Home(place, tmp_path / f"keys{shard}", shard=shard, shards=2) for shard in (0, 1)]
    first, second = [await home.start() for home in homes]
    with anyio.fail_after(20):
        async with following(first), following(second):
            await first.create_study(study.definition)
            asked = await first.open_round(ask(1).definition)
            await send(first, asked, [1, 2], [10, 20], devices=b"\x00" * 16 + b"\x02" * 16)
            while True:  # the other one hears of it
                with suppress(NotFoundError):
                    told = await send(second, asked, [3], [30], devices=b"\x01" * 16)
                    break
                await anyio.sleep(0.01)
            assert told == [ACCEPTED]
            assert [home.keys() for home in homes] == [[asked.hash]] * 2
            async with anyio.create_task_group() as tasks:
                closed: list[Release] = []

                async def close() -> None:
                    closed.append(await second.close_round(asked.hash, after_reports=4))

                tasks.start_soon(close)
                await anyio.sleep(0.05)
                assert not closed
                await send(first, asked, [4], [40], devices=b"\x04" * 16)
            seen = await anext(first.watch_releases(study.hash))
            while homes[0].keys():  # noqa: ASYNC110  a file rings no bell
                await anyio.sleep(0.01)
            late = [
                await send(first, asked, [5], [50], devices=b"\x06" * 16),
                await send(second, asked, [5], [50], devices=b"\x07" * 16),
            ]
            for number, opener in ((2, second), (3, first), (4, second)):  # without waiting
                assert await opener.open_round(ask(number).definition) == ask(number)
                await opener.close_round(ask(number).hash)
            again = await first.open_round(ask(5).definition)
            with pytest.raises(StateError, match="a device of shard 1 reported to shard 0 of 2"):
                await send(first, again, [1], [1], devices=b"\x01" * 16)
    for home in homes:
        await home.store.close()

    assert closed[0].sums.tolist() == [100]
    assert seen == closed[0]
    assert late == [[ROUND_CLOSED]] * 2
