"""The device that is tried out: a process that is started, killed and started again."""

import json
import math
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.abc

from demur_conformance.questions import SLOT_MS
from demur_proto.errors import ParameterError
from demur_proto.transport.credentials import write_token

PROCESSES = Path("/proc")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

Data = Mapping[str, Sequence[float]]
Examples = tuple[Sequence[Sequence[float]], Sequence[int]]  #: inputs and labels, for models


def prepare(
    folder: Path,
    *,
    target: str,
    token: bytes,
    study_hash: bytes,
    data: Data | None,
    largest_budget: float,
    examples: Examples | None = None,
) -> dict[str, str]:
    """What a device is told, as its environment; its data are written down in the folder.

    `DEMUR_TARGET` is the collector, HOST:PORT without TLS; `DEMUR_TOKEN` enrols; `DEMUR_STUDY` is the hash of the
    study to take part in, in hexadecimal digits; `DEMUR_STATE` is a folder that outlives the
    process; `DEMUR_DATA` is a JSON file, an object with a list of numbers for each feature;
    `DEMUR_EXAMPLES` is one with the lists `inputs` and `labels`, there for gradients only;
    `DEMUR_LARGEST_BUDGET` and `DEMUR_SHORTEST_SLOT_MS` are the owner's policy: the largest budget μ of
    a study, and the shortest slot of a round, that they accept.

    Args:
        folder: of this device alone.
        target: where the collector listens.
        token: to enrol with, 32 bytes.
        study_hash: 32 bytes.
        data: by feature; None for a file that is not there.
        largest_budget: μ.
        examples: what models learn from; None for a file that is not there.
    """
    state, file, learnt = (folder / name for name in ("state", "data.json", "examples.json"))
    state.mkdir(parents=True, exist_ok=True)
    if data is not None:
        plain = {
            name: [each if math.isfinite(each) else str(each) for each in values]
            for name, values in data.items()
        }
        file.write_text(json.dumps(plain))
    if examples is not None:
        learnt.write_text(json.dumps(dict(zip(("inputs", "labels"), examples, strict=True))))
    return {
        "DEMUR_TARGET": target,
        "DEMUR_TOKEN": write_token(token),
        "DEMUR_STUDY": study_hash.hex(),
        "DEMUR_STATE": str(state),
        "DEMUR_DATA": str(file),
        "DEMUR_EXAMPLES": str(learnt),
        "DEMUR_LARGEST_BUDGET": repr(largest_budget),
        "DEMUR_SHORTEST_SLOT_MS": str(SLOT_MS),
    }


class Runner(ABC):
    """Whoever starts and ends the device."""

    @abstractmethod
    async def start(self) -> None:
        """Start it, unless it runs."""

    @abstractmethod
    async def kill(self) -> None:
        """End it as a loss of power would."""

    @abstractmethod
    async def terminate(self, patience_s: float) -> bool:
        """Ask it to end; whether it did in time."""

    @abstractmethod
    async def ended(self, patience_s: float) -> bool:
        """Wait for its end; whether it came."""

    @abstractmethod
    def relieve(self, most_bytes: int) -> None:
        """Do as a machine without memory: where the device holds more, kill its largest process."""

    @abstractmethod
    def exit_code(self) -> int | None:
        """Of the process that was started last; None while it runs, or where nobody knows."""


class Process(Runner):
    """Starts the device by a command.

    Args:
        command: its words.
        environment: what it is told, in addition to this process's own.
        log: where what it prints goes.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._command = list(command)
        self._environment = {**os.environ, **environment}
        self._log = log
        self._process: anyio.abc.Process | None = None

    async def start(self) -> None:
        """Start it, in a process group of its own: what it starts ends with it.

        Raises:
            ParameterError: there is no such command.
        """
        if self._process is not None and self._process.returncode is None:
            return
        try:
            with self._log.open("ab") as log:
                self._process = await anyio.open_process(
                    self._command,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            raise ParameterError(
                "device-command", self._command[0], f"one that can be run ({error.strerror})"
            ) from None

    async def kill(self) -> None:
        """Kill it by signal 9, and whatever it started."""
        self._signal(signal.SIGKILL)
        await self.ended(10)

    async def terminate(self, patience_s: float) -> bool:
        """Ask by SIGTERM; if that does not help, kill."""
        if self._process is None or self._process.returncode is not None:
            return True
        self._process.terminate()
        if await self.ended(patience_s):
            self._signal(signal.SIGKILL)  # what it started and left behind
            return True
        await self.kill()
        return False

    def relieve(self, most_bytes: int) -> None:
        """Look at all processes of the device's session; Linux only."""
        if self._process is None:
            return
        held = _resident(session=self._process.pid)
        if sum(held.values()) > most_bytes:
            with suppress(ProcessLookupError):
                os.kill(max(held, key=lambda pid: held[pid]), signal.SIGKILL)

    def exit_code(self) -> int | None:
        """As the operating system says."""
        return None if self._process is None else self._process.returncode

    async def ended(self, patience_s: float) -> bool:
        """Wait for its end."""
        with anyio.move_on_after(patience_s):
            if self._process is not None:
                await self._process.wait()
            return True
        return False

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


class Operator(Runner):
    """Asks a person, for a device that no command here can start."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._running = False

    async def start(self) -> None:
        """Ask for the device, with everything that it has to be told."""
        if not self._running:
            told = "\n".join(f"  {name}={value}" for name, value in self._environment.items())
            await _ask(f"start the device with\n{told}")
            self._running = True

    async def kill(self) -> None:
        """Ask for a sudden end."""
        await _ask("end the device suddenly, by kill -9 or by its power")
        self._running = False

    async def terminate(self, patience_s: float) -> bool:
        """Ask for an orderly end."""
        await _ask("end the device as it should be ended")
        self._running = False
        return True

    def relieve(self, most_bytes: int) -> None:
        """Its machine does."""

    async def ended(self, patience_s: float) -> bool:
        """Nobody knows."""
        await anyio.sleep(patience_s)
        return False

    def exit_code(self) -> int | None:
        """Nobody knows."""
        return None


def _resident(*, session: int) -> dict[int, int]:
    """Bytes in memory of each process of a session, by its number.

    Source: proc(5), `/proc/[pid]/stat`: behind the name in parentheses come the state, the parent, the
    group and the session; `rss`, in pages, is the 22nd.
    """
    held = {}
    for entry in PROCESSES.glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == session:
                held[int(entry.parent.name)] = int(fields[21]) * PAGE_BYTES
    return held


async def _ask(what: str) -> None:
    print(f"\nPlease {what}\nthen press Enter.", file=sys.stderr, flush=True)
    await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
