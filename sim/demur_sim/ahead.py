"""Randomness of a wide round, drawn on a thread of its own before it is asked for.

Drawing is most of the work of such a round, and what is drawn depends on nobody's values. So it goes
on while the portion before is rounded and sent. Draws are made one after the other in the order in
which they are asked for: not a bit of them is another.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from demur_proto.arrays import Bits, Values, Words
from demur_proto.errors import StateError
from demur_proto.noise import Sampler

DRAWS_AHEAD = 3  #: that wait for whoever asks: what is in memory at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What a sampler is asked for: coins [reports, dimension], or noise of so many steps."""

    reports: int
    dimension: int
    steps: float | None  #: standard deviation of noise, grid steps; None for coins


class DrawnAhead:
    """A sampler that hands out what another one has drawn by then. Made by `drawn_ahead`."""

    def __init__(self, sampler: Sampler, draws: Iterable[Draw], pool: ThreadPoolExecutor) -> None:
        self.name = sampler.name
        self._sampler = sampler
        self._draws = iter(draws)
        self._pool = pool
        self._waiting: deque[tuple[Draw, Future[Any]]] = deque()
        for _ in range(DRAWS_AHEAD):
            self._draw_another()

    def gaussian(self, steps: float, *, reports: int, dimension: int) -> Words:
        """Rounded Gaussian noise [reports, dimension]."""
        drawn: Words = self._next(Draw(reports=reports, dimension=dimension, steps=steps))
        return drawn

    def uniform(self, *, reports: int, dimension: int) -> Values:
        """Coins [reports, dimension]."""
        drawn: Values = self._next(Draw(reports=reports, dimension=dimension, steps=None))
        return drawn

    def words(self, count: int) -> Bits:
        """There are none: nothing that is drawn ahead asks for bits."""
        raise StateError("bits are not drawn ahead; ask the sampler itself")

    def _next(self, wanted: Draw) -> Any:
        """The next draw, which must be the one that was foreseen."""
        if not self._waiting or self._waiting[0][0] != wanted:
            raise StateError("something else is asked for than was to be drawn next")
        _, drawing = self._waiting.popleft()
        self._draw_another()
        return drawing.result()

    def _draw_another(self) -> None:
        draw = next(self._draws, None)
        if draw is not None:
            self._waiting.append((draw, self._pool.submit(self._drawn, draw)))

    def _drawn(self, draw: Draw) -> Any:
        if draw.steps is None:
            return self._sampler.uniform(reports=draw.reports, dimension=draw.dimension)
        return self._sampler.gaussian(draw.steps, reports=draw.reports, dimension=draw.dimension)


@contextmanager
def drawn_ahead(sampler: Sampler, draws: Iterable[Draw]) -> Iterator[DrawnAhead]:
    """The same sampler, for as long as the block lasts, drawing ahead on a thread.

    Args:
        sampler: nobody else may draw from it meanwhile.
        draws: all that will be asked for, in order.

    >>> import numpy as np
    >>> from demur_sim.sampling import FastSampler
    >>> rng = np.random.default_rng
    >>> draws = [Draw(reports=1, dimension=2, steps=None), Draw(reports=1, dimension=2, steps=8.0)]
    >>> with drawn_ahead(FastSampler(rng(1)), draws) as ahead:
    ...     _, noise = ahead.uniform(reports=1, dimension=2), ahead.gaussian(8.0, reports=1, dimension=2)
    >>> sampler = FastSampler(rng(1))
    >>> _ = sampler.uniform(reports=1, dimension=2)
    >>> np.array_equal(noise, sampler.gaussian(8.0, reports=1, dimension=2))
    True
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="draws")
    try:
        yield DrawnAhead(sampler, draws, pool)
    finally:
        pool.shutdown(cancel_futures=True)
