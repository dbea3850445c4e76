"""The least device that keeps the contract, and wrong ones that each break it in one way.

Run as a process: `python minimal_device.py [FAULT]`. It is told everything by its environment, and keeps its
state in a journal: one line for each thing that must outlive a crash, written through before
anything that follows from it is sent.
"""

import json
import math
import os
import queue
import runpy
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from demur_client.budget.filters import Filter
from demur_proto.errors import DemurError
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.queries import Linear
from demur_proto.queries.registry import mechanism_for
from demur_proto.round import Round
from demur_proto.samplers.exact import ExactSampler
from demur_proto.study import MechanismFamily, Policy, Study
from demur_proto.transport.credentials import METADATA_KEY, read_token
from demur_proto.v1 import collector_pb2, collector_pb2_grpc, report_pb2
from demur_proto.wire.definition import Defined, read_round, read_study, report_id
from demur_proto.wire.frames import report_messages

PAUSE_S = 0.05
READY_S = 5.0  #: for which a round waits, before its slot, for what will evaluate it
LAST_S = 0.04  #: before a report leaves, the process that evaluated has been killed for so long
SOURCE = Path(__file__).with_name("owner_source.py")
FINAL = {
    report_pb2.DISPOSITION_ACCEPTED,
    report_pb2.DISPOSITION_DUPLICATE,
    report_pb2.DISPOSITION_ROUND_CLOSED,
    report_pb2.DISPOSITION_INVALID,
    report_pb2.DISPOSITION_CONFLICT,
}


class Journal:
    """Lines that outlive the process; a torn last one was never acted upon."""

    def __init__(self, path: Path) -> None:
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]
        self._file = path.open("r+" if path.exists() else "w+")
        self._file.truncate(len(whole))
        self._file.seek(0, os.SEEK_END)

    def add(self, **line: Any) -> None:
        self.lines.append(line)
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def find(self, name: str) -> Any:
        return next((line[name] for line in self.lines if name in line), None)


class Child:
    """A process that evaluates one round, started before that comes.

    Nobody waits for it, or looks at it but at the times that the round's slot gives. It is killed at
    four fifths of the slot, whether it is done or not.
    """

    def __init__(self, data_file: Path) -> None:
        self._answer = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-S", str(SOURCE), str(data_file)],
            stdin=subprocess.PIPE,
            stdout=self._answer,
            stderr=subprocess.DEVNULL,
        )

    def wait(self) -> None:
        """Until it is ready, which has nothing to do with data: it has seen none."""
        end = time.monotonic() + READY_S
        while not os.fstat(self._answer.fileno()).st_size and time.monotonic() < end:
            time.sleep(PAUSE_S / 10)

    def begin(self, names: list[str]) -> None:
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(names).encode() + b"\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()

    def answer(self) -> Any:
        """What it had answered when it was killed, or None."""
        self._process.communicate()
        with self._answer as answer, suppress(ValueError):
            answer.seek(0)
            return json.loads(answer.read())
        return None


class Device:
    """A right one. Subclasses are wrong in one way each."""

    def __init__(self) -> None:
        told = os.environ
        self.journal = Journal(Path(told["DEMUR_STATE"], "journal"))
        self.token = read_token(told["DEMUR_TOKEN"])
        self.study_hash = bytes.fromhex(told["DEMUR_STUDY"])
        self.data_file = Path(told["DEMUR_DATA"])
        self.largest_budget = float(told["DEMUR_LARGEST_BUDGET"])
        self.shortest_slot_ms = int(told["DEMUR_SHORTEST_SLOT_MS"])
        self.sampler = ExactSampler()
        if self.journal.find("secret") is None:
            self.journal.add(secret=secrets.token_hex(32), nonce=self.new_nonce())
        self.secret = bytes.fromhex(self.journal.find("secret"))
        self.spare = Child(self.data_file)  # before gRPC has threads
        self.channel = grpc.insecure_channel(told["DEMUR_TARGET"])
        self.stub = collector_pb2_grpc.CollectorStub(self.channel)

    # ---- what happens ------------------------------------------------------------------------

    def run(self) -> int:
        credential = self.journal.find("credential")
        while credential is None:
            credential = self.enrol()
        self.metadata = ((METADATA_KEY, bytes.fromhex(credential)),)
        request = collector_pb2.GetStudyRequest(protocol_version=1, study_hash=self.study_hash)
        response = self.stub.GetStudy(request, metadata=self.metadata, timeout=10)
        self.study: Defined[Study] = read_study(response.definition)
        if self.study.hash != self.study_hash or not self.accepts(self.study.value):
            print("refused: another study, or a budget beyond the owner's policy")
            return 1
        self.filter = Filter.of(self.study.value)
        for line in self.journal.lines:
            if "sealed" in line:
                self.restore(line)
        while True:
            with suppress(grpc.RpcError):
                self.visit()
            time.sleep(PAUSE_S)

    def enrol(self) -> str | None:
        nonce = bytes.fromhex(self.nonce())
        request = collector_pb2.EnrolRequest(protocol_version=1, token=self.token, nonce=nonce)
        try:
            response = self.stub.Enrol(request, timeout=10)
        except grpc.RpcError:
            time.sleep(PAUSE_S)
            return None
        credential: str = (response.device_id + response.secret).hex()
        self.journal.add(credential=credential)
        return credential

    def visit(self) -> None:
        outgoing: queue.Queue[collector_pb2.VisitRequest | None] = queue.Queue()
        hello = collector_pb2.Hello(
            protocol_version=1, study_hash=self.study_hash, after_round=self.settled_up_to()
        )
        outgoing.put(collector_pb2.VisitRequest(hello=hello))
        try:
            for message in self.stub.Visit(iter(outgoing.get, None), metadata=self.metadata):
                kind = message.WhichOneof("message")
                if kind == "opened_round":
                    self.spare.wait()
                    received = time.monotonic()
                    asked = self.read(message.opened_round.definition)
                    if asked is not None:
                        for each in self.answer(asked, received):
                            outgoing.put(each)
                elif kind == "receipt":
                    if message.receipt.disposition in FINAL:
                        self.settle(message.receipt.report_id, message.receipt.disposition)
                    else:
                        time.sleep(PAUSE_S)
                        for line in self.sealed():
                            if line["id"] == message.receipt.report_id.hex():
                                for each in self.messages(self.again(line)):
                                    outgoing.put(each)
        finally:
            outgoing.put(None)

    def read(self, definition: bytes) -> Defined[Round] | None:
        try:
            asked = read_round(definition, study=self.study)
        except DemurError:
            return None
        sealed = self.sealed_of(asked.value.number)
        if not isinstance(asked.value.query, Linear):
            return None
        if not 0 < self.shortest_slot_ms <= asked.value.answer_after_ms:
            return None
        return None if sealed and sealed["round"] != asked.hash.hex() else asked

    def answer(
        self, asked: Defined[Round], received: float
    ) -> Iterator[collector_pb2.VisitRequest]:
        line = self.sealed_of(asked.value.number)
        if line is None:
            line = self.seal(asked, received)
        elif line["number"] in self.settled():
            return
        else:
            line = self.again(line)
        if line is None:
            return
        self.wait(asked, received, given=line["given"])
        yield from self.messages(line)

    def seal(self, asked: Defined[Round], received: float) -> dict[str, Any] | None:
        line = self.made(asked, received)
        self.journal.add(**line)
        return line

    def made(self, asked: Defined[Round], received: float) -> dict[str, Any]:
        mechanism = mechanism_for(self.study.value, asked.value)
        assert isinstance(mechanism, GaussianLinear)
        child = self.started(asked)
        noise = self.noise(mechanism)  # now: many words take longer than a tenth of the slot
        value = self.value(asked.value, self.evaluated(child, asked, received))
        weight, shrunk = asked.value.weight, False
        if self.study.value.policy is Policy.CLIP:
            radius = self.filter.radius(weight=weight, largest=mechanism.largest)
            words, units, shrunken = mechanism.encode_within(
                value, self.sampler, radii=np.array([radius])
            )
            shrunk = bool(shrunken[0])
        else:
            words, units = mechanism.encode(value, self.sampler)
        squared_norm = int(units[0])
        given = self.filter.try_spend(squared_norm, weight=weight, shrunk=shrunk)
        noisy = words * given + noise
        return {
            "sealed": noisy[0].tolist(),
            "number": asked.value.number,
            "round": asked.hash.hex(),
            "id": report_id(self.secret, asked.hash).hex(),
            "bytes": asked.value.word_type.report_bytes(noisy.shape[1]) // noisy.shape[1],
            "weight": weight,
            "squared_norm": squared_norm,
            "shrunk": shrunk,
            "given": given,
        }

    def started(self, asked: Defined[Round]) -> Any:
        """What evaluates a round; None where it was begun before, and its data are read no more."""
        if not self.begin(asked.value.number):
            return None
        child = self.spare
        child.begin(self.names(asked.value))
        self.spare = Child(self.data_file)
        return child

    def evaluated(self, child: Any, asked: Defined[Round], received: float) -> Any:
        """What the data say, at nine tenths of the slot; None where nothing is there by then."""
        slot_s = asked.value.answer_after_ms / 1000
        sleep_until(received + min(0.8 * slot_s, slot_s - LAST_S))
        if child:
            child.kill()
        sleep_until(received + 0.9 * slot_s)
        return child.answer() if child else None

    def value(self, asked: Round, numbers: Any) -> Any:
        assert isinstance(asked.query, Linear)
        wanted = (1, asked.query.dimension)
        try:
            value = np.array(numbers, np.float64)[None]
        except (TypeError, ValueError):
            value = np.empty((1, 0))
        return value if value.shape == wanted else np.full(wanted, math.nan)

    def restore(self, line: dict[str, Any]) -> None:
        self.filter.try_spend(line["squared_norm"], weight=line["weight"], shrunk=line["shrunk"])

    def settle(self, report: bytes, disposition: int) -> None:
        for line in self.sealed():
            if line["id"] == report.hex():
                self.journal.add(settled=line["number"])

    def messages(self, line: dict[str, Any]) -> Iterator[collector_pb2.VisitRequest]:
        words = np.array(line["sealed"], dtype=f"<i{line['bytes']}").tobytes()
        return report_messages(
            report_pb2.Report(
                round_hash=bytes.fromhex(line["round"]),
                report_id=bytes.fromhex(line["id"]),
                words=words,
            )
        )

    def sealed(self) -> list[dict[str, Any]]:
        return [line for line in self.journal.lines if "sealed" in line]

    def sealed_of(self, number: int) -> dict[str, Any] | None:
        return next((line for line in self.sealed() if line["number"] == number), None)

    def settled(self) -> set[int]:
        return {line["settled"] for line in self.journal.lines if "settled" in line}

    def settled_up_to(self) -> int:
        open_ones = [x["number"] for x in self.sealed() if x["number"] not in self.settled()]
        return min(open_ones) - 1 if open_ones else max(self.settled(), default=0)

    # ---- what the wrong ones do in another way -----------------------------------------------

    def new_nonce(self) -> str:
        return secrets.token_hex(16)

    def nonce(self) -> str:
        return str(self.journal.find("nonce"))

    def accepts(self, study: Study) -> bool:
        linear = study.mechanism_family is MechanismFamily.GAUSSIAN
        return linear and study.budget <= self.largest_budget

    def again(self, line: dict[str, Any]) -> dict[str, Any]:
        return line

    def noise(self, mechanism: GaussianLinear) -> Any:
        return mechanism.noise(self.sampler, reports=1)

    def names(self, asked: Round) -> list[str]:
        assert isinstance(asked.query, Linear)
        return [each.name for each in asked.query.features]

    def begin(self, number: int) -> bool:
        """Note that a round is begun; False where it was before, and its data are read no more."""
        if number in {line["begun"] for line in self.journal.lines if "begun" in line}:
            return False
        self.journal.add(begun=number)
        return True

    def wait(self, asked: Defined[Round], received: float, *, given: bool) -> None:
        sleep_until(received + asked.value.answer_after_ms / 1000)


def sleep_until(when: float) -> None:
    time.sleep(max(0.0, when - time.monotonic()))


class Redraws(Device):
    """Draws new noise for a report that it sends again."""

    def again(self, line: dict[str, Any]) -> dict[str, Any]:
        sealed = np.array(line["sealed"])
        return {**line, "sealed": (sealed + np.arange(len(sealed)) % 7).tolist()}


class Silent(Device):
    """Says nothing when the budget is gone."""

    def seal(self, asked: Defined[Round], received: float) -> dict[str, Any] | None:
        line = super().seal(asked, received)
        return line if line and line["given"] else None


class ChargesLate(Device):
    """Sends first; charge and report are kept once the receipt has come."""

    def __init__(self) -> None:
        super().__init__()
        self.loose: list[dict[str, Any]] = []

    def seal(self, asked: Defined[Round], received: float) -> dict[str, Any] | None:
        self.loose.append(self.made(asked, received))
        return self.loose[-1]

    def settle(self, report: bytes, disposition: int) -> None:
        for line in self.loose:
            self.journal.add(**line)
        self.loose.clear()
        super().settle(report, disposition)

    def sealed(self) -> list[dict[str, Any]]:
        return super().sealed() + self.loose


class ChargesLateKeepsReport(Device):
    """Keeps the report before it sends, yet its charge only once the receipt has come."""

    def __init__(self) -> None:
        super().__init__()
        self.paid = {line["paid"] for line in self.journal.lines if "paid" in line}

    def restore(self, line: dict[str, Any]) -> None:
        if line["number"] in self.paid:
            super().restore(line)

    def settle(self, report: bytes, disposition: int) -> None:
        for line in self.sealed():
            if line["id"] == report.hex() and disposition == report_pb2.DISPOSITION_ACCEPTED:
                self.journal.add(paid=line["number"])
        super().settle(report, disposition)


class ReusesNoise(Device):
    """Draws noise once for each length."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: dict[int, Any] = {}

    def noise(self, mechanism: GaussianLinear) -> Any:
        return self.drawn.setdefault(mechanism.dimension, super().noise(mechanism))


class Refunds(Device):
    """Takes its charge back when the round was closed."""

    def settle(self, report: bytes, disposition: int) -> None:
        if disposition == report_pb2.DISPOSITION_ROUND_CLOSED:
            self.filter = Filter.of(self.study.value)
        super().settle(report, disposition)


class NewNonce(Device):
    """Draws a nonce each time it enrols."""

    def nonce(self) -> str:
        return self.new_nonce()


class Obedient(Device):
    """Takes part in whatever it is asked to."""

    def accepts(self, study: Study) -> bool:
        return True


class Jumbles(Device):
    """Puts features in another order."""

    def names(self, asked: Round) -> list[str]:
        return super().names(asked)[::-1]


class Hurries(Device):
    """Does not wait for its slot when it only covers."""

    def wait(self, asked: Defined[Round], received: float, *, given: bool) -> None:
        if given:
            super().wait(asked, received, given=given)


class Whispers(Device):
    """Adds half the noise."""

    def noise(self, mechanism: GaussianLinear) -> Any:
        return super().noise(mechanism) // 2


class Forgetful(Device):
    """Says that everything is settled, whatever it owes."""

    def settled_up_to(self) -> int:
        return max((line["number"] for line in self.sealed()), default=0)


class Naive(Device):
    """Evaluates in the process that sends."""

    def started(self, asked: Defined[Round]) -> Any:
        return self.begin(asked.value.number)

    def evaluated(self, child: Any, asked: Defined[Round], received: float) -> Any:
        if not child:
            return None
        try:
            return runpy.run_path(str(SOURCE))["evaluate"](self.data_file, self.names(asked.value))
        except KeyError:
            return None


class Tame(Naive):
    """A right one whose source gives whatever value the data have, within the slot."""

    def evaluated(self, child: Any, asked: Defined[Round], received: float) -> Any:
        data = json.loads(self.data_file.read_text()) if child else {}
        sleep_until(received + 0.9 * asked.value.answer_after_ms / 1000)
        return [each for name in self.names(asked.value) for each in data.get(name, ())]


class EvaluatesAgain(Device):
    """Evaluates what it had begun before it was killed."""

    def begin(self, number: int) -> bool:
        return True


FAULTS = {
    each.__name__: each
    for each in (
        Device,
        Redraws,
        Silent,
        ChargesLate,
        ChargesLateKeepsReport,
        ReusesNoise,
        Refunds,
        NewNonce,
        Obedient,
        Jumbles,
        Hurries,
        Whispers,
        Forgetful,
        Naive,
        Tame,
        EvaluatesAgain,
    )
}

if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    sys.exit(FAULTS[sys.argv[1] if len(sys.argv) > 1 else "Device"]().run())
