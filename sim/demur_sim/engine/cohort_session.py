"""Fidelity `cohort`: everyone as arrays in this process."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel

from demur_proto.arrays import Vector
from demur_proto.errors import StateError
from demur_proto.models.definition import ModelDefinition
from demur_proto.queries import (
    ModelQuery,
    Query,
)
from demur_proto.release import Release
from demur_proto.round import Round, round_of
from demur_proto.running.following import check_next, counting_of
from demur_proto.study import Study
from demur_proto.wire.definition import Defined, define_round
from demur_server.collector.estimates import make_release
from demur_sim.engine.children import peak_rss_mb
from demur_sim.engine.cohort import Cohort
from demur_sim.engine.running_counts import Flagged
from demur_sim.engine.sampling import Noise
from demur_sim.engine.session import ENDED, Aftermath, Questions
from demur_sim.people.presence import Turnout
from demur_sim.scenario import Refusal


class CohortSession:
    """Asks arrays. Made by `cohort_session`."""

    def __init__(
        self,
        cohort: Cohort,
        questions: Questions,
        pool: ThreadPoolExecutor,
        *,
        threads: int,
        noise: Noise = Noise.SHARES,
    ) -> None:
        self.cohort = cohort  #: simulator's truth: everybody's filter and running counts
        self._questions = questions
        self._pool = pool
        self._threads = threads
        self._noise = noise
        self._releases: list[Release] = []
        self._counts: dict[int, list[tuple[Round, Release]]] = {}  # by the first round of each
        self._contributed: list[Vector] = []
        self._answering_s = 0.0
        self._news = anyio.Event()
        self._ended = False
        self.companions: dict[bytes, CohortSession] = {}  #: same people, by their study

    @property
    def study(self) -> Defined[Study]:
        """The contract."""
        return self.cohort.study

    @property
    def devices(self) -> int:
        """How many people there are."""
        return len(self.cohort.refused())

    async def ask(self, query: Query) -> Release:
        """Put a question to every device, and return the release."""
        await anyio.lowlevel.checkpoint()
        full = self._questions.checked(query, self.study.value)
        if self._ended:
            raise StateError(ENDED)
        asked = round_of(self.study, full, number=len(self._releases) + 1)
        model = query.model if isinstance(query, ModelQuery) else None
        return self._released(asked, None if model is None else model.value)

    def _released(self, question: Round, model: ModelDefinition | None = None) -> Release:
        """Everyone's answers to a round, added up and published."""
        question.query.check_affordable(self.study.value, question.weight)
        asked = define_round(question)
        query = counting_of(question)
        before: list[tuple[Round, Release]] = []
        if query is not None:
            before = self._counts.setdefault(query.segment.count, before)
            check_next(question, [asked for asked, _ in before])
        started = time.monotonic()
        answers = self.cohort.sum(
            asked.value, self._pool, threads=self._threads, model=model, noise=self._noise
        )
        self._answering_s += time.monotonic() - started
        release = make_release(
            self.study,
            asked,
            answers.sums,
            reports=answers.reports,
            open_access=True,  # as in processes
            earlier=[release for _, release in before],
        )
        before.append((question, release))
        self._contributed.append(answers.contributed)
        self._releases.append(release)
        self._news.set()
        self._news = anyio.Event()
        return release

    async def watch(self, *, from_number: int = 1) -> AsyncGenerator[Release, None]:
        """Every release from a round's number on, then each new one, without end."""
        at = max(0, from_number - 1)
        while True:
            news = self._news
            while at < len(self._releases):
                at += 1
                yield self._releases[at - 1]
            await news.wait()

    async def finish(self) -> Aftermath:
        """End the study and tell what only a simulator knows."""
        if self._ended:
            raise StateError(ENDED)
        self._ended = True
        return Aftermath(
            contributed=tuple(self._contributed),
            refused=self.cohort.refused(),
            spent=self.cohort.spent(),
            noise=self._noise,
            messages=None,
            answering_s=self._answering_s,
            peak_rss_mb=peak_rss_mb(),
        )


@asynccontextmanager
async def cohort_session(
    study: Defined[Study],
    questions: Questions,
    *,
    seed: int,
    refusal: Refusal,
    threads: int,
    noise: Noise = Noise.SHARES,
    beside: Mapping[bytes, Flagged] | None = None,
    companions: Sequence[tuple[Defined[Study], int]] = (),
    turnout: Turnout | None = None,
) -> AsyncIterator[CohortSession]:
    """A session over arrays, blocks dealt to threads.

    Args:
        study: the contract.
        questions: with everyone, in the order in which they were dealt to devices.
        seed: of the whole run.
        refusal: what a refused device does.
        threads: how many.
        noise: how it is drawn.
        beside: of other studies of the same people, by their hash, who halted in them.
        companions: other studies that the same people are in, each with a seed of its own. They may
            count who halted in the first one.
        turnout: who is there, of every study; by default everybody.
    """
    people = questions.population
    cohort = Cohort(study, people, seed=seed, refusal=refusal, beside=beside, turnout=turnout)
    halted = {study.hash: cohort.covered}
    with ThreadPoolExecutor(threads) as pool:
        session = CohortSession(cohort, questions, pool, threads=threads, noise=noise)
        for other, its in companions:
            same = Cohort(other, people, seed=its, refusal=refusal, beside=halted, turnout=turnout)
            session.companions[other.hash] = CohortSession(
                same, questions, pool, threads=threads, noise=noise
            )
        yield session
