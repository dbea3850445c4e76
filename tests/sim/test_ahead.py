"""What is drawn or worked out ahead is what it would be otherwise."""

import threading
from collections.abc import Generator
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur_proto.errors import ParameterError, StateError, ours_in
from demur_sim.ahead import DRAWS_AHEAD, Draw, drawn_ahead
from demur_sim.outgoing import worked_ahead
from demur_sim.sampling import FastSampler

DEADLINE_S = 10.0

draw = st.builds(
    Draw,
    reports=st.integers(0, 3),
    dimension=st.integers(1, 4),
    steps=st.sampled_from([None, 8.0, 1e6]),
)


def sampler() -> FastSampler:
    return FastSampler(np.random.default_rng(1))


def asked(drawn: Any, wanted: Draw) -> Any:
    if wanted.steps is None:
        return drawn.uniform(reports=wanted.reports, dimension=wanted.dimension)
    return drawn.gaussian(wanted.steps, reports=wanted.reports, dimension=wanted.dimension)


def drawing_threads() -> int:
    return sum(each.name.startswith("draws") for each in threading.enumerate())


@given(st.lists(draw, max_size=3 * DRAWS_AHEAD))
def test_draws_made_ahead_are_those_of_the_sampler_bit_for_bit(draws: list[Draw]) -> None:
    alone = sampler()
    expected = [asked(alone, each) for each in draws]

    with drawn_ahead(sampler(), draws) as ahead:
        given_ = [asked(ahead, each) for each in draws]

    for one, other in zip(given_, expected, strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


def test_something_else_than_was_foreseen_is_refused() -> None:
    coins, noise = (Draw(reports=2, dimension=3, steps=steps) for steps in (None, 8.0))

    with drawn_ahead(sampler(), [coins, noise]) as ahead:
        with pytest.raises(StateError, match="something else"):
            asked(ahead, noise)
        asked(ahead, coins)
        with pytest.raises(StateError, match="something else"):
            asked(ahead, Draw(reports=2, dimension=3, steps=9.0))
        asked(ahead, noise)
        with pytest.raises(StateError, match="something else"):
            asked(ahead, noise)
        with pytest.raises(StateError, match="bits"):
            ahead.words(1)


def test_whoever_leaves_early_leaves_no_thread_behind() -> None:
    draws = [Draw(reports=1, dimension=9, steps=8.0)] * 50
    before = drawing_threads()

    with drawn_ahead(sampler(), draws) as ahead:
        asked(ahead, draws[0])
        assert drawing_threads() == before + 1

    assert drawing_threads() == before


def test_an_error_while_drawing_reaches_whoever_asks_for_it() -> None:
    bad = Draw(reports=-1, dimension=1, steps=None)

    with drawn_ahead(sampler(), [bad]) as ahead, pytest.raises(ValueError, match="negative"):
        asked(ahead, bad)


# Reports worked out ahead.


class Counter:
    """Counts up, and notes how far it came and whether it was closed."""

    def __init__(self, stop: int, *, fail: bool = False) -> None:
        self.made = 0
        self.third = threading.Event()
        self.closed = False
        self._stop = stop
        self._fail = fail

    def items(self) -> Generator[int, None, None]:
        try:
            while self.made < self._stop:
                self.made += 1
                if self.made == 3:
                    self.third.set()
                yield self.made
            if self._fail:
                raise ParameterError("items", "none left", "more")
        finally:
            self.closed = True


@pytest.mark.anyio
@pytest.mark.parametrize("on_thread", [True, False])
async def test_everything_comes_once_and_in_order(on_thread: bool) -> None:
    counter = Counter(20)

    with anyio.fail_after(DEADLINE_S):
        async with worked_ahead(counter.items(), on_thread=on_thread) as items:
            got = [item async for item in items]

    assert got == list(range(1, 21))
    assert counter.closed


@pytest.mark.anyio
async def test_the_next_is_worked_out_while_the_last_is_used_but_not_all_at_once() -> None:
    counter = Counter(100)

    with anyio.fail_after(DEADLINE_S):
        async with worked_ahead(counter.items(), on_thread=True) as items:
            await anext(items)
            # One waits to be taken, and one to be put there.
            assert await anyio.to_thread.run_sync(counter.third.wait, DEADLINE_S)
            await anyio.sleep(0.05)
            assert counter.made == 3

    assert counter.closed


@pytest.mark.anyio
@pytest.mark.parametrize("on_thread", [True, False])
async def test_an_error_on_the_way_is_not_lost(on_thread: bool) -> None:
    counter = Counter(2, fail=True)
    got = []

    async def take_all() -> None:
        async with worked_ahead(counter.items(), on_thread=on_thread) as items:
            async for item in items:
                got.append(item)

    with anyio.fail_after(DEADLINE_S), pytest.raises((ParameterError, ExceptionGroup)) as caught:
        await take_all()

    assert got == [1, 2]
    assert isinstance(ours_in(caught.value), ParameterError)
    assert counter.closed


@pytest.mark.anyio
@pytest.mark.parametrize("on_thread", [True, False])
async def test_an_error_of_whoever_uses_them_is_the_only_one(on_thread: bool) -> None:
    counter = Counter(100)

    async def fail() -> None:
        async with worked_ahead(counter.items(), on_thread=on_thread) as items:
            await anext(items)
            raise StateError("in use")

    with anyio.fail_after(DEADLINE_S), pytest.raises((StateError, ExceptionGroup)) as caught:
        await fail()

    error = caught.value
    if isinstance(error, ExceptionGroup):
        [error] = error.exceptions
    assert isinstance(error, StateError)
    assert counter.closed
