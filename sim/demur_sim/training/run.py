"""What goes on beside the loop of a training: counts, curves, checkpoints, and a check on replay."""

import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from demur_proto.checks import check_integer
from demur_proto.errors import DataError, ParameterError, StateError
from demur_server.training.trainer import (
    Checkpoint,
    TrainingState,
    check_settings,
    load_checkpoint,
    save_checkpoint,
    start,
    train,
)
from demur_sim.engine.float_cohort import FloatCohort
from demur_sim.engine.processes import process_session
from demur_sim.engine.sampling import Noise, Purpose, seed_of, stream
from demur_sim.engine.session import Fidelity, Questions
from demur_sim.engine.simulation import hands
from demur_sim.people.labelled import LabelledPeople
from demur_sim.people.presence import block_count
from demur_sim.run import run_anywhere
from demur_sim.scenario import Refusal
from demur_sim.training.counts import (
    ArrayHalts,
    CohortErrors,
    ProcessErrors,
    ProcessHalts,
    SimulatedErrors,
    SimulatedHalts,
    overspent,
)
from demur_sim.training.design import Design, design
from demur_sim.training.people import Task, settings_of, task_of
from demur_sim.training.results import TrainingResult
from demur_sim.training.scenario import Algorithm, Arithmetic, Net, TrainingScenario
from demur_sim.training.sources import (
    CohortSource,
    DeviceState,
    FloatSource,
    ProcessSource,
    TrainingSource,
)

Progress = Callable[[TrainingState, float], None]  # after a step, with the accuracy on the tests


@dataclass(kw_only=True, repr=False)
class Run:
    """What goes on beside the loop: counts, curves, checkpoints, and a comparison on replay."""

    task: Task
    source: TrainingSource
    progress: Progress | None
    errors: SimulatedErrors | None = None
    halts: SimulatedHalts | None = None
    keep: Callable[[TrainingState], None] | None = None
    expected: TrainingState | None = None  # what a replay has to come to
    accuracies: list[float] = field(default_factory=list)
    actives: list[int] = field(default_factory=list)

    def after(self, state: TrainingState) -> None:
        """Take note of a step."""
        accuracy = self.task.accuracy(state.candidate)
        self.accuracies.append(accuracy)
        self.actives.append(self.source.active)
        expected = self.expected
        if expected is not None and state.number == expected.number:
            if not np.array_equal(state.theta, expected.theta):
                raise StateError(
                    f"asked again, devices answered otherwise: after step {state.number} the "
                    "parameters are not those of the checkpoint"
                )
            self.expected = None
        if self.keep is not None and self.expected is None:
            self.keep(state)
        if self.progress is not None:
            self.progress(state, accuracy)

    def extra(self) -> dict[str, npt.NDArray[np.generic]]:
        """What a checkpoint holds besides the state."""
        parts: dict[str, DeviceState] = {
            "devices": self.source.snapshot(),
            "errors": {} if self.errors is None else self.errors.snapshot(),
            "halts": {} if self.halts is None else self.halts.snapshot(),
            "curve": {
                "accuracy": np.array(self.accuracies),
                "active": np.array(self.actives, dtype=np.int64),
            },
        }
        return {
            f"{part}.{name}": each for part, state in parts.items() for name, each in state.items()
        }

    def go_on(self, checkpoint: Checkpoint, *, begun: TrainingState) -> TrainingState:
        """Bring everything to where it was.

        Args:
            checkpoint: of these settings.
            begun: the same training before its first step.

        Raises:
            DataError: the checkpoint does not hold all of it.
        """
        state, extra = checkpoint.state, checkpoint.extra
        _check_sizes(state, begun)

        def part(name: str) -> DeviceState:
            prefix = f"{name}."
            return {
                key.removeprefix(prefix): each
                for key, each in extra.items()
                if key.startswith(prefix)
            }

        if state.number and not part("devices"):
            raise DataError(
                "the checkpoint holds no devices: they were processes, so go on with the fidelity "
                "processes, which asks them again"
            )
        try:
            if state.number:
                self.source.restore(part("devices"), number=state.number)
            if self.errors is not None and state.errors:
                self.errors.restore(part("errors"), number=len(state.errors))
            if self.halts is not None and state.halts:
                self.halts.restore(part("halts"), number=len(state.halts))
            accuracies, actives = (part("curve")[name] for name in ("accuracy", "active"))
        except KeyError as error:
            raise DataError(f"the checkpoint lacks {error}") from None
        self.accuracies = accuracies.astype(np.float64).tolist()
        self.actives = actives.astype(np.int64).tolist()
        if not len(self.accuracies) == len(self.actives) == state.number:
            raise DataError(f"the checkpoint has no curve of {state.number} steps")
        return state


def _check_sizes(state: TrainingState, begun: TrainingState) -> None:
    """Refuse a state of another model or of another optimiser."""
    kept, expected = (
        [each.shape for each in (one.theta, one.total, *one.memory)] for one in (state, begun)
    )
    best = begun.theta.shape if state.best is None else state.best.shape
    if kept != expected or best != begun.theta.shape:
        raise DataError(
            f"the checkpoint is of no training with {len(begun.theta)} parameters and this optimiser"
        )


# Opening sources of gradients and of counts beside them: by arithmetic, and by fidelity.

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
    questions = Questions(population=people, grid_exponent=design.scenario.grid_exponent)
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
    questions = Questions(population=people, grid_exponent=study.value.base_grid_exponent)
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


# Run a training to its end, or on from where it was killed.


def run_training(
    scenario: TrainingScenario,
    *,
    seed: int = 0,
    fidelity: Fidelity | str = Fidelity.COHORT,
    workers: int | None = None,
    collector_port: int = 0,
    checkpoint: Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> TrainingResult:
    """Train, in a script and in a notebook alike: see `train_scenario`.

    Fidelity `processes` starts Python again, so a script must keep its own start behind
    `if __name__ == "__main__":`.
    """

    async def whole() -> TrainingResult:
        return await train_scenario(
            scenario,
            seed=seed,
            fidelity=fidelity,
            workers=workers,
            collector_port=collector_port,
            checkpoint=checkpoint,
            resume=resume,
            progress=progress,
        )

    return run_anywhere(whole)


async def train_scenario(
    scenario: TrainingScenario,
    *,
    seed: int = 0,
    fidelity: Fidelity | str = Fidelity.COHORT,
    workers: int | None = None,
    collector_port: int = 0,
    checkpoint: Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> TrainingResult:
    """Train a scenario's model.

    Args:
        scenario: what to train.
        seed: everything random follows from it; >= 0.
        fidelity: arrays in this process, or real processes over gRPC.
        workers: threads (cohort) or worker processes; by default one per core.
        collector_port: where devices reach the collector (processes); 0 takes a free port.
        checkpoint: a file to keep after each step; None for none.
        resume: go on from it. Arrays go on with the devices' filters as they were. Of processes
            nothing outlives a run, so they answer everything again, with the same noise: that tells
            nobody anything new, and must lead to the same parameters.
        progress: told after each step.

    Raises:
        DataError: the data, or the checkpoint, cannot be read.
        ParameterError: an argument is outside its range, or the scenario does not fit its data.
        StateError: the checkpoint is of other settings, or a device overspent, which would be a bug.
        ConnectionLost: a process of the simulation stopped.
    """
    began = time.monotonic()
    check_integer("seed", seed, 0)
    check_integer("collector_port", collector_port, 0, 65535)
    if fidelity not in FIDELITIES:
        raise ParameterError("fidelity", fidelity, f"{' or '.join(FIDELITIES)}, in a training")
    how = How(
        seed=seed,
        fidelity=Fidelity(fidelity),
        workers=hands(workers),
        collector_port=collector_port,
    )
    how.check(scenario)
    task = task_of(scenario)
    devices = task.people.devices
    theta = task.learner.initial(stream(seed, Purpose.START))
    designed = design(scenario, devices=devices, dimension=len(theta))
    settings = settings_of(scenario, task)
    identity = {
        **scenario.settings(),
        "seed": str(seed),
        "examples and their owners": task.data_sha256[:16],
        "examples to test on": task.tests_sha256[:16],
        "study": designed.study.hash.hex()[:16],
    }
    state, kept = start(settings, theta), None
    if resume:
        if checkpoint is None:
            raise ParameterError("checkpoint", checkpoint, "given, to resume from")
        kept = load_checkpoint(checkpoint)
        check_settings(kept, identity)
    people = task.people
    if scenario.shuffle:
        people = people.shuffled(stream(seed, Purpose.DEALING))
    with ThreadPoolExecutor(how.workers) as pool:
        async with (
            open_source(scenario, designed, people, how, pool) as source,
            open_errors(scenario, designed, people, how, pool, beside=source) as errors,
        ):
            halts = halts_of(designed, people, how, pool, beside=source, horizon=settings.counts)
            run = Run(task=task, source=source, progress=progress, errors=errors, halts=halts)
            if kept is not None and source.replays:
                run.expected = kept.state
            elif kept is not None:
                state = run.go_on(kept, begun=state)
            if checkpoint is not None:
                run.keep = lambda made: save_checkpoint(
                    Checkpoint(state=made, settings=identity, extra=run.extra()), checkpoint
                )
            state = await train(
                settings,
                state,
                source,
                errors=errors,
                halts=halts,
                after=run.after,
            )
            if run.expected is not None:
                raise StateError(
                    f"asked again, devices answered otherwise: the training is over after step "
                    f"{state.number}, before the checkpoint's"
                )
            over = 0
            if errors is not None and designed.errors is not None:
                over += overspent(await errors.finish(), designed.errors.value)
            ending = await source.finish()
    over += overspent(ending.spent, designed.study.value)
    if halts is not None and designed.halts is not None:
        over += overspent(halts.spent(), designed.halts.value)
    if over:
        raise StateError(f"{over} budgets were overspent; this is a bug")
    return TrainingResult(
        scenario=scenario,
        seed=seed,
        fidelity=how.fidelity,
        workers=min(how.workers, block_count(devices)),
        devices=devices,
        design=designed,
        settings=settings,
        state=state,
        accuracies=np.array(run.accuracies),
        actives=np.array(run.actives, dtype=np.float64),
        test_accuracy=task.accuracy(state.final),
        tested=len(task.labels),
        ending=ending,
        data_sha256=task.data_sha256,
        wall_s=time.monotonic() - began,
    )
