"""What the commands that run a scenario have in common: options, and a bar on a terminal."""

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm


def add_run_options(
    command: argparse.ArgumentParser,
    *,
    fidelities: Mapping[str, str],
    made: str,
    override: str,
    kept: str,
) -> None:
    """Add the options of a run.

    Args:
        command: to which.
        fidelities: those that it has, with what each is; the first is the default.
        made: what the same seed makes again.
        override: an example of a key and its value.
        kept: what goes into the folder.
    """
    command.add_argument(
        "scenario", nargs="?", help="name of a shipped scenario, or path of a TOML file"
    )
    command.add_argument("--list", action="store_true", help="list the shipped scenarios")
    names = list(fidelities)
    real = " or ".join(names[1:])
    command.set_defaults(real=real)
    command.add_argument(
        "--fidelity",
        choices=names,
        default=names[0],
        help=f"{' or '.join(fidelities.values())} (default: {names[0]})",
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
        options.usage_error(f"--port needs --fidelity {options.real}")


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
