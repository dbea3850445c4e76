"""The simulator's commands."""

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from demur_sim.how import Progress
from demur_sim.report import report, report_windows
from demur_sim.result_files import save
from demur_sim.run import simulate
from demur_sim.run_options import (
    add_run_options,
    check_drawing,
    check_run,
    folder_of,
    print_scenarios,
    terminal_bar,
)
from demur_sim.scenario import list_scenarios, load_scenario
from demur_sim.windowed_files import save_windows
from demur_sim.windowed_run import simulate_windows


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
