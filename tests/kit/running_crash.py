"""Devices that are killed in a running count of two segments, at a step named beforehand.

As a program it forks processes that answer its rounds and kill themselves at their first
step, their second, and so on (see `ledger_crash`); another process then goes on to the end.

    python -m running_crash FOLDER STRIDE
"""

import functools
import itertools
import os
import shutil
import sys
from pathlib import Path

import numpy as np

from counting_kit import NoNoise, a_study, chain_of
from demur_client.device import Device
from demur_client.ledger.base import Ledger
from demur_client.ledger.file import LedgerFile
from demur_client.sources.base import FunctionSource
from ledger_crash import Doom, fork, watch

STATES = (1, 2, 2, 0, 2, 1)  #: round by round; not all of the changes fit
STUDY = a_study(answers=5)
ROUNDS = chain_of(STUDY, (2, 4), bound=2)


def device_of(ledger: Ledger) -> Device:
    """Whoever answers: without noise, so that reports are what they tell."""
    return Device(STUDY, FunctionSource({}), NoNoise(), ledger=ledger)


def go_on(ledger: Ledger, *, unknown: int = 0) -> None:
    """Answer every round that was not answered yet; in the unknown one its data give no state."""
    device = device_of(ledger)
    for asked, state in zip(ROUNDS, STATES, strict=True):
        number = asked.value.number
        if number > ledger.reached(STUDY.hash):
            device.begin(asked)
            device.report(asked, None if number == unknown else np.array([[float(state)]]))


def live(folder: Path, doom: Doom) -> None:
    """Go on where it was left."""
    watch(doom)
    with LedgerFile(folder / "ledger") as ledger:
        go_on(ledger)


def main() -> None:
    """Kill a device at each of its steps, until it has no such step."""
    base, stride = Path(sys.argv[1]), int(sys.argv[2])
    for step in itertools.count(1, stride):
        folder = base / str(step)
        folder.mkdir()
        status = fork(functools.partial(live, folder, Doom(step)))
        if os.WIFEXITED(status):
            assert status == 0, status
            shutil.rmtree(folder)
            return
        if fork(functools.partial(live, folder, Doom(None))):
            sys.exit(f"step {step} could not be gone on from")


if __name__ == "__main__":
    main()
