"""A device's visits to a real collector on loopback."""

import logging
from functools import partial
from typing import Any

import anyio
import grpc
import numpy as np
import pytest

from agent_kit import (
    ACCEPTED,
    DEADLINE_S,
    DUPLICATE,
    ONE,
    ROUND_CLOSED,
    STUDY,
    TOLERANCE_S,
    Always,
    Failing,
    Seen,
    a_device,
    asking,
    opened,
    receipt,
    remaining,
    scripted,
    visit,
)
from demur_client import agent
from demur_client.connection import connected
from demur_client.policy import OwnerPolicy
from demur_proto.errors import ConnectionLost, NotFoundError, PolicyError
from demur_proto.queries import Feature, Linear
from demur_proto.round import round_of
from demur_proto.study import View
from demur_proto.v1 import collector_pb2
from demur_proto.wire.definition import define_round
from demur_server.collector.collector import Collector
from demur_server.grpc.serving import served

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
        define_round(
            round_of(STUDY, Linear([Feature(name="other")], on_grid=True), number=1)
        ).definition
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


async def test_a_study_that_the_owners_policy_refuses_is_not_visited(
    collector: Collector, channel: grpc.aio.Channel
) -> None:
    await collector.open_round(asking(1, answer_after_ms=60).definition)
    source, seen = Always(1.0), Seen()

    with pytest.raises(PolicyError, match="its view is aggregate"):
        await visit(
            a_device(source),
            channel,
            last_round=1,
            watcher=seen,
            policy=OwnerPolicy(shortest_slot_ms=1),
        )

    assert (source.asked, seen.events) == ([], [])


async def test_rounds_that_the_owners_policy_refuses_get_no_answer_and_the_next_one_does(
    collector: Collector, channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    policy, seen = OwnerPolicy(views=tuple(View), shortest_slot_ms=60), Seen()
    for number, slot_ms in ((1, 20), (2, 0), (3, 60)):
        await collector.open_round(asking(number, answer_after_ms=slot_ms).definition)
    source = Always(1.0)

    with anyio.fail_after(DEADLINE_S):
        await visit(a_device(source), channel, last_round=3, watcher=seen, policy=policy)

    assert source.asked == ["x3"]
    assert [event[1] for event in seen.events if event[0] == "sent"] == [3]
    assert "round 1 is refused: its slot of 20 ms is below 60 ms (shortest_slot_ms)" in caplog.text
    assert (
        "round 2 is refused: it has no slot, and so is below 60 ms (shortest_slot_ms)"
        in caplog.text
    )


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
        "the data source took longer than nine tenths of the slot",
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
