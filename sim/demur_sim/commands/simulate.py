"""What the commands that run a scenario have in common: options, and a bar on a terminal."""

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demur_sim.results.files import save, save_windows
from demur_sim.results.report import report, report_windows
from demur_sim.run import Progress, simulate, simulate_windows
from demur_sim.scenario import list_scenarios, load_scenario

if TYPE_CHECKING:
    from tqdm import tqdm


FIDELITIES = {
    "cohort": "arrays in one process",
    "processes": "real processes over gRPC",
    "device": "one for each device",
}


def add_run_options(
    command: argparse.ArgumentParser,
    *,
    made: str,
    override: str,
    kept: str,
    fidelities: Sequence[str] = tuple(FIDELITIES),
) -> None:
    """Add the options of a run.

    Args:
        command: to which.
        made: what the same seed makes again.
        override: an example of a key and its value.
        kept: what goes into the folder.
        fidelities: at which it can be; `cohort` first.
    """
    *others, last = (FIDELITIES[name] for name in fidelities)
    real = " or ".join(fidelities[1:])
    command.add_argument(
        "scenario", nargs="?", help="name of a shipped scenario, or path of a TOML file"
    )
    command.add_argument("--list", action="store_true", help="list the shipped scenarios")
    command.add_argument(
        "--fidelity",
        choices=fidelities,
        default="cohort",
        help=f"{', '.join(others)}, or {last} (default: cohort)",
    )
    command.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="threads or worker processes (default: one per core)",
    )
    command.add_argument(
        "--seed", type=int, default=0, metavar="S", help=f"same seed, same {made} (default: 0)"
    )
    command.add_argument(
        "--port",
        type=int,
        default=0,
        metavar="P",
        help=f"port of the collector, with --fidelity {real} (default: a free one)",
    )
    command.set_defaults(with_a_port=real)
    add_result_options(
        command,
        override=override,
        kept=kept,
        folder="runs/SCENARIO-SEED",
        printed="summary.json",
        silent="no progress, no summary",
    )


def add_result_options(
    command: argparse.ArgumentParser,
    *,
    override: str,
    kept: str,
    folder: str,
    printed: str,
    silent: str,
) -> None:
    """Add what every command has that starts from a scenario and leaves a folder.

    Args:
        command: to which.
        override: an example of a key and its value.
        kept: what goes into the folder.
        folder: which one, unless told.
        printed: the file that `--json` prints.
        silent: what is left out if nothing is to be said.
    """
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"replace a key of the scenario, as in --set {override}; may be repeated",
    )
    command.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"where {kept} go (default: {folder})",
    )
    command.add_argument(
        "--json", action="store_true", help=f"print {printed} on stdout and nothing else"
    )
    command.add_argument("--quiet", action="store_true", help=silent)


def check_run(options: argparse.Namespace) -> None:
    """Refuse options that make no run: no scenario, or a port for nobody."""
    if options.scenario is None:
        options.usage_error("which scenario? (--list shows those that are shipped)")
    if options.port and options.fidelity == "cohort":
        options.usage_error(f"--port needs --fidelity {options.with_a_port}")


def check_drawing() -> None:
    """Find out that nothing can be drawn before the run and not after it.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")


def folder_of(options: argparse.Namespace, name: str) -> Path:
    """Where the files of a run go."""
    return options.out or Path("runs") / f"{name.replace('/', '-')}-{options.seed}"


def print_scenarios(scenarios: Sequence[tuple[str, str]], *, as_json: bool) -> int:
    """Print names and titles; the exit status."""
    if as_json:
        print(json.dumps([{"name": name, "title": title} for name, title in scenarios]))
    else:
        width = max((len(name) for name, _ in scenarios), default=0)
        for name, title in scenarios:
            print(f"{name:{width}}  {title}")
    return 0


@contextmanager
def terminal_bar(options: argparse.Namespace, **kind: Any) -> "Iterator[tqdm[Any] | None]":
    """A bar with time left on a terminal; nothing in a pipe, or where nothing is to be said.

    Args:
        options: of the run.
        kind: what the bar is told: unit, total and the like.
    """
    if options.quiet or options.json or not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    known = os.get_terminal_size(sys.stderr.fileno()).columns > 0
    size: dict[str, Any] = {"dynamic_ncols": True} if known else {"ncols": 80, "nrows": 24}
    with tqdm(**kind, **size) as bar:
        yield bar


# The simulator's commands.


def add_commands(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `simulate`."""
    command = subparsers.add_parser(
        "simulate",
        help="run a scenario on a simulated population",
        description="Run a scenario: one question a period, put to every simulated device.",
    )
    add_run_options(command, made="releases", override="epsilon=0.5", kept="results")
    command.add_argument(
        "--beside",
        metavar="NAMES",
        help="other designs for the same people, with commas between them: the scenario's key of that name",
    )
    command.set_defaults(run=run, usage_error=command.error)


def run(options: argparse.Namespace) -> int:
    """Run `demur simulate`."""
    if options.list:
        return print_scenarios(list_scenarios(), as_json=options.json)
    check_run(options)
    scenario = load_scenario(options.scenario, overrides=options.set)
    if options.beside is not None:
        scenario = replace(scenario, beside=options.beside)
    check_drawing()
    folder = folder_of(options, scenario.name)
    with _progress(options) as progress:
        how: dict[str, Any] = {
            "seed": options.seed,
            "fidelity": options.fidelity,
            "workers": options.workers,
            "collector_port": options.port,
            "progress": progress,
        }
        told: Callable[[], str]
        if scenario.window:
            windows = simulate_windows(scenario, **how)
            save_windows(windows, folder)
            summary, told = windows.summary(), partial(report_windows, windows, folder)
        else:
            result = simulate(scenario, **how)
            save(result, folder)
            summary, told = result.summary(), partial(report, result, folder)
    if options.json:
        print(json.dumps(summary))
    elif not options.quiet:
        print(told())
    return 0


@contextmanager
def _progress(options: argparse.Namespace) -> Iterator[Progress | None]:
    """A bar with rate and time left."""
    with terminal_bar(options, unit=" reports", unit_scale=True) as bar:
        if bar is None:
            yield None
            return

        def update(rounds: int, total_rounds: int, reports: int) -> None:
            bar.total = reports * total_rounds // rounds
            bar.set_description(f"round {rounds}/{total_rounds}", refresh=False)
            bar.update(reports - bar.n)

        yield update
