"""Local hashing's server half on one core, in small frames and with other ranges and categories.

The floor is what counting by comparison cannot do without: as many comparisons of bytes, and a count of
those that hold.
"""

import numpy as np

from bench_core import cpu_seconds
from demur_proto.mechanisms.local_hashing import LocalHashing
from demur_sim.engine.sampling import FastSampler
from figures import Figure

PEOPLE = 1 << 17
FRAME = 256  #: reports that come in together
CATEGORIES = 1024
RUNS = 5


def comparing(categories: int) -> float:
    """Reports a second if comparing were all, in parts that fit the cache."""
    rng = np.random.default_rng(1)
    one, other = rng.integers(0, 3, (2, 1 << 14), dtype=np.uint8)
    hits = np.empty(len(one), dtype=np.bool_)

    def work() -> None:
        for _ in range(categories):
            np.count_nonzero(np.equal(one, other, out=hits))

    return len(one) / cpu_seconds(work, runs=RUNS)


def counting(
    name: str, mechanism: LocalHashing, *, at_once: int = PEOPLE, bar: float | None = None
) -> Figure:
    """Validity, tallies of so many reports at once, and the estimate."""
    sampler = FastSampler(np.random.Generator(np.random.SFC64(3)))
    symbols = np.random.default_rng(2).integers(0, mechanism.categories + 1, (PEOPLE, 1))
    reports = mechanism.randomise(symbols, sampler)

    def work() -> None:
        sums = np.zeros(mechanism.sums_length, dtype=np.int64)
        for at in range(0, PEOPLE, at_once):
            part = reports[at : at + at_once]
            mechanism.valid(part)
            sums += mechanism.tally(part)
        mechanism.estimate(sums, reports=PEOPLE)

    return Figure(
        name=name,
        value=PEOPLE / cpu_seconds(work, runs=RUNS),
        unit="reports/s",
        better="higher",
        bar=bar,
        floor=comparing(mechanism.categories),
    )


def measure() -> list[Figure]:
    """All figures."""
    best = LocalHashing(categories=CATEGORIES, epsilon=1.0)
    binary = LocalHashing(categories=CATEGORIES, epsilon=1.0, hash_range=2)
    wide = LocalHashing(categories=CATEGORIES, epsilon=4.0)
    few = LocalHashing(categories=64, epsilon=1.0)
    return [
        counting("OLH(1,024), server, frames of 256", best, at_once=FRAME, bar=200e3),
        counting("OLH(1,024) at ε = 4, server", wide, bar=200e3),
        counting("BLH(1,024), server", binary, bar=200e3),
        counting("OLH(64), server", few),
    ]
