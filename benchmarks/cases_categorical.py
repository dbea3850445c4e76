"""Categorical mechanisms on one core: both halves of a cohort of a million people.

A floor is the random bits that a mechanism draws and nothing else, from the same source, or the bare
counting on the server's side. `narrow` is on 32-bit symbols or packed codes, as cohorts have them;
the other figures are on the 64-bit words that all mechanisms share.
"""

from collections.abc import Callable

import numpy as np

from bench_core import cpu_seconds
from demur_proto.arrays import Bits, Words
from demur_proto.mechanisms.base import Mechanism
from demur_proto.mechanisms.hadamard import HadamardResponse
from demur_proto.mechanisms.local_hashing import LocalHashing
from demur_proto.mechanisms.randomised_response import KaryRandomisedResponse
from demur_proto.mechanisms.subset_selection import SubsetSelection
from demur_proto.mechanisms.unary import UnaryEncoding
from demur_proto.samplers.base import BitSource, SystemBits
from demur_sim.engine.sampling import FastSampler
from figures import Figure

PEOPLE = 1 << 20
FEWER = 1 << 17  #: for what takes longer
AT_ONCE = 1 << 13  #: words that a floor draws at a time, as mechanisms do
CATEGORIES, CODE_BITS = 1024, 128
EPSILON = 1.0
RUNS = 5


class Counted:
    """How many words a draw takes."""

    def __init__(self, source: BitSource) -> None:
        self._source = source
        self.count = 0

    def words(self, count: int) -> Bits:
        """The next words."""
        self.count += count
        return self._source.words(count)


def rate(work: Callable[[], object], *, people: int) -> float:
    """People a second."""
    return people / cpu_seconds(work, runs=RUNS)


def bits_alone(work: Callable[[BitSource], object], source: BitSource, *, people: int) -> float:
    """People a second if drawing the same bits were all."""
    counted = Counted(source)
    work(counted)

    def draw() -> None:
        for at in range(0, counted.count, AT_ONCE):
            source.words(min(AT_ONCE, counted.count - at))

    return rate(draw, people=people)


def drawing(
    name: str,
    work: Callable[[BitSource], object],
    source: BitSource,
    *,
    people: int,
    bar: float | None = None,
) -> Figure:
    """A device half beside its bits."""
    return Figure(
        name=name,
        value=rate(lambda: work(source), people=people),
        unit="reports/s",
        better="higher",
        bar=bar,
        floor=bits_alone(work, source, people=people),
    )


def counting(name: str, mechanism: Mechanism) -> Figure:
    """A server half, from reports to estimates, beside bare counting."""
    reports = reports_of(mechanism, people=PEOPLE)
    flat = reports[:, 0]
    return Figure(
        name=name,
        value=rate(lambda: serve(mechanism, reports), people=PEOPLE),
        unit="reports/s",
        better="higher",
        floor=rate(lambda: np.bincount(flat), people=PEOPLE),
    )


def comparing(name: str, mechanism: Mechanism, *, bar: float) -> Figure:
    """A server half that looks at each category of each report, beside as many bare comparisons."""
    reports = reports_of(mechanism, people=FEWER)
    hashes = np.zeros((CATEGORIES, 256), dtype=np.uint8)
    values, equal = np.zeros(256, dtype=np.uint8), np.empty(hashes.shape, dtype=np.bool_)
    return Figure(
        name=name,
        value=rate(lambda: serve(mechanism, reports), people=FEWER),
        unit="reports/s",
        better="higher",
        bar=bar,
        floor=rate(lambda: np.equal(hashes, values, out=equal), people=len(values)),
    )


def reports_of(mechanism: Mechanism, *, people: int) -> Words:
    """Reports of so many people."""
    sampler = FastSampler(np.random.Generator(np.random.SFC64(3)))
    return mechanism.randomise(people_of(mechanism)[:people, None], sampler)


def serve(mechanism: Mechanism, reports: Words) -> None:
    """What a server does with reports."""
    mechanism.valid(reports)
    mechanism.estimate(mechanism.tally(reports), reports=len(reports))


def people_of(mechanism: Mechanism) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Symbols of a million people, null among them."""
    wide = CODE_BITS if isinstance(mechanism, UnaryEncoding | SubsetSelection) else CATEGORIES
    return np.random.default_rng(1).integers(0, wide + 1, PEOPLE)


def measure() -> list[Figure]:
    """All figures."""
    seeded = FastSampler(np.random.Generator(np.random.SFC64(2)))
    system = SystemBits()
    response = KaryRandomisedResponse(categories=CATEGORIES, epsilon=EPSILON)
    odd = KaryRandomisedResponse(categories=CATEGORIES - 1, epsilon=EPSILON)
    hadamard = HadamardResponse(categories=CATEGORIES, epsilon=EPSILON)
    codes = UnaryEncoding(categories=CODE_BITS, epsilon=EPSILON)
    hashing = LocalHashing(categories=CATEGORIES, epsilon=EPSILON)
    subset = SubsetSelection(categories=CODE_BITS, epsilon=EPSILON)
    symbols = people_of(response)
    narrow = symbols.astype(np.int32)
    fewer = np.minimum(narrow, CATEGORIES - 1)
    words = symbols[:, None]
    bits = people_of(codes)
    some = bits[:FEWER, None]
    packed = codes.draw(bits, seeded)
    return [
        drawing(
            "k-ary response(1,024), narrow",
            lambda source: response.draw(narrow, source),
            seeded,
            people=PEOPLE,
            bar=100e6,
        ),
        drawing(
            "k-ary response(1,024)",
            lambda source: response.randomise(words, source),
            seeded,
            people=PEOPLE,
        ),
        drawing(
            "k-ary response(1,023), narrow",  # not a power of two: some draws are rejected
            lambda source: odd.draw(fewer, source),
            seeded,
            people=PEOPLE,
        ),
        drawing(
            "k-ary response(1,024), narrow, system's bits",
            lambda source: response.draw(narrow, source),
            system,
            people=PEOPLE,
            bar=25e6,
        ),
        drawing(
            "Hadamard response(1,024), narrow",
            lambda source: hadamard.draw(narrow, source),
            seeded,
            people=PEOPLE,
            bar=80e6,
        ),
        drawing(
            "Hadamard response(1,024)",
            lambda source: hadamard.randomise(words, source),
            seeded,
            people=PEOPLE,
        ),
        drawing(
            "OUE(128), narrow",
            lambda source: codes.draw(bits, source),
            seeded,
            people=PEOPLE,
            bar=5e6,
        ),
        drawing(
            "OUE(128), narrow, system's bits",
            lambda source: codes.draw(bits, source),
            system,
            people=PEOPLE,
        ),
        drawing("OUE(128)", lambda source: codes.randomise(some, source), seeded, people=FEWER),
        drawing(
            "local hashing(1,024)",
            lambda source: hashing.randomise(words, source),
            seeded,
            people=PEOPLE,
        ),
        drawing(
            "subset selection(128)",
            lambda source: subset.randomise(some, source),
            seeded,
            people=FEWER,
        ),
        counting("k-ary response(1,024), server", response),
        counting("Hadamard response(1,024), server", hadamard),
        comparing("local hashing(1,024), server", hashing, bar=200e3),
        Figure(
            name="OUE(128), server, narrow",
            value=rate(
                lambda: codes.estimate(codes.tally_codes(packed), reports=PEOPLE), people=PEOPLE
            ),
            unit="reports/s",
            better="higher",
            floor=rate(lambda: np.bitwise_count(packed).sum(), people=PEOPLE),
        ),
    ]
