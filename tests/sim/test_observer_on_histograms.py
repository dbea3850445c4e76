"""The promise of running out, in histogram rounds: it does not show in anything but the payloads.

Payloads are the guarantee's own business, and `test_histogram_cohort.py` holds them to it. Here the
classifier sees who sent when, how much, and which reply came back. Times are measured, so no seed
fixes them: where they matter, a second run decides, and a leak fails both.
"""

import anyio
import numpy as np
from tests.sim.visits import watched

from demur_client.device import Device
from demur_proto.accounting.histograms import design_histogram_study, epsilon_for_answers
from demur_proto.arrays import Flags
from demur_proto.mechanisms.registry import Randomiser
from demur_proto.queries import Feature, Histogram
from demur_proto.study import Measure, View
from demur_proto.v1 import report_pb2
from demur_proto.wire.definition import define_study
from demur_server.analyst import Analyst
from demur_sim.engine.observer import Advantage, Messages, distinguish
from demur_sim.engine.session import Aftermath
from demur_sim.engine.simulation import open_session
from demur_sim.people.populations import PersonSource
from demur_sim.people.telemetry import Telemetry
from demur_sim.scenario import Scenario

DEADLINE_S = 60.0
CATEGORIES, ROUNDS = 9, 24


def today(period: int) -> Feature:
    return Feature(name="event", parameters={"period": period})


def told_apart(messages: Messages | None, exhausted: Flags, *, seed: int) -> Advantage:
    """How well the watcher tells those who were refused from those who were not."""
    assert messages is not None
    return distinguish(messages.of(exhausted), messages.of(~exhausted), seed=seed)


async def run_of(mechanism: Randomiser, *, seed: int) -> Aftermath:
    """A run over real processes, every message recorded: some people have more events than fit."""
    people = Telemetry.of(devices=4096 + 400, periods=ROUNDS, categories=CATEGORIES, seed=seed)
    scenario = Scenario(
        name="watched",
        kind="histogram",  # type: ignore[arg-type]  # as a file says it
        feature="event",
        categories=CATEGORIES,
        mechanism=mechanism.value,
        budget=1,
        view=View.LOCAL,
        measure=Measure.ZCDP,
        minimum_cohort=1,
    )
    with anyio.fail_after(DEADLINE_S):
        async with open_session(
            scenario, seed=seed, fidelity="processes", workers=2, population=people, record=True
        ) as session:
            epsilon = epsilon_for_answers(
                session.study.value, mechanism=mechanism, categories=CATEGORIES, answers=1
            )
            for period in range(1, ROUNDS + 1):
                await session.ask(
                    Histogram(
                        today(period), categories=CATEGORIES, mechanism=mechanism, epsilon=epsilon
                    )
                )
            return await session.finish()


async def test_whoever_ran_out_looks_like_everybody_else_in_a_run_over_processes() -> None:
    aftermath = await run_of(Randomiser.OUE, seed=0)

    messages, exhausted = aftermath.messages, aftermath.refused
    assert messages is not None
    assert 200 < exhausted.sum() < 4096
    assert messages.sent.all()
    assert np.unique(messages.size_bytes).tolist() == [16 + 2]  # an id, and nine bits in two bytes
    assert np.unique(messages.status).tolist() == [report_pb2.DISPOSITION_ACCEPTED]
    # The seed deals people to blocks, and all devices of a block send at the same time.
    assert abs(told_apart(messages, exhausted, seed=0).deviations) <= 3


# ---- real devices ----------------------------------------------------------------------------

DEVICES, VISITS = 60, 10


class Half:
    """Every other person has category 2 on every day, the others have none on any."""

    devices, periods, features = DEVICES, VISITS, ("event",)

    def evaluate(
        self, feature: Feature, devices: slice
    ) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        values = np.full((DEVICES, 1), np.nan)
        values[::2] = 2.0
        return values[devices]

    def part(self, devices: slice) -> "Half":
        raise NotImplementedError

    def shuffled(self, rng: np.random.Generator) -> "Half":
        raise NotImplementedError


async def visited(mechanism: Randomiser) -> Messages:
    """Real devices on streams of their own, drawing from the operating system."""
    study = define_study(
        design_histogram_study(
            name="visited", epsilon=1.0, delta=1e-6, minimum_cohort=DEVICES, categories=CATEGORIES
        )
    )
    epsilon = epsilon_for_answers(
        study.value, mechanism=mechanism, categories=CATEGORIES, answers=3
    )
    mine = [[Device(study, PersonSource(Half(), index))] for index in range(DEVICES)]

    async def ask(number: int, analyst: Analyst) -> None:
        await analyst.ask(
            Histogram(today(number), categories=CATEGORIES, mechanism=mechanism, epsilon=epsilon)
        )

    return await watched(mine, ask, rounds=VISITS, rng=np.random.default_rng())


async def test_whoever_ran_out_looks_like_everybody_else_on_streams_of_real_devices() -> None:
    exhausted = np.arange(DEVICES) % 2 == 0
    for attempt in (1, 2):
        messages = await visited(Randomiser.OUE)
        assert messages.sent.all()
        assert len(np.unique(messages.size_bytes)) == 1
        assert np.unique(messages.status).tolist() == [report_pb2.DISPOSITION_ACCEPTED]
        seen = told_apart(messages, exhausted, seed=attempt)
        if abs(seen.deviations) <= 3:
            break

    assert abs(seen.deviations) <= 3
