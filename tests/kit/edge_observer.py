"""Watches one real device over many rounds, as a collector could, and writes down what it saw.

    python tests/kit/edge_observer.py '{"words": ["nothing", "burn"], "sends": 300, ...}' OUT.npy

Before each round it changes the owner's data; the order is random. So whatever else happens on the
machine falls on all of them alike.
"""

import ctypes
import gc
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

import numpy as np

from demur_proto.models.architectures import HiddenLayer, Softmax
from demur_proto.models.definition import (
    DefinedModel,
    ModelDefinition,
    define_model,
    read_model,
)
from demur_proto.models.whitened_gradients import WhitenedGradients
from demur_proto.queries import Feature, Gradient, Linear
from demur_proto.round import Round, round_of
from demur_proto.study import Policy, Study, View, design_study
from demur_proto.v1 import collector_pb2, report_pb2
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_proto.wire.frames import pieces_of
from edge_device import UNITS, WORD
from edge_wire import Gone, Message, Pong, Wire, is_visit, opened

WARM = 6  #: first rounds, which nobody looks at
PATIENCE_S = 5.0  #: for a report after its slot
START_S = 30.0
MOST_MISSING = 4  #: reports in a row: then the device is broken, and nobody waits on
DEVICE = Path(__file__).with_name("edge_device.py")
COLUMNS = ("word", "send", "given", "last", "reaction", "size", "others")
HEIGHT = 28  #: of an image
SYNTHETIC = 100  #: drawings that a feature map is fitted to


Place = tuple[tuple[int, ...], int | None]  #: processors of a device, and that of its observer


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What to watch."""

    words: tuple[str, ...]  #: the data, by name; the first is the reference
    sends: int  #: rounds with each
    slot_ms: int
    seed: int
    memory_mib: int = 256  #: for one evaluation
    asks: str = "numbers"  #: or "hidden", or "maps"
    evaluator: str = "supervised"  #: or "thread": in the sender's process
    cpus: tuple[int, ...] = (0,)  #: of the device and of all that it starts
    observer_cpu: int | None = None
    ack_ms: float = 5.0  #: from the report to its receipt
    gap_ms: float = 2.0  #: from the reaction to the next round
    delay_s: float = 0.0  #: before the first round

    @property
    def place(self) -> Place:
        """Where it runs."""
        return self.cpus, self.observer_cpu

    @property
    def command(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> "Watch":
        """From the command line."""
        table = json.loads(text)
        table.update(words=tuple(table["words"]), cpus=tuple(table["cpus"]))
        return cls(**table)


class Questions:
    """Rounds of one study, and their models."""

    def __init__(self, watch: Watch) -> None:
        self.study = _study(watch.asks)
        self._watch = watch
        self._models: dict[bytes, DefinedModel] = {}
        if watch.asks == "hidden":
            self._fixed = _defined(
                HiddenLayer(inputs=1, hidden=UNITS, classes=2), None, seed=watch.seed
            )
            self._models[self._fixed.hash] = self._fixed

    def ask(self, number: int) -> Defined[Round]:
        """The next round."""
        slot_ms = self._watch.slot_ms
        if self._watch.asks == "numbers":
            return define_round(
                round_of(
                    self.study, Linear([Feature(name="x")]), number=number, answer_after_ms=slot_ms
                )
            )
        model = self._fixed if self._watch.asks == "hidden" else self._mapped(number)
        self._models[model.hash] = model
        return define_round(
            round_of(
                self.study,
                Gradient(
                    model_hash=model.hash, dimension=model.value.architecture.parameters, clip=1.0
                ),
                number=number,
                answer_after_ms=slot_ms,
            )
        )

    def model(self, model_hash: bytes) -> DefinedModel:
        """One that a round names."""
        return self._models[model_hash]

    def _mapped(self, number: int) -> DefinedModel:
        features = WhitenedGradients(height=HEIGHT, width=HEIGHT, seed=number, synthetic=SYNTHETIC)
        return _defined(Softmax(inputs=392, classes=2), features, seed=0)


def _study(asks: str) -> Defined[Study]:
    dimension = {
        "numbers": 1,
        "hidden": HiddenLayer(inputs=1, hidden=UNITS, classes=2).parameters,
        "maps": Softmax(inputs=392, classes=2).parameters,
    }[asks]
    return define_study(
        design_study(
            name="watched",
            epsilon=1.0,
            delta=1e-6,
            answers=100_000,
            view=View.LOCAL,
            minimum_cohort=1,
            policy=Policy.SKIP,
            maximum_dimension=dimension,
            grid_exponent=-15,
            horizon=1_000_000,
        )
    )


def _defined(
    architecture: HiddenLayer | Softmax, features: WhitenedGradients | None, *, seed: int
) -> DefinedModel:
    theta = np.random.default_rng(seed).normal(size=architecture.parameters)
    model = ModelDefinition(architecture=architecture, features=features, theta=theta)
    return read_model(define_model(model).definition)


class Device:
    """The device's process, and the connection with it."""

    def __init__(self, watch: Watch, folder: Path, questions: Questions) -> None:
        self._questions = questions
        self._word = os.open(folder / "word", os.O_WRONLY | os.O_CREAT, 0o600)
        self.hold(watch.words[0])
        self._visit = 0
        with socket.create_server(("127.0.0.1", 0)) as listening:
            options = {
                "target": f"127.0.0.1:{listening.getsockname()[1]}",
                "folder": str(folder),
                "slot_ms": watch.slot_ms,
                "memory_mib": watch.memory_mib,
                "evaluator": watch.evaluator,
                "cpus": watch.cpus,
            }
            with (folder / "log").open("wb") as log:
                self.process = subprocess.Popen(
                    [sys.executable, str(DEVICE), json.dumps(options)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            listening.settimeout(START_S)
            connection, _ = listening.accept()
        self.wire = Wire(connection)

    def hold(self, word: str) -> None:
        """Change the owner's data."""
        os.pwrite(self._word, word.ljust(WORD).encode(), 0)

    def attend(self) -> None:
        """Answer calls until the device has begun its visit."""
        until_s = time.monotonic() + START_S
        while not self._visit:
            event = self.wire.next(until_s)
            if event is None:
                raise Gone("the device did not begin a visit")
            if isinstance(event, Message):
                self.answer(event)
        welcome = collector_pb2.Welcome(protocol_version=1)
        self.wire.send(
            self._visit, collector_pb2.VisitResponse(welcome=welcome).SerializeToString()
        )

    def answer(self, event: Message) -> int | None:
        """Answer any call but a visit; when the last of a model was written, if it was that."""
        if event.body is None:
            if event.stream == self._visit:
                raise Gone("the device ended its visit")
            return None
        if is_visit(event.body):
            self._visit = event.stream
            return None
        asked = collector_pb2.GetModelRequest.FromString(event.body)  # as GetStudyRequest
        if asked.model_hash in (b"", self._questions.study.hash):
            study = collector_pb2.GetStudyResponse(definition=self._questions.study.definition)
            self.wire.send(event.stream, study.SerializeToString(), end=True)
            return None
        definition = self._questions.model(asked.model_hash).definition
        for piece in pieces_of(definition):
            response = collector_pb2.GetModelResponse(piece=piece)
            self.wire.send(event.stream, response.SerializeToString())
            self.wire.drain(event.stream)
        return self.wire.send(event.stream, end=True)

    def round(self, asked: Defined[Round], *, within_s: float, ack_ms: float) -> list[int]:
        """One round, as it looked; the reaction is -1 where no report came in time."""
        self.wire.others.clear()
        pushed = self.wire.send(self._visit, opened(asked.definition))
        given, size, until_s = pushed, 0, time.monotonic() + within_s
        first = last = 0
        report_id = b""
        while not report_id:
            event = self.wire.next(until_s)
            if event is None:
                return [pushed, given, 0, 0, -1, size, len(self.wire.others)]
            if isinstance(event, Message) and event.stream == self._visit and event.body:
                first, last = first or event.first_ns, event.last_ns
                size += len(event.body)
                report_id = _whole(event.body, asked)
            elif isinstance(event, Message):
                given = self.answer(event) or given
        _until(last + round(ack_ms * 1e6))
        receipt = report_pb2.Receipt(
            report_id=report_id, disposition=report_pb2.DISPOSITION_ACCEPTED
        )
        told = self.wire.send(
            self._visit,
            collector_pb2.VisitResponse(receipt=receipt).SerializeToString(),
            ping=True,
        )
        until_s = time.monotonic() + PATIENCE_S
        while not isinstance(event := self.wire.next(until_s), Pong):
            if event is None:
                raise Gone("the device does not answer a ping")
            self.answer(event)
        return [pushed, given, first, last, event.at_ns - told, size, len(self.wire.others)]

    def end(self) -> None:
        """Kill it."""
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._word)


def _whole(body: bytes, asked: Defined[Round]) -> bytes:
    """The id of the report that ends with this message; empty where more is to come."""
    message = collector_pb2.VisitRequest.FromString(body)
    if message.HasField("report"):
        return bytes(message.report.report_id)
    chunk = message.chunk
    query = asked.value.query
    assert isinstance(query, Linear | Gradient)
    whole = asked.value.word_type.report_bytes(query.dimension)
    return bytes(chunk.report_id) if chunk.offset + len(chunk.words) >= whole else b""


def _until(at_ns: int) -> None:
    while (left := at_ns - time.time_ns()) > 0:
        time.sleep(left / 1e9)


@contextmanager
def _a_device(watch: Watch, questions: Questions) -> Iterator[tuple[Device, Path]]:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as path:
        device = Device(watch, Path(path), questions)
        try:
            yield device, Path(path)
        finally:
            device.end()


def observe(watch: Watch) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """One row a round: COLUMNS, times in ns; a round without a report has 0 for its time."""
    questions = Questions(watch)
    order = [*[0] * WARM, *_order(watch)]
    rounds = [questions.ask(number) for number in range(1, len(order) + 1)]
    with _a_device(watch, questions) as (device, folder):
        device.attend()
        time.sleep(watch.delay_s)
        rows = []
        gc.disable()
        try:
            for word, asked in zip(order, rounds, strict=True):
                device.hold(watch.words[word])
                time.sleep(watch.gap_ms / 1000)
                within_s = watch.slot_ms / 1000 + PATIENCE_S
                rows.append([word, *device.round(asked, within_s=within_s, ack_ms=watch.ack_ms)])
                if all(row[3] == 0 for row in rows[-MOST_MISSING:]) and len(rows) >= MOST_MISSING:
                    raise Gone("the device answers no round")
        except Gone:
            sys.stderr.write((folder / "log").read_text(errors="replace")[-4000:])
            raise
    return np.array([_row(*row) for row in rows[WARM:]], dtype=np.int64)


def _row(word: int, pushed: int, given: int, first: int, last: int, *rest: int) -> Sequence[int]:
    seen = first != 0
    return word, (first - pushed) * seen, (first - given) * seen, (last - first) * seen, *rest


def _order(watch: Watch) -> list[int]:
    order = [word for word in range(len(watch.words)) for _ in range(watch.sends)]
    random.Random(watch.seed).shuffle(order)
    return order


def main(watch: Watch, out: Path) -> None:
    """Watch, and write what was seen."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # what the device leaves behind becomes ours
    if watch.observer_cpu is not None:
        os.sched_setaffinity(0, {watch.observer_cpu})
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(50))
    np.save(out, observe(watch))


if __name__ == "__main__":
    main(Watch.read(sys.argv[1]), Path(sys.argv[2]))
