"""Fidelity `processes`: worker processes speak real gRPC to a real collector process."""

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from multiprocessing.connection import Connection
from typing import TypeVar

import anyio
import numpy as np

from demur_proto.arrays import Flags, Integers, Vector
from demur_proto.errors import ConnectionLost, DemurError, ParameterError, StateError, ours_in
from demur_proto.queries import (
    HaltCount,
    Query,
)
from demur_proto.release import Release
from demur_proto.round import Round, round_of
from demur_proto.running.following import check_next, counting_of
from demur_proto.study import Study
from demur_proto.wire.definition import Defined
from demur_server.analyst import Analyst
from demur_server.grpc.serving import Ports
from demur_sim.engine.children import Child, collect, peak_rss_mb
from demur_sim.engine.devices import Life, live
from demur_sim.engine.observer import Messages
from demur_sim.engine.sampling import Noise
from demur_sim.engine.session import ENDED, UNSETTLED, Aftermath, Questions
from demur_sim.engine.worker import Answered, Companion, Finished, Work, work
from demur_sim.people.presence import BLOCK, Turnout, block_count
from demur_sim.scenario import Refusal

Heard = TypeVar("Heard")


class ProcessSession:
    """Asks processes. Made by `opening_processes.process_session`."""

    def __init__(
        self,
        analyst: Analyst,
        questions: Questions,
        collector: Child,
        workers: Sequence[Child],
        *,
        ports: Ports,
        ends_collector: bool,
    ) -> None:
        self.devices = questions.population.devices
        self._questions = questions
        self.workers = tuple(workers)
        self.collector = collector
        self.ports = ports
        self._ends_collector = ends_collector
        self._analyst = analyst
        self._contributed: list[Vector] = []
        self.refused_after: list[int] = []  # simulator's truth: how many so far, round by round
        self._first_report = 0.0
        self._last_receipt = 0.0
        self._over = ""  # why nothing more can be asked
        self._counts: dict[int, list[Round]] = {}  # of running counts, by their first round
        self.companions: dict[bytes, CompanionSession] = {}  #: same people, by their study

    @property
    def study(self) -> Defined[Study]:
        """The contract."""
        return self._analyst.study

    async def ask(self, query: Query) -> Release:
        """Put a question to every device, and return the release."""
        full = self._questions.checked(query, self.study.value)
        if isinstance(full, HaltCount):
            self._check_halted(full.halted_study)
        asked = round_of(self.study, full, number=self._analyst.rounds + 1)
        counting = counting_of(asked)
        if counting is not None:  # or the collector would refuse it
            check_next(asked, self._counts.get(counting.segment.count, []))
        return await self._released(full)

    def _check_halted(self, halted_study: bytes) -> None:
        name = halted_study.hex()[:16]
        raise ParameterError("halted_study", name, "a study that these people are in")

    async def _released(self, query: Query) -> Release:
        """Open a round, wait for every worker's answers, and close it."""
        if self._over:
            raise StateError(self._over)
        self._over = UNSETTLED
        try:
            asked = await self._analyst.open(query)
        except ConnectionLost as error:
            raise self._what_stopped(error) from None
        except ParameterError:  # nobody was asked
            self._over = ""
            raise
        counting = counting_of(asked.value)
        if counting is not None:
            self._counts.setdefault(counting.segment.count, []).append(asked.value)
        try:
            answers = await self._hear(Answered)
            release = await self._analyst.close(asked)
        except ConnectionLost as error:
            raise self._what_stopped(error) from None
        told = {(answer.study_hash, answer.number) for answer in answers}
        if told != {(self.study.hash, asked.value.number)}:
            raise StateError(f"round {asked.value.number}: a worker answered another one")
        self._contributed.append(np.sum([answer.contributed for answer in answers], axis=0))
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
            collector_peak = 0.0
            if self._ends_collector:
                self.collector.tell("stop")
                collector_peak = await self.collector.hear()
        except ConnectionLost as error:
            raise self._what_stopped(error) from None
        for study_hash, session in self.companions.items():
            session.end([last.beside[study_hash] for last in finished])
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


class CompanionSession(ProcessSession):
    """Asks the same people in another study. It ends with the session that it is beside.

    Args:
        main: that session.
        analyst: of this study.
        questions: as of the other one.
    """

    def __init__(self, main: ProcessSession, analyst: Analyst, questions: Questions) -> None:
        super().__init__(
            analyst,
            questions,
            main.collector,
            main.workers,
            ports=main.ports,
            ends_collector=False,
        )
        self._main = main.study.hash
        self.refused: Flags = np.zeros(0, dtype=np.bool_)  #: simulator's truth, once it has ended
        self.spent: Integers = np.zeros(0, dtype=np.int64)  #: likewise, budget units

    def end(self, last: Sequence[tuple[Flags, Integers]]) -> None:
        """Take in what every worker told in the end. No question can follow."""
        self.refused = np.concatenate([refused for refused, _ in last])
        self.spent = np.concatenate([spent for _, spent in last])
        self._over = ENDED

    async def finish(self) -> Aftermath:
        """Refuse: the processes are not this study's own.

        Raises:
            StateError: always.
        """
        raise StateError("end the session that this one is beside")

    def _check_halted(self, halted_study: bytes) -> None:
        if halted_study != self._main:
            super()._check_halted(halted_study)


# Starts the processes of a session, and ends them with it.


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
    beside: ProcessSession | None = None,
    companions: Sequence[tuple[Defined[Study], int]] = (),
    turnout: Turnout | None = None,
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
        beside: a session whose collector has this study as well. The two take turns, and this one
            ends first.
        companions: other studies that the same devices are in, each with a seed of its own. They may
            count who halted in the first one.
        turnout: who is there, of every study; by default everybody.

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
                companions=tuple(
                    Companion(study_hash=other.hash, seed=its) for other, its in companions
                ),
                turnout=turnout,
            )

    names = [f"worker {number}" for number in range(1, len(shares) + 1)]
    async with session_over(
        study,
        questions,
        work,
        names,
        tasks,
        collector_port=collector_port,
        beside=beside,
        companions=[other for other, _ in companions],
    ) as session:
        yield session


@asynccontextmanager
async def session_over(
    study: Defined[Study],
    questions: Questions,
    main: Callable[[Connection], None],
    names: Sequence[str],
    tasks: Callable[[str], Iterable[object]],
    *,
    collector_port: int = 0,
    beside: ProcessSession | None = None,
    companions: Sequence[Defined[Study]] = (),
    answer_after_ms: int = 0,
) -> AsyncIterator[ProcessSession]:
    """A session over a collector process and one process of each name.

    Args:
        study: the contract.
        questions: with everyone, in the order of the processes.
        main: what every process runs; it says `Answered` after each round and `Finished` at its end.
        names: what errors call the processes.
        tasks: what each of them is told first, given where the collector is.
        collector_port: as in `process_session`.
        beside: as in `process_session`.
        companions: other studies that the same processes answer.
        answer_after_ms: the slot of every round; 0 for as soon as there is an answer: the data are made up.

    Raises:
        StateError: the port is in use.
        ConnectionLost: a process stopped.
    """
    with ExitStack() as stack:
        if beside is None:
            collector = Child("collector", collect, collector_port)
            stack.callback(collector.end)
        else:
            collector = beside.collector
        children = []
        for name in names:
            children.append(Child(name, main))
            stack.callback(children[-1].end)
        ports = await collector.hear() if beside is None else beside.ports
        if not isinstance(ports, Ports):
            raise StateError("the collector process said something unexpected")
        async with AsyncExitStack() as analysts:
            analyst, *others = [
                await analysts.enter_async_context(
                    Analyst.create(
                        f"127.0.0.1:{ports.analyst}", each.value, answer_after_ms=answer_after_ms
                    )
                )
                for each in (study, *companions)
            ]
            target = f"127.0.0.1:{ports.collector}"
            for child, task in zip(children, tasks(target), strict=True):
                await child.hand_over(task)
            session = ProcessSession(
                analyst,
                questions,
                collector,
                children,
                ports=ports,
                ends_collector=beside is None,
            )
            for other in others:
                session.companions[other.study.hash] = CompanionSession(session, other, questions)
            yield session


# Fidelity `device`: each person's device is a process of its own, as deployed.

MOST_DEVICES = 64  #: processes, of about 60 MB each


@asynccontextmanager
async def device_session(
    study: Defined[Study],
    questions: Questions,
    *,
    refusal: Refusal,
    collector_port: int = 0,
    record: bool = False,
    slot_ms: int = 0,
) -> AsyncIterator[ProcessSession]:
    """A session over a collector process and a process for each device; none outlives the block.

    Args:
        study: the contract.
        questions: with everyone, in the order in which they were dealt to devices.
        refusal: what a refused device does: it covers.
        collector_port: where devices reach the collector; 0 takes a free port.
        record: keep what a watcher of the network would see.
        slot_ms: how long after a round the reports leave, milliseconds; 0 as soon as each is there.

    Raises:
        ParameterError: there are too many devices, or they would have to fall silent.
        StateError: the port is in use.
        ConnectionLost: a process stopped.
    """
    population = questions.population
    if population.devices > MOST_DEVICES:
        expected = f"at most {MOST_DEVICES}, where each is a process (fidelity device)"
        raise ParameterError("devices", population.devices, expected)
    if refusal is not Refusal.COVER:
        raise ParameterError(
            "refusal", str(refusal), "cover: a real device never falls silent (fidelity device)"
        )

    def tasks(target: str) -> Iterator[Life]:
        for index in range(population.devices):
            person = population.part(slice(index, index + 1))
            yield Life(target=target, study=study, person=person, record=record)

    names = [f"device {number}" for number in range(1, population.devices + 1)]
    async with session_over(
        study,
        questions,
        live,
        names,
        tasks,
        collector_port=collector_port,
        answer_after_ms=slot_ms,
    ) as session:
        yield session
