"""The command `demur`.

Imports nothing but the standard library until it knows which command it is, so a device's base
install can run a device's commands.
"""

import argparse
import errno
import importlib
import io
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

# Which module adds which commands, what they are for, and the extra they need.
COMMANDS = {
    "simulate": ("demur_sim.commands", "run a scenario on a simulated population", "sim"),
    "train": ("demur_sim.training.command", "train a model on a simulated population", "sim"),
    "plan": ("demur_sim.planning.command", "choose budget and question from a public model", "sim"),
    "conformance": ("demur_sim.conformance.command", "try out a device or a collector", ""),
    "serve": ("demur_server.commands", "run a collector on this machine", "server"),
    "certs": ("demur_server.certs_command", "make certificates for development", "server"),
    "ask": ("demur_server.ask_command", "ask the devices of a study one question", "server"),
    "close": ("demur_server.close_command", "close a round that was left open", "server"),
    "admin": ("demur_server.admin_command", "look into a collector's store", "server"),
    "device": ("demur_client.device_command", "run one person's device", ""),
    "budget": ("demur_client.commands", "say what a privacy budget buys", ""),
    "check-vectors": ("demur_client.commands", "check against vector files", ""),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 is success, 2 bad usage, 1 anything else."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # its chatter on stderr is not ours
    _make_printable()
    wanted = next((word for word in given if not word.startswith("-")), "")
    try:
        with _terminable():
            code = _run(given, wanted)
            sys.stdout.flush()
            return code
    except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001  a bug becomes one line here
        if isinstance(error, BrokenPipeError) and _is_unread():
            return 1
        if "--debug" in given:
            import traceback

            traceback.print_exc()
        message, code = _explained(error, wanted)
        print(f"demur: error: {' '.join(message.split())}", file=sys.stderr)
        return code


def _make_printable() -> None:
    """Let a closed standard stream swallow what is printed, and a narrow one escape it."""
    for name in ("stdout", "stderr"):
        given = getattr(sys, name)
        if given is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  to the end
        elif isinstance(given, io.TextIOWrapper):
            given.reconfigure(errors="backslashreplace")


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"demur: error: {message} ({self.prog} --help explains)\n")


def _run(given: Sequence[str], wanted: str) -> int:
    from importlib.metadata import version

    parser = _Parser(
        prog="demur",
        description="Local differential privacy in which the accounting lives with the person.",
        epilog="Each command explains itself: demur COMMAND --help",
    )
    parser.add_argument("--version", action="version", version=f"demur {version('demur')}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    subparsers = parser.add_subparsers(
        title="commands", dest="command", required=True, metavar="COMMAND"
    )
    home = COMMANDS[wanted][0] if wanted in COMMANDS else None
    for name, (module, purpose, _) in COMMANDS.items():
        if module != home:
            subparsers.add_parser(name, help=purpose)
        elif name not in subparsers.choices:  # one module may add several commands
            importlib.import_module(module).add_commands(subparsers)
    if home is not None:
        subparsers.choices[wanted].add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks"
        )
    options = parser.parse_args(given)
    return int(options.run(options))


@contextmanager
def _terminable() -> Iterator[None]:
    """Let a request to terminate end things as cleanly as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(signal.SIGINT)  # while an event loop runs, it is the loop's own
        if not callable(handler):
            raise KeyboardInterrupt
        handler(signal.SIGINT, frame)

    if threading.current_thread() is not threading.main_thread():
        yield  # where signals are somebody else's business
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _explained(error: BaseException, command: str) -> tuple[str, int]:
    """What to say about an error, and the exit code."""
    from demur_proto.errors import DemurError, ParameterError

    if isinstance(error, KeyboardInterrupt):
        kept = "--resume goes on after the last step" if command == "train" else "nothing was kept"
        return f"interrupted; {kept}", 1
    if isinstance(error, ParameterError):
        return str(error), 2
    if isinstance(error, DemurError):
        return str(error), 1
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"cannot write to standard output: {error.strerror}", 1
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("demur_"):
        extra = COMMANDS[command][2]
        install = f"pip install 'demur[{extra}]'" if extra else "pip install demur"
        return f"`demur {command}` needs {error.name}; install it with: {install}", 1
    return f"a bug, sorry: {type(error).__name__}: {error} (--debug shows where)", 1


def _is_unread() -> bool:
    """Whether nobody reads what we print any more; then Python need not complain of it either."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # nothing but errors
    if not output.poll(0):
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())  # when it exits, Python flushes once more
    os.close(nowhere)
    return True


if __name__ == "__main__":
    sys.exit(main())
