"""A device's evaluator in a process of its own: how fast it is, how surely it ends, what it weighs.

    python benchmarks/evaluator_process.py ROUNDS

It prints one JSON object. Nothing is imported that a device does not have, so that its memory counts.
"""

import json
import math
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

import anyio

from demur_client.device import Device
from demur_client.evaluator.base import Slot
from demur_client.evaluator.supervised import SupervisedEvaluator
from demur_client.slots import report_in_slot
from demur_client.sources.base import FunctionSource
from demur_proto.queries import Feature, Linear
from demur_proto.round import Round, round_of
from demur_proto.study import View, design_study
from demur_proto.wire.definition import Defined, define_round, define_study

SLOT_MS = 100
LOOK_S = 0.0001  #: between looks
AFTER_S = 0.03  #: between rounds
SPINNER = "while True: pass"

STUDY = define_study(
    design_study(
        name="bench", epsilon=1.0, delta=1e-6, answers=100_000, minimum_cohort=1, view=View.LOCAL
    )
)


def question(number: int, name: str) -> Defined[Round]:
    """A round of one coordinate."""
    return define_round(round_of(STUDY, Linear([Feature(name=name)]), number=number))


def burning(path: Path) -> NoReturn:
    """A source that never ends, and says which process it is in."""
    new = path.with_suffix(".new")
    new.write_text(str(os.getpid()), encoding="ascii")
    new.replace(path)
    while True:
        pass


def until(when: float) -> None:
    """Sleep to a time of `time.monotonic`."""
    time.sleep(max(0.0, when - time.monotonic()))


def to_value(evaluator: SupervisedEvaluator, device: Device, rounds: int) -> list[float]:
    """From a round to its value, where that takes no time to compute; seconds."""
    times = []
    for number in range(rounds):
        asked = question(number + 1, "quick")
        slot = Slot(received_s=time.monotonic(), length_s=SLOT_MS / 1000)
        evaluation = evaluator.begin(device, asked, None, slot=slot)
        found = False
        while not found and time.monotonic() < slot.ended_s:
            time.sleep(LOOK_S)
            found = evaluation.taken()[0] is not None
        times.append(time.monotonic() - slot.received_s if found else math.inf)
        until(slot.left_s)
        evaluation.acknowledged()
        time.sleep(AFTER_S)
    return times


def bare_forks(rounds: int) -> list[float]:
    """The same, of a bare fork of this process that writes one byte; seconds."""
    times = []
    for _ in range(rounds):
        shared = mmap.mmap(-1, mmap.PAGESIZE)
        began = time.monotonic()
        child = os.fork()
        if not child:
            shared[0] = 1
            os._exit(0)
        while not shared[0]:
            time.sleep(LOOK_S)
        times.append(time.monotonic() - began)
        os.waitpid(child, 0)
        shared.close()
    return times


def to_the_end(
    evaluator: SupervisedEvaluator, device: Device, path: Path, rounds: int
) -> list[float]:
    """From the time at which an evaluation is to end until its process is gone; seconds.

    Once it burns, so does something else on every processor, and not at its low priority.
    """
    times = []
    load = [subprocess.Popen([sys.executable, "-c", SPINNER]) for _ in os.sched_getaffinity(0)]
    try:
        for number in range(rounds):
            path.unlink(missing_ok=True)
            tell(load, signal.SIGSTOP)
            slot = Slot(received_s=time.monotonic(), length_s=SLOT_MS / 1000)
            evaluation = evaluator.begin(device, question(number + 1, "burning"), None, slot=slot)
            while not path.exists():
                time.sleep(LOOK_S)
            tell(load, signal.SIGCONT)
            process = Path("/proc", path.read_text(encoding="ascii"))
            until(slot.ended_s)
            while process.exists():
                time.sleep(LOOK_S)
            times.append(time.monotonic() - slot.ended_s)
            until(slot.left_s)
            evaluation.acknowledged()
            time.sleep(AFTER_S)
    finally:
        for each in load:
            each.kill()
            each.wait()
    return times


def tell(processes: list["subprocess.Popen[bytes]"], number: signal.Signals) -> None:
    """Send a signal to each."""
    for each in processes:
        each.send_signal(number)


async def lateness(evaluator: SupervisedEvaluator, device: Device, rounds: int) -> list[float]:
    """How long after its slot a report is ready to leave, while its source burns; seconds."""
    times = []
    for number in range(rounds):
        began = time.monotonic()
        asked = question(number + 1, "burning")
        _, evaluation = await report_in_slot(device, asked, evaluator, None, slot_ms=SLOT_MS)
        times.append(time.monotonic() - began - SLOT_MS / 1000)
        evaluation.acknowledged()
        await anyio.sleep(AFTER_S)
    return times


def proportional_mib() -> list[float]:
    """What each process below this one weighs: memory shared with others counts by its share (PSS).

    The keeper comes first, then the zygote.
    """
    found, waiting = [], [os.getpid()]
    while waiting:
        process = Path("/proc", str(waiting.pop()))
        for thread in process.glob("task/*/children"):
            for child in thread.read_text().split():
                waiting.append(int(child))
                for line in Path("/proc", child, "smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        found.append(int(line.split()[1]) / 1024)
    return found


def main(rounds: int) -> None:
    """Measure, and print."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "process"
        source = FunctionSource(
            {"quick": lambda asked: 1.0, "burning": lambda asked: burning(path)}
        )
        with SupervisedEvaluator(source) as evaluator:
            device = Device(STUDY, source)
            found: dict[str, object] = {
                "forks": bare_forks(rounds),
                "values": to_value(evaluator, device, rounds),
                "late": anyio.run(lateness, evaluator, Device(STUDY, source), rounds),
            }
            time.sleep(1)  # until nothing but the evaluator itself is left
            found["memory_mib"] = proportional_mib()
            found["ends"] = to_the_end(evaluator, device, path, rounds)
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))
