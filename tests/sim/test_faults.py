"""Whatever stops in the middle: one clear line, no orphan, nothing that looks like a result.

Real runs in processes of their own. A mark in their environment finds whatever is left of them.
"""

import asyncio
import math
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import grpc
import numpy as np
import pytest

from demur_client.connection import connected
from demur_proto.errors import ConnectionLost
from demur_proto.queries import Feature, Linear
from demur_proto.study import design_study
from demur_proto.v1 import collector_pb2, collector_pb2_grpc, report_pb2
from demur_proto.wire.definition import PROTOCOL_VERSION, define_study
from demur_proto.wire.words import Payload
from demur_server.analyst import Analyst
from demur_server.collector.collector import Collector
from demur_server.collector.intake import Intake
from demur_server.collector.open_rounds import LiveRound
from demur_server.grpc.serving import served
from demur_server.store.base import Store
from demur_server.store.memory import MemoryStore
from demur_sim.engine.children import Child
from demur_sim.engine.cohort import Cohort
from demur_sim.engine.worker import Answered, Work, work
from demur_sim.people.populations import ArrayPopulation
from demur_sim.people.presence import BLOCK
from demur_sim.scenario import Refusal

DEADLINE_S = 30.0
GONE_S = 5.0  #: how long whatever was started may take to be gone
PROC = Path("/proc")

needs_proc = pytest.mark.skipif(
    not (PROC / "self" / "environ").exists(), reason="finds processes in /proc"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A `demur` of its own, and what it started."""

    process: "subprocess.Popen[str]"
    mark: str  #: in the environment of everything that it started
    port: int  #: of its collector
    out: Path  #: where its results would go

    def family(self) -> list[int]:
        """Its processes that still live, itself included, in the order in which they started."""
        found = []
        for entry in PROC.glob("[0-9]*"):
            try:
                marked = self.mark.encode() in (entry / "environ").read_bytes()
                started = int((entry / "stat").read_text().rpartition(")")[2].split()[19])
                command = (entry / "cmdline").read_bytes()
            except OSError:  # it has just ended
                continue
            if marked and b"resource_tracker" not in command:
                found.append((started, int(entry.name)))
        return [pid for _, pid in sorted(found)]

    def children(self, count: int) -> list[int]:
        """Its children, once there are as many."""
        wait_until(lambda: len(self.family()) == 1 + count)
        return self.family()[1:]

    def ended(self) -> tuple[int, list[str]]:
        """Its exit status, and the lines that it wrote to stderr."""
        out, err = self.process.communicate(timeout=DEADLINE_S)
        assert out == ""
        return self.process.returncode, err.splitlines()

    def is_gone(self) -> bool:
        """Whether all of its processes are, in time."""
        deadline = time.monotonic() + GONE_S
        while self.family() and time.monotonic() < deadline:
            time.sleep(0.02)
        return not self.family()

    def leaves_nothing(self) -> bool:
        """Whether all of its processes are gone in time, and there is no result."""
        return self.is_gone() and not self.out.exists()


def wait_until(true: Callable[[], bool], *, within_s: float = DEADLINE_S) -> None:
    """Look until it is so."""
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(tmp_path: Path, *options: str, workers: int = 1) -> Iterator[Running]:
    """A whole `demur simulate cdnow` over processes, ended when the block ends."""
    mark, port, out = secrets.token_hex(16), free_port(), tmp_path / "out"
    command = [sys.executable, "-m", "demur_sim.cli", "simulate", "cdnow"]
    command += ["--fidelity", "processes", "--workers", str(workers), "--out", str(out)]
    process = subprocess.Popen(
        [*command, "--port", str(port), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "DEMUR_TEST_MARK": mark},
        start_new_session=True,
    )
    started = Running(process=process, mark=mark, port=port, out=out)
    try:
        yield started
    finally:
        for pid in started.family():
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=DEADLINE_S)


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def wait_for_round(port: int, number: int) -> None:
    """Come back when a collector has opened as many rounds: it tells everybody who says hello."""
    wait_until(lambda: is_listening(port))
    with anyio.fail_after(DEADLINE_S):
        async with connected(f"127.0.0.1:{port}") as channel:
            while await rounds_opened(channel) < number:  # noqa: ASYNC110  it rings no bell
                await anyio.sleep(0.02)


async def rounds_opened(channel: grpc.aio.Channel) -> int:
    call = collector_pb2_grpc.CollectorStub(channel).Visit()
    try:
        hello = collector_pb2.Hello(protocol_version=PROTOCOL_VERSION)
        await call.write(collector_pb2.VisitRequest(hello=hello))
        message = await call.read()
    except (grpc.RpcError, asyncio.InvalidStateError):  # there is no study yet
        return 0
    finally:
        call.cancel()
    return message.welcome.rounds if isinstance(message, collector_pb2.VisitResponse) else 0


# ---- a whole run -----------------------------------------------------------------------------


@needs_proc
@pytest.mark.parametrize(("victim", "name", "workers"), [(0, "collector", 1), (2, "worker 2", 2)])
async def test_a_process_killed_in_the_middle_is_named_in_one_line(
    tmp_path: Path, victim: int, name: str, workers: int
) -> None:
    with running(tmp_path, workers=workers) as demur:
        children = demur.children(1 + workers)
        await wait_for_round(demur.port, 2)

        os.kill(children[victim], signal.SIGKILL)

        line = f"demur: error: the {name} process was killed by SIGKILL before it was done"
        assert demur.ended() == (1, [line])
        assert demur.leaves_nothing()


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_interrupted_or_terminated_it_ends_cleanly_and_leaves_an_earlier_result_as_it_was(
    tmp_path: Path, number: signal.Signals
) -> None:
    earlier = {name: f"of an earlier run: {name}" for name in ("summary.json", "releases.csv")}
    (tmp_path / "out").mkdir()
    for name, text in earlier.items():
        (tmp_path / "out" / name).write_text(text)

    with running(tmp_path) as demur:
        demur.children(2)
        await wait_for_round(demur.port, 2)

        # A terminal interrupts the whole group; whoever terminates, terminates one process.
        (os.killpg if number is signal.SIGINT else os.kill)(demur.process.pid, number)

        assert demur.ended() == (1, ["demur: error: interrupted; nothing was kept"])
        assert demur.is_gone()
    assert {path.name: path.read_text() for path in demur.out.iterdir()} == earlier


@needs_proc
async def test_killed_without_a_warning_it_takes_its_children_with_it(tmp_path: Path) -> None:
    with running(tmp_path) as demur:
        demur.children(2)
        await wait_for_round(demur.port, 2)

        demur.process.kill()

        code, _ = demur.ended()
        assert code == -signal.SIGKILL
        assert demur.leaves_nothing()


@needs_proc
def test_interrupted_while_its_children_start_it_ends_as_cleanly(tmp_path: Path) -> None:
    with running(tmp_path) as demur:
        demur.children(2)

        os.killpg(demur.process.pid, signal.SIGINT)  # they are loading numpy and gRPC now

        assert demur.ended() == (1, ["demur: error: interrupted; nothing was kept"])
        assert demur.leaves_nothing()


@needs_proc
def test_a_worker_killed_while_it_starts_is_not_waited_for(tmp_path: Path) -> None:
    with running(tmp_path) as demur:
        _, worker = demur.children(2)

        os.kill(worker, signal.SIGKILL)  # before it has read what to work on

        line = "demur: error: the worker 1 process was killed by SIGKILL before it was done"
        assert demur.ended() == (1, [line])
        assert demur.leaves_nothing()


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with running(tmp_path, "--port", str(port)) as demur:
            line = f"demur: error: port {port} on 127.0.0.1 is in use; choose another, or 0"
            assert demur.ended() == (1, [line])
            assert demur.leaves_nothing()


def test_a_script_that_would_start_itself_again_is_told_what_to_do(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(
        "from demur_sim.people.populations import ArrayPopulation\n"
        "from demur_sim.run import simulate\n"
        "from demur_sim.scenario import Scenario\n"
        "asking = Scenario(name='own', feature='value')\n"
        "people = ArrayPopulation([[1.0], [0.0]])\n"
        "simulate(asking, population=people, fidelity='processes', workers=1)\n"
    )

    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert done.returncode == 1
    *traceback, last = done.stderr.splitlines()
    assert last == (
        "demur_proto.errors.StateError: every process reads the script that started it: keep what "
        'the script does behind `if __name__ == "__main__":`'
    )
    assert sum(line.startswith("Traceback") for line in traceback) == 1


SCRIPT = """
import asyncio
from demur_sim.people.populations import ArrayPopulation
from demur_sim.run import simulate
from demur_sim.scenario import Scenario

def releases():
    asking = Scenario(name="own", feature="value", budget=1)
    people = ArrayPopulation([[1.0], [0.0]])
    return simulate(asking, population=people, fidelity="processes", workers=1).releases_sha256

async def notebook():
    return releases()

if __name__ == "__main__":
    print(releases() == asyncio.run(notebook()))
"""


def test_a_script_and_a_notebook_may_run_one_simulation_after_the_other(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(SCRIPT)

    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


# ---- one child -------------------------------------------------------------------------------


@contextmanager
def child(main: Callable[..., None]) -> Iterator[Child]:
    started = Child("test", main)
    try:
        yield started
    finally:
        started.end()


@pytest.mark.parametrize(
    ("main", "code", "bug"),
    [(id, 0, ""), (math.sqrt, 1, "TypeError: must be real number, not Connection")],
)
async def test_a_child_that_ends_without_a_word_is_a_lost_connection_and_a_bug_stays_a_traceback(
    main: Callable[..., None], code: int, bug: str, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = f"^the test process exited with {code} before it was done$"
    with (
        child(main) as started,
        anyio.fail_after(DEADLINE_S),
        pytest.raises(ConnectionLost, match=re.compile(expected)),
    ):
        await started.hear()

    last = capfd.readouterr().err.splitlines()[-1:]
    assert last == ([bug] if bug else [])


ORPHANING = """
import os, signal, time
from demur_sim.engine.children import Child

def busy(pipe):
    pipe.send("busy")
    time.sleep(60)  # and never looks at its pipe

if __name__ == "__main__":
    child = Child("busy", busy)
    print(child.process.pid, flush=True)
    child._pipe.recv()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@needs_proc
def test_a_child_too_busy_to_look_at_its_pipe_ends_with_its_parent_all_the_same(
    tmp_path: Path,
) -> None:
    script = tmp_path / "own.py"
    script.write_text(ORPHANING)

    done = subprocess.run(
        [sys.executable, script], stdout=subprocess.PIPE, timeout=DEADLINE_S, check=False
    )

    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: not command_of(int(done.stdout)), within_s=GONE_S)


def command_of(pid: int) -> bytes:
    """What a process was started with; empty once it is gone."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


class Shedding(Intake):
    """That of a collector under load: it takes every frame only the second time."""

    def __init__(self, store: Store, find: Callable[[bytes], LiveRound]) -> None:
        super().__init__(store, find, open_access=True)
        self.frames = 0
        self._seen: set[bytes] = set()

    async def submit(
        self, round_hash: bytes, report_ids: bytes, words: Payload, **senders: Any
    ) -> list[int]:
        self.frames += 1
        if report_ids not in self._seen:
            self._seen.add(report_ids)
            return [report_pb2.DISPOSITION_TRY_LATER] * (len(report_ids) // 16)
        return await super().submit(round_hash, report_ids, words, **senders)


@pytest.mark.parametrize("blocks", [1, 25])
async def test_frames_that_the_collector_cannot_take_yet_are_sent_again_and_counted_once(
    blocks: int,
) -> None:
    rounds = 2
    devices = blocks * BLOCK
    people = ArrayPopulation(np.ones((devices, rounds)))
    study = define_study(
        design_study(
            name="load",
            epsilon=1.0,
            delta=1e-6,
            answers=1,
            minimum_cohort=devices,
            grid_exponent=-11,
        )
    )
    questions = [
        Feature(name="value", parameters={"period": period}) for period in range(1, rounds + 1)
    ]
    store = MemoryStore()
    collector = Collector(store, open_access=True)
    shedding = collector.intake = Shedding(store, collector._known.find)
    same = Cohort(study, people, seed=1, refusal=Refusal.COVER)

    with ThreadPoolExecutor(1) as pool, anyio.fail_after(DEADLINE_S):
        async with (
            served(collector) as ports,
            Analyst.create(f"127.0.0.1:{ports.analyst}", study.value, answer_after_ms=0) as analyst,
        ):
            with child(work) as worker:
                await worker.hand_over(
                    Work(
                        target=f"127.0.0.1:{ports.collector}",
                        study_hash=study.hash,
                        population=people,
                        first_block=0,
                        seed=1,
                        refusal=Refusal.COVER,
                        record=False,
                    )
                )
                for question in questions:
                    asked = await analyst.open(Linear([question], on_grid=True))
                    assert isinstance(await worker.hear(), Answered)
                    release = await analyst.close(asked)
                    expected = same.sum(asked.value, pool, threads=1)
                    assert release.sums.tolist() == expected.sums.tolist()
                    assert release.reports == devices

    assert shedding.frames == 2 * blocks * rounds
