"""Fidelity `device`: each person's device is a process of its own, as deployed."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from demur_proto.definition import Defined
from demur_proto.errors import ParameterError
from demur_proto.study import Study
from demur_sim.device_process import Life, live
from demur_sim.opening_processes import session_over
from demur_sim.process_session import ProcessSession
from demur_sim.questions import Questions
from demur_sim.scenario import Refusal

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
