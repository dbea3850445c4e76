"""What a run of a scenario is besides the scenario."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from demur_sim.populations import Population
from demur_sim.session import Fidelity

Progress = Callable[[int, int, int], None]  # rounds done, rounds in all, reports so far


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class How:
    """How to run a scenario. What is out of range is refused when the run begins."""

    seed: int = 0  #: everything random follows from it; >= 0
    fidelity: Fidelity | str = Fidelity.COHORT  #: arrays here, or real processes over gRPC
    workers: int | None = None  #: threads (cohort) or worker processes; None: one per core
    population: Population | None = None  #: one's own people; None: the scenario's
    collector_port: int = 0  #: where devices reach the collector (processes); 0: a free port
    record: bool = False  #: keep what a watcher of the network would see (processes)
    progress: Progress | None = None  #: told after every round
