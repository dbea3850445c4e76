"""A device's visits: to a real collector on loopback, and to some that misbehave."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import grpc
import numpy as np
import pytest

from demur_client import agent
from demur_client.agent import fetch_study, visit
from demur_client.connection import connected, send
from demur_client.device import Device
from demur_client.policy import OwnerPolicy
from demur_client.slots import Evaluation
from demur_client.sources import DataSource
from demur_proto.arrays import Bits, Values, Words
from demur_proto.asking import next_round
from demur_proto.calls import calling
from demur_proto.definition import Defined, define_round, define_study
from demur_proto.errors import (
    ConnectionLost,
    NotFoundError,
    ParameterError,
    StateError,
    WireError,
)
from demur_proto.round import Feature, Round
from demur_proto.study import Study, design_study
from demur_proto.v1 import collector_pb2, collector_pb2_grpc, report_pb2
from demur_server.collector import Collector
from demur_server.serving import served
from demur_server.store.memory import MemoryStore

ACCEPTED = report_pb2.DISPOSITION_ACCEPTED
DUPLICATE = report_pb2.DISPOSITION_DUPLICATE
ROUND_CLOSED = report_pb2.DISPOSITION_ROUND_CLOSED
TRY_LATER = report_pb2.DISPOSITION_TRY_LATER

DEADLINE_S = 10.0
TOLERANCE_S = 0.15  # between devices that send in the same slot, on a busy machine
ONE = 128  # the value 1.0 in grid steps

VisitCall = grpc.aio.StreamStreamCall[collector_pb2.VisitRequest, collector_pb2.VisitResponse]


class NoNoise:
    """A sampler that draws nothing, so that reports show what went into them."""

    name = "none"

    def words(self, count: int) -> Bits:
        raise AssertionError("a linear round asks for no bits")

    def gaussian(self, steps: float, *, reports: int, dimension: int) -> Words:
        return np.zeros((reports, dimension), dtype=np.int64)

    def uniform(self, *, reports: int, dimension: int) -> Values:
        return np.zeros((reports, dimension))


class Always:
    """A source with one value, after a while."""

    def __init__(self, value: float, *, takes_s: float = 0.0) -> None:
        self.value = value
        self.takes_s = takes_s
        self.asked: list[str] = []

    def evaluate(self, feature: Feature) -> Values:
        self.asked.append(feature.name)
        if self.takes_s:
            time.sleep(self.takes_s)
        return np.array([[self.value]])


class Failing:
    """A source that cannot answer."""

    def evaluate(self, feature: Feature) -> Values:
        raise LookupError("no such column")


@dataclass
class Seen:
    """What a watcher was told, with its own clock."""

    received_at: dict[int, float] = field(default_factory=dict)
    sent_at: dict[int, float] = field(default_factory=dict)
    events: list[tuple[object, ...]] = field(default_factory=list)
    arrived: anyio.Event = field(default_factory=anyio.Event)  # the first round

    def received(self, round_number: int) -> None:
        self.arrived.set()
        self.received_at[round_number] = time.monotonic()
        self.events.append(("received", round_number))

    def sent(self, round_number: int, *, size_bytes: int) -> None:
        self.sent_at[round_number] = time.monotonic()
        self.events.append(("sent", round_number, size_bytes))

    def answered(self, round_number: int, *, disposition: int) -> None:
        self.events.append(("answered", round_number, disposition))

    @property
    def sizes(self) -> set[object]:
        return {event[2] for event in self.events if event[0] == "sent"}

    @property
    def dispositions(self) -> list[object]:
        return [event[2] for event in self.events if event[0] == "answered"]


STUDY = define_study(
    design_study(
        name="agent", epsilon=1.0, delta=1e-6, answers=3, minimum_cohort=1, grid_exponent=-7
    )
)


def asking(number: int, **changes: int) -> Defined[Round]:
    changed: dict[str, Any] = changes
    feature = Feature(name=f"x{number}")
    return define_round(next_round(STUDY, [feature], number=number, on_grid=True, **changed))


def a_device(source: DataSource, *, study: Defined[Study] = STUDY) -> Device:
    return Device(study, source, NoNoise())


def remaining(device: Device) -> int:
    return device.ledger.remaining_units(device.study.hash)


@pytest.fixture
async def collector() -> Collector:
    made = Collector(MemoryStore(), open_access=True)
    await made.create_study(STUDY.definition)
    return made


@pytest.fixture
async def channel(collector: Collector) -> AsyncIterator[grpc.aio.Channel]:
    async with (
        served(collector, drain_s=0.1) as ports,
        connected(f"127.0.0.1:{ports.collector}") as made,
    ):
        yield made


# ---- every round, once, in order -------------------------------------------------------------


async def test_a_visit_answers_every_round_once_and_in_order(
    collector: Collector, channel: grpc.aio.Channel
) -> None:
    source, seen = Always(1.0), Seen()
    rounds = [asking(number) for number in range(1, 7)]
    for asked in rounds[:3]:  # before it comes
        await collector.open_round(asked.definition)

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(visit, a_device(source), channel, last_round=6, watcher=seen))
            for asked in rounds[3:]:  # and while it stays
                await collector.close_round(rounds[asked.value.number - 2].hash, after_reports=1)
                await collector.open_round(asked.definition)

    assert source.asked == [f"x{number}" for number in range(1, 7)]
    assert [event[1] for event in seen.events if event[0] == "received"] == [1, 2, 3, 4, 5, 6]
    assert [event[1] for event in seen.events if event[0] == "sent"] == [1, 2, 3, 4, 5, 6]
    assert seen.dispositions == [ACCEPTED] * 6
    for asked in rounds:
        totals = await collector.totals(asked.hash)
        assert totals.reports == 1


async def test_rounds_already_answered_are_passed_over(
    collector: Collector, channel: grpc.aio.Channel
) -> None:
    source = Always(1.0)
    for number in (1, 2, 3):
        await collector.open_round(asking(number).definition)

    with anyio.fail_after(DEADLINE_S):
        await visit(a_device(source), channel, after_round=2, last_round=3)

    assert source.asked == ["x3"]


async def test_a_visit_with_nothing_left_to_answer_leaves_at_once(
    channel: grpc.aio.Channel,
) -> None:
    with anyio.fail_after(DEADLINE_S):
        await visit(a_device(Always(1.0)), channel, after_round=3, last_round=3)


async def test_a_device_whose_budget_is_gone_answers_with_cover_of_the_same_size(
    collector: Collector, channel: grpc.aio.Channel
) -> None:
    device, seen = a_device(Always(1.0)), Seen()  # three answers fit
    rounds = [asking(number) for number in range(1, 6)]
    for asked in rounds:
        await collector.open_round(asked.definition)

    with anyio.fail_after(DEADLINE_S):
        await visit(device, channel, last_round=5, watcher=seen)

    sums = [(await collector.totals(asked.hash)).sums.tolist() for asked in rounds]
    assert sums == [[ONE], [ONE], [ONE], [0], [0]]
    assert seen.dispositions == [ACCEPTED] * 5
    assert len(seen.sizes) == 1


async def test_a_source_that_fails_is_covered_and_nobody_can_tell(
    collector: Collector, channel: grpc.aio.Channel
) -> None:
    sound, broken = Seen(), Seen()
    asked = await collector.open_round(asking(1, answer_after_ms=50).definition)
    failing = a_device(Failing())
    budget = remaining(failing)

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            for device, seen in [(a_device(Always(1.0)), sound), (failing, broken)]:
                tasks.start_soon(partial(visit, device, channel, last_round=1, watcher=seen))

    assert (await collector.totals(asked.hash)).sums.tolist() == [ONE]
    assert remaining(failing) == budget
    assert sound.events == broken.events
    assert abs(sound.sent_at[1] - broken.sent_at[1]) <= TOLERANCE_S


# ---- slots -----------------------------------------------------------------------------------


async def test_slow_and_fast_devices_send_in_the_same_slot_and_what_is_late_is_cover(
    collector: Collector, channel: grpc.aio.Channel
) -> None:
    slot_s = 0.4
    takes = [0.0, 0.0, 0.2, 0.39, 0.8, 0.8]
    devices = [a_device(Always(1.0, takes_s=takes_s)) for takes_s in takes]
    budget = remaining(devices[0])
    watchers = [Seen() for _ in devices]
    asked = await collector.open_round(asking(1, answer_after_ms=int(slot_s * 1000)).definition)

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            for device, seen in zip(devices, watchers, strict=True):
                tasks.start_soon(partial(visit, device, channel, last_round=1, watcher=seen))

    waits = [seen.sent_at[1] - seen.received_at[1] for seen in watchers]
    assert min(waits) >= slot_s
    assert max(waits) - min(waits) <= TOLERANCE_S
    assert len({tuple(seen.events) for seen in watchers}) == 1
    # The first three were ready. Evaluations are given nine tenths of the slot.
    assert (await collector.totals(asked.hash)).sums.tolist() == [3 * ONE]
    assert [remaining(device) < budget for device in devices] == [True] * 3 + [False] * 3


async def test_a_report_that_takes_long_to_make_does_not_show_when_its_value_was_ready(
    collector: Collector, channel: grpc.aio.Channel
) -> None:
    class Laborious(NoNoise):
        """Drawing takes longer than the last tenth of the slot."""

        def gaussian(self, steps: float, *, reports: int, dimension: int) -> Words:
            time.sleep(0.3)
            return super().gaussian(steps, reports=reports, dimension=dimension)

    await collector.open_round(asking(1, answer_after_ms=400).definition)
    waits = []
    for takes_s in (0.0, 0.8):  # one after the other: drawing holds up whoever shares the loop
        seen = Seen()
        device = Device(STUDY, Always(1.0, takes_s=takes_s), Laborious())
        with anyio.fail_after(DEADLINE_S):
            await visit(device, channel, last_round=1, watcher=seen)
        waits.append(seen.sent_at[1] - seen.received_at[1])

    assert abs(waits[0] - waits[1]) <= TOLERANCE_S  # sent at once, they would be 0.26 s apart


async def test_a_device_never_waits_for_the_slow_sources_of_others(
    collector: Collector, channel: grpc.aio.Channel
) -> None:
    slow = [a_device(Always(1.0, takes_s=2.0)) for _ in range(50)]  # more than threads are shared
    quick = a_device(Always(1.0))
    asked = await collector.open_round(asking(1, answer_after_ms=300).definition)

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            for device in [*slow, quick]:
                tasks.start_soon(partial(visit, device, channel, last_round=1))

    totals = await collector.totals(asked.hash)
    assert (totals.reports, totals.sums.tolist()) == (51, [ONE])


async def test_a_late_evaluation_does_not_delay_the_next_round(
    collector: Collector, channel: grpc.aio.Channel
) -> None:
    device, seen = a_device(Always(1.0, takes_s=0.3)), Seen()
    for number in (1, 2):
        await collector.open_round(asking(number, answer_after_ms=100).definition)

    started = time.monotonic()
    with anyio.fail_after(DEADLINE_S):
        await visit(device, channel, last_round=2, watcher=seen)

    assert time.monotonic() - started <= 0.2 + 2 * TOLERANCE_S
    assert seen.dispositions == [ACCEPTED, ACCEPTED]


async def test_a_source_that_hangs_holds_one_thread_however_many_rounds_come(
    collector: Collector, channel: grpc.aio.Channel
) -> None:
    device, seen = a_device(Always(1.0, takes_s=3.0)), Seen()
    for number in range(1, 6):
        await collector.open_round(asking(number, answer_after_ms=30).definition)
    before = threading.active_count()

    with anyio.fail_after(DEADLINE_S):
        await visit(device, channel, last_round=5, watcher=seen)

    assert seen.dispositions == [ACCEPTED] * 5
    assert threading.active_count() <= before + 1
    assert all(thread.daemon for thread in threading.enumerate()[before:])


async def test_a_source_that_hangs_holds_one_thread_however_often_the_collector_ends_the_visit() -> (
    None
):
    async def push_and_leave(requests: Any, context: Any) -> None:
        await context.write(opened(asking(1, answer_after_ms=30)))
        await anext(requests)

    device, evaluation = a_device(source := Always(1.0, takes_s=2.0)), Evaluation()
    before = threading.active_count()

    with anyio.fail_after(DEADLINE_S):
        for _ in range(4):
            async with scripted(push_and_leave) as channel:
                with pytest.raises(ConnectionLost):
                    await visit(device, channel, last_round=1, evaluation=evaluation)

    assert len(source.asked) == 1
    assert threading.active_count() <= before + 1


# ---- again and again -------------------------------------------------------------------------


async def test_a_report_whose_receipt_was_lost_is_sent_again_byte_for_byte_and_charged_once(
    collector: Collector,
) -> None:
    asked = await collector.open_round(asking(1).definition)
    came: list[bytes] = []

    async def take_and_leave(requests: Any, context: Any) -> None:
        await context.write(opened(asking(1)))
        came.append((await anext(requests)).SerializeToString())

    device, second, third = a_device(Always(1.0)), Seen(), Seen()
    with anyio.fail_after(DEADLINE_S):
        for _ in range(2):
            async with scripted(take_and_leave) as channel:
                with pytest.raises(ConnectionLost):
                    await visit(device, channel, last_round=1)
        left = remaining(device)
        [sealed] = device.ledger.unsettled(STUDY.hash)
        async with (
            served(collector, drain_s=0.1) as ports,
            connected(f"127.0.0.1:{ports.collector}") as channel,
        ):
            await visit(device, channel, last_round=1, watcher=second)
            await visit(device, channel, last_round=1, watcher=third)

    assert came == [collector_pb2.VisitRequest(report=sealed).SerializeToString()] * 2
    assert second.dispositions == [ACCEPTED]
    assert third.events == []  # nothing is left to be sent
    assert remaining(device) == left == STUDY.value.budget_units - ONE**2 * asked.value.weight
    totals = await collector.totals(asked.hash)
    assert (totals.reports, totals.sums.tolist()) == (1, [ONE])


async def test_numbers_far_apart_do_not_hold_up_what_is_sent_again() -> None:
    numbers = (1, 5, (1 << 32) - 1)
    came: list[bytes] = []

    async def push_and_leave(requests: Any, context: Any) -> None:
        for number in numbers:
            await context.write(opened(asking(number)))
            await anext(requests)

    async def take(requests: Any, context: Any) -> None:
        for _ in numbers:
            sent = (await anext(requests)).report
            came.append(sent.round_hash)
            await context.write(receipt(sent.report_id, ACCEPTED))

    device = a_device(Always(1.0))
    with anyio.fail_after(DEADLINE_S):
        async with scripted(push_and_leave) as channel:
            with pytest.raises(ConnectionLost):
                await visit(device, channel, last_round=numbers[-1])
        async with scripted(take) as channel:
            await visit(device, channel, last_round=numbers[-1])

    assert came == [asking(number).hash for number in numbers]
    assert device.ledger.waiting(STUDY.hash) == []


async def test_a_report_that_was_counted_before_its_receipt_was_lost_is_a_duplicate(
    collector: Collector, channel: grpc.aio.Channel
) -> None:
    device, seen = a_device(Always(1.0)), Seen()
    asked = await collector.open_round(asking(1).definition)
    report = device.report(asked, np.array([[1.0]]))
    await collector.intake.submit(asked.hash, report.report_id, report.words, devices=None)

    with anyio.fail_after(DEADLINE_S):
        await visit(device, channel, last_round=1, watcher=seen)

    assert seen.dispositions == [DUPLICATE]
    assert device.ledger.unsettled(STUDY.hash) == []
    assert (await collector.totals(asked.hash)).reports == 1


async def test_a_report_to_a_round_that_the_collector_does_not_know_is_given_up_and_no_other(
    collector: Collector, channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    device, seen = a_device(Always(1.0)), Seen()
    device.report(asking(1), np.array([[1.0]]))  # of a collector that was since restored
    known = await collector.open_round(
        define_round(next_round(STUDY, [Feature(name="other")], number=1, on_grid=True)).definition
    )
    asked = await collector.open_round(asking(2).definition)
    device.report(asked, np.array([[1.0]]))

    with anyio.fail_after(DEADLINE_S):
        with pytest.raises(NotFoundError):
            await visit(device, channel, last_round=2)
        await visit(device, channel, last_round=2, watcher=seen)

    assert "round 1: the collector does not know it" in caplog.text
    assert seen.dispositions == [ACCEPTED]
    assert [(await collector.totals(each.hash)).reports for each in (known, asked)] == [0, 1]


async def test_rounds_that_the_owners_policy_refuses_get_no_answer_and_the_next_one_does(
    collector: Collector, channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    policy, seen = OwnerPolicy(shortest_slot_ms=60), Seen()
    for number, slot_ms in ((1, 20), (2, 60), (3, 0)):
        await collector.open_round(asking(number, answer_after_ms=slot_ms).definition)
    source = Always(1.0)

    with anyio.fail_after(DEADLINE_S):
        await visit(a_device(source), channel, last_round=3, watcher=seen, policy=policy)

    assert source.asked == ["x2", "x3"]
    assert [event[1] for event in seen.events if event[0] == "sent"] == [2, 3]
    assert seen.sent_at[3] - seen.received_at[3] >= 0.06  # without a slot it has the policy's
    assert "round 1 is refused: its slot of 20 ms is below 60 ms (shortest_slot_ms)" in caplog.text


async def test_what_went_wrong_is_in_the_owners_history_and_nowhere_else(
    collector: Collector, channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    devices = [a_device(Failing()), a_device(Always(1.0, takes_s=0.3)), a_device(Always(1.0))]
    await collector.open_round(asking(1, answer_after_ms=100).definition)

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            for device in devices:
                tasks.start_soon(partial(visit, device, channel, last_round=1))

    histories = [device.ledger.history(STUDY.hash) for device in devices]
    assert [history[0].note for history in histories] == [
        "LookupError: no such column",
        "the data source took longer than 0.09 s, nine tenths of the slot",
        "",
    ]
    assert not [record for record in caplog.records if record.name.startswith("demur_client")]


async def test_a_report_that_comes_too_late_is_noted_and_the_visit_goes_on(
    collector: Collector, channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    first = await collector.open_round(asking(1, answer_after_ms=300).definition)
    await collector.open_round(asking(2).definition)

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            device = a_device(Always(1.0))
            tasks.start_soon(partial(visit, device, channel, last_round=2, watcher=seen))
            await seen.arrived.wait()  # for its slot, now
            await collector.close_round(first.hash)

    assert seen.dispositions == [ROUND_CLOSED, ACCEPTED]
    assert [record.getMessage() for record in caplog.records if record.name == agent.__name__] == [
        f"round 1: not counted, disposition {int(ROUND_CLOSED)}"
    ]


# ---- collectors that misbehave ---------------------------------------------------------------

Behaviour = Callable[[AsyncIterator[collector_pb2.VisitRequest], Any], Awaitable[None]]


class Scripted(collector_pb2_grpc.CollectorServicer):
    """A collector whose visits are up to the test."""

    def __init__(
        self, behaviour: Behaviour, *, study: Defined[Study], fetch_takes_s: float
    ) -> None:
        self.behaviour = behaviour
        self.study = study
        self.fetch_takes_s = fetch_takes_s

    async def Enrol(self, request: collector_pb2.EnrolRequest, context: Any) -> Any:
        raise NotImplementedError

    async def GetStudy(self, request: collector_pb2.GetStudyRequest, context: Any) -> Any:
        await anyio.sleep(self.fetch_takes_s)
        return collector_pb2.GetStudyResponse(definition=self.study.definition)

    def GetModel(self, request: collector_pb2.GetModelRequest, context: Any) -> Any:
        raise NotImplementedError

    async def Visit(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        hello = await anext(request_iterator)
        assert hello.WhichOneof("message") == "hello"
        await context.write(
            collector_pb2.VisitResponse(welcome=collector_pb2.Welcome(protocol_version=1))
        )
        await self.behaviour(request_iterator, context)

    async def SubmitFrames(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        raise NotImplementedError


@asynccontextmanager
async def scripted(
    behaviour: Behaviour, *, study: Defined[Study] = STUDY, fetch_takes_s: float = 0.0
) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server()
    servicer = Scripted(behaviour, study=study, fetch_takes_s=fetch_takes_s)
    collector_pb2_grpc.add_CollectorServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with connected(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(None)


def opened(asked: Defined[Round]) -> collector_pb2.VisitResponse:
    return collector_pb2.VisitResponse(
        opened_round=collector_pb2.OpenedRound(definition=asked.definition)
    )


def receipt(report_id: bytes, disposition: int) -> collector_pb2.VisitResponse:
    return collector_pb2.VisitResponse(
        receipt=report_pb2.Receipt(
            report_id=report_id, disposition=report_pb2.Disposition.ValueType(disposition)
        )
    )


async def test_told_to_try_later_a_device_sends_the_same_bytes_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent, "RETRY_S", 0.1)
    came: list[tuple[bytes, float]] = []

    async def busy(requests: AsyncIterator[collector_pb2.VisitRequest], context: Any) -> None:
        await context.write(opened(asking(1)))
        async for request in requests:
            came.append((request.SerializeToString(), time.monotonic()))
            answer = TRY_LATER if len(came) < 3 else ACCEPTED
            await context.write(receipt(request.report.report_id, answer))

    device, seen = a_device(Always(1.0)), Seen()
    async with scripted(busy) as channel:
        with anyio.fail_after(DEADLINE_S):
            await visit(device, channel, last_round=1, watcher=seen)

    payloads, _ = zip(*came, strict=True)
    assert len(set(payloads)) == 1
    assert len(payloads) == 3
    assert seen.dispositions == [TRY_LATER, TRY_LATER, ACCEPTED]
    size = len(payloads[0])
    assert [event for event in seen.events if event[0] == "sent"] == [("sent", 1, size)] * 3
    assert remaining(device) == STUDY.value.budget_units - ONE**2 * asking(1).value.weight


async def test_a_collector_that_ends_the_visit_early_is_lost_and_one_that_ends_it_in_time_is_not() -> (
    None
):
    async def leave(requests: Any, context: Any) -> None:
        return

    async def leave_with_a_report_on_its_way(requests: Any, context: Any) -> None:
        await context.write(opened(asking(1)))

    for behaviour, last_round in [(leave, 1), (leave_with_a_report_on_its_way, 0)]:
        async with scripted(behaviour) as channel:
            with pytest.raises(ConnectionLost, match="the collector"), anyio.fail_after(DEADLINE_S):
                await visit(a_device(Always(1.0)), channel, last_round=last_round)
    async with scripted(leave) as channel:
        with anyio.fail_after(DEADLINE_S):
            await visit(a_device(Always(1.0)), channel)


async def test_a_receipt_for_what_was_never_sent_breaks_the_protocol() -> None:
    async def invent(requests: Any, context: Any) -> None:
        await context.write(receipt(bytes(16), ACCEPTED))
        await anyio.sleep(DEADLINE_S)

    async with scripted(invent) as channel:
        with pytest.raises(WireError, match="never sent"), anyio.fail_after(DEADLINE_S):
            await visit(a_device(Always(1.0)), channel)


async def test_a_disposition_of_some_later_version_is_noted_and_not_repeated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def unheard_of(requests: Any, context: Any) -> None:
        await context.write(opened(asking(1)))
        request = await anext(requests)
        await context.write(receipt(request.report.report_id, 99))

    async with scripted(unheard_of) as channel:
        with anyio.fail_after(DEADLINE_S):
            await visit(a_device(Always(1.0)), channel, last_round=1)

    assert "round 1: not counted, disposition 99" in caplog.text


async def test_messages_of_some_later_version_are_passed_over() -> None:
    async def chatty(requests: Any, context: Any) -> None:
        await context.write(collector_pb2.VisitResponse())
        await context.write(opened(asking(1)))
        request = await anext(requests)
        await context.write(receipt(request.report.report_id, ACCEPTED))

    seen = Seen()
    async with scripted(chatty) as channel:
        with anyio.fail_after(DEADLINE_S):
            await visit(a_device(Always(1.0)), channel, last_round=1, watcher=seen)

    assert seen.dispositions == [ACCEPTED]


@pytest.mark.parametrize(
    "definition",
    [
        b"\xff",
        b"",
        asking(1).definition.replace(STUDY.hash, bytes(32)),
        asking(1).definition + b"\xa2\x06\x00",  # a field from the future
    ],
)
async def test_a_round_that_breaks_the_contract_is_refused_before_any_data_is_read_and_the_next_is_not(
    definition: bytes,
) -> None:
    sent: list[bytes] = []

    async def push(requests: Any, context: Any) -> None:
        await context.write(
            collector_pb2.VisitResponse(
                opened_round=collector_pb2.OpenedRound(definition=definition)
            )
        )
        await context.write(opened(asking(2)))
        report = (await anext(requests)).report
        sent.append(report.round_hash)
        await context.write(receipt(report.report_id, ACCEPTED))

    source = Always(1.0)
    async with scripted(push) as channel:
        with anyio.fail_after(DEADLINE_S):
            await visit(a_device(source), channel, last_round=2)

    assert sent == [asking(2).hash]
    assert source.asked == ["x2"]


async def test_a_collector_that_pushes_a_round_twice_gets_the_same_bytes_until_it_has_them() -> (
    None
):
    came: list[bytes] = []

    async def repeat(requests: AsyncIterator[collector_pb2.VisitRequest], context: Any) -> None:
        for _ in range(2):
            await context.write(opened(asking(1)))
            request = await anext(requests)
            came.append(request.SerializeToString())
        await context.write(receipt(request.report.report_id, ACCEPTED))
        await context.write(opened(asking(1)))
        await context.write(opened(asking(2)))
        request = await anext(requests)
        came.append(request.SerializeToString())
        await context.write(receipt(request.report.report_id, ACCEPTED))

    async with scripted(repeat) as channel:
        with anyio.fail_after(DEADLINE_S):
            await visit(a_device(Always(1.0)), channel)

    assert len(came) == 3
    assert came[0] == came[1] != came[2]


async def test_another_study_than_the_one_asked_for_is_refused() -> None:
    async def unused(requests: Any, context: Any) -> None:
        return

    other = define_study(
        design_study(name="other", epsilon=2.0, delta=1e-6, answers=1, minimum_cohort=1)
    )
    async with scripted(unused, study=other) as channel:
        with pytest.raises(WireError, match="another study"):
            await fetch_study(channel, study_hash=STUDY.hash)
        assert await fetch_study(channel) == other


# ---- losing each other -----------------------------------------------------------------------


async def test_a_collector_that_is_not_there_is_one_clear_line() -> None:
    async with served(Collector(MemoryStore(), open_access=True)) as ports:
        gone = ports.collector

    async with connected(f"127.0.0.1:{gone}") as channel:
        for attempt in (visit(a_device(Always(1.0)), channel), fetch_study(channel)):
            with pytest.raises(ConnectionLost, match=r"^lost the collector: unavailable") as caught:
                await attempt

            assert "\n" not in str(caught.value)


async def test_a_collector_that_stops_ends_its_visits_with_one_clear_line(
    collector: Collector,
) -> None:
    lost: list[str] = []

    async def stay(channel: grpc.aio.Channel) -> None:
        with pytest.raises(ConnectionLost) as caught:
            await visit(a_device(Always(1.0)), channel)
        lost.append(str(caught.value))

    with anyio.fail_after(DEADLINE_S):
        async with (
            AsyncExitStack() as channels,
            anyio.create_task_group() as tasks,
            served(collector, drain_s=0.05) as ports,
        ):
            target = f"127.0.0.1:{ports.collector}"
            for _ in range(3):
                channel = await channels.enter_async_context(connected(target))
                tasks.start_soon(stay, channel)
            await anyio.sleep(0.05)

    assert len(lost) == 3
    assert all(line.startswith("lost the collector: ") and "\n" not in line for line in lost)


async def test_a_device_whose_collector_stops_during_its_slot_keeps_its_report_for_the_next_visit(
    collector: Collector,
) -> None:
    device, seen = a_device(Always(1.0)), Seen()
    asked = await collector.open_round(asking(1, answer_after_ms=300).definition)

    async def lose(channel: grpc.aio.Channel) -> None:
        with pytest.raises(ConnectionLost):
            await visit(device, channel, last_round=1, watcher=seen)

    with anyio.fail_after(DEADLINE_S):
        async with (
            AsyncExitStack() as channels,
            anyio.create_task_group() as tasks,
            served(collector, drain_s=0.0) as ports,
        ):
            target = f"127.0.0.1:{ports.collector}"
            tasks.start_soon(lose, await channels.enter_async_context(connected(target)))
            await seen.arrived.wait()
        async with (
            served(collector, drain_s=0.1) as ports,
            connected(f"127.0.0.1:{ports.collector}") as channel,
        ):
            await visit(device, channel, last_round=1)

    assert seen.received_at
    totals = await collector.totals(asked.hash)
    assert (totals.reports, totals.sums.tolist()) == (1, [ONE])
    assert remaining(device) == STUDY.value.budget_units - ONE**2 * asked.value.weight


async def test_writing_to_a_stream_that_was_refused_says_why(channel: grpc.aio.Channel) -> None:
    call: VisitCall = collector_pb2_grpc.CollectorStub(channel).Visit(timeout=DEADLINE_S)
    stranger = collector_pb2.Hello(protocol_version=1, study_hash=bytes(32))
    await call.write(collector_pb2.VisitRequest(hello=stranger))
    await call.code()  # it has been refused by now

    with pytest.raises(NotFoundError, match="there is no study"):
        async with calling("the collector"):
            await send(call, collector_pb2.VisitRequest())


async def test_a_device_of_an_unknown_study_is_told(channel: grpc.aio.Channel) -> None:
    other = define_study(
        design_study(name="other", epsilon=2.0, delta=1e-6, answers=1, minimum_cohort=1)
    )

    with pytest.raises(NotFoundError, match="there is no study"), anyio.fail_after(DEADLINE_S):
        await visit(a_device(Always(1.0), study=other), channel)


async def test_an_unsupported_version_is_told(
    channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "PROTOCOL_VERSION", 7)

    for attempt in (visit(a_device(Always(1.0)), channel), fetch_study(channel)):
        with pytest.raises(StateError, match="version 7 is not supported; this side speaks 1 to 1"):
            await attempt


async def cancelled(wait_s: float, call: Callable[[], Awaitable[object]]) -> None:
    """Cancel a call after a while; a cancellation that leaks fails here, and would hang pytest."""
    try:
        with anyio.move_on_after(wait_s) as scope:
            await call()
    except asyncio.CancelledError:
        pytest.fail("the cancellation leaked out of its scope")
    assert scope.cancelled_caught


async def test_cancelling_a_visit_cancels_nothing_else(
    collector: Collector, channel: grpc.aio.Channel
) -> None:
    device = a_device(Always(1.0))
    asked = await collector.open_round(asking(1, answer_after_ms=50).definition)

    for wait_s in (0.0, 0.02, 0.1):  # before the first word, in the slot, after the receipt
        await cancelled(wait_s, lambda: visit(device, channel))

    with anyio.fail_after(DEADLINE_S):
        await visit(device, channel, last_round=1)
    totals = await collector.totals(asked.hash)
    assert (totals.reports, totals.sums.tolist()) == (1, [ONE])


async def test_cancelling_a_fetch_cancels_nothing_else() -> None:
    async def unused(requests: Any, context: Any) -> None:
        return

    async with scripted(unused, fetch_takes_s=DEADLINE_S) as channel:
        for wait_s in (0.0, 0.05):
            await cancelled(wait_s, lambda: fetch_study(channel))


async def test_a_channel_closed_under_a_visit_is_a_lost_connection(
    channel: grpc.aio.Channel,
) -> None:
    lost: list[str] = []

    async def stay() -> None:
        with pytest.raises(ConnectionLost) as caught:
            await visit(a_device(Always(1.0)), channel)
        lost.append(str(caught.value))

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stay)
            await anyio.sleep(0.05)
            await channel.close()

    assert lost == ["lost the collector: the channel was closed"]


@pytest.mark.parametrize(
    "target",
    ["10.0.0.1:80", "example.org:443", "127.0.0.1", "127.0.0.1:", "127.0.0.1:http", ":80", ""],
)
async def test_only_collectors_on_this_machine_are_reached(target: str) -> None:
    with pytest.raises(ParameterError, match="a loopback address with a port"):
        async with connected(target):
            pass


async def test_no_value_and_no_word_appears_in_a_devices_logs(
    collector: Collector, channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    device = a_device(Always(57 / 128))
    asked = await collector.open_round(asking(1).definition)
    await collector.open_round(asking(2, answer_after_ms=30).definition)
    sealed = device.report(asked, device.evaluate(asked))

    with anyio.fail_after(DEADLINE_S):
        await visit(device, channel, last_round=2)
        await visit(a_device(Failing()), channel, last_round=2)

    for secret in ("57", "0.445", sealed.words.hex(), repr(sealed.words)[2:-1], "no such column"):
        assert secret not in "".join(
            record.getMessage()
            for record in caplog.records
            if record.name.startswith("demur_client")
        )
