"""The command `demur train`."""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demur_proto.errors import DataError
from demur_server.training.trainer import TrainingState
from demur_sim.commands.simulate import (
    add_run_options,
    check_drawing,
    check_run,
    folder_of,
    print_scenarios,
    terminal_bar,
)
from demur_sim.training.results import CHECKPOINT, report, save_training
from demur_sim.training.run import FIDELITIES, Progress, run_training
from demur_sim.training.scenario import list_training_scenarios, load_training


def add_commands(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `train`."""
    command = subparsers.add_parser(
        "train",
        help="train a model on a simulated population",
        description="Train a model: one noisy sum of gradients a step, from every simulated device.",
    )
    add_run_options(
        command,
        made="model",
        override="optimiser.rate=2",
        kept="results and checkpoints",
        fidelities=[str(each) for each in FIDELITIES],
    )
    command.add_argument(
        "--resume", action="store_true", help="go on from the checkpoint in that folder"
    )
    command.set_defaults(run=run, usage_error=command.error)


def run(options: argparse.Namespace) -> int:
    """Run `demur train`."""
    if options.list:
        return print_scenarios(list_training_scenarios(), as_json=options.json)
    check_run(options)
    scenario = load_training(options.scenario, overrides=options.set)
    check_drawing()
    folder = folder_of(options, scenario.name)
    checkpoint = folder / CHECKPOINT
    if options.resume and not _is_there(checkpoint):
        raise DataError(f"{checkpoint} is not there: leave out --resume to begin")
    with _progress(options, steps=scenario.steps) as progress:
        result = run_training(
            scenario,
            seed=options.seed,
            fidelity=options.fidelity,
            workers=options.workers,
            collector_port=options.port,
            checkpoint=checkpoint,
            resume=options.resume,
            progress=progress,
        )
    save_training(result, folder)
    if options.json:
        print(json.dumps(result.summary()))
    elif not options.quiet:
        print(report(result, folder))
    return 0


def _is_there(checkpoint: Path) -> bool:
    try:
        return checkpoint.exists()
    except OSError as error:
        raise DataError(f"{checkpoint}: cannot be read: {error.strerror or error}") from None


@contextmanager
def _progress(options: argparse.Namespace, *, steps: int) -> Iterator[Progress | None]:
    """A bar with accuracy and time left."""
    with terminal_bar(options, unit=" steps", total=steps) as bar:
        if bar is None:
            yield None
            return

        def update(state: TrainingState, accuracy: float) -> None:
            bar.set_description(f"accuracy {accuracy:.2%}", refresh=False)
            bar.update(state.number - bar.n)

        yield update
