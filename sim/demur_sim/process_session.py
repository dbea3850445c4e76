"""Fidelity `processes`: worker processes speak real gRPC to a real collector process."""

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import ExitStack, asynccontextmanager
from multiprocessing.connection import Connection
from typing import TypeVar

import anyio
import numpy as np

from demur_proto.arrays import Integers
from demur_proto.definition import Defined
from demur_proto.errors import ConnectionLost, DemurError, ParameterError, StateError, ours_in
from demur_proto.mechanisms.of_round import check_family
from demur_proto.models.definition import ModelDefinition, define_model
from demur_proto.release import Release
from demur_proto.round import Feature, Gradient, Histogram, Linear, Randomiser, Round
from demur_proto.study import Study
from demur_server.analyst import Analyst
from demur_server.serving import Ports
from demur_sim.children import Child, peak_rss_mb
from demur_sim.cohort import BLOCK, block_count
from demur_sim.collector_process import collect
from demur_sim.observer import Messages
from demur_sim.questions import Questions
from demur_sim.sampling import Noise
from demur_sim.scenario import Refusal
from demur_sim.session import ENDED, UNSETTLED, Aftermath
from demur_sim.worker_process import Answered, Finished, Work, work

Heard = TypeVar("Heard")


class ProcessSession:
    """Asks processes. Made by `process_session`."""

    def __init__(
        self,
        analyst: Analyst,
        questions: Questions,
        collector: Child,
        workers: Sequence[Child],
    ) -> None:
        self.devices = questions.population.devices
        self._questions = questions
        self.workers = tuple(workers)
        self.collector = collector
        self._analyst = analyst
        self._contributed: list[Integers] = []
        self.refused_after: list[int] = []  # simulator's truth: how many so far, round by round
        self._first_report = 0.0
        self._last_receipt = 0.0
        self._over = ""  # why nothing more can be asked

    @property
    def study(self) -> Defined[Study]:
        """The contract."""
        return self._analyst.study

    async def ask(
        self,
        *features: Feature,
        clip: float | None = None,
        on_grid: bool | None = None,
    ) -> Release:
        """Put a question to every device, and return the release."""
        check_family(self.study.value, Linear)
        question = self._questions.checked(features, clip=clip, on_grid=on_grid)
        return await self._released(
            lambda: self._analyst.open(
                *question.features,
                dimension=question.dimension,
                clip=question.clip,
                on_grid=question.on_grid,
            )
        )

    async def ask_histogram(
        self, feature: Feature, *, categories: int, mechanism: Randomiser, epsilon: float
    ) -> Release:
        """Ask every device for its category of a feature, and return the counts."""
        check_family(self.study.value, Histogram)
        self._questions.check_category(feature)
        return await self._released(
            lambda: self._analyst.open_histogram(
                feature, categories=categories, mechanism=mechanism, epsilon=epsilon
            )
        )

    async def ask_gradient(self, model: ModelDefinition, *, clip: float | None = None) -> Release:
        """Ask every device for its gradient of a model, and return their noisy sum."""
        check_family(self.study.value, Gradient)
        self._questions.check_gradient(model)
        defined = define_model(model)

        async def open_round() -> Defined[Round]:
            await self._analyst.publish_model(defined)
            return await self._analyst.open_gradient(
                defined, clip=self._questions.clip if clip is None else clip
            )

        return await self._released(open_round)

    async def _released(self, open_round: Callable[[], Awaitable[Defined[Round]]]) -> Release:
        """Open a round, wait for every worker's answers, and close it."""
        if self._over:
            raise StateError(self._over)
        self._over = UNSETTLED
        try:
            asked = await open_round()
        except ConnectionLost as error:
            raise self._what_stopped(error) from None
        except ParameterError:  # nobody was asked
            self._over = ""
            raise
        try:
            answers = await self._hear(Answered)
            release = await self._analyst.close(asked)
        except ConnectionLost as error:
            raise self._what_stopped(error) from None
        if any(answer.number != asked.value.number for answer in answers):
            raise StateError(f"round {asked.value.number}: a worker answered another one")
        self._contributed.append(
            np.sum([answer.contributed for answer in answers], axis=0, dtype=np.int64)
        )
        self.refused_after.append(sum(answer.refused for answer in answers))
        firsts = [answer.first_report for answer in answers if answer.first_report]
        if not self._first_report and firsts:
            self._first_report = min(firsts)
        self._last_receipt = max(answer.last_receipt for answer in answers)
        self._over = ""
        return release

    def watch(self, *, from_number: int = 1) -> AsyncGenerator[Release, None]:
        """Every release from a round's number on, then each new one, without end."""
        return self._analyst.watch(from_number=from_number)

    async def finish(self) -> Aftermath:
        """End the study and tell what only a simulator knows."""
        if self._over:
            raise StateError(self._over)
        self._over = ENDED
        try:
            for worker in self.workers:
                worker.tell("stop")
            finished = await self._hear(Finished)
            self.collector.tell("stop")
            collector_peak: float = await self.collector.hear()
        except ConnectionLost as error:
            raise self._what_stopped(error) from None
        seen = [last.recorder.messages() for last in finished if last.recorder]
        return Aftermath(
            contributed=tuple(self._contributed),
            refused=np.concatenate([last.refused for last in finished]),
            spent=np.concatenate([last.spent for last in finished]),
            noise=Noise.SHARES,
            messages=Messages.concatenate(seen) if seen else None,
            answering_s=self._last_receipt - self._first_report,
            peak_rss_mb=max(peak_rss_mb(), collector_peak, *(f.peak_rss_mb for f in finished)),
        )

    async def _hear(self, kind: type[Heard]) -> list[Heard]:
        """One word from every worker, unless a process stops first."""
        heard: dict[int, Heard] = {}

        async def listen(index: int, worker: Child) -> None:
            word = await worker.hear()
            if not isinstance(word, kind):
                raise StateError(f"the {worker.name} process said something unexpected")
            heard[index] = word
            if len(heard) == len(self.workers):
                tasks.cancel_scope.cancel()

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.collector.hear)  # says nothing before it is told to stop
                for index, worker in enumerate(self.workers):
                    tasks.start_soon(listen, index, worker)
        except BaseExceptionGroup as group:
            ours = ours_in(group)
            if ours is None:
                raise
            raise ours from None
        return [heard[index] for index in range(len(self.workers))]

    def _what_stopped(self, error: DemurError) -> DemurError:
        """Where a process is gone, that says more than a lost connection."""
        for child in (self.collector, *self.workers):
            reason = child.stopped()
            if reason is not None:
                return reason
        return error


@asynccontextmanager
async def process_session(
    study: Defined[Study],
    questions: Questions,
    *,
    seed: int,
    refusal: Refusal,
    workers: int,
    collector_port: int = 0,
    record: bool = False,
) -> AsyncIterator[ProcessSession]:
    """A session over a collector process and worker processes; none outlives the block.

    Args:
        study: the contract.
        questions: with everyone, in the order in which they were dealt to devices.
        seed: of the whole run.
        refusal: what a refused device does.
        workers: how many worker processes; at most one per block of 4,096 devices.
        collector_port: where devices reach the collector; 0 takes a free port.
        record: keep what a watcher of the network would see.

    Raises:
        StateError: the port is in use.
        ConnectionLost: a process stopped.
    """
    population = questions.population
    blocks = block_count(population.devices)
    shares = np.array_split(np.arange(blocks), min(workers, blocks))

    def tasks(target: str) -> Iterator[Work]:
        for share in shares:
            first, last = int(share[0]), int(share[-1]) + 1
            yield Work(
                target=target,
                study_hash=study.hash,
                population=population.part(
                    slice(first * BLOCK, min(last * BLOCK, population.devices))
                ),
                first_block=first,
                seed=seed,
                refusal=refusal,
                record=record,
            )

    names = [f"worker {number}" for number in range(1, len(shares) + 1)]
    async with session_over(study, questions, work, names, tasks, collector_port) as session:
        yield session


@asynccontextmanager
async def session_over(
    study: Defined[Study],
    questions: Questions,
    main: Callable[[Connection], None],
    names: Sequence[str],
    tasks: Callable[[str], Iterable[object]],
    collector_port: int,
) -> AsyncIterator[ProcessSession]:
    """A session over a collector process and one process of each name.

    Args:
        study: the contract.
        questions: with everyone, in the order of the processes.
        main: what every process runs; it says `Answered` after each round and `Finished` at its end.
        names: what errors call the processes.
        tasks: what each of them is told first, given where the collector is.
        collector_port: where devices reach the collector; 0 takes a free port.

    Raises:
        StateError: the port is in use.
        ConnectionLost: a process stopped.
    """
    with ExitStack() as stack:
        collector = Child("collector", collect, collector_port)
        stack.callback(collector.end)
        children = []
        for name in names:
            children.append(Child(name, main))
            stack.callback(children[-1].end)
        ports = await collector.hear()
        if not isinstance(ports, Ports):
            raise StateError("the collector process said something unexpected")
        async with Analyst.create(f"127.0.0.1:{ports.analyst}", study.value) as analyst:
            target = f"127.0.0.1:{ports.collector}"
            for child, task in zip(children, tasks(target), strict=True):
                await child.hand_over(task)
            yield ProcessSession(analyst, questions, collector, children)
