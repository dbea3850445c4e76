"""The command `demur train`."""

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from demur_proto.errors import DataError
from demur_server.training.trainer import TrainingState
from demur_sim.training.files import CHECKPOINT, save_training
from demur_sim.training.keeping import Progress
from demur_sim.training.report import report
from demur_sim.training.run import run_training
from demur_sim.training.scenario import list_training_scenarios, load_training


def add_commands(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `train`."""
    command = subparsers.add_parser(
        "train",
        help="train a model on a simulated population",
        description="Train a model: one noisy sum of gradients a step, from every simulated device.",
    )
    command.add_argument(
        "scenario", nargs="?", help="name of a shipped scenario, or path of a TOML file"
    )
    command.add_argument("--list", action="store_true", help="list the shipped scenarios")
    command.add_argument(
        "--fidelity",
        choices=["cohort", "processes"],
        default="cohort",
        help="arrays in one process, or real processes over gRPC (default: cohort)",
    )
    command.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="threads or worker processes (default: one per core)",
    )
    command.add_argument(
        "--seed", type=int, default=0, metavar="S", help="same seed, same model (default: 0)"
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="replace a key of the scenario, as in --set optimiser.rate=2; may be repeated",
    )
    command.add_argument(
        "--port",
        type=int,
        default=0,
        metavar="P",
        help="port of the collector, with --fidelity processes (default: a free one)",
    )
    command.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where results and checkpoints go (default: runs/SCENARIO-SEED)",
    )
    command.add_argument(
        "--resume", action="store_true", help="go on from the checkpoint in that folder"
    )
    command.add_argument(
        "--json", action="store_true", help="print summary.json on stdout and nothing else"
    )
    command.add_argument("--quiet", action="store_true", help="no progress, no summary")
    command.set_defaults(run=run, usage_error=command.error)


def run(options: argparse.Namespace) -> int:
    """Run `demur train`."""
    if options.list:
        return _list(as_json=options.json)
    if options.scenario is None:
        options.usage_error("which scenario? (--list shows those that are shipped)")
    if options.port and options.fidelity != "processes":
        options.usage_error("--port needs --fidelity processes")
    scenario = load_training(options.scenario, overrides=options.set)
    if importlib.util.find_spec("matplotlib") is None:  # better now than after the run
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
    folder = options.out or Path("runs") / f"{scenario.name.replace('/', '-')}-{options.seed}"
    checkpoint = folder / CHECKPOINT
    if options.resume and not checkpoint.exists():
        raise DataError(f"{checkpoint} is not there: leave out --resume to begin")
    with _progress(scenario.steps, shown=not options.quiet and not options.json) as progress:
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


def _list(*, as_json: bool) -> int:
    scenarios = list_training_scenarios()
    if as_json:
        print(json.dumps([{"name": name, "title": title} for name, title in scenarios]))
    else:
        for name, title in scenarios:
            print(f"{name:12} {title}")
    return 0


@contextmanager
def _progress(steps: int, *, shown: bool) -> Iterator[Progress | None]:
    """A bar with accuracy and time left on a terminal; nothing in a pipe."""
    if not shown or not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    known = os.get_terminal_size(sys.stderr.fileno()).columns > 0
    size: dict[str, Any] = {"dynamic_ncols": True} if known else {"ncols": 80, "nrows": 24}
    with tqdm(unit=" steps", total=steps, **size) as bar:

        def update(state: TrainingState, accuracy: float) -> None:
            bar.set_description(f"accuracy {accuracy:.2%}", refresh=False)
            bar.update(state.number - bar.n)

        yield update
