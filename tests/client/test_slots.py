"""Who is how late: devices that share a machine which cannot keep up."""

import time
from functools import partial

import anyio
import numpy as np
import pytest

from demur_client.device import Device
from demur_client.slots import report_in_slot
from demur_client.sources.base import DataSource
from demur_proto.arrays import Bits, Values, Words
from demur_proto.queries import Feature, Linear
from demur_proto.round import round_of
from demur_proto.study import design_study
from demur_proto.wire.definition import define_round, define_study
from demur_sim.engine.devices import InProcessEvaluator
from demur_sim.engine.observer import Advantage

pytestmark = pytest.mark.alone

SLOT_MS = 100
MAKING_S = 0.003  #: 150 devices need 450 ms, where 10 ms of the slot are left for it
OF_A_KIND = 50

STUDY = define_study(
    design_study(
        name="slots", epsilon=1.0, delta=1e-6, answers=3, minimum_cohort=1, grid_exponent=-7
    )
)
ASKED = define_round(
    round_of(STUDY, Linear([Feature(name="x")], on_grid=True), number=1, answer_after_ms=SLOT_MS)
)


class Slow:
    """A sampler that takes its time, and the event loop's."""

    name = "slow"

    def words(self, count: int) -> Bits:
        raise AssertionError("a linear round asks for no bits")

    def gaussian(self, steps: float, *, reports: int, dimension: int) -> Words:
        time.sleep(MAKING_S)
        return np.zeros((reports, dimension), dtype=np.int64)

    def uniform(self, *, reports: int, dimension: int) -> Values:
        return np.zeros((reports, dimension))


class Quick:
    """A source that knows at once."""

    def evaluate(self, feature: Feature) -> Values:
        return np.array([[1.0]])


class Failing:
    """A source that cannot answer."""

    def evaluate(self, feature: Feature) -> Values:
        raise LookupError("no such column")


class Late:
    """A source that knows when the slot is long over."""

    def evaluate(self, feature: Feature) -> Values:
        time.sleep(6 * SLOT_MS / 1000)
        return np.array([[1.0]])


async def test_on_a_machine_that_falls_behind_late_and_failing_devices_come_no_later_than_others() -> (
    None
):
    sources: list[DataSource] = [Quick(), Failing(), Late()] * OF_A_KIND
    left: list[DataSource] = []  # in the order of leaving

    async def report(source: DataSource) -> None:
        device = Device(STUDY, source, Slow())
        await report_in_slot(device, ASKED, InProcessEvaluator(source), None, slot_ms=SLOT_MS)
        left.append(source)

    async with anyio.create_task_group() as tasks:
        for index in np.random.default_rng(20).permutation(len(sources)):
            tasks.start_soon(partial(report, sources[index]))

    when = {
        kind: np.array([float(i) for i, source in enumerate(left) if isinstance(source, kind)])
        for kind in (Quick, Failing, Late)
    }
    for kind in (Failing, Late):
        seen = Advantage.from_scores(when[kind], when[Quick])
        assert abs(seen.deviations) <= 3, kind
