"""Memory that many share: each takes all it needs at once, in order, and gives it back."""

import hashlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import anyio.to_thread
import numpy as np

from demur_proto.arrays import Flags, Words
from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import ConnectionLost
from demur_proto.v1 import report_pb2
from demur_proto.wire.frames import CHUNK_BYTES, ChunkOrder
from demur_proto.wire.words import WordType, decode_words

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


# Reports that come in chunks, put together in bounded memory.

TRY_LATER = int(report_pb2.DISPOSITION_TRY_LATER)

NextChunk = Callable[[], Awaitable[report_pb2.ReportChunk | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssemblyLimits:
    """What reports in chunks may take up, over all streams of a collector.

    Raises:
        ParameterError: one of them is not above zero.
    """

    memory_bytes: int = 256 << 20  #: of the reports that are on their way or being counted
    wait_s: float = 10.0  #: how long a report waits for memory before it is told to come later
    stall_s: float = 30.0  #: how long the next chunk may take before the stream is ended

    def __post_init__(self) -> None:
        check_integer("memory_bytes", self.memory_bytes, 1)
        check_positive("wait_s", self.wait_s)
        check_positive("stall_s", self.stall_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What the reports to a round look like."""

    word_type: WordType
    length: int  #: words in each

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return self.word_type.report_bytes(self.length)

    @property
    def memory(self) -> int:
        """Bytes once decoded.

        >>> Form(word_type=WordType.INT32, length=10).memory
        80
        """
        return self.length * (1 if self.word_type is WordType.BIT else 8)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Whole:
    """A report, put together."""

    rows: Words  #: its words [1, w]
    sound: Flags  #: whether they were well formed [1]
    payload_hash: bytes  #: SHA-256 of the words as they came


class Assembler:
    """Puts reports together, for all streams of a collector."""

    def __init__(self, limits: AssemblyLimits | None = None) -> None:
        self._limits = limits or AssemblyLimits()
        self.space = Space(self._limits.memory_bytes, wait_s=self._limits.wait_s)

    @asynccontextmanager
    async def assembled(
        self,
        first: report_pb2.ReportChunk,
        next_chunk: NextChunk,
        *,
        form: Form,
        from_gateway: bool,
        verdict: int | None = None,
    ) -> AsyncIterator[Whole | int]:
        """Receive all chunks of a report; its memory is given back when the block ends.

        Memory for the whole report is taken before anything of it is kept. While there is none the
        stream is not read, which stalls its sender.

        Args:
            first: the first chunk.
            next_chunk: gives the one after; None if something else came, or nothing more.
            form: what the reports to its round look like.
            from_gateway: it comes in a stream of frames.
            verdict: what becomes of the report is known already: its chunks are received and
                dropped.

        Yields:
            The report; or what became of it without being looked at: the verdict, or TRY_LATER.

        Raises:
            WireError: the chunks are not those of one report, in order and without a gap.
            ConnectionLost: one did not come in time.
        """
        order = ChunkOrder(first, size=form.size, from_gateway=from_gateway)
        words = order.take(first)
        async with self.space.taken(form.memory if verdict is None else 0) as granted:
            if verdict is None and not granted:
                verdict = TRY_LATER
            parts = _Parts(form) if verdict is None else None
            while True:
                if parts is not None:  # hashed and decoded while the loop serves others
                    await anyio.to_thread.run_sync(parts.add, words)
                if order.complete:
                    break
                words = await self._following(next_chunk, order)
            if parts is None or verdict is not None:
                yield TRY_LATER if verdict is None else verdict
            else:
                yield parts.whole()

    async def _following(self, next_chunk: NextChunk, order: ChunkOrder) -> bytes:
        with anyio.move_on_after(self._limits.stall_s) as patience:
            chunk = await next_chunk()
        if patience.cancelled_caught:
            raise ConnectionLost(
                f"the next chunk did not come within {self._limits.stall_s:g} s; send the report "
                "again from its start"
            )
        if chunk is None:
            raise order.broken_off()
        return order.take(chunk)


class _Parts:
    """A report on its way."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._words_each = CHUNK_BYTES // form.word_type.report_bytes(8) * 8
        self._rows: Words | None = None
        self._sound = np.ones(1, dtype=np.bool_)
        self._done = 0
        self._hash = hashlib.sha256()

    def add(self, words: bytes) -> None:
        """The next chunk, of the right length."""
        self._hash.update(words)
        count = min(self._words_each, self._form.length - self._done)
        piece, sound = decode_words(words, self._form.word_type, reports=1, dimension=count)
        if self._rows is None:
            self._rows = np.empty((1, self._form.length), dtype=piece.dtype)
        self._rows[:, self._done : self._done + count] = piece
        self._sound &= sound
        self._done += count

    def whole(self) -> Whole:
        """Once the last was added."""
        rows = np.empty((1, 0), dtype=np.int64) if self._rows is None else self._rows
        return Whole(rows=rows, sound=self._sound, payload_hash=self._hash.digest())
