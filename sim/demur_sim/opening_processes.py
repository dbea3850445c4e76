"""Starts the processes of a session, and ends them with it."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from multiprocessing.connection import Connection

import numpy as np

from demur_proto.definition import Defined
from demur_proto.errors import StateError
from demur_proto.study import Study
from demur_server.analyst import Analyst
from demur_server.serving import Ports
from demur_sim.children import Child
from demur_sim.collector_process import collect
from demur_sim.portions import BLOCK, block_count
from demur_sim.presence import Turnout
from demur_sim.process_session import CompanionSession, ProcessSession
from demur_sim.questions import Questions
from demur_sim.scenario import Refusal
from demur_sim.worker_process import Companion, Work, work


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
