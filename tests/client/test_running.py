"""A device that goes on by itself: through lost collectors, restarts, quiet hours and revocations."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import grpc
import pytest

from demur_client import agent as running
from demur_client.agent import Agent
from demur_client.connection import connected
from demur_client.device import Device
from demur_client.ledger.file import LedgerFile
from demur_client.policy import OwnerPolicy, QuietHours, epsilon_together
from demur_client.sources.base import FunctionSource
from demur_proto.errors import AccessError, ParameterError, PolicyError
from demur_proto.queries import Feature, Linear
from demur_proto.round import Round, round_of
from demur_proto.study import Study, View, design_study
from demur_proto.transport.credentials import DeviceCredential
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_server.collector.collector import Collector
from demur_server.grpc.access import CredentialAccess
from demur_server.grpc.serving import served
from demur_server.store.memory import MemoryStore
from demur_sim.engine.devices import InProcessEvaluator

DEADLINE_S = 10.0
QUICK = {"first_retry_s": 0.02, "longest_retry_s": 0.1}
POLICY = OwnerPolicy(shortest_slot_ms=0)
ONES = FunctionSource({"x": lambda parameters: 1.0})


def a_study(name: str = "one", *, epsilon: float = 1.0) -> Defined[Study]:
    study = design_study(
        name=name,
        epsilon=epsilon,
        delta=1e-6,
        answers=3,
        minimum_cohort=1,
        view=View.LOCAL,
        grid_exponent=-7,
    )
    return define_study(study)


def asking(study: Defined[Study], number: int) -> Defined[Round]:
    return define_round(round_of(study, Linear([Feature(name="x")], on_grid=True), number=number))


async def with_studies(*studies: Defined[Study]) -> Collector:
    made = Collector(MemoryStore(), open_access=True)
    for study in studies:
        await made.create_study(study.definition)
    return made


class Line:
    """The way to a collector, which may be elsewhere after each start, or nowhere."""

    def __init__(self) -> None:
        self.port = 9  # nobody is there
        self.opened = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[grpc.aio.Channel]:
        self.opened += 1
        async with connected(f"127.0.0.1:{self.port}") as channel:
            yield channel

    @asynccontextmanager
    async def to(self, collector: Collector) -> AsyncIterator[None]:
        async with served(collector, drain_s=0.05) as ports:
            self.port = ports.collector
            yield


@asynccontextmanager
async def going_on(agent: Agent) -> AsyncIterator[None]:
    """An agent for as long as the block lasts."""
    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.run)
            yield
            tasks.cancel_scope.cancel()


async def counted(collector: Collector, asked: Defined[Round], reports: int = 1) -> None:
    """Wait until a round has so many reports."""
    while (await collector.totals(asked.hash)).reports < reports:  # noqa: ASYNC110  nothing tells
        await anyio.sleep(0.01)


@pytest.fixture
def ledger_path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def an_agent(ledger: LedgerFile, line: Line, **changes: Any) -> Agent:
    given: dict[str, Any] = {"policy": POLICY, "open_channel": line.open, **QUICK, **changes}
    return Agent(ledger, InProcessEvaluator(given.pop("source", ONES)), **given)


async def test_it_waits_for_a_collector_and_outlives_the_next_one(ledger_path: Path) -> None:
    study, line = a_study(), Line()
    collector = await with_studies(study)
    first, second = asking(study, 1), asking(study, 2)

    with LedgerFile(ledger_path) as ledger:
        async with going_on(an_agent(ledger, line)):
            await anyio.sleep(0.1)  # nobody is there yet
            for asked in (first, second):
                async with line.to(collector):
                    await collector.open_round(asked.definition)
                    await counted(collector, asked)
                await anyio.sleep(0.05)

        assert ledger.reached(study.hash) == 2
    assert line.opened > 3


async def test_until_there_is_a_study_it_says_once_that_it_waits(
    ledger_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "demur_client")
    study, line, collector = a_study(), Line(), await with_studies()

    with LedgerFile(ledger_path) as ledger:
        async with line.to(collector), going_on(an_agent(ledger, line)):
            while line.opened < 4:  # noqa: ASYNC110  nothing tells
                await anyio.sleep(0.01)
            await collector.create_study(study.definition)
            while not ledger.studies():  # noqa: ASYNC110
                await anyio.sleep(0.01)

    said = [(each.levelname, each.message) for each in caplog.records if "stud" in each.message]
    assert said == [
        ("INFO", "waits for a study: there is no study yet; a first question makes one"),
        ("INFO", f"takes part in study 'one', {study.hash.hex()}"),
    ]


async def test_it_goes_on_where_an_earlier_process_ended_with_the_same_bytes(
    ledger_path: Path,
) -> None:
    study, line = a_study(), Line()
    collector = await with_studies(study)
    asked = await collector.open_round(asking(study, 1).definition)
    with LedgerFile(ledger_path) as ledger:  # it seals, and ends before it sends
        device = Device(study, ONES, ledger=ledger)
        sealed = device.report(asked, device.evaluate(asked))
        left = ledger.remaining_units(study.hash)

    with LedgerFile(ledger_path) as ledger:
        async with line.to(collector), going_on(an_agent(ledger, line)):
            await counted(collector, asked)
            while ledger.unsettled(study.hash):  # noqa: ASYNC110
                await anyio.sleep(0.01)
        assert ledger.remaining_units(study.hash) == left

    counted_bytes = await collector.intake.submit(asked.hash, sealed.report_id, sealed.words)
    assert counted_bytes == [2]  # a duplicate: the same bytes were counted


async def test_after_days_offline_it_answers_what_is_open_and_gives_up_what_has_closed(
    ledger_path: Path,
) -> None:
    study, line = a_study(), Line()
    collector = await with_studies(study)
    rounds = [asking(study, number) for number in (1, 2, 3)]
    await collector.open_round(rounds[0].definition)
    with LedgerFile(ledger_path) as ledger:
        device = Device(study, ONES, ledger=ledger)
        device.report(rounds[0], device.evaluate(rounds[0]))
        for asked, following in pairwise(rounds):  # meanwhile
            await collector.close_round(asked.hash)
            await collector.open_round(following.definition)

        async with line.to(collector), going_on(an_agent(ledger, line)):
            await counted(collector, rounds[2])
            while ledger.unsettled(study.hash):  # noqa: ASYNC110
                await anyio.sleep(0.01)

        settled = [ledger.sealed(study.hash, number) for number in (1, 2, 3)]
    assert [each and each.settled for each in settled] == ["expired", None, "acked"]


async def test_several_studies_run_side_by_side_with_one_visit_each(ledger_path: Path) -> None:
    studies, line = [a_study("one"), a_study("two", epsilon=2.0)], Line()
    collector = await with_studies(*studies)
    policy = OwnerPolicy(shortest_slot_ms=0, studies=tuple(study.hash for study in studies))
    rounds = [asking(study, number) for number in (1, 2) for study in studies]

    with LedgerFile(ledger_path) as ledger:
        async with line.to(collector), going_on(an_agent(ledger, line, policy=policy)):
            for asked in rounds:
                await collector.open_round(asked.definition)
                await counted(collector, asked)

        assert {study.value.name for study in ledger.studies()} == {"one", "two"}
    assert line.opened == 2


async def test_a_study_that_the_policy_refuses_ends_nothing_but_itself(
    ledger_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    studies, line = [a_study("mild"), a_study("greedy", epsilon=3.0)], Line()
    collector = await with_studies(*studies)
    hashes = tuple(study.hash for study in studies)
    policy = OwnerPolicy(shortest_slot_ms=0, studies=hashes, largest_epsilon=2.0)
    asked = await collector.open_round(asking(studies[0], 1).definition)

    with LedgerFile(ledger_path) as ledger:
        async with line.to(collector), going_on(an_agent(ledger, line, policy=policy)):
            await counted(collector, asked)
            while "largest_epsilon" not in caplog.text:  # noqa: ASYNC110
                await anyio.sleep(0.01)

        assert [study.value.name for study in ledger.studies()] == ["mild"]


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (OwnerPolicy(opt_out=True), "opt_out"),
        (OwnerPolicy(largest_epsilon=0.5), "largest_epsilon"),
        (OwnerPolicy(studies=(bytes(32),)), None),
    ],
)
async def test_refusing_every_study_is_one_clear_line_and_reads_no_data(
    policy: OwnerPolicy, said: str | None, ledger_path: Path
) -> None:
    def never(parameters: object) -> float:
        raise AssertionError("data were read")

    study, line = a_study(), Line()
    collector = await with_studies(study)
    await collector.open_round(asking(study, 1).definition)

    with LedgerFile(ledger_path) as ledger:
        agent = an_agent(ledger, line, policy=policy, source=FunctionSource({"x": never}))
        async with line.to(collector):
            if said is None:  # a study that is not there may come yet
                with anyio.move_on_after(0.3) as waited:
                    await agent.run()
                assert waited.cancelled_caught
                return
            with anyio.fail_after(DEADLINE_S), pytest.raises(PolicyError, match=said):
                await agent.run()

        assert ledger.studies() == []


@pytest.mark.parametrize("spends", [1.0, 0.0])
async def test_the_window_that_would_pass_the_lifetime_cap_is_refused_whatever_was_spent(
    ledger_path: Path, spends: float
) -> None:
    """By what the windows declare, which is public: whoever spent nothing says the same."""
    windows, line = [a_study(f"window {number}") for number in (1, 2, 3)], Line()
    collector = await with_studies(*windows)
    lifetime = epsilon_together([study.value for study in windows[:2]], delta=1e-5)
    source, said = FunctionSource({"x": lambda parameters: spends}), []
    for study in windows:  # one after the other, as on their schedule; the device restarts between
        policy = OwnerPolicy(
            shortest_slot_ms=0, studies=(study.hash,), lifetime_epsilon=lifetime, largest_delta=1e-5
        )
        asked = await collector.open_round(asking(study, 1).definition)
        with LedgerFile(ledger_path) as ledger:
            agent = an_agent(ledger, line, policy=policy, source=source)
            async with line.to(collector):
                if study is not windows[2]:
                    async with going_on(agent):
                        await counted(collector, asked)
                    continue
                with anyio.fail_after(DEADLINE_S), pytest.raises(PolicyError) as caught:
                    await agent.run()
                said.append(str(caught.value))
            assert [each.value.name for each in ledger.studies()] == ["window 1", "window 2"]
            left = [ledger.remaining_units(each.hash) for each in windows[:2]]
            assert (max(left) < study.value.budget_units) == (spends > 0)

    (one,) = said
    assert one.startswith(
        "study 'window 3' is refused by this device's policy: with the 2 studies "
    )
    assert one.endswith("epsilon would be 1.7393 at delta 1e-05, above 1.3922 (lifetime_epsilon)")


async def test_a_study_that_was_forgotten_is_never_taken_up_again(ledger_path: Path) -> None:
    study, line = a_study(), Line()
    collector = await with_studies(study)
    asked = await collector.open_round(asking(study, 1).definition)

    with LedgerFile(ledger_path) as ledger:
        async with line.to(collector):
            async with going_on(an_agent(ledger, line)):
                await counted(collector, asked)
            ledger.forget(study.hash)
            with anyio.fail_after(DEADLINE_S), pytest.raises(PolicyError, match="was forgotten"):
                await an_agent(ledger, line).run()


async def test_whoever_is_not_let_in_stops_with_one_clear_line(ledger_path: Path) -> None:
    study = a_study()
    collector = Collector(MemoryStore())
    await collector.create_study(study.definition)

    line = Line()
    access = CredentialAccess(MemoryStore(), master_key=bytes(32))
    stranger = DeviceCredential(device_id=bytes(16), secret=bytes(32))
    with LedgerFile(ledger_path) as ledger:
        async with served(collector, access=access, drain_s=0.05) as ports:
            line.port = ports.collector
            agent = an_agent(ledger, line, credential=stranger)
            with anyio.fail_after(DEADLINE_S), pytest.raises(AccessError, match=r"^not let in"):
                await agent.run()


class Clock:
    """A clock on the wall that can be set."""

    def __init__(self, hour: int) -> None:
        self.at = datetime(2024, 1, 1, hour)

    def __call__(self) -> datetime:
        return self.at


async def test_in_quiet_hours_nobody_is_visited_and_a_clock_that_is_set_counts_at_once(
    ledger_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LOOK_S", 0.02)
    study, line, clock = a_study(), Line(), Clock(23)
    collector = await with_studies(study)
    policy = OwnerPolicy(shortest_slot_ms=0, quiet_hours=(QuietHours.read("22:00-07:00"),))
    first, second = (asking(study, number) for number in (1, 2))
    await collector.open_round(first.definition)

    with LedgerFile(ledger_path) as ledger:
        agent = an_agent(ledger, line, policy=policy, now=clock)
        async with line.to(collector), going_on(agent):
            await anyio.sleep(0.1)
            assert line.opened == 0
            clock.at = datetime(2024, 1, 1, 12)
            await counted(collector, first)
            clock.at = datetime(2023, 1, 1, 23)  # backwards, into another night
            await anyio.sleep(0.1)
            await collector.close_round(first.hash)
            await collector.open_round(second.definition)
            await anyio.sleep(0.1)
            assert (await collector.totals(second.hash)).reports == 0
            clock.at = datetime(2023, 1, 2, 7)
            await counted(collector, second)


async def test_it_can_be_stopped_at_any_moment_and_never_charges_twice(ledger_path: Path) -> None:
    study, line = a_study(), Line()
    collector = await with_studies(study)
    policy = OwnerPolicy(shortest_slot_ms=30)
    asked = replace(asking(study, 1).value, answer_after_ms=30)
    rounds = [await collector.open_round(define_round(asked).definition)]

    async with line.to(collector):
        for step in range(12):
            with LedgerFile(ledger_path) as ledger:
                with anyio.move_on_after(0.01 * step):
                    await an_agent(ledger, line, policy=policy).run()
        with LedgerFile(ledger_path) as ledger:
            async with going_on(an_agent(ledger, line, policy=policy)):
                await counted(collector, rounds[0])
            spent = study.value.budget_units - ledger.remaining_units(study.hash)

    assert spent in (0, 128**2 * rounds[0].value.weight)  # nothing, if a busy machine made it late
    assert (await collector.totals(rounds[0].hash)).reports == 1


async def test_its_log_says_nothing_that_depends_on_data(
    ledger_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    study = a_study()
    logs = []
    for name, answer in (
        ("fails", lambda _: 1 / 0),
        ("gives", lambda _: 1.0),
        ("nil", lambda _: 0),
    ):
        caplog.clear()
        line, collector = Line(), await with_studies(study)
        rounds = [asking(study, number) for number in range(1, 6)]  # three answers fit
        with LedgerFile(ledger_path.with_name(f"{name}.sqlite")) as ledger:
            agent = an_agent(ledger, line, source=FunctionSource({"x": answer}))
            async with line.to(collector), going_on(agent):
                for asked in rounds:
                    await collector.open_round(asked.definition)
                    await counted(collector, asked)
        logs.append(
            [
                (record.levelname, record.getMessage())
                for record in caplog.records
                if record.name.startswith("demur_client")
            ]
        )

    assert logs[0] == logs[1] == logs[2]


def test_bounds_that_are_none_are_refused(tmp_path: Path) -> None:
    with LedgerFile(tmp_path / "ledger.sqlite") as ledger:
        for wrong in ({"first_retry_s": 0.0}, {"longest_retry_s": float("nan")}):
            with pytest.raises(ParameterError, match="_s must be"):
                an_agent(ledger, Line(), **wrong)
