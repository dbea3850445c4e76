"""Real devices on streams of their own, at a collector on this machine, and a watcher of the wire."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import anyio
import numpy as np
from tests.sim.on_the_wire import OnTheWire

from agent_kit import visit
from demur_client.connection import connected
from demur_client.device import Device
from demur_server.analyst import Analyst
from demur_server.collector.collector import Collector
from demur_server.grpc.serving import served
from demur_server.store.memory import MemoryStore
from demur_sim.engine.observer import Messages
from demur_sim.engine.worker import Recorder

DEADLINE_S = 120.0

Asking = Callable[..., Awaitable[object]]
"""Asks round `number`, given the analyst of each study, in the order of the studies."""


async def watched(
    people: Sequence[Sequence[Device]],
    ask: Asking,
    *,
    rounds: int,
    rng: np.random.Generator,
    slot_ms: int = 0,
) -> Messages:
    """What a watcher sees of the first device of each person.

    Args:
        people: the devices of each, one for each study; the studies are the same for all.
        ask: called with each number and the analysts.
        rounds: how many each study has.
        rng: of the order in which devices come, which has nothing to do with their data.
        slot_ms: when they send, after a round reached them; 0 for as soon as they can.
    """
    recorder = Recorder(devices=len(people))
    collector = Collector(MemoryStore(), open_access=True)
    with anyio.fail_after(DEADLINE_S):
        async with (
            served(collector) as ports,
            connected(f"127.0.0.1:{ports.collector}") as channel,
            AsyncExitStack() as stack,
            anyio.create_task_group() as tasks,
        ):
            analysts = [
                await stack.enter_async_context(
                    Analyst.create(
                        f"127.0.0.1:{ports.analyst}",
                        device.study.value,
                        answer_after_ms=slot_ms,
                    )
                )
                for device in people[0]
            ]

            async def attend(device: Device, watcher: OnTheWire | None) -> None:
                await visit(device, channel, last_round=rounds, watcher=watcher)

            for index in rng.permutation(len(people)).tolist():
                first, *others = people[index]
                tasks.start_soon(attend, first, OnTheWire(recorder, index))
                for other in others:
                    tasks.start_soon(attend, other, None)
            for number in range(1, rounds + 1):
                await ask(number, *analysts)
    return recorder.messages()
