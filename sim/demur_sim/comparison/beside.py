"""Other designs for the same people and the same promise, beside what a scenario asks."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import anyio.lowlevel
import numpy as np

from demur_proto.arrays import Flags, Vector
from demur_proto.queries import Feature
from demur_proto.study import View
from demur_sim.comparison.by_name import DesignName, designs_of, names_of
from demur_sim.comparison.design import Baseline, Estimates, Protection
from demur_sim.comparison.flips import MOST_CHANGES, best_changes, truncation_sums
from demur_sim.comparison.levels import ComposedResponse, KeptChange
from demur_sim.engine.sampling import Purpose, stream
from demur_sim.people.populations import Population
from demur_sim.scenario import Scenario

TOGETHER = 1 << 16  #: people who are simulated at once; part of what a seed means
CHOSEN = (
    " It follows the first {} of everybody's changes: of all numbers the one that is best for these "
    "people, found from their data, which the promise does not cover."
)

Following = KeptChange | ComposedResponse  #: a number of changes
Candidates = Mapping[DesignName, Sequence[Baseline]]
Done = Callable[[float], None]  # how many designs are done, and what share of the next
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What one other design found out about the same people; the data unit is people."""

    name: DesignName
    protection: Protection  #: what it promises by itself: guarantees of several studies add
    changes: int | None  #: how many changes of everybody it follows; None: it knows no such limit
    truncation: float
    """How far states as followed are from states as they are: root mean square over rounds, people.

    Simulator's truth, and 0 without a limit."""
    estimates: Vector = field(repr=False)  #: of every round [T], people
    standard_errors: Vector = field(repr=False)  #: likewise, by noise alone
    devices: int
    wall_s: float

    @property
    def standard_error(self) -> float:
        """Root mean square of the standard errors over rounds, people."""
        return float(np.sqrt(np.mean(self.standard_errors**2)))

    def rmse(self, truth: Vector) -> float:
        """Root mean squared error over rounds.

        Args:
            truth: over everyone [T], people.
        """
        return float(np.sqrt(np.mean((self.estimates - truth) ** 2)))

    @property
    def statement(self) -> str:
        """What is promised to whom, and what not, in plain words."""
        chosen = "" if self.changes is None else CHOSEN.format(self.changes)
        return self.protection.statement + chosen

    def summary(self, truth: Vector) -> dict[str, Any]:
        """What a run's summary says of it."""
        promised = self.protection
        steady = promised.steady_epsilon
        return {
            "name": str(self.name),
            "changes": self.changes,
            "standard_error": self.standard_error,
            "rmse": self.rmse(truth),
            "simulator_truth": {
                "truncation_rmse": self.truncation,
                "fraction_rmse": self.rmse(truth) / self.devices,
            },
            "guarantee": {
                "epsilon": _finite(promised.epsilon),
                "delta": _finite(promised.delta, of=promised.epsilon),
                "unit": "device",
                "neighbour": "zero-out",
                "view": str(View.LOCAL),
                "statement": self.statement,
                "per_report_epsilon": promised.report_epsilon,
                "between_two_people": {
                    "epsilon": _finite(promised.pair_epsilon),
                    "delta": _finite(promised.pair_delta, of=promised.pair_epsilon),
                },
                "only_if_nothing_changes": None
                if steady is None
                else {"epsilon": steady, "between_two_people": promised.steady_pair_epsilon},
            },
            "wall_s": self.wall_s,
        }


def candidates_of(scenario: Scenario, *, rounds: int) -> Candidates:
    """The designs that a scenario wants beside its own, before anybody is asked.

    Raises:
        ParameterError: one of them is not to be had for the scenario's promise.
    """
    return {
        name: designs_of(name, horizon=rounds, epsilon=scenario.epsilon, delta=scenario.delta)
        for name in names_of(scenario.beside)
    }


async def simulate_beside(
    candidates: Candidates,
    people: Population,
    questions: Sequence[Feature],
    *,
    seed: int,
    threads: int,
    progress: Done,
) -> tuple[Beside, ...]:
    """Run other designs on the same people, each as a study of its own.

    People are taken 65,536 at a time, so that memory stays bounded whatever their number. Where a design
    may follow any number of changes, the best one for these people is taken; that is generous to it.

    Args:
        candidates: of `candidates_of`.
        people: whoever does not have the value 1 is at no.
        questions: one for each round, each with one number a person.
        seed: of the whole run.
        threads: how many blocks of people at once.
        progress: told after every block.
    """
    starts = range(0, people.devices, TOGETHER)
    blocks = [slice(start, min(start + TOGETHER, people.devices)) for start in starts]
    found: list[Beside] = []
    missed: Vector | None = None
    with ThreadPoolExecutor(threads) as pool:
        runner = _Runner(
            people=people, questions=tuple(questions), blocks=blocks, pool=pool, threads=threads
        )
        for name, designs in candidates.items():
            started = time.monotonic()
            design, changes, truncation = designs[0], None, 0.0
            following = [each for each in designs if isinstance(each, Following)]
            if following:
                missed = await runner.truncation() if missed is None else missed
                best, _ = best_changes(following, missed, people=people.devices)
                design, changes = best, best.changes
                truncation = people.devices * float(missed[changes - 1])
            done = partial(_further, progress, len(found))
            estimates = await runner.run(name, design, seed=seed, progress=done)
            found.append(
                Beside(
                    name=name,
                    protection=design.guarantee,
                    changes=changes,
                    truncation=truncation,
                    estimates=people.devices * estimates.fraction,
                    standard_errors=people.devices * estimates.standard_error,
                    devices=people.devices,
                    wall_s=time.monotonic() - started,
                )
            )
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Runner:
    """Takes people block by block, several at once."""

    people: Population
    questions: tuple[Feature, ...]
    blocks: Sequence[slice]
    pool: ThreadPoolExecutor
    threads: int

    async def run(
        self, name: DesignName, design: Baseline, *, seed: int, progress: Done
    ) -> Estimates:
        """All people's estimates: those of the blocks, weighted by their people."""

        def of_block(number: int) -> Estimates:
            rng = stream(seed, Purpose.BESIDE, list(DesignName).index(name), number)
            return design.estimates(self._states(self.blocks[number]), rng=rng)

        parts = await self._each(of_block, progress)
        sizes = np.array([block.stop - block.start for block in self.blocks], dtype=np.float64)
        shares = (sizes / self.people.devices)[:, None]
        fraction = np.sum(shares * [part.fraction for part in parts], axis=0)
        errors = shares * [part.standard_error for part in parts]
        return Estimates(fraction=fraction, standard_error=np.sqrt(np.sum(errors**2, axis=0)))

    async def truncation(self) -> Vector:
        """What following only k changes of everybody costs, for every k; see `truncation_errors`."""
        rounds = len(self.questions)

        def of_block(number: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
            states = self._states(self.blocks[number])
            return truncation_sums(states, horizon=rounds, most=MOST_CHANGES)[0]

        sums = sum(await self._each(of_block, lambda _: None))
        errors: Vector = np.sqrt(np.mean((sums / self.people.devices) ** 2, axis=0))
        return errors

    def _states(self, block: slice) -> Iterator[Flags]:
        for asked in self.questions:
            yield self.people.evaluate(asked, block)[:, 0] == 1

    async def _each(self, of_block: Callable[[int], Found], progress: Done) -> list[Found]:
        """What comes of every block, in their order whatever the number of threads."""
        found: list[Found] = []
        for start in range(0, len(self.blocks), self.threads):
            await anyio.lowlevel.checkpoint()
            stop = min(start + self.threads, len(self.blocks))
            found += self.pool.map(of_block, range(start, stop))
            progress(len(found) / len(self.blocks))
        return found


def _further(progress: Done, earlier: int, share: float) -> None:
    progress(earlier + share)


def _finite(value: float, *, of: float = 0.0) -> float | None:
    """JSON has no infinity; and where ε is infinite, a δ means nothing either."""
    return None if math.inf in (value, of) else value
