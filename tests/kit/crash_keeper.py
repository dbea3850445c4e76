"""Keeps a collector running: whenever its process ends, the next one starts."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import grpc

from crash_book import Broken
from crash_process import Fate, Process
from demur_server.admin.data_folder import Listening
from demur_server.config import ServerConfig

KILLED = -9
Ending = Fate | float | None  #: a step of its own; seconds after its start; or none


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Life:
    """A collector that listens."""

    devices: grpc.aio.Channel
    analysts: grpc.aio.Channel


@dataclass(slots=True, repr=False, eq=False)
class Keeper:
    """The processes of one data folder, one after the other."""

    config: ServerConfig
    log: Path  #: what they log
    endings: Iterable[Ending]  #: of the first ones
    bug: str | None
    note: Callable[[str], None]  #: for whoever has to understand a failure
    doing: Callable[[], str]  #: what the collector is asked to do now
    forgiving: Callable[[], bool]  #: whether a start may fail, because its database is away
    ended: Counter[str] = field(default_factory=Counter)
    lives: int = 0
    _process: Process | None = None
    _life: Life | None = None
    _news: anyio.Event = field(default_factory=anyio.Event)
    _channels: list[grpc.aio.Channel] = field(default_factory=list)

    async def keep(self) -> None:
        """Until cancelled; then the last one is killed.

        Raises:
            Broken: one ended in another way than by a kill.
        """
        endings = deque(self.endings)
        while True:
            ending = endings.popleft() if endings else None
            self.lives += 1
            self.note(f"{self._name} {self.lives} starts, and ends: {ending or 'later'}")
            fate = ending if isinstance(ending, Fate) else None
            process = Process(self.config, fate=fate, bug=self.bug, log=self.log)
            self._process = process
            try:
                async with anyio.create_task_group() as tasks:
                    if isinstance(ending, float):
                        tasks.start_soon(self._kill_after, process, ending)
                    why = await self._live(process)
                    tasks.cancel_scope.cancel()
            except BaseException:
                process.kill()  # and else never: a process that ends in another way must show
                process.ended()
                raise
            finally:
                self._process = None
                self._put(None)
            status = process.ended()
            phase = self.doing() if why == "" else "starting"
            self.note(f"{self._name} {self.lives} ended while {phase}: {status} {why or ''}")
            if why:
                # A session that has lost its process may hold the fence a little longer.
                excused = self.forgiving() or "has another collector" in why
                if not excused or "damaged" in why:
                    raise Broken(f"{self._name} does not start: {why}")
                self.ended["refused"] += 1
                await anyio.sleep(0.01)
            elif status != KILLED:
                raise Broken(f"{self._name} ended with status {status}")
            else:
                self.ended[phase] += 1

    async def life(self) -> Life:
        """One that listens, as soon as there is one."""
        while self._life is None:
            await self._news.wait()
        return self._life

    def strike(self, fate: Fate) -> None:
        """Let the process that there is end at a step from now on."""
        if self._process is not None:
            self.note(f"{self._name} {self.lives} is to end: {fate}")
            self._process.seal(fate)

    def kill(self) -> None:
        """Kill the process that there is."""
        if self._process is not None:
            self._put(None)
            self._process.kill()

    async def hang_up(self) -> None:
        """Once nobody calls any more."""
        with anyio.CancelScope(shield=True):
            for channel in self._channels:
                await channel.close()

    @property
    def _name(self) -> str:
        return f"collector {self.config.store.shard}"

    async def _live(self, process: Process) -> str | None:
        """The life of a process: "" once it has run, None if it did not come so far, or why."""
        await anyio.wait_readable(process)
        said = process.said()
        if not isinstance(said, Listening):
            return said
        # Closed only when nobody uses them any more: a write to a stream whose channel is closed
        # before its metadata was sent never returns.
        devices, analysts = map(grpc.aio.insecure_channel, (said.collector, said.analyst))
        self._channels += [devices, analysts]
        self.note(f"{self._name} {self.lives} listens")
        self._put(Life(devices=devices, analysts=analysts))
        await anyio.wait_readable(process)
        self._put(None)
        last = process.said()
        return last if isinstance(last, str) else ""

    def _put(self, life: Life | None) -> None:
        self._life = life
        if life is not None:
            self._news.set()
            self._news = anyio.Event()

    async def _kill_after(self, process: Process, wait_s: float) -> None:
        await anyio.sleep(wait_s)
        process.kill()


def clock() -> Callable[[], str]:
    """Tells how long ago it was made, for notes."""
    started = time.monotonic()
    return lambda: f"{1000 * (time.monotonic() - started):7.1f} ms"
