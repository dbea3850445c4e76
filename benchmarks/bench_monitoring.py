"""Running counts: the scenario `states`, a million people over 1,024 rounds, as arrays.

The floor is drawing that much noise and adding it up, with as many threads and in blocks as large, for
some of the rounds, before and after the run. A machine that does other things slows both down.
"""

import argparse
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import anyio
import numpy as np

from demur_proto.queries import Feature, RunningCount
from demur_proto.running.segments import Segment
from demur_sim.engine.cohort_session import CohortSession
from demur_sim.engine.running_counts import Bunch
from demur_sim.engine.sampling import FastSampler, Noise
from demur_sim.engine.simulation import deal, open_session
from demur_sim.people.opening import population_of
from demur_sim.people.populations import Population
from demur_sim.people.presence import BLOCK
from demur_sim.people.states import States
from demur_sim.scenario import Scenario, load_scenario
from figures import Figure, publish

SECONDS = 90.0  #: what the whole scenario may take on two cores
CORES = 2
FLOOR_ROUNDS = 8  #: of which the floor is measured


class Run(NamedTuple):
    """What a run took."""

    wall_s: float  #: first to last question
    cpu_s: float  #: of all threads
    bytes_each: float  #: of filters and running counts, per person, before the last round


def drawing_floor(devices: int, *, threads: int) -> tuple[float, float]:
    """Wall and CPU seconds a round of drawing everybody's noise, and doing nothing else with it."""
    blocks = -(-devices // BLOCK)

    def draw(first: int) -> None:
        for number in range(first, blocks, threads):
            sampler = FastSampler(np.random.Generator(np.random.SFC64(number)))
            size = min(BLOCK, devices - number * BLOCK)
            sampler.gaussian(5e5, reports=size, dimension=1).sum(axis=0)

    with ThreadPoolExecutor(threads) as pool:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(FLOOR_ROUNDS):
            list(pool.map(draw, range(threads)))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return wall / FLOOR_ROUNDS, cpu / FLOOR_ROUNDS


def state_bytes(bunches: Sequence[Bunch]) -> int:
    """Bytes of the arrays that are kept between rounds."""
    arrays = []
    for bunch in bunches:
        arrays += [bunch.remaining, bunch.refused, bunch.covered]
        for running in bunch.running.values():
            arrays += [running.told, running.planned, running.room]
    return sum(array.nbytes for array in arrays)


async def counted(
    scenario: Scenario, people: Population, *, rounds: int, threads: int, noise: Noise
) -> Run:
    """The scenario, from the first question to the last."""
    kept = 0
    segment = Segment(
        horizon=people.periods, cohort=people.devices, factorisation=scenario.factorisation
    )
    async with open_session(
        scenario, population=people, workers=threads, horizon=people.periods, noise=noise
    ) as session:
        wall, cpu = time.perf_counter(), time.process_time()
        for period in range(1, rounds + 1):
            asked = Feature(name=scenario.feature, parameters={"period": period})
            release = await session.ask(RunningCount(asked, segment, admission=scenario.admission))
            if period < people.periods:
                segment = segment.after(release.number)
                if isinstance(session, CohortSession) and period + 1 in (rounds, people.periods):
                    kept = state_bytes(session.cohort.bunches)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        await session.finish()
    return Run(wall_s=wall, cpu_s=cpu, bytes_each=kept / people.devices)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=1024, help="the first so many")
    parser.add_argument("--threads", type=int, default=min(CORES, os.cpu_count() or 1))
    parser.add_argument("--factorisation", default="square_root")
    parser.add_argument("--noise", default="shares", choices=[str(each) for each in Noise])
    asked = parser.parse_args(arguments)
    chosen = [f"data.devices={asked.devices}", f"factorisation={asked.factorisation}"]
    scenario = load_scenario("states", overrides=chosen)
    people = deal(scenario, population_of(scenario), seed=0)
    before = drawing_floor(asked.devices, threads=asked.threads)
    run = anyio.run(
        lambda: counted(
            scenario,
            people,
            rounds=asked.rounds,
            threads=asked.threads,
            noise=Noise(asked.noise),
        )
    )
    after = drawing_floor(asked.devices, threads=asked.threads)
    wall, cpu = ((one + other) / 2 * asked.rounds for one, other in zip(before, after, strict=True))
    whole = asked.devices == 1_000_000 and asked.rounds == 1024
    name = f"states, {asked.devices} people, {asked.rounds} rounds, {asked.threads} threads"
    own = people.start.nbytes + people.when.nbytes if isinstance(people, States) else 0
    answers = asked.devices * asked.rounds
    publish(
        "monitoring",
        [
            Figure(
                name=name,
                value=run.wall_s,
                unit="s",
                better="lower",
                bar=SECONDS if whole else None,
                floor=wall,
            ),
            Figure(name=f"{name}: CPU", value=run.cpu_s, unit="CPU s", better="lower", floor=cpu),
            Figure(
                name="CPU of one person's round",
                value=run.cpu_s / answers * 1e9,
                unit="ns",
                better="lower",
                floor=cpu / answers * 1e9,
            ),
            Figure(name="state of one person", value=run.bytes_each, unit="bytes", better="lower"),
            Figure(
                name="made-up data of one person",
                value=own / asked.devices,
                unit="bytes",
                better="lower",
            ),
        ],
    )


if __name__ == "__main__":
    main()
