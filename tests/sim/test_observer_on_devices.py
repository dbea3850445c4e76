"""Nothing shows of real devices, as shipped: agents with ledgers on the disk, and their exact noise.

Whether a device ran out, fails over its data, or takes too long, its messages are like everybody
else's. Chance alone puts the classifier 3 standard errors away from one half with probability
0.0027, and times are measured: so where a run disagrees a second one decides, and a leak fails both.
"""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

import anyio
import numpy as np
import pytest
from tests.sim.on_the_wire import OnTheWire

from demur_client.agent import Agent
from demur_client.connection import connected
from demur_client.device import Device
from demur_client.ledger.base import Ledger
from demur_client.ledger.file import LedgerFile
from demur_client.policy import OwnerPolicy
from demur_proto.arrays import Values
from demur_proto.errors import PolicyError
from demur_proto.queries import Feature, Linear
from demur_proto.round import Round, round_of
from demur_proto.samplers.exact import ExactSampler
from demur_proto.study import Study, View, design_study
from demur_proto.v1 import report_pb2
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_proto.wire.words import decode_words
from demur_server.collector.collector import Collector
from demur_server.grpc.serving import served
from demur_server.store.memory import MemoryStore
from demur_sim.engine.devices import InProcessEvaluator
from demur_sim.engine.observer import Advantage, Messages, distinguish
from demur_sim.engine.processes import device_session
from demur_sim.engine.session import Questions
from demur_sim.engine.worker import Recorder
from demur_sim.scenario import Refusal
from watched_kit import KINDS, ROUNDS, People, Person

DEADLINE_S = 60.0
RUNS = 6  #: of processes, pooled: 5 held-out devices of a kind are few
BUDGET = 2
EXACT = ExactSampler()  # of all devices here: it keeps tables, and no bits


def a_study(devices: int) -> Defined[Study]:
    return define_study(
        design_study(
            name="watched",
            epsilon=1.0,
            delta=1e-6,
            answers=BUDGET,
            view=View.LOCAL,
            grid_exponent=-7,
            minimum_cohort=devices,
            horizon=ROUNDS,
        )
    )


def dealt(each: int, kinds: Sequence[str]) -> tuple[str, ...]:
    """So many of each kind, in an order that has nothing to do with it."""
    order = np.random.default_rng().permutation(each * len(kinds))
    return tuple(np.repeat(kinds, each)[order].tolist())


def apart(messages: Messages, kinds: Sequence[str], one: str, *, seed: int) -> Advantage:
    """How well a watcher tells devices of one kind from active ones."""
    which = np.array(kinds)
    return distinguish(messages.of(which == one), messages.of(which == "active"), seed=seed)


def look_alike(messages: Messages) -> None:
    """Everything but the time is the same for everybody."""
    assert messages.rounds == ROUNDS
    assert messages.sent.all()
    assert len(np.unique(messages.size_bytes)) == 1
    assert np.unique(messages.status).tolist() == [report_pb2.DISPOSITION_ACCEPTED]


# ---- many agents in one process --------------------------------------------------------------


class Telling(OwnerPolicy):
    """A policy as none must be: it looks at what is left, and so its refusals tell."""

    __slots__ = ("ledger",)
    ledger: Ledger

    def check_round(self, asked: Defined[Round]) -> None:
        if self.ledger.ever_refused(asked.value.study_hash):
            raise PolicyError("nothing is left")


async def watched(
    folder: Path, kinds: Sequence[str], *, slot_ms: int, telling: bool = False
) -> Messages:
    """Agents with ledgers of their own, at one collector; what was seen of them."""
    recorder, study = Recorder(devices=len(kinds)), a_study(1)
    features = [Feature(name="x", parameters={"period": period}) for period in range(1, ROUNDS + 1)]
    collector = Collector(MemoryStore(), open_access=True)
    await collector.create_study(study.definition)
    with ExitStack() as ledgers, anyio.fail_after(DEADLINE_S):
        async with served(collector, drain_s=0.1) as ports, anyio.create_task_group() as tasks:
            target = f"127.0.0.1:{ports.collector}"
            for index, kind in enumerate(kinds):
                ledger = ledgers.enter_context(LedgerFile(folder / f"{index}.sqlite"))
                policy = OwnerPolicy(shortest_slot_ms=slot_ms)
                if telling:
                    policy = Telling(shortest_slot_ms=slot_ms)
                    object.__setattr__(policy, "ledger", ledger)
                agent = Agent(
                    ledger,
                    InProcessEvaluator(Person(kind, slot_ms / 1000)),
                    policy=policy,
                    open_channel=partial(connected, target),
                    watcher=OnTheWire(recorder, index),
                    sampler=EXACT,
                )
                tasks.start_soon(agent.run)
            silent = kinds.count("exhausted") if telling else 0
            for number, feature in enumerate(features, start=1):
                asked = define_round(
                    round_of(
                        study,
                        Linear([feature], on_grid=True),
                        number=number,
                        answer_after_ms=slot_ms,
                    )
                )
                await collector.open_round(asked.definition)
                expected = len(kinds) - (silent if number > BUDGET + 1 else 0)
                await collector.close_round(asked.hash, after_reports=expected)
            await anyio.sleep(0.2)  # the last receipts
            tasks.cancel_scope.cancel()
    return recorder.messages()


async def test_whoever_ran_out_fails_or_is_late_looks_like_everybody_else(tmp_path: Path) -> None:
    for attempt in (1, 2):
        kinds = dealt(20, KINDS)
        folder = tmp_path / str(attempt)
        folder.mkdir()
        messages = await watched(folder, kinds, slot_ms=250)
        look_alike(messages)
        seen = {kind: apart(messages, kinds, kind, seed=attempt) for kind in KINDS[1:]}
        if all(abs(each.deviations) <= 3 for each in seen.values()):
            break

    assert {kind: each.deviations for kind, each in seen.items() if abs(each.deviations) > 3} == {}


async def test_devices_that_refuse_by_what_is_left_are_found_without_fail(tmp_path: Path) -> None:
    kinds = dealt(12, ("active", "exhausted"))

    messages = await watched(tmp_path, kinds, slot_ms=100, telling=True)

    assert apart(messages, kinds, "exhausted", seed=1).auc == 1.0


# ---- a process for each ----------------------------------------------------------------------


@pytest.mark.long
async def test_devices_in_processes_of_their_own_look_like_everybody_else() -> None:
    deviations: dict[str, list[float]] = {kind: [] for kind in KINDS[1:]}
    for attempt in range(RUNS):
        kinds = dealt(10, KINDS)
        questions = Questions(population=People(kinds, slot_s=0.5), grid_exponent=-7)
        opened = device_session(
            a_study(len(kinds)), questions, refusal=Refusal.COVER, record=True, slot_ms=500
        )
        with anyio.fail_after(600.0):
            async with opened as session:
                for period in range(1, ROUNDS + 1):
                    await session.ask(
                        Linear([Feature(name="x", parameters={"period": period})], on_grid=True)
                    )
                aftermath = await session.finish()
        assert aftermath.refused.tolist() == [kind == "exhausted" for kind in kinds]
        assert aftermath.messages is not None
        look_alike(aftermath.messages)
        for kind, each in deviations.items():
            each.append(apart(aftermath.messages, kinds, kind, seed=attempt).deviations)

    for kind, each in deviations.items():
        assert abs(math.fsum(each) / math.sqrt(RUNS)) <= 3, kind


# ---- payloads --------------------------------------------------------------------------------


def words_of(study: Defined[Study], rounds: Sequence[Defined[Round]], value: float) -> list[int]:
    """What one device with this value in every round reports, in grid steps."""

    class Always:
        def evaluate(self, feature: Feature) -> Values:
            return np.array([[value]])

    device = Device(study, Always(), EXACT)
    reports = [device.report(asked, device.evaluate(asked)) for asked in rounds]
    return [
        int(decode_words(report.words, asked.value.word_type, reports=1, dimension=1)[0][0, 0])
        for asked, report in zip(rounds, reports, strict=True)
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [(1.0, 0.0, 1.0), (1.0, -1.0, 2.0)],
    ids=["against cover", "between two people"],
)
def test_payloads_tell_no_more_than_the_guarantee_and_all_that_it_allows(
    one: float, other: float, distance: float
) -> None:
    """The best score is the sum of what was answered before the budget was gone.

    Its mean differs by `distance` · √k · C between the two, and its standard deviation is √k · σ, so
    with μ = √k · C/σ its AUC is Φ(distance · μ/√2): no test does better (Neyman and Pearson).
    """
    study = a_study(1)
    rounds = [
        define_round(round_of(study, Linear([Feature(name="x")], on_grid=True), number=number))
        for number in range(1, BUDGET + 3)
    ]
    scores: dict[str, Any] = {}
    for name, value in (("one", one), ("other", other)):
        words = np.array([words_of(study, rounds, value) for _ in range(1200)], dtype=np.float64)
        scores[name] = words[:, :BUDGET].sum(axis=1)
        scores[f"{name}, once exhausted"] = words[:, BUDGET:].sum(axis=1)

    seen = Advantage.from_scores(scores["one"], scores["other"])
    later = Advantage.from_scores(scores["one, once exhausted"], scores["other, once exhausted"])

    bound = NormalDist().cdf(distance * study.value.budget / math.sqrt(2))
    assert seen.auc <= bound + 3 * seen.sampling_error
    assert seen.auc >= bound - 3 * seen.sampling_error  # or this test would see nothing at all
    assert abs(later.deviations) <= 3
