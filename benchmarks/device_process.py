"""A device in a process of its own: it answers one round and says what memory and processor time that took.

    python benchmarks/device_process.py HOST:PORT FOLDER

Without arguments it imports what a device depends on, and nothing of a device.
"""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import google.protobuf.message  # noqa: F401
import grpc.aio  # noqa: F401
import numpy as np  # noqa: F401

if TYPE_CHECKING:
    from demur_client.evaluator.opening import DeployedEvaluator


def peak_mib() -> float:
    """The most memory that was resident so far."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def value(asked: Mapping[str, float]) -> float:
    """The owner's only datum."""
    return 1.0


def answer(target: str, folder: Path) -> None:
    """One visit, one answer, from a ledger on the disk, with the evaluator of a person's device."""
    from demur_client.evaluator.opening import open_evaluator
    from demur_client.policy import OwnerPolicy
    from demur_client.sources.base import FunctionSource

    with open_evaluator(FunctionSource({"f": value}), OwnerPolicy()) as evaluator:
        anyio.run(visited, target, folder, evaluator)


async def visited(target: str, folder: Path, evaluator: "DeployedEvaluator") -> None:
    """The visit."""
    from demur_client.agent import fetch_study, visit
    from demur_client.connection import connected
    from demur_client.device import Device
    from demur_client.ledger.file import LedgerFile

    with LedgerFile(folder / "ledger") as ledger:
        async with connected(target) as channel:
            device = Device(await fetch_study(channel), evaluator.source, ledger=ledger)
            await visit(device, channel, evaluator=evaluator, last_round=1)


if __name__ == "__main__":
    if sys.argv[1:]:
        answer(sys.argv[1], Path(sys.argv[2]))
    print(peak_mib(), time.process_time())
