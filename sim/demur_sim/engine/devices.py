"""The evaluator of simulated devices: in their own process, since their data are made up."""

import tempfile
import threading
import time
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import final

import anyio
import numpy as np

from demur_client.agent import COUNTED, Agent
from demur_client.connection import connected
from demur_client.device import Device
from demur_client.evaluator.base import Evaluation, NoValue, Slot
from demur_client.ledger.base import Ledger
from demur_client.ledger.file import LedgerFile
from demur_client.policy import OwnerPolicy
from demur_client.sources.base import DataSource, ExampleSource
from demur_proto.arrays import Bits, Values, Vector, Words
from demur_proto.errors import DemurError, StateError
from demur_proto.mechanisms.gaussian import GaussianLinear
from demur_proto.models.definition import DefinedModel
from demur_proto.queries import Histogram, Linear
from demur_proto.queries.registry import mechanism_for
from demur_proto.round import Round
from demur_proto.samplers.exact import ExactSampler
from demur_proto.study import Study, View
from demur_proto.transport.calls import PEER
from demur_proto.v1 import report_pb2
from demur_proto.wire.definition import Defined, read_round
from demur_proto.wire.words import decode_words
from demur_sim.engine.children import peak_rss_mb, say
from demur_sim.engine.running_counts import clipped_sums, evaluate_query, given_sums
from demur_sim.engine.worker import Answered, Finished, Recorder
from demur_sim.people.labelled import LabelledPeople, PersonExamples
from demur_sim.people.populations import PersonSource, Population


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


# One person's device in a process of its own, as deployed: agent, ledger on the disk, exact noise.

FIRST_RETRY_S, LONGEST_RETRY_S = 0.05, 1.0  # the collector is next door, and starts first


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Life:
    """What a device's process needs to know."""

    target: str  #: the collector
    study: Defined[Study]
    person: Population  #: of one device
    record: bool  #: keep what a watcher would see


def live(pipe: Connection) -> None:
    """Take over a `Life`, then answer rounds until told to stop."""
    anyio.run(_live, pipe, pipe.recv())


async def _live(pipe: Connection, life: Life) -> None:
    largest = 1e9  # whoever simulates decides: no owner is here to be asked
    policy = OwnerPolicy(
        views=tuple(View),
        largest_epsilon=largest,
        largest_delta=0.999,
        lifetime_epsilon=largest,
        largest_round_epsilon=largest,
        studies=(life.study.hash,),
        shortest_slot_ms=0,
    )
    sampler, person = _Overheard(), life.person
    source: DataSource | ExampleSource = PersonSource(person, 0)
    if isinstance(person, LabelledPeople):
        source = PersonExamples(person, 0)
    with (
        tempfile.TemporaryDirectory(prefix="demur-device-") as folder,
        LedgerFile(Path(folder) / "ledger.sqlite") as ledger,
    ):
        watcher = _Confidant(pipe, ledger, sampler, life)
        agent = Agent(
            ledger,
            InProcessEvaluator(source),
            policy=policy,
            open_channel=partial(connected, life.target),
            sampler=sampler,
            watcher=watcher,
            first_retry_s=FIRST_RETRY_S,
            longest_retry_s=LONGEST_RETRY_S,
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.run)
            await anyio.wait_readable(pipe)  # told to stop, or the parent is gone
            tasks.cancel_scope.cancel()
        study_hash, total = life.study.hash, life.study.value.budget_units
        joined = bool(ledger.studies())  # where nothing was asked, perhaps not
        say(
            pipe,
            Finished(
                refused=np.array([joined and ledger.ever_refused(study_hash)]),
                spent=np.array([total - ledger.remaining_units(study_hash) if joined else 0]),
                beside={},
                recorder=watcher.recorder,
                peak_rss_mb=peak_rss_mb(),
            ),
        )


@final
class _Overheard:
    """The exact sampler of a deployed device, overheard by the simulator."""

    def __init__(self) -> None:
        self._exact = ExactSampler()
        self.noise: Words | None = None  #: simulator's truth: what the last report added

    @property
    def name(self) -> str:
        return self._exact.name

    def words(self, count: int) -> Bits:
        return self._exact.words(count)

    def uniform(self, *, reports: int, dimension: int) -> Values:
        return self._exact.uniform(reports=reports, dimension=dimension)

    def gaussian(self, steps: float, *, reports: int, dimension: int) -> Words:
        self.noise = self._exact.gaussian(steps, reports=reports, dimension=dimension)
        return self.noise.copy()


@final
class _Confidant:
    """A watcher who also knows the truth, and tells it to the simulator once a round is over."""

    def __init__(self, pipe: Connection, ledger: Ledger, sampler: _Overheard, life: Life) -> None:
        self.recorder = Recorder(devices=1) if life.record else None
        self._pipe = pipe
        self._ledger = ledger
        self._sampler = sampler
        self._life = life
        self._received_s = self._sent_s = 0.0

    def received(self, round_number: int) -> None:
        self._received_s = time.monotonic()
        if self.recorder:
            self.recorder.received(round_number)

    def sent(self, round_number: int, *, size_bytes: int) -> None:
        self._sent_s = time.monotonic()
        if self.recorder:
            waited = self._sent_s - self._received_s
            self.recorder.sent(round_number, _ME, size_bytes=size_bytes, time_s=waited)

    def answered(self, round_number: int, *, disposition: int) -> None:
        if self.recorder:
            self.recorder.answered(round_number, _ME, np.array([disposition]))
        if disposition not in COUNTED:
            if disposition == report_pb2.DISPOSITION_TRY_LATER:
                return
            name = report_pb2.Disposition.Name(report_pb2.Disposition.ValueType(disposition))
            raise StateError(f"round {round_number}: {PEER} answered {name}")
        say(
            self._pipe,
            Answered(
                study_hash=self._life.study.hash,
                number=round_number,
                contributed=self._contributed(round_number),
                first_report=self._sent_s,
                last_receipt=time.monotonic(),
                refused=int(self._ledger.ever_refused(self._life.study.hash)),
            ),
        )

    def _contributed(self, number: int) -> Vector:
        """Simulator's truth: what was given in a round whose report is still at hand."""
        study = self._life.study
        row = self._ledger.history(study.hash)[-1]
        asked: Defined[Round] = read_round(row.definition, study=study)
        query = asked.value.query
        mechanism = mechanism_for(study.value, asked.value)
        if isinstance(query, Linear) and isinstance(mechanism, GaussianLinear):
            values = evaluate_query(query, self._life.person, slice(0, 1))
            given = row.given and not (row.shrunk and not row.wanted)  # shrunk to nothing
            return clipped_sums(mechanism, values * given)
        if isinstance(query, Histogram):
            value = self._life.person.evaluate(query.feature, slice(0, 1))
            symbols, _ = query.mechanism_in(study.value).encode(value, self._sampler)
            return given_sums(query, symbols * row.given)
        sealed = self._ledger.sealed(study.hash, number)
        if sealed is None or sealed.report is None or self._sampler.noise is None:
            raise StateError(f"round {number}: the device has lost its report")
        words, _ = decode_words(
            sealed.report.words, asked.value.word_type, reports=1, dimension=query.report_length
        )
        return given_sums(query, words - self._sampler.noise)


_ME = np.array([0])
