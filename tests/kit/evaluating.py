"""A process that evaluates as a person's device does: one thread at its start, then a device and rounds.

    python evaluating.py KIND BEHAVIOUR ...

It has a round for each behaviour of its source, and prints as JSON what became of them, and how many processes there
were below it once all reports were acknowledged, and once the evaluator was closed.
"""

import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np

from demur_client.evaluator.limits import EvaluationLimits
from demur_client.evaluator.spare import SpareEvaluator
from demur_client.evaluator.supervised import SupervisedEvaluator
from demur_client.sources.base import FunctionSource
from demur_proto.queries import Linear
from demur_proto.round import round_of

if TYPE_CHECKING:
    from demur_client.device import Device

SLOT_MS = 250
LONG_SLOT_MS = 1000  #: for evaluations that must be done in time, on a busy machine too
VALUE = 0.5


def _quick() -> float:
    return VALUE


def _burns() -> float:
    while True:
        pass


def _burns_in_numpy() -> float:
    objects = np.arange(1_500_000).astype(object)
    while True:
        objects.sum()


def _burns_in_sql() -> float:
    with sqlite3.connect(":memory:") as connection:
        connection.execute("CREATE TABLE t(x)")
        connection.executemany("INSERT INTO t VALUES (?)", ((i,) for i in range(10_000)))
        return float(connection.execute("SELECT sum(a.x*b.x*c.x) FROM t a, t b, t c").fetchone()[0])


def _is_killed() -> float:
    os.kill(os.getpid(), signal.SIGKILL)
    return VALUE


def _exits() -> float:
    os._exit(0)


def _leaves() -> float:
    sys.exit(0)


def _crashes() -> float:
    os.kill(os.getpid(), signal.SIGSEGV)
    return VALUE


def _eats_memory() -> float:
    eaten = []
    while True:
        eaten.append(np.ones(1 << 20))


def _lacks_memory() -> float:
    raise MemoryError


def _recurses(depth: int = 0) -> float:
    sys.setrecursionlimit(1 << 30)
    return _recurses(depth + 1) + 1


def _prints() -> float:
    while True:
        print("x" * 10_000)
        sys.stderr.write("y" * 10_000)
        os.write(1, b"z" * 10_000)


def _reads() -> float:
    return float(sys.stdin.readline() or VALUE)


def _hangs() -> float:
    while True:
        time.sleep(1000)


def _ignores_signals() -> float:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    return _burns()


def _forks() -> float:
    if os.fork() == 0:
        os.setsid()
        os.fork()
        _burns()
    return _hangs()


def _forks_and_answers() -> float:
    if os.fork() == 0:
        os.setsid()
        _burns()
    return VALUE


def _forks_many() -> float:
    for _ in range(6):
        os.fork()
    return _burns()


def _ends_its_parents() -> float:
    os.kill(os.getppid(), signal.SIGKILL)
    return _hangs()


def _leaves_a_child_and_ends_its_parent() -> float:
    if os.fork() == 0:
        os.setsid()
        _burns()
    os.kill(os.getppid(), signal.SIGKILL)
    return _hangs()


def _shortens_every_file() -> float:
    for handle in range(3, 64):
        with suppress(OSError):
            os.ftruncate(handle, 0)
    return VALUE


def _stops_its_parents() -> float:
    os.kill(os.getppid(), signal.SIGUSR1)
    return VALUE


def _fills_a_disk() -> float:
    with Path("filled").open("wb") as file:
        while True:
            file.write(b"0" * 100_000)


def _quick_without_a_zygote() -> float:
    return VALUE


def _is_too_long() -> Any:
    return np.ones(100)


def _is_text() -> Any:
    return "many"


def _changes_a_variable() -> float:
    BEHAVIOURS["quick"] = _hangs
    return VALUE


BEHAVIOURS: dict[str, Callable[[], Any]] = {
    function.__name__.strip("_"): function
    for function in (
        _quick, _burns, _burns_in_numpy, _burns_in_sql, _is_killed, _exits, _leaves, _crashes,
        _eats_memory, _lacks_memory, _recurses, _prints, _reads, _hangs, _ignores_signals, _forks,
        _forks_and_answers, _forks_many, _ends_its_parents, _leaves_a_child_and_ends_its_parent, _shortens_every_file,
        _stops_its_parents, _fills_a_disk,
        _quick_without_a_zygote, _is_too_long, _is_text, _changes_a_variable,
    )
}  # fmt: skip
NAMES = list(BEHAVIOURS)
ANSWERED = {
    "quick", "reads", "forks_and_answers", "stops_its_parents", "changes_a_variable",
    "shortens_every_file",
}  # fmt: skip
"""Those whose value is there in time."""


def value(asked: Mapping[str, float]) -> Any:
    """What the behaviour of this number comes to."""
    return BEHAVIOURS[NAMES[int(asked["behaviour"])]]()


Tried = SupervisedEvaluator | SpareEvaluator


async def evaluate(evaluator: Tried, behaviours: list[str]) -> list[dict[str, Any]]:
    """One round for each behaviour."""
    from demur_client.device import Device
    from demur_client.slots import report_in_slot
    from demur_proto.queries import Feature
    from demur_proto.study import View, design_study
    from demur_proto.wire.definition import define_round, define_study

    study = define_study(
        design_study(
            name="evaluating",
            epsilon=1.0,
            delta=1e-6,
            answers=1000,
            minimum_cohort=1,
            view=View.LOCAL,
        )
    )
    device, found = Device(study, evaluator.source), []
    if behaviours == ["abandoned"]:
        return [{"processes": await abandon(evaluator, device, 10)}]
    for number, behaviour in enumerate(behaviours, start=1):
        feature = Feature(name="value", parameters={"behaviour": float(NAMES.index(behaviour))})
        asked = define_round(round_of(study, Linear([feature]), number=number))
        device.rehearsed_s(asked)
        await evaluator.prepare(None)
        slot_ms = LONG_SLOT_MS if behaviour in ANSWERED else SLOT_MS
        began = time.monotonic()
        if behaviour == "quick_without_a_zygote":
            end_zygote()
        report, evaluation = await report_in_slot(device, asked, evaluator, None, slot_ms=slot_ms)
        late_s = time.monotonic() - began - slot_ms / 1000
        evaluation.acknowledged()
        [*_, row] = device.ledger.history(study.hash)
        found.append(
            {
                "behaviour": behaviour,
                "answered": row.charge > 0,
                "bytes": sum(map(len, report.messages)),
                "note": row.note,
                "late_s": late_s,
            }
        )
    return found


def descendants() -> list[int]:
    """All processes below this one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat[1])
    found, last = [], [os.getpid()]
    while last:
        last = [process for process, parent in parents.items() if parent in last]
        found += last
    return found


async def abandon(evaluator: Tried, device: "Device", rounds: int) -> int:
    """How many processes there are after visits that ended while the same round was evaluated."""
    from demur_client.slots import report_in_slot
    from demur_proto.queries import Feature
    from demur_proto.wire.definition import define_round

    feature = Feature(name="value", parameters={"behaviour": float(NAMES.index("hangs"))})
    asked = define_round(round_of(device.study, Linear([feature]), number=100_000))
    for _ in range(rounds):
        with anyio.move_on_after(0.05):
            await report_in_slot(device, asked, evaluator, None, slot_ms=3_600_000)
    await anyio.sleep(1.0)
    return len(descendants())


def end_zygote() -> None:
    """Kill the process that all evaluations are forked from, as a machine without memory might."""
    [_, zygote, *_] = descendants()
    os.kill(zygote, signal.SIGKILL)


def main() -> None:
    kind, *behaviours = sys.argv[1:]
    limits = EvaluationLimits(memory_mib=128, processor_s=2)
    source = FunctionSource({"value": value})
    made: Tried = (
        SupervisedEvaluator(source, limits=limits)
        if kind == "supervised"
        else SpareEvaluator(source, limits=limits)
    )
    with made as evaluator:
        found = anyio.run(evaluate, evaluator, behaviours or NAMES)
        deadline = time.monotonic() + 5.0  # supervisors end after the acknowledgement
        while len(descendants()) > 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        kept = len(descendants())
    print(json.dumps({"found": found, "kept": kept, "left": len(descendants())}))


if __name__ == "__main__":
    main()
