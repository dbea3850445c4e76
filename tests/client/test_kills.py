"""Whole devices, killed between a round and its acknowledgement: each round is answered once."""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

import anyio
import pytest
from anyio.streams.text import TextReceiveStream

import kill_warden
from collector_kit import gaussian_for
from demur_client.agent import COUNTED
from demur_client.ledger.file import LedgerFile
from demur_client.ledger.kept import STOPPED
from demur_proto.queries import Feature, Linear
from demur_proto.round import Round, round_of
from demur_proto.study import View, design_study
from demur_proto.wire.definition import Defined, define_round, define_study, report_id
from demur_server.collector.collector import Collector
from demur_server.grpc.serving import served
from demur_server.store.base import Batch
from demur_server.store.memory import MemoryStore
from kill_warden import KINDS, Plan, value_of
from ledger_kit import quick_folder

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(sys.platform != "linux", reason="devices are killed as on Linux"),
]

SLOT_MS = 200
UNIT = 128  #: a value of 1 in grid steps
ANSWERS = 2  #: that a budget holds
ROUND_S = 60.0  #: in which all devices have answered one, killed or not
MARK = "DEMUR_KILLED_DEVICES"  #: in the environment of every process of a device

STUDY = define_study(
    design_study(
        name="kills",
        epsilon=1.0,
        delta=1e-6,
        answers=ANSWERS,
        minimum_cohort=1,
        view=View.LOCAL,
        grid_exponent=-7,
        horizon=10_000,
    )
)


@final
class Recorder(MemoryStore):
    """A store that also remembers what reports it was given, each time."""

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[bytes, dict[bytes, list[bytes]]] = defaultdict(lambda: defaultdict(list))

    async def admit(self, round_hash: bytes, batch: Batch) -> list[int]:
        for which, words in zip(batch.report_ids, batch.words, strict=True):
            self.given[round_hash][which].append(words.tobytes())
        return await super().admit(round_hash, batch)


@dataclass(kw_only=True)
class Told:
    """What the warden has told."""

    answered: dict[int, dict[int, list[int]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    """Dispositions, by round and device."""
    last: dict[int, tuple[str, int]] = field(default_factory=dict)  #: by device
    ends: list[dict[str, Any]] = field(default_factory=list)  #: of devices' processes
    left_behind: list[dict[str, Any]] = field(default_factory=list)
    """Processes that outlived their device."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What there is to look at, in the end."""

    folder: Path
    kinds: Sequence[str]
    rounds: list[Defined[Round]]
    store: Recorder
    told: Told


def asking(number: int) -> Defined[Round]:
    feature = Feature(name="x", parameters={"round": float(number)})
    asked = round_of(STUDY, Linear([feature], on_grid=True), number=number, answer_after_ms=SLOT_MS)
    return define_round(asked)


@asynccontextmanager
async def a_warden(plan: Plan, told: Told) -> AsyncIterator[None]:
    """Devices, started, killed and started again for as long as the block lasts."""
    kit = Path(kill_warden.__file__).parent
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(kit), *sys.path])),
        MARK: plan.folder,
        "OPENBLAS_NUM_THREADS": "1",
    }

    async def listen() -> None:
        assert process.stdout is not None
        rest = ""
        async for text in TextReceiveStream(process.stdout):
            *lines, rest = (rest + text).split("\n")
            for line in map(json.loads, lines):
                told.last[line["device"]] = line["what"], line.get("number")
                if line["what"] == "answered":
                    dispositions = told.answered[line["number"]][line["device"]]
                    dispositions.append(int(line["more"][0]))
                elif line["what"] == "ended":
                    told.ends.append(line)
                elif line["what"] == "left behind":
                    told.left_behind.append(line)

    command = [sys.executable, "-m", "kill_warden", json.dumps(asdict(plan))]
    async with await anyio.open_process(command, env=environment, stderr=None) as process:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            yield
            assert process.stdin is not None
            await process.stdin.aclose()
        assert await process.wait() == 0


async def kill(folder: Path, kinds: Sequence[str], *, kills: int, seed: int) -> Seen:
    """Ask devices for one round after the other until so many processes were killed."""
    store, told, rounds = Recorder(), Told(), list[Defined[Round]]()
    collector = Collector(store, open_access=True)
    await collector.create_study(STUDY.definition)
    async with served(collector, drain_s=0.1) as ports:
        plan = Plan(
            target=f"127.0.0.1:{ports.collector}",
            folder=str(folder),
            kinds=tuple(kinds),
            slot_ms=SLOT_MS,
            seed=seed,
            steps=gaussian_for(STUDY.value, asking(1).value).noise_steps,
        )
        async with a_warden(plan, told):
            while len(told.ends) < kills:
                number = len(rounds) + 1
                rounds.append(await collector.open_round(asking(number).definition))
                with anyio.move_on_after(ROUND_S):
                    while len(told.answered[number]) < len(kinds):  # noqa: ASYNC110
                        await anyio.sleep(0.005)
                silent = {
                    device: (kind, told.last.get(device))
                    for device, kind in enumerate(kinds)
                    if device not in told.answered[number]
                }
                assert not silent, f"round {number}: {silent} after {told.ends[-len(kinds) :]}"
    return Seen(folder=folder, kinds=kinds, rounds=rounds, store=store, told=told)


def check(seen: Seen) -> Counter[str]:
    """Every promise; and how often what they are about has happened."""
    ends = Counter((end["device"], end["number"]) for end in seen.told.ends)
    assert {end["how"] for end in seen.told.ends} <= {"time", "step", "itself"}
    assert {end["device"] for end in seen.told.ends if end["how"] == "itself"} <= {
        device for device, kind in enumerate(seen.kinds) if kind == "deadly"
    }
    assert max(ends.values()) == 1  # or one restart was not enough
    assert not seen.told.left_behind
    assert not marked(seen.folder)
    happened = Counter(end["how"] for end in seen.told.ends)
    happened.update(end["phase"] for end in seen.told.ends)
    ids = []
    for device in range(len(seen.kinds)):
        folder = seen.folder / str(device)
        with LedgerFile(folder / "ledger") as ledger:
            assert ledger.trusted
            ids.append({asked.hash: report_id(ledger.secret, asked.hash) for asked in seen.rounds})
            happened.update(check_ledger(seen, device, ledger, ends))
        told = folder / "evaluated"
        evaluated = set(told.read_text().splitlines()) if told.exists() else set()
        happened["evaluated"] += len(evaluated)
        lives = Counter(line.split()[0] for line in evaluated)
        assert set(lives.values()) <= {1}  # no round was evaluated by two processes
    for asked in seen.rounds:
        given = seen.store.given[asked.hash]
        assert given.keys() == {each[asked.hash] for each in ids}  # one report of each device
        assert all(len(set(times)) == 1 for times in given.values())  # with the same bytes
        happened["sent again"] += sum(len(times) > 1 for times in given.values())
        dispositions = seen.told.answered[asked.value.number]
        assert {each for told in dispositions.values() for each in told} <= COUNTED
    return happened


def check_ledger(
    seen: Seen, device: int, ledger: LedgerFile, ends: Counter[tuple[int, int]]
) -> Counter[str]:
    """What is paid for is what was given, to the unit; and nothing for what was under way at an end."""
    happened: Counter[str] = Counter()
    rows = ledger.history(STUDY.hash)
    assert [row.number for row in rows] == [asked.value.number for asked in seen.rounds]
    left = STUDY.value.budget_units
    for row, asked in zip(rows, seen.rounds, strict=True):
        cost = asked.value.weight * (UNIT * value_of(device, row.number)) ** 2
        if row.note:  # stopped, or late
            assert (row.charge, row.given, row.covered) == (0, True, True)
        else:
            assert (row.charge, row.given) == ((cost, True) if cost <= left else (0, False))
        if row.note == STOPPED:
            assert ends[device, row.number] == 1
            happened["covered for nothing"] += 1
        elif ends[device, row.number]:
            happened["sealed before"] += 1
        left -= row.charge
        happened["refused"] += not row.given
    assert left == ledger.remaining_units(STUDY.hash) >= 0
    return happened


def marked(folder: Path) -> list[int]:
    """The processes that are left of devices."""
    mark, found = f"{MARK}={folder}".encode(), []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            environment = Path("/proc", process, "environ").read_bytes()
        except OSError:  # it has ended
            continue
        if mark in environment.split(b"\0"):
            found.append(int(process))
    return found


async def test_devices_killed_at_random_answer_every_round_once_for_what_it_costs() -> None:
    with tempfile.TemporaryDirectory(dir=quick_folder(Path(tempfile.gettempdir()))) as folder:
        happened = check(await kill(Path(folder), KINDS * 2, kills=25, seed=1))

    assert {
        "time",
        "step",
        "covered for nothing",
        "sealed before",
        "sent again",
    } <= set(+happened)


GONE = """
import os, signal, time
from demur_client.evaluator import zygote
from demur_client.evaluator.board import Board

signal.pthread_sigmask(signal.SIG_BLOCK, [zygote._PARENT_GONE])
board, _ = Board.made(length=1)
if not os.fork():
    parent = os.getpid()
    if not os.fork():
        while os.getppid() == parent:
            time.sleep(0.001)
        end = time.monotonic() + 60
        evaluation = os.fork()
        if not evaluation:
            time.sleep(60)
        zygote._supervise(evaluation, board, end, end, end, zygote=parent)
    os._exit(0)
"""


def test_what_evaluates_for_a_device_that_was_killed_before_it_began_ends_at_once() -> None:
    # Whoever still has the pipe of the output holds up the end of this.
    done = subprocess.run(
        [sys.executable, "-c", GONE], capture_output=True, timeout=30, check=False
    )

    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.long
async def test_kills_of_devices_five_hundred_times() -> None:
    with tempfile.TemporaryDirectory(dir=quick_folder(Path(tempfile.gettempdir()))) as folder:
        happened = check(await kill(Path(folder), KINDS * 2, kills=500, seed=2))

    print(dict(happened))
    assert happened["time"] >= 250
    for what in (
        "evaluated",
        "received",
        "sent",
        "answered",
        "covered for nothing",
        "sealed before",
        "refused",
    ):
        assert happened[what] >= 5, what
