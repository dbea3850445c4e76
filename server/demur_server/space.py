"""Memory that many share: each takes all it needs at once, in order, and gives it back."""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

MOST_WAITING = 64  #: whoever waits holds a message in its hands


@dataclass(eq=False, slots=True)
class _Turn:
    need: int
    come: anyio.Event = field(default_factory=anyio.Event)


class Space:
    """So many bytes, first come first served.

    Nobody waits for more while holding some, so there is no deadlock. Who needs more than there is
    gets all of it, once it is alone.

    Args:
        size: bytes.
        wait_s: how long to wait for one's turn, seconds.
    """

    def __init__(self, size: int, *, wait_s: float) -> None:
        self._size = size
        self._wait_s = wait_s
        self._used = 0
        self._queue: deque[_Turn] = deque()

    @property
    def used(self) -> int:
        """Bytes that are taken."""
        return self._used

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._queue)

    @asynccontextmanager
    async def taken(self, need: int) -> AsyncIterator[bool]:
        """Take so many bytes for as long as the block lasts; False: there was no room in time."""
        need = min(need, self._size)
        got = await self._take(need)
        try:
            yield got
        finally:
            if got:
                self._give_back(need)

    async def _take(self, need: int) -> bool:
        if not need or (not self._queue and self._used + need <= self._size):
            self._used += need
            return True
        if len(self._queue) >= MOST_WAITING:
            return False
        turn = _Turn(need)
        self._queue.append(turn)
        try:
            with anyio.move_on_after(self._wait_s):
                await turn.come.wait()
        except BaseException:
            if turn.come.is_set():  # its turn came as it left
                self._give_back(need)
            raise
        finally:
            if not turn.come.is_set():
                self._queue.remove(turn)
                self._serve()  # a smaller one behind it may fit
        return turn.come.is_set()

    def _give_back(self, need: int) -> None:
        self._used -= need
        self._serve()

    def _serve(self) -> None:
        while self._queue and self._used + self._queue[0].need <= self._size:
            turn = self._queue.popleft()
            self._used += turn.need
            turn.come.set()
