"""A device in a process of its own: it answers one round and says what memory and processor time that took.

    python benchmarks/device_process.py HOST:PORT FOLDER

Without arguments it imports what a device depends on, and nothing of a device.
"""

import sys
import time
from pathlib import Path

import anyio
import google.protobuf.message  # noqa: F401
import grpc.aio  # noqa: F401
import numpy as np


def peak_mib() -> float:
    """The most memory that was resident so far."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return float("nan")


async def answer(target: str, folder: Path) -> None:
    """One visit, one answer, from a ledger on the disk."""
    from demur_client.agent import fetch_study, visit
    from demur_client.connection import connected
    from demur_client.device import Device
    from demur_client.ledger.file import LedgerFile
    from demur_client.sources import FunctionSource

    source = FunctionSource({"f": lambda asked: np.array([1.0])})
    with LedgerFile(folder / "ledger") as ledger:
        async with connected(target) as channel:
            device = Device(await fetch_study(channel), source, ledger=ledger)
            await visit(device, channel, last_round=1)


if __name__ == "__main__":
    if sys.argv[1:]:
        anyio.run(answer, sys.argv[1], Path(sys.argv[2]))
    print(peak_mib(), time.process_time())
