"""What evaluates an owner's data, in a process of its own: `python owner_source.py DATA_FILE`.

It writes an empty line once it is ready, reads one line, a list of names, and writes one line, the list of
their numbers, or nothing. Then it waits for its end. Of three features the data tell it to do worse; docs/device-contract.md says so.
"""

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

SPARE_BYTES = 256 << 20  #: of memory, beyond what it has when it begins
PROCESSOR_S = 60


def burn() -> None:
    """Burn the processor without end."""
    while True:
        pass


def die() -> None:
    """End this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def eat() -> None:
    """Take memory without end."""
    eaten = []
    while True:
        eaten.append(bytes(b"x" * (1 << 20)))


WORSE = {"conformance: burn": burn, "conformance: die": die, "conformance: eat": eat}


def evaluate(data_file: Path, names: list[str]) -> list[Any]:
    """The numbers of these features, side by side.

    Raises:
        KeyError: there is no such feature.
    """
    data = json.loads(data_file.read_text())
    numbers: list[Any] = []
    for name in names:
        if name in data and name in WORSE:
            WORSE[name]()
        numbers += data[name]
    return numbers


def main() -> None:
    """Answer one question, within limits."""
    has_pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory = has_pages * resource.getpagesize() + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_S, PROCESSOR_S))
    print(flush=True)
    names = json.loads(sys.stdin.readline() or "[]")
    print(json.dumps(evaluate(Path(sys.argv[1]), names)), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
