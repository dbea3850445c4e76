"""The command `demur`.

Imports nothing but the standard library until it knows which command it is, so a device's base
install can run a device's commands.
"""

import argparse
import importlib
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version

# Which module adds which commands, what they are for, and the extra they need.
COMMANDS = {
    "simulate": ("demur_sim.commands", "run a scenario on a simulated population", "sim"),
    "serve": ("demur_server.commands", "run a collector on this machine", "server"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 is success, 2 bad usage, 1 anything else."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="demur",
        description="Local differential privacy in which the accounting lives with the person.",
        epilog="Each command explains itself: demur COMMAND --help",
    )
    parser.add_argument("--version", action="version", version=f"demur {version('demur')}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    wanted = next((word for word in given if not word.startswith("-")), None)
    for name, (module, purpose, extra) in COMMANDS.items():
        if name != wanted:
            subparsers.add_parser(name, help=purpose)
            continue
        try:
            importlib.import_module(module).add_commands(subparsers)
        except ModuleNotFoundError as error:
            return _missing(name, extra, error)
    options = parser.parse_args(given)
    return _run(options, extra=COMMANDS[options.command][2])


def _run(options: argparse.Namespace, *, extra: str) -> int:
    from demur_proto.errors import DemurError, ParameterError

    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        return _failed("interrupted; nothing was kept", options)
    except BrokenPipeError:
        sys.stderr.close()  # nobody reads; say nothing more
        return 1
    except ModuleNotFoundError as error:
        return _missing(options.command, extra, error)
    except ParameterError as error:
        return _failed(str(error), options, code=2)
    except DemurError as error:
        return _failed(str(error), options)
    except Exception as error:  # noqa: BLE001  the last place where a bug can become one line
        kind = type(error).__name__
        return _failed(f"a bug, sorry: {kind}: {error} (--debug shows where)", options)


def _failed(message: str, options: argparse.Namespace, *, code: int = 1) -> int:
    if options.debug:
        traceback.print_exc()
    print(f"demur: error: {' '.join(message.split())}", file=sys.stderr)
    return code


def _missing(command: str, extra: str, error: ModuleNotFoundError) -> int:
    print(
        f"demur: error: `demur {command}` needs {error.name}; "
        f"install it with: pip install 'demur[{extra}]'",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
