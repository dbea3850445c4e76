"""The collector without a socket: studies, rounds and what it counts."""

import logging
import math
import re
import secrets
from hashlib import sha256

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from collector_kit import Ask, gaussian_for, ids, send, slow_collector
from demur_proto.errors import DemurError, NotFoundError, StateError, UnsupportedError, WireError
from demur_proto.queries import Feature, Linear
from demur_proto.round import Round, round_of
from demur_proto.study import Study, design_study
from demur_proto.v1 import round_pb2, study_pb2
from demur_proto.wire.definition import Defined, define_round, define_study, read_round
from demur_proto.wire.hmacs import hmac_by_message
from demur_proto.wire.words import encode_words
from demur_server.collector.collector import Collector
from demur_server.store.memory import MemoryStore
from store_kit import ACCEPTED, CONFLICT, DUPLICATE, INVALID, ROUND_CLOSED

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
            round_of(wide, Linear([Feature(name="x")], dimension=dimension, on_grid=True), number=1)
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
