"""The evaluator of a deployed device: each round in a process of its own, ended at a public time."""

import itertools
import os
import socket
import sys
import threading
from contextlib import suppress
from typing import Self, final

import anyio

from demur_client.device import Device
from demur_client.evaluator.base import Evaluation, NoValue, Slot, check_working_set, required_slot
from demur_client.evaluator.board import Board, anonymous_file, taken
from demur_client.evaluator.limits import EvaluationLimits
from demur_client.sources.base import DataSource, ExampleSource
from demur_proto.arrays import Values
from demur_proto.errors import StateError, UnsupportedError
from demur_proto.models.definition import DefinedModel
from demur_proto.round import Round
from demur_proto.wire.definition import Defined

if sys.platform == "linux":
    from demur_client.evaluator import zygote

QUICK_S = 0.02  #: for which an evaluation has the processor to itself
LONGEST_FILL_S = 1.0  #: for which the processor is kept busy before a report leaves, and after it
PREPARE_S = 120.0  #: to prepare a model


@final
class SupervisedEvaluator:
    """Evaluates each round in a process forked for it, and ended at a public time, done or not.

    Make it first: the process it is made in must have one thread, and no ledger or channel open yet. The
    source is copied as it is at that moment, so it reads what changes later from files or databases.
    What it writes to variables, to files above 1 MiB or to the standard output is lost.

    Whatever an evaluation does, exit, crash, use up memory or processor, print, start processes of its
    own, the device looks for a value at nine tenths of the slot and takes what is there, or cover.

    Args:
        source: its owner's data.
        limits: of one evaluation.
        filler: keep the processor busy, at the lowest priority, for the last second before the report leaves and
            until it is acknowledged, for a second at most. Without it, how fast the device reacts may tell
            how busy it has just been. Public, as the policy is.

    Raises:
        StateError: the process has other threads already.
        UnsupportedError: the system is not Linux; see `SpareEvaluator`.
    """

    def __init__(
        self,
        source: DataSource | ExampleSource,
        *,
        limits: EvaluationLimits | None = None,
        filler: bool = True,
    ) -> None:
        if sys.platform != "linux":
            raise UnsupportedError(f"it forks as Linux does, and this is {sys.platform}")
        if threading.active_count() > 1:
            raise StateError(
                f"an evaluator is made before anything starts threads, and this process has "
                f"{threading.active_count()}; make it first"
            )
        self.source = source
        self._limits = limits or EvaluationLimits()
        self._filler = filler
        self._numbers = itertools.count(1)
        self.turn = anyio.Lock()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        device = os.getpid()
        self._keeper = os.fork()
        if not self._keeper:
            try:
                self._channel.close()
                zygote.keep(theirs, source, self._limits, device)
            finally:
                os._exit(1)
        theirs.close()
        self._channel.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it, and every evaluation under way; again, nothing happens."""
        if self._keeper:
            with suppress(OSError):  # for whoever else has a copy of this end, too
                self._channel.shutdown(socket.SHUT_RDWR)
            self._channel.close()
            os.waitpid(self._keeper, 0)
            self._keeper = 0

    async def prepare(self, model: DefinedModel | None) -> None:
        """As `Evaluator.prepare`.

        Raises:
            UnsupportedError: the model takes more memory than the owner's limit, whatever the data; or
                it cannot be prepared here.
        """
        if model is None:
            return
        check_working_set(model, self._limits)
        number = next(self._numbers)
        try:
            with anyio.fail_after(PREPARE_S):
                self._order(zygote.PREPARE, model.definition, number=number)
                answer = await self._answer(number)
        except (OSError, TimeoutError):
            answer = "the evaluator does not answer"
        if answer:
            raise UnsupportedError(f"the model cannot be prepared on this device: {answer}")

    def begin(
        self,
        device: Device,
        asked: Defined[Round],
        model: DefinedModel | None,
        *,
        slot: Slot | None,
    ) -> Evaluation:
        """As `Evaluator.begin`. What cannot be evaluated now is covered.

        Raises:
            ParameterError: there is no slot: then the time of a report would tell how long its value took.
        """
        slot = required_slot(slot)
        length = asked.value.query.value_length
        ended_s = min(slot.ended_s, slot.received_s + self._limits.wall_s)
        fill_from_s = max(slot.received_s + QUICK_S, slot.left_s - LONGEST_FILL_S)
        fill_to_s = slot.left_s + LONGEST_FILL_S if self._filler else fill_from_s
        study = device.study.definition
        try:
            board, handle = Board.made(length=length)
            try:
                self._order(
                    zygote.EVALUATE,
                    study + asked.definition,
                    board=handle,
                    length=length,
                    study_bytes=len(study),
                    times=(ended_s, fill_from_s, fill_to_s),
                )
            finally:
                os.close(handle)
        except OSError:
            return NoValue("the evaluator takes no orders now")
        return _OnBoard(board, length=length)

    def _order(
        self,
        what: int,
        content: bytes,
        *,
        board: int | None = None,
        length: int = 0,
        number: int = 0,
        study_bytes: int = 0,
        times: tuple[float, float, float] = (0.0, 0.0, 0.0),
    ) -> None:
        """Tell the zygote what to do, without ever waiting for it.

        Raises:
            OSError: it takes no order now.
        """
        order = zygote.ORDER.pack(what, length, number, study_bytes, *times)
        handle = anonymous_file(len(content))
        try:
            with os.fdopen(os.dup(handle), "wb") as file:
                file.write(content)
            handles = [handle] if board is None else [board, handle]
            socket.send_fds(self._channel, [order], handles)
        finally:
            os.close(handle)

    async def _answer(self, number: int) -> str:
        """What the zygote says to an order; answers to orders that were given up are passed over.

        Raises:
            OSError: it is gone.
        """
        while True:
            await anyio.wait_readable(self._channel)
            answer = self._channel.recv(zygote.NUMBER.size + zygote.LONGEST_ANSWER)
            if not answer:
                raise ConnectionError
            if zygote.NUMBER.unpack_from(answer)[0] == number:
                return answer[zygote.NUMBER.size :].decode(errors="replace")


@final
class _OnBoard:
    """An evaluation that writes on a board."""

    def __init__(self, board: Board, *, length: int) -> None:
        self._board, self._length = board, length

    def end(self) -> None:
        pass  # its supervisor sees to that

    def taken(self) -> tuple[Values | None, str]:
        return taken(self._board.content(), length=self._length)

    def acknowledged(self) -> None:
        self._board.acknowledge()
