"""Reports that come one at a time, counted many at a time.

A report on its own costs about as much to check, hash and hand over as fifty that come in a frame. So
while some are being counted, those that come meanwhile gather, and are then counted together.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from demur_proto.errors import DemurError

MOST = 4096  #: reports of a round in one group

Count = Callable[[bytes, bytes, bytes, bytes | None], Awaitable[list[int]]]


@dataclass(slots=True, repr=False, eq=False)  # a frozen one takes four times as long to make
class _Waiting:
    report_id: bytes
    words: bytes
    device: bytes | None
    told: "asyncio.Future[int]"


class Gathering:
    """Brings reports together by round.

    Args:
        count: counts reports to a round, given the round's hash and the ids, words and devices (None
            under open access) of all reports; one disposition each. An error means that none of them
            was counted.
    """

    def __init__(self, count: Count) -> None:
        self._count = count
        self._waiting: dict[bytes, list[_Waiting]] = {}
        self._running: asyncio.Task[None] | None = None

    def add(
        self, round_hash: bytes, report_id: bytes, words: bytes, *, device: bytes | None
    ) -> "asyncio.Future[int]":
        """Have one report counted, with others or alone; its future tells what became of it.

        A caller that is cancelled while it waits leaves its report to be counted all the same. Reports of
        one round must have equally many words.
        """
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(round_hash, []).append(_Waiting(report_id, words, device, told))
        if self._running is None or self._running.done():
            # No caller may own this task: it works for others as well, and must outlive who leaves.
            self._running = asyncio.create_task(self._run(), name="gathered reports")
        return told

    async def _run(self) -> None:
        """Count what waits until nothing does.

        One group of each round at a time. With two, the second would be made ready while the first
        is written; but both would be smaller, which costs more than it gains.
        """
        while self._waiting:
            rounds, self._waiting = self._waiting, {}
            await asyncio.gather(*(self._count_all(*each) for each in rounds.items()))

    async def _count_all(self, round_hash: bytes, group: list[_Waiting]) -> None:
        try:
            for at in range(0, len(group), MOST):
                some = group[at : at + MOST]
                _tell(some, await self._outcomes(round_hash, some))
        finally:
            for each in group:
                each.told.cancel()  # nothing, unless this was cancelled itself

    async def _outcomes(
        self, round_hash: bytes, group: list[_Waiting]
    ) -> Sequence[int | Exception]:
        try:
            return await self._together(round_hash, group)
        except DemurError as error:
            if len(group) == 1:
                return [error]
        except Exception as error:  # noqa: BLE001  it belongs to those who wait
            return [error] * len(group)
        # One of them may be at fault, such as a device of another shard. It must not harm the others,
        # nor keep them waiting: all at once, they share a commit again.
        alone = await asyncio.gather(*(self._outcomes(round_hash, [each]) for each in group))
        return [outcome for [outcome] in alone]

    async def _together(self, round_hash: bytes, group: list[_Waiting]) -> list[int]:
        devices = [each.device for each in group if each.device is not None]
        return await self._count(
            round_hash,
            b"".join([each.report_id for each in group]),
            b"".join([each.words for each in group]),
            b"".join(devices) if len(devices) == len(group) else None,
        )


def _tell(group: Sequence[_Waiting], outcomes: Sequence[int | Exception]) -> None:
    for each, outcome in zip(group, outcomes, strict=True):
        if each.told.done():
            continue  # whoever waited has left
        if isinstance(outcome, Exception):
            each.told.set_exception(outcome)
        else:
            each.told.set_result(outcome)
