"""Devices that are killed between a round and its acknowledgement, and started again at once.

As a program it is their warden. Each device is a process of its own, forked from this one, which has imported
everything and never opens a channel: an agent, with an evaluator, a ledger in a file, exact noise and a slot. When a device
receives a round for the first time, it draws how it is to end: at a time, which its warden
is told of; or at a step, as in `ledger_crash`; or not. The warden tells of every event and every death, a line
of JSON each. It ends when its input does, and its devices with it.

    python -m kill_warden PLAN
"""

import encodings.idna  # noqa: F401  imported on first use otherwise, by every device
import heapq
import json
import os
import random
import selectors
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio._backends._asyncio
import numpy as np

from demur_client.agent import Agent
from demur_client.connection import connected
from demur_client.evaluator import confine
from demur_client.evaluator.opening import open_evaluator
from demur_client.ledger.counter import FileCounter
from demur_client.ledger.file import LedgerFile
from demur_client.policy import OwnerPolicy
from demur_proto.arrays import Values
from demur_proto.queries import Feature
from demur_proto.samplers.exact import ExactSampler
from ledger_crash import Doom, watch

KINDS = ("quick", "slow", "dying", "deadly", "counted")
AT_A_TIME, AT_A_STEP = 0.6, 0.3  #: how often a device ends so in a round
MOST_STEPS = 14
ORPHAN_S = 60.0  #: how long anything of a device may outlive it on the busiest machine; else it is for good
SAMPLER = (
    ExactSampler()
)  # one for all: it asks the system for every bit, and its tables take a while

write = os.write  # which devices that count steps replace


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the warden is to do."""

    target: str  #: the collector
    folder: str  #: with room for a folder of each device
    kinds: tuple[str, ...]  #: of the devices
    slot_ms: int
    seed: int
    steps: float  #: of the noise, so that its tables need not be made by every device anew


def value_of(device: int, number: int) -> int:
    """What a device has to tell in a round: often 1, which costs something."""
    return int(random.Random(f"value {device} {number}").random() < 0.7)


# ---- a device --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Person:
    """The data of one device. It is written down which process asks for them."""

    plan: Plan
    device: int
    folder: Path
    life: int  #: the device's process

    def evaluate(self, feature: Feature) -> Values:
        number = int(feature.parameters["round"])
        with (self.folder / "evaluated").open("a") as file:
            file.write(f"{number} {self.life}\n")
        kind, first = self.plan.kinds[self.device], self.folder / "died"
        if kind in ("dying", "deadly") and not first.exists():
            first.touch()
            os.kill(os.getpid() if kind == "dying" else self.life, signal.SIGKILL)
        if kind == "slow":
            time.sleep(0.3 * self.plan.slot_ms / 1000)
        return np.array([[float(value_of(self.device, number))]])


class Watching:
    """Tells the warden what happens, and arms what ends this device."""

    def __init__(self, plan: Plan, device: int, folder: Path, events: int, doom: Doom) -> None:
        self._plan, self._device, self._folder = plan, device, folder
        self._events, self._doom = events, doom

    def _tell(self, *words: object) -> None:
        write(self._events, f"{' '.join(map(str, words))}\n".encode())

    def received(self, round_number: int) -> None:
        self._doom.arm(None)  # what an earlier round has left over
        self._tell("received", round_number)
        tried = self._folder / f"tried-{round_number}"
        if tried.exists():
            return
        tried.touch()
        if self._plan.kinds[self._device] == "deadly" and not (self._folder / "died").exists():
            return  # its data end it
        dice = random.Random(f"{self._plan.seed} {self._device} {round_number}")
        how = dice.random()
        if how < AT_A_TIME:
            self._tell("end", round_number, dice.uniform(0, 1.1 * self._plan.slot_ms / 1000))
        elif how < AT_A_TIME + AT_A_STEP:
            self._tell("step", round_number)
            self._doom.arm(dice.randint(1, MOST_STEPS))

    def sent(self, round_number: int, *, size_bytes: int) -> None:
        self._tell("sent", round_number)
        self._doom.take()

    def answered(self, round_number: int, *, disposition: int) -> None:
        self._tell("answered", round_number, disposition)
        self._doom.take()


def live(plan: Plan, device: int, folder: Path, events: int, warden: int) -> None:
    """Be a device, until this process is ended."""
    confine.follow_parent(warden, signal.SIGKILL)
    doom = Doom(None)
    source = Person(plan, device, folder, os.getpid())
    watch(doom)
    counter = FileCounter(folder / "counter") if plan.kinds[device] == "counted" else None
    # What keeps the processor busy would keep ten devices on one from their work.
    policy = OwnerPolicy(shortest_slot_ms=plan.slot_ms, fill_processor=False)
    with (
        open_evaluator(source, policy) as evaluator,
        LedgerFile(folder / "ledger", counter=counter) as ledger,
    ):
        agent = Agent(
            ledger,
            evaluator,
            policy=policy,
            open_channel=partial(connected, plan.target),
            sampler=SAMPLER,
            watcher=Watching(plan, device, folder, events, doom),
            first_retry_s=0.02,
            longest_retry_s=0.1,
        )
        anyio.run(agent.run)


# ---- the warden ------------------------------------------------------------------------------


@dataclass(eq=False)
class Life:
    """One process of a device."""

    device: int
    process: int
    events: int  #: where it tells of them
    exit: int  #: readable once it has ended
    round: int = 0  #: the last that it told of
    phase: str = ""  #: what it told of that
    how: str = "itself"  #: who ended it
    ended_s: float = 0.0
    rest: bytes = b""  #: half a line


@dataclass
class Warden:
    """Starts devices, ends them when it is time, and starts them again."""

    plan: Plan
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    times: list[tuple[float, int, Life, int]] = field(default_factory=list)
    alive: set[Life] = field(default_factory=set)
    left_behind: list[Life] = field(default_factory=list)
    """Ended, while something still holds on to where they told of events."""
    over: bool = False

    def run(self) -> None:
        """Go on until the input ends."""
        self.selector.register(sys.stdin.fileno(), selectors.EVENT_READ, None)
        for device in range(len(self.plan.kinds)):
            folder = Path(self.plan.folder) / str(device)
            folder.mkdir()
            self.start(device)
        while not self.over or self.alive or self.left_behind:
            due = [self.times[0][0]] if self.times else []
            due += [life.ended_s + ORPHAN_S for life in self.left_behind]
            timeout = max(0.0, min(due) - time.monotonic()) if due else None
            for key, _ in self.selector.select(timeout):
                if key.data is None:
                    self.end_all()
                elif key.fd == key.data.exit:
                    self.ended(key.data)
                else:
                    self.hear(key.data)
            self.look_at_times()

    def start(self, device: int) -> None:
        """A device, where it was left."""
        told, events = os.pipe()
        warden = os.getpid()
        process = os.fork()
        if not process:
            try:
                self.selector.close()
                os.close(told)
                for other in self.alive | set(self.left_behind):
                    if other.events >= 0:
                        os.close(other.events)
                live(self.plan, device, Path(self.plan.folder) / str(device), events, warden)
            finally:
                os._exit(1)
        os.close(events)
        os.set_blocking(told, False)
        life = Life(device, process, told, os.pidfd_open(process))
        self.alive.add(life)
        for handle in (life.events, life.exit):
            self.selector.register(handle, selectors.EVENT_READ, life)

    def hear(self, life: Life) -> None:
        """What a device tells."""
        while life.events >= 0:
            try:
                heard = os.read(life.events, 65536)
            except BlockingIOError:
                return
            if not heard:
                self.selector.unregister(life.events)
                os.close(life.events)
                if life in self.left_behind:
                    self.left_behind.remove(life)
                life.events = -1
            *lines, life.rest = (life.rest + heard).split(b"\n")
            for line in lines:
                what, number, *more = line.decode().split()
                if what == "step":
                    life.how = what
                    continue
                if what == "end":
                    when = time.monotonic() + float(more[0])
                    heapq.heappush(self.times, (when, life.process, life, int(number)))
                    continue
                life.round, life.phase = int(number), what
                say(what, device=life.device, number=life.round, more=more)

    def look_at_times(self) -> None:
        """End whose time has come and who is not done, and tell of what outlives its device."""
        now = time.monotonic()
        while self.times and self.times[0][0] <= now:
            _, _, life, number = heapq.heappop(self.times)
            if not life.ended_s and (life.round, life.phase) in {
                (number, "received"),
                (number, "sent"),
            }:
                life.how = "time"
                os.kill(life.process, signal.SIGKILL)
        for life in [each for each in self.left_behind if each.ended_s + ORPHAN_S <= now]:
            self.left_behind.remove(life)
            say(
                "left behind",
                device=life.device,
                number=life.round,
                holders=holders_of(life.events),
            )

    def ended(self, life: Life) -> None:
        """A device has ended: it starts again."""
        _, status = os.waitpid(life.process, 0)
        life.ended_s = time.monotonic()
        self.alive.remove(life)
        self.selector.unregister(life.exit)
        os.close(life.exit)
        if life.events >= 0:
            self.left_behind.append(life)
            self.hear(life)
        if not self.over:
            killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            say(
                "ended",
                device=life.device,
                number=life.round,
                phase=life.phase,
                how=life.how if killed else f"status {status}",
            )
            self.start(life.device)

    def end_all(self) -> None:
        """End every device, for good."""
        self.over = True
        self.selector.unregister(sys.stdin.fileno())
        for life in self.alive:
            os.kill(life.process, signal.SIGKILL)


def holders_of(pipe: int) -> list[str]:
    """The processes, but for this one, that hold an end of a pipe."""
    name, found = os.readlink(f"/proc/self/fd/{pipe}"), []
    for process in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            handles = {os.readlink(each) for each in Path("/proc", process, "fd").iterdir()}
            if name in handles and int(process) != os.getpid():
                found.append(Path("/proc", process, "stat").read_text()[:30])
    return found


def say(what: str, **fields: Any) -> None:
    """A line of JSON."""
    print(json.dumps({"what": what, **fields}), flush=True)


def main() -> None:
    """Be the warden."""
    told = json.loads(sys.argv[1])
    plan = Plan(**{**told, "kinds": tuple(told["kinds"])})
    SAMPLER.gaussian(plan.steps, reports=1, dimension=1)
    Warden(plan).run()


if __name__ == "__main__":
    main()
