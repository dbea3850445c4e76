"""Exact samplers on one core: values a second, beside what their bits alone cost.

The floor of a sampler is its source giving out as many words as it takes, and nothing else. Times
are CPU seconds of this process, the best of several runs.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from bench_core import cpu_seconds
from demur_proto.arrays import Integers
from demur_proto.samplers.base import BitSource, SystemBits
from demur_proto.samplers.exact import ExactSampler
from demur_proto.samplers.gaussian import DiscreteGaussianSampler, RoundedGaussianSampler
from demur_proto.samplers.laplace import DiscreteLaplaceSampler
from demur_proto.samplers.table import Table
from demur_sim.engine.sampling import FastSampler, SeededBits
from figures import Figure, publish

COUNT = 1 << 20  #: values of a draw
AT_ONCE = 8192  #: words of a call for the floor: as the samplers ask for them
MILLION = "M/s"


class Drawing(Protocol):
    """What all samplers have in common."""

    def draw(self, count: int, source: BitSource) -> Integers:
        """So many values."""


def measure() -> list[Figure]:
    """Every figure of the samplers."""
    narrow, wide = RoundedGaussianSampler(16.0), RoundedGaussianSampler(2.0**20)
    discrete, laplace = DiscreteGaussianSampler(16.0), DiscreteLaplaceSampler(16.0)
    seeded, system = SeededBits(np.random.Generator(np.random.SFC64(1))), SystemBits()
    return [
        speed("exact rounded Gaussian, 16 steps", narrow, narrow.levels.tables, seeded, bar=10.0),
        speed("exact rounded Gaussian, 2^20 steps", wide, wide.levels.tables, seeded),
        speed("exact discrete Gaussian, 16 steps", discrete, discrete.levels.tables, seeded),
        speed("exact discrete Laplace, 16 steps", laplace, laplace.tables, seeded),
        speed(
            "the same from the system: rounded, 16", narrow, narrow.levels.tables, system, bar=8.0
        ),
        speed("the same from the system: rounded, 2^20", wide, wide.levels.tables, system),
        fast(16.0),
        small(),
        built("tables of a rounded Gaussian, 16 steps", lambda: RoundedGaussianSampler(16.0)),
        built("tables of a rounded Gaussian, 2^20 steps", lambda: RoundedGaussianSampler(2.0**20)),
    ]


def speed(
    name: str,
    sampler: Drawing,
    tables: Sequence[Table],
    source: BitSource,
    *,
    bar: float | None = None,
) -> Figure:
    """Values a second in one long draw; the floor is the source alone, a word for each table."""
    words = len(tables) * AT_ONCE

    def bare() -> None:
        for _ in range(COUNT // AT_ONCE):
            source.words(words)

    return Figure(
        name=name,
        value=COUNT / 1e6 / cpu_seconds(lambda: sampler.draw(COUNT, source)),
        unit=MILLION,
        better="higher",
        bar=bar,
        floor=COUNT / 1e6 / cpu_seconds(bare),
    )


def fast(steps: float) -> Figure:
    """The uncertified sampler of simulations, for comparison; its floor is numpy's Gaussian."""
    rng = np.random.Generator(np.random.SFC64(1))
    sampler = FastSampler(rng)
    rows = COUNT // AT_ONCE

    def ours() -> None:
        for _ in range(rows):
            sampler.gaussian(steps, reports=AT_ONCE, dimension=1)

    def bare() -> None:
        for _ in range(rows):
            rng.standard_normal(AT_ONCE)

    return Figure(
        name="fast rounded Gaussian, in floats",
        value=COUNT / 1e6 / cpu_seconds(ours),
        unit=MILLION,
        better="higher",
        floor=COUNT / 1e6 / cpu_seconds(bare),
    )


def small() -> Figure:
    """A device's report of ten coordinates; the floor is ten words of the system."""
    mine, system, calls = ExactSampler(), SystemBits(), 2_000

    def ours() -> None:
        for _ in range(calls):
            mine.gaussian(16.0, reports=1, dimension=10)

    def bare() -> None:
        for _ in range(calls):
            system.words(10)

    return Figure(
        name="ten values at a time, from the system",
        value=cpu_seconds(ours) / calls * 1e6,
        unit="us",
        better="lower",
        floor=cpu_seconds(bare) / calls * 1e6,
    )


def built(name: str, make: Callable[[], object]) -> Figure:
    """What a new parameter costs, once."""
    return Figure(name=name, value=cpu_seconds(make) * 1000, unit="ms", better="lower")


if __name__ == "__main__":
    publish("samplers", measure())
