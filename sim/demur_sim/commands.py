"""The simulator's commands."""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from demur_sim.report import report
from demur_sim.result_files import save
from demur_sim.run import Progress, simulate
from demur_sim.run_options import (
    add_run_options,
    check_drawing,
    check_run,
    folder_of,
    print_scenarios,
    terminal_bar,
)
from demur_sim.scenario import list_scenarios, load_scenario


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
    with _progress(options) as progress:
        result = simulate(
            scenario,
            seed=options.seed,
            fidelity=options.fidelity,
            workers=options.workers,
            collector_port=options.port,
            progress=progress,
        )
    folder = folder_of(options, scenario.name)
    save(result, folder)
    if options.json:
        print(json.dumps(result.summary()))
    elif not options.quiet:
        print(report(result, folder))
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
