"""The evaluator where nothing can be forked, Windows and macOS: each round in a process started beforehand."""

import itertools
import multiprocessing
import os
import pickle
import sys
import tempfile
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self, final

import anyio
from anyio import to_thread

from demur_client.device import Device
from demur_client.evaluator.base import Evaluation, NoValue, Slot, check_working_set, required_slot
from demur_client.evaluator.board import Board, size_of, taken
from demur_client.evaluator.limits import EvaluationLimits
from demur_client.sources.base import DataSource, ExampleSource, evaluate_round
from demur_proto.arrays import Values
from demur_proto.errors import DemurError, ParameterError, UnsupportedError
from demur_proto.models.definition import DefinedModel, read_model
from demur_proto.models.gradients import prepare
from demur_proto.round import Round
from demur_proto.wire.definition import Defined, read_round, read_study

START_S = 120.0  #: to start a process and prepare a model in it


@final
class SpareEvaluator:
    """Evaluates each round in a process that was started before the round came, and is ended after it.

    It promises what `SupervisedEvaluator` does but for three things: processes that an evaluation starts are
    its own affair, limits of memory and time are not kept, but for the slot's and where the system has one, and
    nothing hides how busy the processor has just been.

    Args:
        source: its owner's data; one that can be pickled, as `multiprocessing` wants it.
        limits: of one evaluation.

    Raises:
        ParameterError: the source cannot be pickled.
    """

    def __init__(
        self, source: DataSource | ExampleSource, *, limits: EvaluationLimits | None = None
    ) -> None:
        self.source = source
        self._limits = limits or EvaluationLimits()
        try:
            pickle.dumps(source)
        except Exception as error:  # noqa: BLE001  whatever its own pickling raises
            expected = f"one that can be pickled ({type(error).__name__}: {error})"
            raise ParameterError("source", type(source).__name__, expected) from None
        self.turn = anyio.Lock()
        self._numbers = itertools.count(1)
        self._folder = tempfile.TemporaryDirectory(prefix="demur-", ignore_cleanup_errors=True)
        self._spares: dict[
            bytes, list[_Spare]
        ] = {}  # ready, by their models' hashes; empty for none

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes; again, nothing happens."""
        for spare in itertools.chain.from_iterable(self._spares.values()):
            spare.close()
        self._spares.clear()
        self._folder.cleanup()

    async def prepare(self, model: DefinedModel | None) -> None:
        """As `Evaluator.prepare`: starts the process in which the next round is evaluated.

        Raises:
            UnsupportedError: as `Evaluator.prepare`.
        """
        if model is not None:
            check_working_set(model, self._limits)
        definition, known = (model.definition, model.hash) if model else (b"", b"")
        if self._spares.get(known):
            return  # of a round that was not evaluated
        path = Path(self._folder.name) / f"board-{next(self._numbers)}"
        start = partial(_Spare, path, self.source, self._limits, definition)
        spare = await to_thread.run_sync(start)
        if spare.refused:
            spare.close()
            raise UnsupportedError(f"it cannot be evaluated on this device: {spare.refused}")
        self._spares.setdefault(known, []).append(spare)

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
        required_slot(slot)
        waiting = self._spares.get(model.hash if model else b"")
        if not waiting:
            return NoValue("no evaluator was prepared")
        spare = waiting.pop()
        try:
            spare.begin(device, asked)
        except OSError:
            spare.close()
            return NoValue("the evaluator takes no orders now")
        return spare


@final
class _Spare:
    """A process that evaluates one round.

    Args:
        path: of its board.
        source: its owner's data.
        limits: of the evaluation.
        definition: of the model to prepare; empty for none.
    """

    def __init__(
        self,
        path: Path,
        source: DataSource | ExampleSource,
        limits: EvaluationLimits,
        definition: bytes,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._path = path
        self._length = 0
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_live, args=(theirs, source, limits, definition), daemon=True
        )
        self._process.start()
        theirs.close()
        self.refused = "it does not answer"  #: why it cannot; empty where it can; public
        with suppress(OSError, EOFError):
            if self._pipe.poll(START_S):
                self.refused = self._pipe.recv_bytes().decode(errors="replace")

    def begin(self, device: Device, asked: Defined[Round]) -> None:
        """Start on a round.

        Raises:
            OSError: it is gone, or there is no room for its board.
        """
        self._length = asked.value.query.value_length
        self._path.write_bytes(bytes(size_of(self._length)))
        for part in (str(self._path).encode(), device.study.definition, asked.definition):
            self._pipe.send_bytes(part)

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()

    def taken(self) -> tuple[Values | None, str]:
        """As `Evaluation.taken`."""
        try:  # read, not mapped: the evaluation might have made it shorter
            content = self._path.read_bytes()
        except OSError:
            content = b""
        return taken(content, length=self._length)

    def acknowledged(self) -> None:
        """Let go of what is left of the process."""
        self.close()

    def close(self) -> None:
        """End the process and wait until it is gone."""
        self._process.kill()
        self._process.join()
        self._pipe.close()
        with suppress(OSError):  # Windows keeps a file that is mapped until the mapping goes
            self._path.unlink(missing_ok=True)


def _live(
    pipe: Connection,
    source: DataSource | ExampleSource,
    limits: EvaluationLimits,
    definition: bytes,
) -> None:
    """Prepare, wait for the round, evaluate it: in a process of its own."""
    try:
        model = read_model(definition) if definition else None
        if model is not None:
            prepare(model.value)
    except (DemurError, MemoryError) as error:
        pipe.send_bytes(str(error).encode() or b"it takes more memory than there is")
        return
    pipe.send_bytes(b"")
    path, study, asked = (pipe.recv_bytes() for _ in range(3))
    query = read_round(asked, study=read_study(study)).value.query
    with open(path, "r+b") as file:
        board = Board(file.fileno(), length=query.value_length)
    _confine(limits)
    notes: list[str] = []
    value = evaluate_round(query, model, source, noted=notes.append)
    board.put(value, "".join(notes))


def _confine(limits: EvaluationLimits) -> None:
    """Confine this process as far as its system can."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    if sys.platform != "win32":
        import resource

        os.nice(19)
        resource.setrlimit(resource.RLIMIT_CPU, (limits.processor_s, limits.processor_s))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
