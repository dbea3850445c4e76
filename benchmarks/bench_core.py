"""The privacy core on one core: decisions of a filter, a million people's round, conversions.

Times are CPU seconds of this process, the best of several runs: what else happens on the machine can
only add to them.
"""

import time
from collections.abc import Callable

import numpy as np

from demur_client.budget.charges import ApproxDpBudget, RenyiBudget, ZcdpBudget
from demur_client.budget.decide import charge_units, decide
from demur_client.budget.filters import Filter, RenyiFilter, spend_all
from demur_proto.accounting import conversions
from demur_proto.accounting.conversions import renyi_budget, renyi_epsilon
from demur_proto.arrays import Flags, Integers, Words
from demur_proto.mechanisms.gaussian import squared_norms
from demur_proto.study import Policy
from figures import Figure, publish

PEOPLE = 1_000_000
AT_ONCE = 16_384  #: people per array of one coordinate: three of them fit the second-level cache
BLOCK = 4_096  #: people per array of ten coordinates, and in a simulation's block
CALLS = 200_000
WEIGHT, UNITS = 1 << 44, 15 << 58  # those of a study in which 15 full answers fit
RADIUS = 1 << 14  #: R of a one-bit round


def cpu_seconds(work: Callable[[], object], *, runs: int = 9) -> float:
    """CPU seconds of a call."""
    times = []
    for _ in range(runs):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)


def single_filter() -> tuple[float, float]:
    """Decisions a second of one filter, and of a bare compare and subtract."""
    charges = [number << 44 for number in range(CALLS // 100)] * 100
    mine = Filter(budget_units=UNITS, policy=Policy.SKIP)

    def ours() -> None:
        spend = mine.try_charge
        for charge in charges:
            spend(charge)

    def bare() -> None:
        remaining = UNITS
        for charge in charges:
            if charge <= remaining:
                remaining -= charge

    return len(charges) / cpu_seconds(ours), len(charges) / cpu_seconds(bare)


def other_filters() -> dict[str, float]:
    """Decisions a second on the less travelled ways."""
    mine = Filter(budget_units=UNITS, policy=Policy.RETIRE)
    orders = RenyiFilter(budget_units=UNITS, counters=4, policy=Policy.SKIP)
    cap = Filter(budget_units=UNITS, policy=Policy.SKIP)
    zcdp, pure = ZcdpBudget(rho=1.0), ApproxDpBudget(epsilon=1.0, delta=1e-6)
    renyi = RenyiBudget(bounds={2: 1.0, 4: 2.0, 8: 4.0, 16: 8.0})
    ways: dict[str, Callable[[], object]] = {
        "policy retire": lambda: mine.try_charge(1),
        "a squared norm and a weight": lambda: mine.try_spend(3, weight=WEIGHT),
        "four Rényi orders": lambda: orders.try_charge((1, 2, 3, 4)),
        "two filters in one step": lambda: spend_all((mine, 1), (cap, 2)),
        "charge of a loss, zcdp": lambda: zcdp.charge(1e-6),
        "charge of a loss, approx_dp": lambda: pure.charge(1e-3),
        "charge of a Gaussian, four orders": lambda: renyi.charge_zcdp(1e-6),
    }
    return {name: 1 / each(way) for name, way in ways.items()}


def each(call: Callable[[], object], *, calls: int = 5_000) -> float:
    """CPU seconds of one call."""

    def many() -> None:
        for _ in range(calls):
            call()

    return cpu_seconds(many, runs=5) / calls


class Crowd:
    """A million people, half of them with less than one full answer left."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.bits: Integers = rng.integers(0, 2, PEOPLE) * RADIUS
        self.words = rng.integers(-40, 41, (PEOPLE, 10))  # Σz² is at most R
        self.start: Integers = rng.integers(0, 2, PEOPLE) << 58
        self.remaining = self.start.copy()
        self.refused: Flags = np.zeros(PEOPLE, dtype=np.bool_)

    def round_ms(self, answer: Callable[[slice, Words], object], *, size: int, hot: bool) -> float:
        """CPU milliseconds of a round, from the same state each time.

        Args:
            answer: to a block of people: which ones, and their words.
            size: people in a block.
            hot: the words of a block are in the cache, where the quantiser has just put them;
                else they come from memory.
        """
        room = np.empty((size, 10), dtype=np.int64)
        times = []
        for _ in range(15):
            self.remaining[:] = self.start
            self.refused[:] = False
            spent = 0.0
            for at in range(0, PEOPLE, size):
                part = slice(at, min(at + size, PEOPLE))
                words = self.words[part]
                if hot:
                    words = room[: len(words)]
                    words[:] = self.words[part]
                started = time.process_time()
                answer(part, words)
                spent += time.process_time() - started
            times.append(spent)
        return min(times) * 1000

    def decide(self, part: slice, squares: Integers) -> None:
        """Charge and decide, as a cohort does."""
        charge = charge_units(squares, weight=WEIGHT, budget_units=UNITS, largest=RADIUS)
        decide(charge, remaining=self.remaining[part], refused=self.refused[part], retire=False)

    def scalar(self, part: slice, words: Words) -> None:
        """A round of one coordinate each."""
        self.decide(part, self.bits[part])

    def ten(self, part: slice, words: Words) -> None:
        """A round of ten coordinates each, squared norms included."""
        self.decide(part, squared_norms(words))

    def bare_scalar(self, part: slice, words: Words) -> None:
        """Compare, multiply and subtract, without a decision."""
        charge = self.bits[part] * WEIGHT
        np.less_equal(charge, self.remaining[part])
        self.remaining[part] -= charge

    def bare_ten(self, part: slice, words: Words) -> None:
        """Squared norms alone."""
        squared_norms(words)


def conversion_speeds() -> dict[str, float]:
    """Conversions a second, each the slowest over small, usual and large arguments."""
    ways: dict[str, Callable[[float, float], object]] = {
        "gdp_delta": lambda x, _: conversions.gdp_delta(x, epsilon=1.0),
        "gdp_epsilon": lambda x, delta: conversions.gdp_epsilon(x, delta=delta),
        "gdp_mu": lambda x, delta: conversions.gdp_mu(x, delta=delta),
        "zcdp_delta": lambda x, _: conversions.zcdp_delta(x, epsilon=1.0),
        "zcdp_epsilon": lambda x, delta: conversions.zcdp_epsilon(x, delta=delta),
        "zcdp_rho": lambda x, delta: conversions.zcdp_rho(x, delta=delta),
        "renyi_epsilon": lambda x, delta: renyi_epsilon(x, order=8.0, delta=delta),
        "renyi_budget": lambda x, delta: renyi_budget(x, order=8.0, delta=delta),
    }
    points = [(x, delta) for x in (1e-3, 0.24, 10.0) for delta in (1e-300, 1e-6, 0.1)]
    return {
        name: min(1 / each(lambda: way(x, delta), calls=200) for x, delta in points)  # noqa: B023
        for name, way in ways.items()
    }


def main() -> None:
    """Measure, print, write."""
    decisions, bare = single_filter()
    crowd = Crowd()
    speeds = conversion_speeds()
    slowest = min(speeds, key=lambda name: speeds[name])
    publish(
        "core",
        [
            Figure(
                name="one filter, integer charges",
                value=decisions,
                unit="decisions/s",
                better="higher",
                bar=1e6,
                floor=bare,
            ),
            Figure(
                name="a million people's round, one coordinate",
                value=crowd.round_ms(crowd.scalar, size=AT_ONCE, hot=False),
                unit="ms",
                better="lower",
                bar=2.0,
                floor=crowd.round_ms(crowd.bare_scalar, size=AT_ONCE, hot=False),
            ),
            Figure(
                name="a million people's round, ten coordinates",
                value=crowd.round_ms(crowd.ten, size=BLOCK, hot=True),
                unit="ms",
                better="lower",
                bar=15.0,
                floor=crowd.round_ms(crowd.bare_ten, size=BLOCK, hot=True),
            ),
            Figure(
                name="the same with words that come from memory",
                value=crowd.round_ms(crowd.ten, size=BLOCK, hot=False),
                unit="ms",
                better="lower",
                floor=crowd.round_ms(crowd.bare_ten, size=BLOCK, hot=False),
            ),
            Figure(
                name="one coordinate in blocks of 4,096",
                value=crowd.round_ms(crowd.scalar, size=BLOCK, hot=False),
                unit="ms",
                better="lower",
                floor=crowd.round_ms(crowd.bare_scalar, size=BLOCK, hot=False),
            ),
            Figure(
                name=f"conversions, the slowest: {slowest}",
                value=speeds[slowest],
                unit="calls/s",
                better="higher",
                bar=1000.0,
            ),
            *[
                Figure(name=name, value=value, unit="calls/s", better="higher")
                for name, value in other_filters().items()
            ],
            *[
                Figure(name=f"conversion {name}", value=value, unit="calls/s", better="higher")
                for name, value in speeds.items()
            ],
        ],
    )


if __name__ == "__main__":
    main()
