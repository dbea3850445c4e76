"""Counts of people who ran out beside a training, a study of its own.

They are asked of arrays in this process; no message has them yet.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import final

import anyio.lowlevel
import numpy as np

from demur_proto.arrays import Flags, Values
from demur_proto.asking import next_round
from demur_proto.definition import Defined, define_round
from demur_proto.mechanisms.of_round import mechanism_for
from demur_proto.round import Feature
from demur_proto.study import Study
from demur_server.training.stopping import Count
from demur_sim.cohort import Cohort
from demur_sim.populations import Population, bounds
from demur_sim.scenario import Refusal
from demur_sim.training.source import (
    DeviceState,
    TrainingSource,
    check_next,
    restore_into,
    snapshot_of,
)


@final
class _Asked:
    """A population with one feature, whose values somebody computes."""

    periods = 1

    def __init__(self, name: str, *, devices: int) -> None:
        self.features = (name,)
        self.devices = devices
        self.values: Values = np.zeros((devices, 1))

    def __repr__(self) -> str:
        return f"_Asked(devices={self.devices})"

    def evaluate(self, feature: Feature, devices: slice) -> Values:
        first, stop = bounds(devices, self.devices)
        return self.values[first:stop]

    def part(self, devices: slice) -> Population:
        raise NotImplementedError

    def shuffled(self, rng: np.random.Generator) -> Population:
        raise NotImplementedError


class _Counter:
    """A study of one feature, whose values are from 0 to 1."""

    def __init__(
        self,
        study: Defined[Study],
        name: str,
        *,
        devices: int,
        seed: int,
        pool: ThreadPoolExecutor,
        threads: int,
        on_grid: bool,
    ) -> None:
        self.asked = _Asked(name, devices=devices)
        self.cohort = Cohort(study, self.asked, seed=seed, refusal=Refusal.COVER)
        self._feature = Feature(name=name)
        self._pool = pool
        self._threads = threads
        self._on_grid = on_grid
        self.rounds = 0

    @property
    def over_budget(self) -> int:
        return int(np.count_nonzero(self.cohort.spent() > self.cohort.study.value.budget_units))

    def count(self, values: Values, *, number: int, step: int) -> Count:
        """How many have 1, as a noisy sum."""
        check_next(number, self.rounds)
        self.asked.values = values
        study = self.cohort.study
        asked = define_round(
            next_round(study, [self._feature], number=number, clip=1.0, on_grid=self._on_grid)
        )
        answers = self.cohort.sum(asked.value, self._pool, threads=self._threads)
        self.rounds = number
        estimate = mechanism_for(study.value, asked.value).estimate(
            answers.sums, reports=answers.reports
        )
        return Count(
            step=step,
            value=float(estimate.estimate[0]),
            standard_error=float(estimate.standard_error[0]),
        )


@final
class HaltCounter:
    """A running count of the people who ever gave less than their gradient: see `Device.ever_covered`.

    A person says 1 in the first count after that happened and 0 in every other one, so that nobody
    pays more than once. The flag follows from a device's own filter and is as secret as that.

    Args:
        study: its own, with a budget for one change.
        source: whose filters they are.
        devices: how many.
        seed: its own.
        pool: of threads.
        threads: how many.
    """

    def __init__(
        self,
        study: Defined[Study],
        source: TrainingSource,
        *,
        devices: int,
        seed: int,
        pool: ThreadPoolExecutor,
        threads: int,
    ) -> None:
        self._source = source
        self._counter = _Counter(
            study,
            "halts",
            devices=devices,
            seed=seed,
            pool=pool,
            threads=threads,
            on_grid=True,
        )
        self._told: Flags = np.zeros(devices, dtype=np.bool_)
        self._total = 0.0
        self._variance = 0.0

    @property
    def over_budget(self) -> int:
        """How many devices spent more than they may: none."""
        return self._counter.over_budget

    async def halts(self, *, number: int, step: int) -> Count:
        """The noisy running count; see `HaltSource`."""
        await anyio.lowlevel.checkpoint()
        now = self._source.covered()
        changes: Values = (now & ~self._told).astype(np.float64)[:, None]
        change = self._counter.count(changes, number=number, step=step)
        self._told = now
        self._total += change.value
        self._variance += change.standard_error**2
        return Count(step=step, value=self._total, standard_error=math.sqrt(self._variance))

    def snapshot(self) -> DeviceState:
        """Everyone's filter of this study, who has said it, and the count so far."""
        so_far = np.array([self._total, self._variance])
        return {**snapshot_of(self._counter.cohort), "told": self._told, "so_far": so_far}

    def restore(self, state: DeviceState, *, number: int) -> None:
        """All of it as it was after so many counts."""
        restore_into(self._counter.cohort, state)
        self._told = state["told"].astype(np.bool_)
        self._total, self._variance = (float(each) for each in state["so_far"])
        self._counter.rounds = number
