"""The analyst's side over real gRPC on loopback: asking."""

import time
from typing import Any

import anyio
import numpy as np
import pytest

from analyst_kit import DEADLINE_S, Ask, X, send
from demur_client.policy import OwnerPolicy
from demur_proto.errors import ParameterError, StateError, WireError
from demur_proto.queries import Feature, Linear
from demur_proto.release import Release, Withheld
from demur_proto.study import Study
from demur_proto.v1 import analyst_pb2
from demur_proto.wire.definition import Defined
from demur_server.analyst import Analyst
from demur_server.collector.collector import Collector
from demur_server.grpc.serving import Ports, served
from demur_server.store.memory import MemoryStore


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
        Analyst.create(f"127.0.0.1:{ports.analyst}", study.value, answer_after_ms=0) as analyst,
    ):
        first = await analyst.open(Linear([X], on_grid=True))
        collector.first = first.hash
        await send(collector, first, 1, 2)
        assert (await analyst.close(first)).round_hash == first.hash
        second = await analyst.open(Linear([X], on_grid=True))
        await send(collector, second, 1, 2)

        with pytest.raises(WireError, match="the release of another round"):
            await analyst.close(second)


async def test_a_question_has_a_slot_that_an_owner_accepts_unless_either_says_otherwise(
    study: Defined[Study],
) -> None:
    collector, default = Collector(MemoryStore(), open_access=True), OwnerPolicy()
    async with served(collector) as ports:
        target = f"127.0.0.1:{ports.analyst}"
        async with Analyst.create(target, study.value) as analyst:
            asked = await analyst.open(Linear([X], on_grid=True))
        async with Analyst.resume(target, answer_after_ms=250) as analyst:
            sooner = await analyst.open(Linear([X], on_grid=True))

    default.check_round(asked)
    assert asked.value.answer_after_ms == default.shortest_slot_ms
    assert sooner.value.answer_after_ms == 250


@pytest.mark.parametrize("slot_ms", [-1, 86_400_001])
async def test_a_slot_that_no_round_has_is_refused(study: Defined[Study], slot_ms: int) -> None:
    async with served(Collector(MemoryStore(), open_access=True)) as ports:
        made = Analyst.create(f"127.0.0.1:{ports.analyst}", study.value, answer_after_ms=slot_ms)
        with pytest.raises(ParameterError, match="answer_after_ms"):
            async with made:
                pass


async def test_an_answered_question_gives_its_release(
    analyst: Analyst, collector: Collector
) -> None:
    async def answer() -> None:
        async for asked in collector.open_rounds(analyst.study.hash):
            await send(collector, asked, 128, 64, -32)
            return

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        release = await analyst.ask(Linear([X], on_grid=True), reports=3, timeout_s=DEADLINE_S)

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
        release = await analyst.ask(Linear([X], on_grid=True), timeout_s=DEADLINE_S)
    withheld = await analyst.ask(Linear([X], on_grid=True), reports=0, timeout_s=DEADLINE_S)

    assert release.reports == 2
    assert (withheld.reports, withheld.withheld) == (0, Withheld.BELOW_MINIMUM_COHORT)


async def test_reports_that_do_not_come_in_time_leave_the_round_open(
    analyst: Analyst, collector: Collector
) -> None:
    asked = await analyst.open(Linear([X], on_grid=True))
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
        await analyst.ask(Linear([X], on_grid=True), timeout_s=0.05)

    second = await analyst.open(Linear([X], on_grid=True))

    assert second.value.number == 2


async def test_whoever_was_overtaken_or_lost_an_answer_goes_on_with_the_next_number(
    analyst: Analyst, ports: Ports
) -> None:
    async with Analyst.resume(f"127.0.0.1:{ports.analyst}") as other:
        await other.open(Linear([X], on_grid=True))
    with pytest.raises(StateError, match="round 1 cannot open: the next number is 2"):
        await analyst.open(Linear([Feature(name="y")], on_grid=True))

    asked = await analyst.open(Linear([Feature(name="y")], on_grid=True))
    with anyio.move_on_after(0.002):  # perhaps it was opened, perhaps not
        await analyst.open(Linear([X], on_grid=True))
    last = await analyst.open(Linear([Feature(name="z")], on_grid=True))

    assert asked.value.number == 2
    assert last.value.number in (3, 4)


async def test_the_same_question_at_the_same_time_is_asked_as_often_as_it_was_put(
    analyst: Analyst,
) -> None:
    numbers: list[int] = []

    async def put() -> None:
        numbers.append((await analyst.open(Linear([X], on_grid=True))).value.number)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(put)

    assert sorted(numbers) == [1, 2, 3]


@pytest.mark.parametrize("wrong", [{"reports": -1}, {"reports": 2**63}, {"timeout_s": 0.0}])
async def test_a_question_that_could_not_be_closed_is_not_opened(
    wrong: dict[str, Any], analyst: Analyst, collector: Collector
) -> None:
    with pytest.raises(ParameterError, match=f"^{next(iter(wrong))} must be"):
        await analyst.ask(Linear([X], on_grid=True), **wrong)

    assert collector.rounds_opened(analyst.study.hash) == 0


async def test_closing_again_gives_the_same_release_byte_for_byte(
    analyst: Analyst, analysts: Any, collector: Collector
) -> None:
    for number, words in [(1, [5, 6]), (2, [7])]:  # one published, one withheld
        asked = await analyst.open(Linear([X], on_grid=True))
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
    asked = await analyst.open(Linear([X], on_grid=True))
    await send(collector, asked, 7117)

    request = analyst_pb2.CloseRoundRequest(round_hash=asked.hash)
    response = await analysts.CloseRound(request, timeout=DEADLINE_S)

    assert (response.release.sums, list(response.release.estimate)) == (b"", [])
    assert (7117).to_bytes(2, "little") not in response.SerializeToString()


async def test_a_release_much_larger_than_a_report_arrives(
    analyst: Analyst, collector: Collector
) -> None:
    largest = ((1 << 20) - 16) // 4
    asked = await analyst.open(Linear([X], dimension=largest, on_grid=True))
    words = np.full((1, largest), 5).astype("<i4").tobytes()
    for who in (1, 2):
        await collector.intake.submit(asked.hash, who.to_bytes(16, "big"), words)

    release = await analyst.close(asked)

    assert release.sums.tolist() == [10] * largest
    assert len(release.estimate) == largest


async def test_where_a_round_stands_is_its_count_and_nothing_else(
    analyst: Analyst, analysts: Any, collector: Collector
) -> None:
    asked = await analyst.open(Linear([X], on_grid=True))
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
