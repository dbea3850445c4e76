"""The promise of running out: it does not show in anything but the payloads.

Real runs are watched, and the classifier tries to tell devices that ran out from those that did
not. Chance alone puts it 3 standard errors away from one half with probability 0.0027. Times are
measured, so no seed fixes them: where they matter, a second run decides, and a leak fails both.
"""

import math
import time
from collections.abc import Callable

import anyio
import numpy as np
from tests.sim.visits import watched

from demur_client.device import Device
from demur_proto.arrays import Flags, Values
from demur_proto.queries import Feature, Linear
from demur_proto.release import Withheld
from demur_proto.study import View, design_study
from demur_proto.v1 import report_pb2
from demur_proto.wire.definition import define_study
from demur_server.analyst import Analyst
from demur_sim.engine.observer import Advantage, Messages, distinguish
from demur_sim.engine.sampling import FastSampler
from demur_sim.people.populations import ArrayPopulation, PersonSource
from demur_sim.results.base import Result
from demur_sim.run import How, run_scenario
from demur_sim.scenario import Refusal, Scenario

DEADLINE_S = 60.0
ROUNDS, BUDGET = 24, 4


def half_run_out(devices: int, rounds: int) -> ArrayPopulation:
    """Every other person has a one in every round, and runs out early; the others have none."""
    values = np.zeros((devices, rounds))
    values[::2] = 1.0
    return ArrayPopulation(values)


async def recorded(scenario: Scenario, people: ArrayPopulation, *, seed: int) -> Result:
    """A run over real processes, every message recorded."""
    with anyio.fail_after(DEADLINE_S):
        how = How(seed=seed, fidelity="processes", workers=2, population=people, record=True)
        return await run_scenario(scenario, how)


def told_apart(messages: Messages | None, exhausted: Flags, *, seed: int) -> Advantage:
    """How well the watcher tells those who were refused from those who were not."""
    assert messages is not None
    return distinguish(messages.of(exhausted), messages.of(~exhausted), seed=seed)


async def test_whoever_ran_out_looks_like_everybody_else_in_a_run_over_processes() -> None:
    scenario = Scenario(name="watched", feature="value", budget=BUDGET, grid_exponent=-10)
    seen = []
    for seed, devices in enumerate([400, 4_500, 4_500]):  # one block, and two
        result = await recorded(scenario, half_run_out(devices, ROUNDS), seed=seed)

        messages, exhausted = result.aftermath.messages, result.aftermath.refused
        assert messages is not None
        assert exhausted.sum() == devices // 2
        assert messages.rounds == ROUNDS
        assert messages.sent.all()
        assert np.unique(messages.size_bytes).tolist() == [16 + 4]  # an id and a word
        assert np.unique(messages.status).tolist() == [report_pb2.DISPOSITION_ACCEPTED]
        assert (messages.time_s >= 0).all()
        seen.append(told_apart(messages, exhausted, seed=seed))

    # The seeds deal people to blocks, and all devices of a block send at the same time: nothing
    # here depends on how fast the machine is, except which block comes first.
    pooled = math.fsum(each.deviations for each in seen) / math.sqrt(len(seen))
    assert abs(pooled) <= 3
    assert all(abs(each.deviations) <= 3 for each in seen)


async def test_silent_devices_are_found_without_fail_and_what_the_rest_report_is_withheld() -> None:
    # All people of the first worker run out, so it has rounds that nobody at all answers.
    values = np.zeros((4096 + 400, ROUNDS))
    values[:4096] = 1.0
    scenario = Scenario(
        name="silent",
        feature="value",
        budget=BUDGET,
        refusal=Refusal.SILENT,
        shuffle=False,
        grid_exponent=-10,
        minimum_cohort=401,
    )

    result = await recorded(scenario, ArrayPopulation(values), seed=0)

    seen = told_apart(result.aftermath.messages, result.aftermath.refused, seed=0)
    assert seen.auc == 1.0
    silent = ROUNDS - BUDGET
    assert [release.reports for release in result.releases] == [4496] * BUDGET + [400] * silent
    withheld = [release.withheld for release in result.releases]
    assert withheld == [Withheld.NOTHING] * BUDGET + [Withheld.BELOW_MINIMUM_COHORT] * silent
    assert all(release.sums.tolist() == [] for release in result.releases[BUDGET:])
    assert result.answered_rounds == BUDGET


# ---- real devices ----------------------------------------------------------------------------

DEVICES, VISITS = 80, 12


class Slow:
    """A data source that takes longer over a one than over a nothing."""

    def __init__(self, person: PersonSource) -> None:
        self._person = person

    def evaluate(self, feature: Feature) -> Values:
        value = self._person.evaluate(feature)
        if value.any():
            time.sleep(0.002)
        return value


def as_it_is(person: PersonSource) -> PersonSource:
    return person


Source = Callable[[PersonSource], PersonSource | Slow]


async def visited(source: Source, *, seed: int) -> tuple[Messages, Flags]:
    """Real devices on streams of their own; what was seen of them, and who ran out."""
    rng = np.random.default_rng(seed)
    people = half_run_out(DEVICES, VISITS).shuffled(rng)
    study = define_study(
        design_study(
            name="visited",
            epsilon=1.0,
            delta=1e-6,
            answers=3,
            view=View.LOCAL,
            grid_exponent=-7,
            minimum_cohort=DEVICES,
        )
    )
    mine = [
        [Device(study, source(PersonSource(people, index)), FastSampler(rng))]
        for index in range(DEVICES)
    ]

    async def ask(number: int, analyst: Analyst) -> None:
        asked = Feature(name="value", parameters={"period": number})
        await analyst.ask(Linear([asked], on_grid=True))

    messages = await watched(mine, ask, rounds=VISITS, rng=rng)
    return messages, people.values[:, 0, 0] > 0


async def test_whoever_ran_out_looks_like_everybody_else_on_streams_of_real_devices() -> None:
    for attempt in (1, 2):
        messages, exhausted = await visited(as_it_is, seed=attempt)
        assert messages.sent.all()
        assert len(np.unique(messages.size_bytes)) == 1
        assert np.unique(messages.status).tolist() == [report_pb2.DISPOSITION_ACCEPTED]
        seen = told_apart(messages, exhausted, seed=attempt)
        if abs(seen.deviations) <= 3:
            break

    assert abs(seen.deviations) <= 3


async def test_a_value_that_takes_longer_to_compute_shows_where_rounds_have_no_slot() -> None:
    messages, exhausted = await visited(Slow, seed=1)

    # What the watcher can see is worth seeing: this is why rounds for real people have slots.
    assert told_apart(messages, exhausted, seed=1).auc >= 0.9
