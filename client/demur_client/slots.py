"""When a report leaves: in a public slot, whatever it holds and however long that took."""

import asyncio
import threading
import time
from contextlib import suppress

import anyio

from demur_client.device import Device
from demur_client.sources import Noted
from demur_proto.arrays import Values
from demur_proto.definition import Defined
from demur_proto.models.definition import DefinedModel
from demur_proto.round import Round
from demur_proto.v1.report_pb2 import Report


class Evaluation:
    """Evaluates beside the event loop, one round at a time.

    A late evaluation cannot be stopped. While it goes on, later rounds get cover, so that a source
    that hangs never holds more than one thread, nor the end of the process.
    """

    def __init__(self) -> None:
        self._idle = threading.Event()
        self._idle.set()

    async def of(
        self, device: Device, asked: Defined[Round], model: DefinedModel | None, *, noted: Noted
    ) -> Values | None:
        """The value of a round; None where it failed, or where another is still under way."""
        if not self._idle.is_set():
            noted("the data source was still busy with an earlier round")
            return None
        device.check(asked)
        self._idle.clear()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Values | None] = loop.create_future()

        def evaluate() -> None:
            try:
                value = device.evaluate(asked, model, noted=noted)
            finally:
                self._idle.set()
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, value)

        def settle(value: Values | None) -> None:
            if not done.done():
                done.set_result(value)

        threading.Thread(target=evaluate, daemon=True).start()
        return await done


async def report_in_slot(
    device: Device,
    asked: Defined[Round],
    evaluation: Evaluation,
    model: DefinedModel | None,
    *,
    slot_ms: int,
) -> Report:
    """The report to a round, when its public slot has come.

    The value is computed aside; what is not ready when the slot comes is answered with cover, so
    that neither the size of a person's data nor a failure shows in the time. The report is made at
    nine tenths of the slot even where the value came sooner: making a large one takes longer than what
    is left, and would show which it was. A source must let other threads run: one that holds the
    interpreter's lock holds up the report as well.

    Args:
        device: whose report it is.
        asked: the round, which was received just now.
        evaluation: of all rounds of this device, one after the other.
        model: the one that the round names; None where it names none.
        slot_ms: how long after now the report leaves; 0 as soon as its value is computed.

    Raises:
        ParameterError, StateError, StorageError: as `Device.report`.
    """
    notes: list[str] = []
    if not slot_ms:
        value = device.evaluate(asked, model, noted=notes.append)
        return device.report(asked, value, note="".join(notes))
    length_s = slot_ms / 1000
    received = time.monotonic()
    ready, slot = received + 0.9 * length_s, received + length_s
    value = None
    with anyio.move_on_after(0.9 * length_s) as waited:
        value = await evaluation.of(device, asked, model, noted=notes.append)
    if waited.cancelled_caught:
        notes = [f"the data source took longer than {0.9 * length_s:g} s, nine tenths of the slot"]
    await anyio.sleep(max(0.0, ready - time.monotonic()))
    report = device.report(asked, value, note="".join(notes))
    await anyio.sleep(max(0.0, slot - time.monotonic()))
    return report
