"""The evaluator of simulated devices: in their own process, since their data are made up."""

import threading
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import final

from demur_client.device import Device
from demur_client.evaluator.base import Evaluation, NoValue, Slot
from demur_client.sources import DataSource, ExampleSource
from demur_proto.arrays import Values
from demur_proto.definition import Defined
from demur_proto.errors import DemurError
from demur_proto.models.definition import DefinedModel
from demur_proto.round import Round


class InProcessEvaluator:
    """Evaluates in a thread, one round at a time. No person's device has it: what it does shows.

    A late evaluation cannot be ended. While it goes on, later rounds get cover, so that a source
    that hangs never holds more than one thread, nor the end of the process.

    Args:
        source: made-up data.
    """

    def __init__(self, source: DataSource | ExampleSource) -> None:
        self.source = source
        self.turn: AbstractAsyncContextManager[object] = nullcontext()  # made-up data may show
        self._under_way: _InThread | None = None

    async def prepare(self, model: DefinedModel | None) -> None:
        """Nothing: a simulated device may take as long as it takes."""

    def begin(
        self,
        device: Device,
        asked: Defined[Round],
        model: DefinedModel | None,
        *,
        slot: Slot | None,
    ) -> Evaluation:
        """As `Evaluator.begin`; without a slot the value is there when this returns."""
        if self._under_way is not None and not self._under_way.over:
            return NoValue("the data source was still busy with an earlier round")
        self._under_way = _InThread()
        find = threading.Thread(
            target=self._under_way.find, args=(device, asked, model), daemon=True
        )
        if slot:
            find.start()
        else:
            find.run()
        return self._under_way


@final
class _InThread(NoValue):
    """What becomes of one evaluation. It is looked at once, at a public time."""

    def __init__(self) -> None:
        super().__init__("the data source took longer than nine tenths of the slot")
        self.over = False
        self._found: tuple[Values | None, str] | DemurError | None = None

    def find(self, device: Device, asked: Defined[Round], model: DefinedModel | None) -> None:
        """Evaluate: in a thread of its own."""
        notes: list[str] = []
        try:
            value = device.evaluate(asked, model, noted=notes.append)
            self._found = value, "".join(notes)
        except DemurError as error:  # for `taken`, in the thread that waits
            self._found = error
        finally:
            self.over = True

    def taken(self) -> tuple[Values | None, str]:
        """The value and a note, as far as they are there by now; secret."""
        if isinstance(self._found, DemurError):
            raise self._found
        return self._found or super().taken()
