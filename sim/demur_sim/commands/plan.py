"""The command `demur plan`."""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demur_proto.running.segments import COARSEST_COUNTING
from demur_sim.commands.simulate import add_result_options, check_drawing, terminal_bar
from demur_sim.datasets.activity import Counted, read_activity
from demur_sim.people.states import STATE
from demur_sim.planning.plan import Progress, plan
from demur_sim.planning.report import plan_json, report, save
from demur_sim.scenario import Kind, Scenario, load_scenario, scenario_of

HISTOGRAMS = (".csv", ".csv.gz")  #: how the name of a histogram ends


def add_commands(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `plan`."""
    command = subparsers.add_parser(
        "plan",
        help="choose budget and question from a public model",
        description=(
            "Choose the budget, the noise and the kind of question with the least error, from public "
            "data or a histogram of how often people are active."
        ),
    )
    command.add_argument(
        "model",
        help="name of a shipped scenario, path of a TOML file, or of a histogram that ends in .csv",
    )
    command.add_argument(
        "--rounds", type=int, metavar="T", help="how many rounds; needed with a histogram"
    )
    command.add_argument(
        "--people", type=int, metavar="N", help="for how many (default: as many as in the model)"
    )
    add_result_options(
        command,
        override="epsilon=0.5",
        kept="results",
        folder="runs/SCENARIO-plan",
        printed="plan.json",
        silent="no progress, no report",
    )
    command.set_defaults(run=run, usage_error=command.error)


def run(options: argparse.Namespace) -> int:
    """Run `demur plan`."""
    scenario = _scenario(options)
    check_drawing()
    with _progress(options) as progress:
        found = plan(scenario, people=options.people, progress=progress)
    folder = options.out or Path("runs") / f"{scenario.name.replace('/', '-')}-plan"
    save(found, folder)
    if options.json:
        print(json.dumps(plan_json(found)))
    elif not options.quiet:
        print(report(found, folder))
    return 0


def _scenario(options: argparse.Namespace) -> Scenario:
    """What is asked of whom, and promised to them."""
    if not options.model.lower().endswith(HISTOGRAMS):
        overrides = list(options.set)
        if options.rounds is not None:
            overrides.append(f"rounds={options.rounds}")
        return load_scenario(options.model, overrides=overrides)
    if options.rounds is None:
        options.usage_error("how many rounds? (a histogram needs --rounds T)")
    return histogram_scenario(options.model, rounds=options.rounds, overrides=options.set)


def histogram_scenario(path: str | Path, *, rounds: int, overrides: list[str]) -> Scenario:
    """A scenario whose people are made up from a histogram.

    Args:
        path: of the histogram, as `read_activity` reads it.
        rounds: how many there are, over which activity is spread.
        overrides: as in `load_scenario`.

    Raises:
        DataError: the file cannot be read.
        ParameterError: there is no such key, or a value is outside its range.
    """
    file = Path(path)
    changes = read_activity(file).counted is Counted.CHANGES
    written: dict[str, object] = {
        "name": file.name.split(".")[0] or "histogram",
        "data": {"histogram": file.name, "periods": rounds},
    }
    if changes:
        written |= {"feature": STATE, "kind": Kind.PREFIX, "grid_exponent": COARSEST_COUNTING}
    return scenario_of(written, file, overrides=overrides)


@contextmanager
def _progress(options: argparse.Namespace) -> Iterator[Progress | None]:
    """A bar with the way that is being worked out."""
    with terminal_bar(options, unit=" ways") as bar:
        if bar is None:
            yield None
            return

        def update(name: str) -> None:
            bar.set_description(name)
            bar.update()

        yield update
