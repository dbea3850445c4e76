"""Opening sources of gradients and of counts beside them: by arithmetic, and by fidelity."""

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass

from demur_proto.errors import ParameterError
from demur_sim.float_cohort import FloatCohort
from demur_sim.labelled_people import LabelledPeople
from demur_sim.opening_processes import process_session
from demur_sim.questions import Questions
from demur_sim.sampling import Noise
from demur_sim.scenario import Refusal
from demur_sim.seeds import Purpose, seed_of
from demur_sim.session import Fidelity
from demur_sim.training.design import Design
from demur_sim.training.error_counts import CohortErrors, ProcessErrors, SimulatedErrors
from demur_sim.training.float_source import FloatSource
from demur_sim.training.halts import ArrayHalts, ProcessHalts, SimulatedHalts
from demur_sim.training.scenario import TrainingScenario
from demur_sim.training.scenario_parts import Algorithm, Arithmetic, Net
from demur_sim.training.source import CohortSource, ProcessSource, TrainingSource

FIDELITIES = (Fidelity.COHORT, Fidelity.PROCESSES)  #: at which a training can be


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """What a run is besides its scenario.

    Raises:
        ParameterError: the scenario cannot be run like this.
    """

    seed: int
    fidelity: Fidelity  #: one of `FIDELITIES`
    workers: int  #: threads, or processes
    collector_port: int = 0  #: of processes; 0: a free one

    def check(self, scenario: TrainingScenario) -> None:
        """Refuse what processes cannot do."""
        if self.fidelity is Fidelity.COHORT:
            return
        if scenario.arithmetic is not Arithmetic.GRID:
            raise ParameterError("arithmetic", str(scenario.arithmetic), "grid, in processes")
        if scenario.noise is not Noise.SHARES:
            expected = f"{Noise.SHARES}: processes send real reports"
            raise ParameterError("noise", str(scenario.noise), expected)
        if scenario.model.architecture is Net.MODULE:
            expected = (
                "softmax or hidden_layer in processes: devices compute no modules by their path"
            )
            raise ParameterError("model.architecture", "module", expected)


@asynccontextmanager
async def open_source(
    scenario: TrainingScenario,
    design: Design,
    people: LabelledPeople,
    how: How,
    pool: ThreadPoolExecutor,
) -> AsyncIterator[TrainingSource]:
    """People who can be asked, for as long as the block lasts.

    Args:
        scenario: what to train.
        design: its studies.
        people: in the order in which they were dealt to devices.
        how: seed, fidelity and workers.
        pool: of threads.

    Raises:
        UnsupportedError: torch is needed, and is not installed.
        StateError: the port is in use.
        ConnectionLost: a process of the simulation stopped.
    """
    if scenario.arithmetic is Arithmetic.FLOAT:
        yield FloatSource(
            FloatCohort(
                design.study.value,
                people,
                clip=scenario.clip,
                seed=how.seed,
                worst_case=scenario.algorithm is Algorithm.PRIVATE_GD,
                threads=how.workers,
            )
        )
        return
    if how.fidelity is Fidelity.COHORT:
        yield CohortSource(
            design.study,
            people,
            seed=how.seed,
            pool=pool,
            threads=how.workers,
            clip=scenario.clip,
            noise=scenario.noise,
        )
        return
    questions = Questions(
        population=people,
        clip=scenario.clip,
        on_grid=False,
        grid_exponent=design.scenario.grid_exponent,
    )
    async with process_session(
        design.study,
        questions,
        seed=how.seed,
        refusal=Refusal.COVER,
        workers=how.workers,
        collector_port=how.collector_port,
        companions=[] if design.halts is None else [(design.halts, _halts_seed(how))],
    ) as session:
        yield ProcessSource(session, clip=scenario.clip)


@asynccontextmanager
async def open_errors(
    scenario: TrainingScenario,
    design: Design,
    people: LabelledPeople,
    how: How,
    pool: ThreadPoolExecutor,
    *,
    beside: TrainingSource,
) -> AsyncIterator[SimulatedErrors | None]:
    """The same people in the study of errors, for as long as the block lasts; None: it has none.

    Args:
        scenario: what to train.
        design: its studies.
        people: in the order in which they were dealt to devices.
        how: seed, fidelity and workers.
        pool: of threads.
        beside: the source of the gradients, whose collector has this study as well.

    Raises:
        ConnectionLost: a process of the simulation stopped.
    """
    study = design.errors
    if study is None:
        yield None
        return
    on_grid = scenario.data.per_person == 1
    seed = seed_of(how.seed, Purpose.COUNTS, 1)
    if not isinstance(beside, ProcessSource):
        yield CohortErrors(
            study, people, seed=seed, pool=pool, threads=how.workers, on_grid=on_grid
        )
        return
    questions = Questions(
        population=people,
        clip=1.0,
        on_grid=on_grid,
        grid_exponent=study.value.base_grid_exponent,
    )
    async with process_session(
        study,
        questions,
        seed=seed,
        refusal=Refusal.COVER,
        workers=how.workers,
        beside=beside.session,
    ) as session:
        yield ProcessErrors(session, on_grid=on_grid)


def halts_of(
    design: Design,
    people: LabelledPeople,
    how: How,
    pool: ThreadPoolExecutor,
    *,
    beside: TrainingSource,
    horizon: int,
) -> SimulatedHalts | None:
    """The same people in the study of halts; None: it has none.

    Args:
        design: its studies.
        people: in the order in which they were dealt to devices.
        how: seed, fidelity and workers.
        pool: of threads.
        beside: the source of the gradients, whose people know who gave less.
        horizon: most counts.
    """
    study, gradients = design.halts, design.study.hash
    if study is None:
        return None
    if isinstance(beside, ProcessSource):
        return ProcessHalts(beside.session.companions[study.hash], gradients, horizon=horizon)
    return ArrayHalts(
        study,
        gradients,
        beside.covered,
        people,
        horizon=horizon,
        seed=_halts_seed(how),
        pool=pool,
        threads=how.workers,
    )


def _halts_seed(how: How) -> int:
    """Streams of its own."""
    return seed_of(how.seed, Purpose.COUNTS, 2)
