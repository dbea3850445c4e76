"""The analyst's side over real gRPC on loopback."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
import grpc
import numpy as np
import pytest

from demur_proto.definition import Defined
from demur_proto.errors import (
    ConnectionLost,
    DemurError,
    NotFoundError,
    ParameterError,
    StateError,
    UnsupportedError,
    WireError,
)
from demur_proto.release import Release, Withheld
from demur_proto.round import Feature, Round
from demur_proto.status import error_of
from demur_proto.study import Study
from demur_proto.v1 import analyst_pb2, round_pb2, study_pb2
from demur_proto.words import encode_words
from demur_server.analyst import Analyst
from demur_server.collector import Collector
from demur_server.serving import Ports, served
from demur_server.store.memory import MemoryStore

DEADLINE_S = 10.0

Ask = Callable[..., Defined[Round]]
X = Feature(name="x")


@pytest.fixture
async def analyst(ports: Ports, study: Defined[Study]) -> AsyncIterator[Analyst]:
    async with Analyst.create(f"127.0.0.1:{ports.analyst}", study.value) as made:
        yield made


async def send(collector: Collector, asked: Defined[Round], *words: int) -> None:
    """One report a word, from devices 0, 1, 2…"""
    ids = b"".join(who.to_bytes(16, "big") for who in range(len(words)))
    encoded = encode_words(np.array(words).reshape(-1, 1), asked.value.word_type)
    await collector.intake.submit(asked.hash, ids, encoded)


async def refusal(call: Any) -> DemurError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return error_of(caught.value, peer="the collector")


# ---- asking ----------------------------------------------------------------------------------


class Forgetful(Collector):
    """Closes whatever it is told to, and tells of the first release."""

    first = b""

    async def close_round(self, round_hash: bytes, *, after_reports: int = 0) -> Release:
        await super().close_round(round_hash, after_reports=after_reports)
        return await self.release(self.first)


async def test_the_release_of_another_round_is_no_answer(study: Defined[Study]) -> None:
    collector = Forgetful(MemoryStore(), open_access=True)
    async with (
        served(collector) as ports,
        Analyst.create(f"127.0.0.1:{ports.analyst}", study.value) as analyst,
    ):
        first = await analyst.open(X, on_grid=True)
        collector.first = first.hash
        await send(collector, first, 1, 2)
        assert (await analyst.close(first)).round_hash == first.hash
        second = await analyst.open(X, on_grid=True)
        await send(collector, second, 1, 2)

        with pytest.raises(WireError, match="the release of another round"):
            await analyst.close(second)


async def test_an_answered_question_gives_its_release(
    analyst: Analyst, collector: Collector
) -> None:
    async def answer() -> None:
        async for asked in collector.open_rounds(analyst.study.hash):
            await send(collector, asked, 128, 64, -32)
            return

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        release = await analyst.ask(X, on_grid=True, reports=3, timeout_s=DEADLINE_S)

    assert (release.number, release.reports, release.sums.tolist()) == (1, 3, [160])
    assert release.estimate.tolist() == [1.25]


async def test_a_question_waits_for_the_minimum_cohort_unless_told_otherwise(
    analyst: Analyst, collector: Collector
) -> None:
    async def answer() -> None:
        async for asked in collector.open_rounds(analyst.study.hash):
            await send(collector, asked, 1, 2)
            return

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        release = await analyst.ask(X, on_grid=True, timeout_s=DEADLINE_S)
    withheld = await analyst.ask(X, on_grid=True, reports=0, timeout_s=DEADLINE_S)

    assert release.reports == 2
    assert (withheld.reports, withheld.withheld) == (0, Withheld.BELOW_MINIMUM_COHORT)


async def test_reports_that_do_not_come_in_time_leave_the_round_open(
    analyst: Analyst, collector: Collector
) -> None:
    asked = await analyst.open(X, on_grid=True)
    await send(collector, asked, 5)

    started = time.monotonic()
    with pytest.raises(StateError, match=r"round 1 did not get 2 reports within 0\.1 s; it stays"):
        await analyst.close(asked, after_reports=2, timeout_s=0.1)

    assert time.monotonic() - started < 1.0
    assert not (await collector.totals(asked.hash)).closed
    await send(collector, asked, 5, 6)
    release = await analyst.close(asked, after_reports=2, timeout_s=DEADLINE_S)
    assert release.sums.tolist() == [11]


async def test_the_next_question_may_be_asked_after_one_that_got_no_answer(
    analyst: Analyst, collector: Collector
) -> None:
    with pytest.raises(StateError, match="it stays open"):
        await analyst.ask(X, on_grid=True, timeout_s=0.05)

    second = await analyst.open(X, on_grid=True)

    assert second.value.number == 2


async def test_whoever_was_overtaken_or_lost_an_answer_goes_on_with_the_next_number(
    analyst: Analyst, ports: Ports
) -> None:
    async with Analyst.resume(f"127.0.0.1:{ports.analyst}") as other:
        await other.open(X, on_grid=True)
    with pytest.raises(StateError, match="round 1 cannot open: the next number is 2"):
        await analyst.open(Feature(name="y"), on_grid=True)

    asked = await analyst.open(Feature(name="y"), on_grid=True)
    with anyio.move_on_after(0.002):  # perhaps it was opened, perhaps not
        await analyst.open(X, on_grid=True)
    last = await analyst.open(Feature(name="z"), on_grid=True)

    assert asked.value.number == 2
    assert last.value.number in (3, 4)


async def test_the_same_question_at_the_same_time_is_asked_as_often_as_it_was_put(
    analyst: Analyst,
) -> None:
    numbers: list[int] = []

    async def put() -> None:
        numbers.append((await analyst.open(X, on_grid=True)).value.number)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(put)

    assert sorted(numbers) == [1, 2, 3]


@pytest.mark.parametrize("wrong", [{"reports": -1}, {"reports": 2**63}, {"timeout_s": 0.0}])
async def test_a_question_that_could_not_be_closed_is_not_opened(
    wrong: dict[str, Any], analyst: Analyst, collector: Collector
) -> None:
    with pytest.raises(ParameterError, match=f"^{next(iter(wrong))} must be"):
        await analyst.ask(X, on_grid=True, **wrong)

    assert collector.rounds_opened(analyst.study.hash) == 0


async def test_closing_again_gives_the_same_release_byte_for_byte(
    analyst: Analyst, analysts: Any, collector: Collector
) -> None:
    for number, words in [(1, [5, 6]), (2, [7])]:  # one published, one withheld
        asked = await analyst.open(X, on_grid=True)
        await send(collector, asked, *words)

        request = analyst_pb2.CloseRoundRequest(round_hash=asked.hash)
        first = await analysts.CloseRound(request, timeout=DEADLINE_S)
        await send(collector, asked, 1, 1, 1)
        second = await analysts.CloseRound(request, timeout=DEADLINE_S)
        fetch = analyst_pb2.GetReleaseRequest(round_hash=asked.hash)
        fetched = await analysts.GetRelease(fetch, timeout=DEADLINE_S)

        assert first.release.number == number
        assert first.SerializeToString() == second.SerializeToString()
        assert first.release.SerializeToString() == fetched.release.SerializeToString()


async def test_a_withheld_release_holds_no_sum_on_the_wire(
    analyst: Analyst, analysts: Any, collector: Collector
) -> None:
    asked = await analyst.open(X, on_grid=True)
    await send(collector, asked, 7117)

    request = analyst_pb2.CloseRoundRequest(round_hash=asked.hash)
    response = await analysts.CloseRound(request, timeout=DEADLINE_S)

    assert (response.release.sums, list(response.release.estimate)) == (b"", [])
    assert (7117).to_bytes(2, "little") not in response.SerializeToString()


async def test_a_release_much_larger_than_a_report_arrives(
    analyst: Analyst, collector: Collector
) -> None:
    largest = ((1 << 20) - 16) // 4
    asked = await analyst.open(X, dimension=largest, on_grid=True)
    words = np.full((1, largest), 5).astype("<i4").tobytes()
    for who in (1, 2):
        await collector.intake.submit(asked.hash, who.to_bytes(16, "big"), words)

    release = await analyst.close(asked)

    assert release.sums.tolist() == [10] * largest
    assert len(release.estimate) == largest


async def test_where_a_round_stands_is_its_count_and_nothing_else(
    analyst: Analyst, analysts: Any, collector: Collector
) -> None:
    asked = await analyst.open(X, on_grid=True)
    await send(collector, asked, 7117, 5)
    request = analyst_pb2.GetRoundRequest(round_hash=asked.hash)

    before = await analysts.GetRound(request, timeout=DEADLINE_S)
    await analyst.close(asked)
    after = await analysts.GetRound(request, timeout=DEADLINE_S)

    assert before == analyst_pb2.GetRoundResponse(reports=2, closed=False)
    assert after == analyst_pb2.GetRoundResponse(reports=2, closed=True)
    fields = analyst_pb2.GetRoundResponse.DESCRIPTOR.fields
    assert {field.name for field in fields} == {"reports", "closed"}


async def test_a_round_closes_by_itself_at_the_time_it_names(
    analyst: Analyst, analysts: Any, collector: Collector, ask: Ask
) -> None:
    close_unix_ms = int(time.time() * 1000) + 100
    asked = ask(1, close_unix_ms=close_unix_ms)
    request = analyst_pb2.OpenRoundRequest(definition=asked.definition)
    await analysts.OpenRound(request, timeout=DEADLINE_S)
    await send(collector, asked, 5, 6)

    with anyio.fail_after(DEADLINE_S):
        release = await anext(analyst.watch())

    assert time.time() * 1000 >= close_unix_ms
    assert release.sums.tolist() == [11]


# ---- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 2])
async def test_an_unsupported_protocol_version_is_refused_with_the_supported_range(
    analysts: Any, study: Defined[Study], version: int
) -> None:
    request = analyst_pb2.CreateStudyRequest(protocol_version=version, definition=study.definition)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await analysts.CreateStudy(request, timeout=DEADLINE_S)

    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "this side speaks 1 to 1" in (caught.value.details() or "")


@pytest.mark.parametrize("kind", ["prefix", "halt_count"])
async def test_rounds_of_other_kinds_are_unimplemented_and_say_so(
    analysts: Any, ask: Ask, kind: str
) -> None:
    message = round_pb2.Round.FromString(ask(1).definition)
    getattr(message, kind).SetInParent()
    request = analyst_pb2.OpenRoundRequest(definition=message.SerializeToString())

    error = await refusal(analysts.OpenRound(request, timeout=DEADLINE_S))

    assert isinstance(error, UnsupportedError)
    assert str(error) == (
        f"{kind} rounds are not supported by this version; ask a linear one, a histogram, a "
        "gradient or an error count"
    )


async def test_a_misstated_weight_is_refused_with_the_right_one(analysts: Any, ask: Ask) -> None:
    message = round_pb2.Round.FromString(ask(1).definition)
    right = message.weight
    message.weight -= 1
    request = analyst_pb2.OpenRoundRequest(definition=message.SerializeToString())

    error = await refusal(analysts.OpenRound(request, timeout=DEADLINE_S))

    assert isinstance(error, WireError)
    assert f"weight must be {right}" in str(error)


async def test_a_number_out_of_turn_is_refused_with_the_next_one(analysts: Any, ask: Ask) -> None:
    request = analyst_pb2.OpenRoundRequest(definition=ask(3).definition)

    error = await refusal(analysts.OpenRound(request, timeout=DEADLINE_S))

    assert isinstance(error, StateError)
    assert str(error) == "round 3 cannot open: the next number is 1"


async def test_opening_the_same_definition_again_gives_the_same_hash(
    analysts: Any, collector: Collector, study: Defined[Study], ask: Ask
) -> None:
    request = analyst_pb2.OpenRoundRequest(definition=ask(1).definition)
    hashes: list[bytes] = []

    async def open_round() -> None:
        response = await analysts.OpenRound(request, timeout=DEADLINE_S)
        hashes.append(response.round_hash)

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(open_round)

    assert hashes == [ask(1).hash] * 8
    assert collector.rounds_opened(study.hash) == 1


async def test_what_does_not_exist_is_not_found(analysts: Any) -> None:
    unknown = bytes(32)

    for call in (
        analysts.GetRound(analyst_pb2.GetRoundRequest(round_hash=unknown), timeout=DEADLINE_S),
        analysts.CloseRound(analyst_pb2.CloseRoundRequest(round_hash=unknown), timeout=DEADLINE_S),
        analysts.GetRelease(analyst_pb2.GetReleaseRequest(round_hash=unknown), timeout=DEADLINE_S),
        analysts.WatchReleases(
            analyst_pb2.WatchReleasesRequest(study_hash=unknown), timeout=DEADLINE_S
        ).read(),
    ):
        assert isinstance(await refusal(call), NotFoundError)


async def test_the_release_of_an_open_round_does_not_exist_yet(
    analyst: Analyst, analysts: Any
) -> None:
    asked = await analyst.open(X, on_grid=True)
    request = analyst_pb2.GetReleaseRequest(round_hash=asked.hash)

    error = await refusal(analysts.GetRelease(request, timeout=DEADLINE_S))

    assert isinstance(error, StateError)
    assert str(error) == "round 1 is still open"


async def test_a_study_that_misstates_its_integers_is_refused(
    analysts: Any, study: Defined[Study]
) -> None:
    message = study_pb2.Study.FromString(study.definition)
    message.base_weight *= 2
    request = analyst_pb2.CreateStudyRequest(
        protocol_version=1, definition=message.SerializeToString()
    )

    error = await refusal(analysts.CreateStudy(request, timeout=DEADLINE_S))

    assert isinstance(error, WireError)
    assert "(budget_units, base_weight) must be" in str(error)


async def test_a_huge_mistake_is_refused_in_a_few_words(
    analysts: Any, study: Defined[Study]
) -> None:
    message = study_pb2.Study.FromString(study.definition)
    message.name = "n" * 50_000
    request = analyst_pb2.CreateStudyRequest(
        protocol_version=1, definition=message.SerializeToString()
    )

    error = await refusal(analysts.CreateStudy(request, timeout=DEADLINE_S))

    assert isinstance(error, WireError)
    assert "name must be 1 to 200 printable characters" in str(error)
    assert len(str(error)) <= 1001


async def test_bytes_that_do_not_parse_are_refused(ports: Ports) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{ports.analyst}") as channel:
        for method in ("CreateStudy", "OpenRound", "GetRound", "CloseRound", "GetRelease"):
            raw: Any = channel.unary_unary(f"/demur_proto.v1.Analyst/{method}")

            error = await refusal(raw(b"\xff\xff", timeout=DEADLINE_S))

            assert str(error) == "the message does not parse"
        watch: Any = channel.unary_stream("/demur_proto.v1.Analyst/WatchReleases")
        error = await refusal(watch(b"\xff\xff", timeout=DEADLINE_S).read())
        assert str(error) == "the message does not parse"


async def test_an_argument_out_of_range_never_reaches_the_collector(analyst: Analyst) -> None:
    with pytest.raises(ParameterError, match="clip"):
        await analyst.open(X, clip=-1.0)

    assert (await analyst.open(X, on_grid=True)).value.number == 1


# ---- watching --------------------------------------------------------------------------------


async def watched(analyst: Analyst, count: int, *, from_number: int = 1) -> list[Release]:
    releases: list[Release] = []
    with anyio.fail_after(DEADLINE_S):
        async for release in analyst.watch(from_number=from_number):
            releases.append(release)
            if len(releases) == count:
                break
    return releases


async def test_every_watcher_gets_every_release_in_order_with_those_before_it_came(
    analyst: Analyst, collector: Collector
) -> None:
    seen: dict[str, list[Release]] = {}

    async def watch(name: str, count: int, first: int = 1) -> None:
        seen[name] = await watched(analyst, count, from_number=first)

    async def release() -> Release:
        asked = await analyst.open(X, on_grid=True)
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
            await analyst.close(await analyst.open(X, on_grid=True))

    assert [release.number for release in seen] == [1, 2]


# ---- losing each other -----------------------------------------------------------------------


async def test_without_a_collector_there_is_one_clear_line(study: Defined[Study]) -> None:
    async with served(Collector(MemoryStore(), open_access=True)) as ports:
        gone = ports.analyst

    with pytest.raises(ConnectionLost, match=r"^lost the collector: unavailable") as caught:
        async with Analyst.create(f"127.0.0.1:{gone}", study.value):
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
        made = Analyst.create(f"127.0.0.1:{ports.analyst}", study.value)
        analyst = await channels.enter_async_context(made)
        asked = await analyst.open(X, on_grid=True)
        tasks.start_soon(watch, analyst)
        tasks.start_soon(close, analyst, asked)
        await anyio.sleep(0.05)

    assert len(lost) == 2
    assert all(line.startswith("lost the collector: ") for line in lost)


async def cancelled(wait_s: float, call: Callable[[], Awaitable[object]]) -> None:
    """Cancel a call after a while; a cancellation that leaks fails here, and would hang pytest."""
    try:
        with anyio.move_on_after(wait_s) as scope:
            await call()
    except asyncio.CancelledError:
        pytest.fail("the cancellation leaked out of its scope")
    assert scope.cancelled_caught


async def test_cancelling_a_call_cancels_nothing_else(
    analyst: Analyst, collector: Collector
) -> None:
    asked = await analyst.open(X, on_grid=True)

    for _ in range(3):
        await cancelled(0.02, lambda: analyst.close(asked, after_reports=1))
        await cancelled(0.02, lambda: watched(analyst, 1))
        await cancelled(0.0, lambda: analyst.open(X, on_grid=True))
        await cancelled(0.02, lambda: analyst.ask(X, on_grid=True))

    assert not (await collector.totals(asked.hash)).closed
    await send(collector, asked, 5, 6)
    assert (await analyst.close(asked)).sums.tolist() == [11]


async def test_a_call_in_a_cancelled_group_ends_with_its_group(analyst: Analyst) -> None:
    asked = await analyst.open(X, on_grid=True)

    async def group() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: analyst.close(asked, after_reports=1))
            tasks.start_soon(watched, analyst, 1)

    await cancelled(0.02, group)


async def test_no_bug_is_logged_when_analysts_come_and_go(
    analyst: Analyst, caplog: pytest.LogCaptureFixture
) -> None:
    asked = await analyst.open(X, on_grid=True)

    for _ in range(3):
        await cancelled(0.02, lambda: watched(analyst, 1))
        with pytest.raises(StateError):
            await analyst.close(asked, after_reports=1, timeout_s=0.02)
    await anyio.sleep(0.02)

    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
