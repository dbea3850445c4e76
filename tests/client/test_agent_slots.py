"""Reports leave in their slot, whatever a device's value, its speed and its sources are."""

import threading
import time
from functools import partial
from typing import Any

import anyio
import grpc
import pytest

from agent_kit import (
    ACCEPTED,
    DEADLINE_S,
    ONE,
    STUDY,
    TOLERANCE_S,
    Always,
    NoNoise,
    Seen,
    a_device,
    asking,
    opened,
    remaining,
    scripted,
    visit,
)
from demur_client.device import Device
from demur_client.policy import OwnerPolicy
from demur_proto.arrays import Words
from demur_proto.errors import ConnectionLost
from demur_proto.study import View
from demur_server.collector.collector import Collector
from demur_sim.engine.devices import InProcessEvaluator

pytestmark = pytest.mark.alone


async def test_slow_and_fast_devices_send_in_the_same_slot_and_what_is_late_is_cover(
    collector: Collector, channel: grpc.aio.Channel
) -> None:
    slot_s = 1.0
    takes = [0.0, 0.0, 0.5, 0.99, 2.0, 2.0]
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


async def test_a_slot_too_short_for_the_devices_reports_is_refused_in_public_before_data_are_read(
    collector: Collector, channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    class Laborious(NoNoise):
        def gaussian(self, steps: float, *, reports: int, dimension: int) -> Words:
            end = time.thread_time() + 0.03
            while time.thread_time() < end:
                pass
            return super().gaussian(steps, reports=reports, dimension=dimension)

    device, seen = Device(STUDY, source := Always(1.0), Laborious()), Seen()
    for number, slot_ms in ((1, 590), (2, 1200)):
        await collector.open_round(asking(number, answer_after_ms=slot_ms).definition)

    with anyio.fail_after(DEADLINE_S):
        await visit(
            device,
            channel,
            last_round=2,
            watcher=seen,
            policy=OwnerPolicy(views=tuple(View), shortest_slot_ms=1),
        )

    assert list(seen.sent_at) == [2]
    assert len(source.asked) == 1
    assert "round 1 is refused: its slot of 590 ms is too short for this device" in caplog.text


async def test_rounds_of_two_studies_are_answered_one_after_the_other_whatever_one_evaluates(
    collector: Collector, channel: grpc.aio.Channel
) -> None:
    class InTurn(InProcessEvaluator):
        def __init__(self) -> None:
            super().__init__(Always(1.0))
            self.turn = anyio.Lock()  # as what evaluates on a person's device has one

    evaluator, watchers = InTurn(), [Seen(), Seen()]
    await collector.open_round(asking(1, answer_after_ms=200).definition)

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            for seen in watchers:
                device = a_device(Always(1.0))
                tasks.start_soon(
                    partial(visit, device, channel, last_round=1, evaluator=evaluator, watcher=seen)
                )

    first, second = sorted(seen.sent_at[1] for seen in watchers)
    assert second - first >= 0.2


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

    device = a_device(source := Always(1.0, takes_s=2.0))
    evaluator = InProcessEvaluator(source)
    before = threading.active_count()

    with anyio.fail_after(DEADLINE_S):
        for _ in range(4):
            async with scripted(push_and_leave) as channel:
                with pytest.raises(ConnectionLost):
                    await visit(device, channel, last_round=1, evaluator=evaluator)

    assert len(source.asked) == 1
    assert threading.active_count() <= before + 1
