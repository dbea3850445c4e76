"""How the command `demur` runs its commands, whichever there are, and says what went wrong.

Imports nothing but the standard library until it knows which command it is.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from types import FrameType
from typing import NoReturn

DISTRIBUTIONS = ("demur", "demur-device")  #: everything, or a device alone

Commands = Mapping[str, tuple[str, str, str]]
"""By name: which module adds the command, what it is for, and the extra that it needs or ""."""


def run_command(commands: Commands, arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 is success, 2 bad usage, 1 anything else.

    Args:
        commands: all that there are.
        arguments: of the command line; this process's own when not given.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # its chatter on stderr is not ours
    _make_printable()
    wanted = next((word for word in given if not word.startswith("-")), "")
    try:
        with _terminable():
            code = _run(commands, given, wanted, _installed()[1])
            sys.stdout.flush()
            return code
    except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001  a bug becomes one line here
        if isinstance(error, BrokenPipeError) and _is_unread():
            return 1
        if "--debug" in given:
            import traceback

            traceback.print_exc()
        message, code = _explained(error, wanted, _install(commands, wanted))
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


def _run(commands: Commands, given: Sequence[str], wanted: str, number: str) -> int:
    parser = _Parser(
        prog="demur",
        description="Local differential privacy in which the accounting lives with the person.",
        epilog="Each command explains itself: demur COMMAND --help",
    )
    parser.add_argument("--version", action="version", version=f"demur {number}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    subparsers = parser.add_subparsers(
        title="commands", dest="command", required=True, metavar="COMMAND"
    )
    home = commands[wanted][0] if wanted in commands else None
    for name, (module, purpose, _) in commands.items():
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


def _installed() -> tuple[str, str]:
    """Which distribution this is, and its version."""
    for name in DISTRIBUTIONS[:-1]:
        with suppress(PackageNotFoundError):
            return name, version(name)
    return DISTRIBUTIONS[-1], version(DISTRIBUTIONS[-1])


def _install(commands: Commands, command: str) -> str:
    """How what a command needs is installed."""
    distribution, _ = _installed()
    extra = commands[command][2] if command in commands else ""
    return f"pip install '{distribution}[{extra}]'" if extra else f"pip install {distribution}"


def _explained(error: BaseException, command: str, install: str) -> tuple[str, int]:
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
