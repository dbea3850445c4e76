"""Run a training to its end, or on from where it was killed."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from demur_proto.checks import check_integer
from demur_proto.errors import ParameterError, StateError
from demur_server.training.checkpoints import (
    Checkpoint,
    check_settings,
    load_checkpoint,
    save_checkpoint,
)
from demur_server.training.trainer import start, train
from demur_sim.portions import block_count
from demur_sim.run import run_anywhere
from demur_sim.seeds import Purpose, stream
from demur_sim.session import Fidelity
from demur_sim.simulation import hands
from demur_sim.training.design import design
from demur_sim.training.error_counts import overspent
from demur_sim.training.keeping import Progress, Run
from demur_sim.training.opening import FIDELITIES, How, halts_of, open_errors, open_source
from demur_sim.training.people import task_of
from demur_sim.training.results import TrainingResult
from demur_sim.training.scenario import TrainingScenario
from demur_sim.training.settings import settings_of


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
