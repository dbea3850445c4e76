"""Memory that streams share."""

import asyncio

import anyio
import anyio.lowlevel
import pytest

from demur_server.collector import chunks as space
from demur_server.collector.chunks import Space


async def settle() -> None:
    for _ in range(5):
        await anyio.lowlevel.checkpoint()


class Taker:
    """Takes some, says what it got, and keeps it until told."""

    def __init__(self, shared: Space, need: int) -> None:
        self.got: bool | None = None
        self.done = anyio.Event()
        self._shared = shared
        self._need = need

    async def run(self) -> None:
        async with self._shared.taken(self._need) as self.got:
            await self.done.wait()


async def test_what_fits_is_had_at_once_and_the_rest_waits_in_order() -> None:
    shared = Space(10, wait_s=5.0)
    first, large, small = Taker(shared, 6), Taker(shared, 8), Taker(shared, 4)

    async with anyio.create_task_group() as tasks:
        for taker in (first, large, small):
            tasks.start_soon(taker.run)
            await settle()
        assert (first.got, large.got, small.got) == (True, None, None)  # nobody overtakes
        assert (shared.used, shared.waiting) == (6, 2)

        first.done.set()
        await settle()
        assert (large.got, small.got) == (True, None)
        large.done.set()
        await settle()
        assert small.got
        small.done.set()

    assert (shared.used, shared.waiting) == (0, 0)


async def test_who_waited_too_long_gets_nothing_and_lets_those_behind_pass() -> None:
    shared = Space(10, wait_s=0.5)
    first, large = Taker(shared, 6), Taker(shared, 8)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first.run)
        await settle()
        tasks.start_soon(large.run)
        await anyio.sleep(0.25)
        small = Taker(shared, 4)
        tasks.start_soon(small.run)
        with anyio.fail_after(5):
            while large.got is None or small.got is None:  # noqa: ASYNC110  no bell rings for both
                await anyio.sleep(0.01)
        assert (large.got, small.got) == (False, True)
        for taker in (first, large, small):
            taker.done.set()

    assert (shared.used, shared.waiting) == (0, 0)


async def test_whoever_leaves_gives_everything_back_even_as_its_turn_comes() -> None:
    shared = Space(10, wait_s=5.0)
    holder, waiting = Taker(shared, 10), Taker(shared, 10)
    holding, wanted = [asyncio.create_task(taker.run()) for taker in (holder, waiting)]
    await settle()
    assert shared.waiting == 1

    holder.done.set()
    while shared.waiting:  # noqa: ASYNC110  what is waited for rings no bell
        await asyncio.sleep(0)
    assert (shared.used, waiting.got) == (10, None)  # its turn has come, and it does not know yet
    wanted.cancel()
    await asyncio.wait([holding, wanted])

    assert wanted.cancelled()
    assert (waiting.got, shared.used) == (None, 0)


async def test_who_needs_more_than_there_is_gets_all_of_it_once_alone() -> None:
    shared = Space(10, wait_s=0.01)

    async with shared.taken(99) as got:
        assert (got, shared.used) == (True, 10)
        async with shared.taken(1) as other:
            assert not other
        async with shared.taken(0) as nothing:
            assert nothing


async def test_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space, "MOST_WAITING", 2)
    shared = Space(1, wait_s=5.0)

    async with shared.taken(1), anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(Taker(shared, 1).run)
        await settle()
        async with shared.taken(1) as got:
            assert not got
        tasks.cancel_scope.cancel()

    assert (shared.used, shared.waiting) == (0, 0)
