"""What a device costs, beside the disk and what it depends on.

**Seals.** An answer is charged and sealed, and given out once it is on the disk. The floor is a bare
SQLite commit of as many bytes with the same settings, on the same disk: bursts of both take turns,
and the figures are medians of the shares in one turn, since other work on the machine slows both. Noting first that a
round is begun is one more commit, and a counter in a file one more sync; no bar is set to these.

**Size** of what an installation has more than its dependencies: files as they are, without the bytecode
that Python makes of them. `demur-device` holds `demur_proto` and `demur_client`, and `demur` everything,
shipped data too; the bar is for the first.

**Memory** is the most that was resident in a process that has answered one round, beside one that has
imported what a device depends on.

**First report**: from the start of a device's process until a collector on this machine has counted
its report.

**The evaluator**, in a process that has imported what a device does. A value is there as soon as it is seen,
from a source that knows it at once; the floor is a bare fork of the same process. An evaluation that burns
is gone once the system knows no such process any more, while other processes burn on every processor; it is counted from
the time at which the evaluation is to end. Reports are late by what they leave after their slot, while their
source burns. The memory of the evaluator's own processes between rounds is proportional (PSS): a page that it shares with the
device counts by half, since that is what the machine has less of. All times are with the machine as it is.
"""

import argparse
import io
import json
import operator
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import anyio
import numpy as np

from cases_floors import measure_disk
from demur_client.ledger.counter import FileCounter
from demur_client.ledger.file import LedgerFile
from demur_client.ledger.schema import DURABLE
from demur_client.ledger.scope import Purse
from demur_client.policy import OwnerPolicy
from demur_proto.queries import Feature, Linear
from demur_proto.round import Round, round_of
from demur_proto.study import View, design_study
from demur_proto.v1.report_pb2 import Report
from demur_proto.wire.definition import Defined, define_round, define_study, report_id
from demur_server.collector.collector import Collector
from demur_server.grpc.serving import served
from demur_server.store.memory import MemoryStore
from figures import OUT, Figure, publish

ROOMS = ("proto", "client", "server", "sim")
DEVICE_ROOMS = ("proto", "client")
BURST = 50  #: commits
SLOT_MS = 200  #: of the first report's round
SHARE_BAR = 0.7  #: of bare commits
SIZE_BAR_MB = 2.0
MEMORY_BAR_MIB = 60.0
FIRST_REPORT_BAR_S = 1.0
VALUE_BAR_MS = 5.0  #: median
GONE_BAR_MS = 40.0  #: largest
LATE_BAR_MS = 10.0  #: 99 %
EVALUATOR_BAR_MB = 30.0
PROCESS = Path(__file__).parent / "device_process.py"
EVALUATOR = Path(__file__).parent / "evaluator_process.py"

STUDY = define_study(
    design_study(
        name="bench",
        epsilon=1.0,
        delta=1e-6,
        answers=100,
        minimum_cohort=1,
        view=View.LOCAL,
        horizon=1_000_000,
    )
)


def question(number: int) -> Defined[Round]:
    """A round of one coordinate."""
    features = [Feature(name="f")]
    return define_round(
        round_of(
            STUDY, Linear(features, dimension=1, clip=1.0), number=number, answer_after_ms=SLOT_MS
        )
    )


class Sealing:
    """A ledger, and rounds enough."""

    def __init__(
        self,
        folder: Path,
        *,
        rounds: list[Defined[Round]],
        counted: bool = False,
        begins: bool = False,
    ) -> None:
        folder.mkdir()
        self._begins = begins
        self.path = folder / "ledger"
        counter = FileCounter(folder / "counter") if counted else None
        # With the cap over all studies together that every shipped device has.
        caps = [OwnerPolicy().lifetime_cap]
        self._ledger = LedgerFile(self.path, counter=counter, caps=caps)
        self._ledger.agree(STUDY)
        # What an answer takes to make, its noise and its bytes, is no part of a seal.
        self._answers = iter([(asked, self._report(asked)) for asked in rounds])

    def _report(self, asked: Defined[Round]) -> Report:
        name = report_id(self._ledger.secret, asked.hash)
        return Report(round_hash=asked.hash, report_id=name, words=b"word")

    def __call__(self) -> None:
        """Answer the next."""
        asked, report = next(self._answers)
        if self._begins:
            self._ledger.begin(asked)

        def make(purse: Purse) -> Report:
            purse.try_spend(1, weight=asked.value.weight)
            return report

        self._ledger.seal(asked, make)

    def row_bytes(self) -> int:
        """What one answer adds to the file."""
        reader = sqlite3.connect(self.path)
        columns = ("kind", "salt", "body", "cover", "link", "sealed")
        (size,) = reader.execute(
            f"SELECT {' + '.join(f'length({name})' for name in columns)} FROM changes "
            "ORDER BY number DESC"
        ).fetchone()
        reader.close()
        return int(size)


def bare_commits(path: Path, size: int) -> Callable[[], None]:
    """Commits of a row of so many bytes, and nothing around them."""
    connection = sqlite3.connect(path, isolation_level=None)
    for setting in DURABLE:
        connection.execute(f"PRAGMA {setting}")
    connection.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, content BLOB)")

    content = os.urandom(size)

    def commit() -> None:
        connection.execute("INSERT INTO rows (content) VALUES (?)", (content,))

    return commit


def measure_seals(folder: Path, *, bursts: int) -> list[Figure]:
    """Bursts of each in turns."""
    rounds = [question(number) for number in range(1, bursts * BURST + 2)]
    plain = Sealing(folder / "plain", rounds=rounds)
    begun = Sealing(folder / "begun", begins=True, rounds=rounds)
    counted = Sealing(folder / "counted", counted=True, rounds=rounds)
    plain()
    works: dict[str, Callable[[], None]] = {
        "seal": plain,
        "begin and seal": begun,
        "seal, with a counter in a file": counted,
        "bare": bare_commits(folder / "bare", plain.row_bytes()),
    }
    rates: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(bursts):
        for name, work in works.items():
            began = time.perf_counter()
            for _ in range(BURST):
                work()
            rates[name].append(BURST / (time.perf_counter() - began))
    bare = rates.pop("bare")
    floor = statistics.median(bare)
    bars = {"seal": SHARE_BAR * floor}
    return [
        Figure(
            name=name,
            value=floor * statistics.median(map(operator.truediv, rate, bare)),
            unit="answers/s",
            better="higher",
            bar=bars.get(name),
            floor=floor,
        )
        for name, rate in rates.items()
    ]


def measure_size() -> tuple[list[Figure], list[str]]:
    """Files of the four packages, and the largest of them."""
    root = Path(__file__).resolve().parent.parent
    files = {
        path.relative_to(root / room).as_posix(): path
        for room in ROOMS
        for path in (root / room / f"demur_{room}").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, path in files.items():
            wheel.write(path, name)
    sizes = {name: path.stat().st_size / 1e6 for name, path in files.items()}

    def total(rooms: tuple[str, ...]) -> float:
        wanted = tuple(f"demur_{room}/" for room in rooms)
        return sum(size for name, size in sizes.items() if name.startswith(wanted))

    values = {
        "demur-device, installed": (total(DEVICE_ROOMS), SIZE_BAR_MB),
        "demur, installed": (total(ROOMS), None),
        "demur, wheel": (len(packed.getvalue()) / 1e6, None),
    }
    figures = [
        Figure(name=name, value=value, unit="MB", better="lower", bar=bar)
        for name, (value, bar) in values.items()
    ]
    largest = sorted(sizes, key=lambda name: -sizes[name])[:4]
    return figures, [f"{name}: {sizes[name]:.2f} MB" for name in largest]


async def measure_process(folder: Path, *, runs: int) -> list[Figure]:
    """Processes that answer one round, one after the other, each of a new person."""
    bare, _ = run_process()
    seconds, peaks, worked = [], [], []
    for number in range(runs):
        collector = Collector(MemoryStore(), open_access=True)
        await collector.create_study(STUDY.definition)
        asked = await collector.open_round(question(1).definition)
        home = folder / f"device-{number}"
        home.mkdir()
        async with served(collector, drain_s=0.1) as ports, anyio.create_task_group() as tasks:
            began = time.perf_counter()

            async def run(target: str = f"127.0.0.1:{ports.collector}", home: Path = home) -> None:
                peak, work = await anyio.to_thread.run_sync(run_process, target, str(home))
                peaks.append(peak)
                worked.append(work)

            tasks.start_soon(run)
            await collector.close_round(asked.hash, after_reports=1)
            seconds.append(time.perf_counter() - began)
    return [
        Figure(
            name="memory above the imports",
            value=statistics.median(peaks) - bare,
            unit="MiB",
            better="lower",
            bar=MEMORY_BAR_MIB,
        ),
        Figure(name="memory of the imports", value=bare, unit="MiB", better="lower"),
        Figure(
            name="first report",
            value=statistics.median(seconds),
            unit="s after start",
            better="lower",
            bar=FIRST_REPORT_BAR_S,
        ),
        Figure(
            name="processor time of all that",
            value=statistics.median(worked),
            unit="s",
            better="lower",
        ),
    ]


def run_process(*arguments: str) -> tuple[float, float]:
    """One device, to its end: MiB, and seconds of a processor."""
    command = [sys.executable, str(PROCESS), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    peak, worked = map(float, done.stdout.split())
    return peak, worked


def measure_evaluator(rounds: int) -> list[Figure]:
    """How fast it is, how surely it ends, what it weighs."""
    command = [sys.executable, str(EVALUATOR), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    found = json.loads(done.stdout)
    forks, values, late, ends = (
        1000 * np.array(found[name]) for name in ("forks", "values", "late", "ends")
    )
    figures = [
        ("round to value, median", np.median(values), VALUE_BAR_MS, np.median(forks)),
        ("round to value, 99 %", np.quantile(values, 0.99), None, np.quantile(forks, 0.99)),
        ("its end to its process gone, median", np.median(ends), None, None),
        ("its end to its process gone, largest", ends.max(), GONE_BAR_MS, None),
        ("report after its slot, median", np.median(late), None, None),
        ("report after its slot, 99 %", np.quantile(late, 0.99), LATE_BAR_MS, None),
    ]
    return [
        *(
            Figure(
                name=name,
                value=float(value),
                unit="ms",
                better="lower",
                bar=bar,
                floor=None if floor is None else float(floor),
            )
            for name, value, bar, floor in figures
        ),
        *(
            Figure(
                name=name,
                value=mib * (1 << 20) / 1e6,
                unit="MB",
                better="lower",
                bar=bar,
            )
            for name, mib, bar in (
                ("memory of the zygote, PSS", found["memory_mib"][1], EVALUATOR_BAR_MB),
                ("memory of its keeper, PSS", found["memory_mib"][0], None),
            )
        ),
    ]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="what a device costs")
    parser.add_argument("--folder", type=Path, default=OUT, help="on the disk to be measured")
    parser.add_argument("--quick", action="store_true", help="a few bursts: no figure counts")
    options = parser.parse_args()
    bursts, runs, rounds = (3, 1, 10) if options.quick else (31, 7, 200)
    options.folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as kept:
        folder = Path(kept)
        disk = measure_disk(folder, writes=200)
        figures = measure_seals(folder, bursts=bursts)
        sizes, largest = measure_size()
        figures += sizes + anyio.run(lambda: measure_process(folder, runs=runs))
        if sys.platform == "linux":
            figures += measure_evaluator(rounds)
    publish("device", figures)
    print(disk.verdict)
    print("largest files:", "; ".join(largest))


if __name__ == "__main__":
    main()
