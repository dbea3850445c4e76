"""The collector without a socket."""

import logging
import math
import random
import re
import secrets
import time
from collections.abc import Callable, Sequence
from hashlib import sha256

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from demur_proto.asking import next_round
from demur_proto.definition import Defined, define_round, define_study, read_round
from demur_proto.errors import DemurError, NotFoundError, StateError, UnsupportedError, WireError
from demur_proto.hmacs import hmac_by_message
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.mechanisms.of_round import mechanism_for
from demur_proto.release import Release, Withheld
from demur_proto.round import Feature, Round
from demur_proto.study import Study, design_study
from demur_proto.v1 import report_pb2, round_pb2, study_pb2
from demur_proto.words import encode_words
from demur_server.collector import Collector
from demur_server.store.base import Batch, Totals
from demur_server.store.memory import MemoryStore

ACCEPTED = report_pb2.DISPOSITION_ACCEPTED
DUPLICATE = report_pb2.DISPOSITION_DUPLICATE
CONFLICT = report_pb2.DISPOSITION_CONFLICT
ROUND_CLOSED = report_pb2.DISPOSITION_ROUND_CLOSED
INVALID = report_pb2.DISPOSITION_INVALID

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


# ---- studies and rounds ----------------------------------------------------------------------


async def test_fixing_the_same_study_again_changes_nothing(
    collector: Collector, study: Defined[Study], ask: Ask
) -> None:
    await collector.open_round(ask(1).definition)

    again = await collector.create_study(study.definition)

    assert again == study
    assert collector.rounds_opened(study.hash) == 1


async def test_no_hash_means_the_only_study_there_is(study: Defined[Study]) -> None:
    collector = Collector(MemoryStore(), open_access=True)
    other = define_study(
        design_study(name="other", epsilon=2.0, delta=1e-6, answers=1, minimum_cohort=1)
    )

    with pytest.raises(NotFoundError, match="there is no study yet"):
        collector.study(b"")
    await collector.create_study(study.definition)
    assert collector.study(b"") == study
    await collector.create_study(other.definition)
    with pytest.raises(NotFoundError, match="this collector has 2"):
        collector.study(b"")
    with pytest.raises(NotFoundError, match="there is no study 0707"):
        collector.study(b"\x07" * 32)


async def test_bytes_that_define_nothing_are_refused(collector: Collector) -> None:
    for definition in (b"\xff", b"\x0a\x05x"):
        with pytest.raises(WireError, match="do not parse"):
            await collector.create_study(definition)
        with pytest.raises(WireError, match="do not parse"):
            await collector.open_round(definition)


async def test_a_study_that_misstates_its_integers_is_refused(study: Defined[Study]) -> None:
    message = study_pb2.Study.FromString(study.definition)
    message.budget_units += 1

    with pytest.raises(WireError, match="budget_units"):
        await Collector(MemoryStore(), open_access=True).create_study(message.SerializeToString())


async def test_round_numbers_are_consecutive(collector: Collector, ask: Ask) -> None:
    with pytest.raises(StateError, match="round 2 cannot open: the next number is 1"):
        await collector.open_round(ask(2).definition)
    await collector.open_round(ask(1).definition)
    with pytest.raises(StateError, match="round 1 cannot open: the next number is 2"):
        await collector.open_round(ask(1, clip=0.5).definition)
    await collector.open_round(ask(2).definition)


async def test_opening_the_same_round_again_changes_nothing_even_when_it_has_closed(
    collector: Collector, study: Defined[Study], ask: Ask
) -> None:
    asked = await collector.open_round(ask(1).definition)
    await send(collector, asked, [1, 2], [[1], [2]])
    release = await collector.close_round(asked.hash)

    again = await collector.open_round(asked.definition)

    assert again == asked
    assert collector.rounds_opened(study.hash) == 1
    assert await collector.release(asked.hash) == release
    assert await send(collector, asked, [3], [[3]]) == [ROUND_CLOSED]


async def test_of_concurrent_rounds_with_one_number_one_opens(
    study: Defined[Study], ask: Ask
) -> None:
    collector = await slow_collector(study)
    outcomes: list[str] = []

    async def open_one(clip: float) -> None:
        try:
            await collector.open_round(ask(1, clip=clip).definition)
            outcomes.append("open")
        except StateError:
            outcomes.append("refused")

    async with anyio.create_task_group() as tasks:
        for clip in (1.0, 0.5, 0.25, 0.125, 1.0):
            tasks.start_soon(open_one, clip)

    assert sorted(outcomes) == ["open", "open", "refused", "refused", "refused"]
    assert collector.rounds_opened(study.hash) == 1


async def test_rounds_with_what_this_version_does_not_know_are_refused(
    collector: Collector, ask: Ask
) -> None:
    from_the_future = b"\xa2\x06\x00"  # field 100

    with pytest.raises(UnsupportedError, match="fields that this version does not know"):
        await collector.open_round(ask(1).definition + from_the_future)


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("weight", 1, "weight must be"),
        ("dimension", 0, "dimension"),
        ("sigma", math.nan, "sigma"),
        ("clip", -1.0, "clip"),
        ("study_hash", b"", "another study"),
    ],
)
async def test_a_round_that_contradicts_its_study_is_refused(
    collector: Collector, ask: Ask, field: str, value: object, complaint: str
) -> None:
    message = round_pb2.Round.FromString(ask(1).definition)
    setattr(message, field, value)

    with pytest.raises(WireError, match=complaint):
        await collector.open_round(message.SerializeToString())


async def test_a_round_whose_reports_or_release_would_be_too_large_is_refused(
    collector: Collector, study: Defined[Study]
) -> None:
    wide = define_study(
        design_study(
            name="wide",
            epsilon=1.0,
            delta=1e-6,
            answers=3,
            minimum_cohort=2,
            grid_exponent=-7,
            maximum_dimension=1 << 25,
        )
    )
    await collector.create_study(wide.definition)

    def asked(dimension: int) -> Defined[Round]:
        return define_round(
            next_round(wide, [Feature(name="x")], number=1, dimension=dimension, on_grid=True)
        )

    with pytest.raises(UnsupportedError, match="fewer coordinates"):
        await collector.open_round(asked((1 << 24) + 1).definition)
    assert read_round(asked(1 << 24).definition, study=wide).value.query.value_length == 1 << 24
    assert collector.rounds_opened(wide.hash) == 0


# ---- counting --------------------------------------------------------------------------------


async def test_a_word_beyond_the_limit_makes_its_own_report_invalid_and_no_other(
    collector: Collector, study: Defined[Study], ask: Ask
) -> None:
    asked = await collector.open_round(ask(1, dimension=2).definition)
    limit = gaussian_for(study.value, asked.value).word_limit

    dispositions = await send(
        collector,
        asked,
        [1, 2, 3, 4],
        [[limit, -limit], [0, limit + 1], [-limit - 1, 0], [7, 8]],
    )
    release = await collector.close_round(asked.hash)

    assert dispositions == [ACCEPTED, INVALID, INVALID, ACCEPTED]
    assert release.sums.tolist() == [limit + 7, -limit + 8]


async def test_the_most_negative_word_there_is_is_invalid_too(
    collector: Collector, ask: Ask
) -> None:
    asked = await collector.open_round(ask(1).definition)

    assert await send(collector, asked, [1], [[-(1 << 31)]]) == [INVALID]


async def test_an_invalid_report_may_still_be_sent_correctly(
    collector: Collector, ask: Ask
) -> None:
    asked = await collector.open_round(ask(1).definition)

    assert await send(collector, asked, [1], [[1 << 30]]) == [INVALID]
    assert await send(collector, asked, [1], [[5]]) == [ACCEPTED]


@pytest.mark.parametrize(
    ("report_ids", "words", "complaint"),
    [
        (bytes(15), bytes(4), "16 bytes each"),
        (bytes(16), bytes(3), "take 4 bytes, got 3"),
        (bytes(16), bytes(8), "take 4 bytes, got 8"),
        (bytes(32), bytes(4), "take 8 bytes, got 4"),
        (b"", bytes(4), "take 0 bytes, got 4"),
    ],
)
async def test_lengths_that_do_not_fit_refuse_everything(
    collector: Collector, ask: Ask, report_ids: bytes, words: bytes, complaint: str
) -> None:
    asked = await collector.open_round(ask(1).definition)

    with pytest.raises(WireError, match=complaint):
        await collector.intake.submit(asked.hash, report_ids, words)

    assert (await collector.totals(asked.hash)).reports == 0


async def test_nothing_is_a_frame_of_no_reports(collector: Collector, ask: Ask) -> None:
    asked = await collector.open_round(ask(1).definition)

    assert await collector.intake.submit(asked.hash, b"", b"") == []


async def test_an_unknown_round_is_not_found(collector: Collector) -> None:
    unknown = b"\x09" * 32

    with pytest.raises(NotFoundError, match="there is no round 0909"):
        await collector.intake.submit(unknown, b"", b"")
    with pytest.raises(NotFoundError):
        await collector.totals(unknown)
    with pytest.raises(NotFoundError):
        await collector.close_round(unknown)
    with pytest.raises(NotFoundError):
        await collector.release(unknown)
    with pytest.raises(NotFoundError):
        await anext(collector.open_rounds(unknown))
    with pytest.raises(NotFoundError):
        await anext(collector.watch_releases(unknown))


async def test_resent_bytes_count_once_and_other_bytes_are_a_conflict_and_an_alarm(
    collector: Collector, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    asked = await collector.open_round(ask(1).definition)

    first = await send(collector, asked, [1], [[7001]])
    resent = await send(collector, asked, [1], [[7001]])
    changed = await send(collector, asked, [1, 2], [[7002], [7003]])

    assert [first, resent, changed] == [[ACCEPTED], [DUPLICATE], [CONFLICT, ACCEPTED]]
    assert (await collector.totals(asked.hash)).sums.tolist() == [14004]
    alarms = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [alarm.getMessage() for alarm in alarms] == [
        "round 1: 1 conflicting reports so far: other bytes under a known id, or a second id of one device"
    ]


async def test_conflicts_are_an_alarm_each_time_their_number_has_doubled(
    collector: Collector, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    asked = await collector.open_round(ask(1).definition)
    await send(collector, asked, [1], [[7001]])

    for _ in range(9):  # whoever floods a collector with them does not flood its log
        assert await send(collector, asked, [1], [[7002]]) == [CONFLICT]

    alarms = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [alarm.getMessage().split()[2] for alarm in alarms] == ["1", "2", "4", "8"]
    assert (await collector.totals(asked.hash)).conflicts == 9


async def test_a_word_that_changes_only_its_report_is_a_conflict_in_every_coordinate(
    collector: Collector, ask: Ask
) -> None:
    asked = await collector.open_round(ask(1, dimension=3).definition)
    await send(collector, asked, [1], [[1, 2, 3]])

    for changed in ([9, 2, 3], [1, 9, 3], [1, 2, 9]):
        assert await send(collector, asked, [1], [changed]) == [CONFLICT]


async def test_sums_stay_exact_when_a_round_fills_up_even_with_batches_on_their_way_together(
    study: Defined[Study], ask: Ask
) -> None:
    collector = await slow_collector(study)
    asked = await collector.open_round(ask(1, sigma=2.0**50).definition)
    limit = gaussian_for(study.value, asked.value).word_limit
    room = ((1 << 63) - 1) // limit
    assert 2 <= room <= 8
    outcomes: list[int] = []

    async def hand_in(who: int) -> None:
        outcomes.extend(await send(collector, asked, [who], [[limit]]))

    async with anyio.create_task_group() as tasks:
        for who in range(2 * room):
            tasks.start_soon(hand_in, who)
    release = await collector.close_round(asked.hash)

    assert sorted(outcomes) == [ACCEPTED] * room + [INVALID] * room
    assert release.sums.tolist() == [room * limit]
    assert release.sums[0] < 1 << 63


async def test_reports_that_do_not_count_take_no_room(study: Defined[Study], ask: Ask) -> None:
    collector = await slow_collector(study)
    asked = await collector.open_round(ask(1, sigma=2.0**50).definition)
    room = ((1 << 63) - 1) // gaussian_for(study.value, asked.value).word_limit

    for _ in range(room):
        await send(collector, asked, [1], [[5]])

    assert await send(collector, asked, [2], [[5]]) == [ACCEPTED]


# ---- closing ---------------------------------------------------------------------------------


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


# ---- telling ---------------------------------------------------------------------------------


async def numbers(collector: Collector, study: Defined[Study], count: int, first: int) -> list[int]:
    seen: list[int] = []
    async for release in collector.watch_releases(study.hash, from_number=first):
        seen.append(release.number)
        if len(seen) == count:
            break
    return seen


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


async def test_no_word_id_digest_or_sum_appears_in_the_logs(
    collector: Collector, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    asked = await collector.open_round(ask(1).definition)
    key = collector._known.find(asked.hash).digest_key
    assert key is not None
    who = [secrets.randbits(128) for _ in range(3)]
    words = [[7101], [7202], [7303]]
    payloads = [encode_words(np.array([row]), asked.value.word_type) for row in words]
    hashes = [sha256(payload).digest() for payload in payloads]
    digests = hmac_by_message(key, hashes)

    await send(collector, asked, who, words)
    await send(collector, asked, who, words[::-1])
    await send(collector, asked, [1], [[1 << 30]])
    for mistake in (bytes(3), ids(*who)):
        with pytest.raises(DemurError):
            await collector.intake.submit(asked.hash, mistake, payloads[0] * 2)
    await collector.close_round(asked.hash)

    assert "conflicting reports" in caplog.text
    for secret in [*payloads, *hashes, *digests, ids(*who)[:16], b"".join(payloads)]:
        assert secret.hex() not in caplog.text
        assert repr(secret)[2:-1] not in caplog.text
    assert not re.search(r"7101|7202|7303|21606", caplog.text)


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
