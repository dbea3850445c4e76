"""One device on the bench: asks it, listens to it, and holds what it says against what it said before."""

import time
from collections import Counter
from dataclasses import dataclass, field, replace

import anyio

from demur_conformance.device_process import Runner
from demur_conformance.questions import Asked, words_of
from demur_conformance.scripted_collector import Arrival, Stand, Visit
from demur_conformance.verdicts import Verdicts
from demur_proto.arrays import Words
from demur_proto.errors import WireError
from demur_proto.v1 import report_pb2
from demur_proto.wire.definition import ROUND_TAG
from demur_proto.wire.frames import LARGEST_FRAMED_BYTES, ChunkOrder
from demur_proto.wire.hmacs import hash_definition

NUDGE_S = 2.0  #: a device that waits longer before it visits again is started anew
START_S = 30.0  #: at least so long may a device take until it visits: it may have to start
LOOK_S = 0.05
TRIES = 4  #: visits or starts in a row that lead to nothing

FINAL = (
    report_pb2.DISPOSITION_ROUND_CLOSED,
    report_pb2.DISPOSITION_INVALID,
    report_pb2.DISPOSITION_CONFLICT,
)


class Enough(Exception):
    """Nothing is left to find."""


class Unanswered(Exception):
    """The device did not do what the script waits for, so the script cannot go on."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(what)
        self.rule = rule


class Declined(Exception):
    """The device does not offer what an optional rule is about."""

    def __init__(self, rule: str, how: str) -> None:
        super().__init__(how)
        self.rule = rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A report to a round, and its times."""

    asked: Asked
    report: report_pb2.Report
    words: Words = field(repr=False)
    pushed_s: float
    at_s: float
    visits: int = 1  #: that it took: the earlier ones ended without it

    @property
    def after_ms(self) -> float:
        """How long after the round was pushed the report came."""
        return 1000 * (self.at_s - self.pushed_s)


class Bench:
    """Asks one device.

    Args:
        verdicts: where observations go.
        stand: the collector that the device sees.
        runner: starts and ends the device.
        patience_s: how long to wait for anything.
    """

    def __init__(
        self, verdicts: Verdicts, stand: Stand, runner: Runner, *, patience_s: float
    ) -> None:
        self.verdicts = verdicts
        self.stand = stand
        self.runner = runner
        self._patience_s = patience_s
        self._visit: Visit | None = None
        self._asked: dict[bytes, Asked] = {}
        self._first: dict[bytes, report_pb2.Report] = {}
        self._copies: Counter[bytes] = Counter()
        self._accepted: set[bytes] = set()
        self._final: set[bytes] = set()
        self._forbidden: dict[bytes, tuple[str, str]] = {}
        self._order: ChunkOrder | None = None
        self._parts: list[bytes] = []

    # ---- what a script says ------------------------------------------------------------------

    async def ask(self, asked: Asked, *, rule: str, same: str = "retry-same") -> Answer:
        """Push a round and wait for its report; where the visit ends before, in the next one.

        Args:
            asked: the round.
            rule: what a device that does not answer breaks.
            same: what it breaks if the round was answered before, and the bytes are others.
        """
        self._asked[asked.defined.hash] = asked
        owed = asked.defined.hash in self._first
        for before in range(TRIES):
            visit = await self.visit(rule)
            # As a collector does: a device that says it is past a round is not asked it again.
            is_past = asked.number <= visit.hello.after_round
            pushed_s = time.monotonic() if is_past else await visit.push(asked.defined)
            answer = await self._wait_for(
                visit, asked, pushed_s, rule="resume" if is_past else rule, same=same
            )
            if answer is not None:
                if owed:
                    self.verdicts.check("resume", True, "what was owed came again")
                return replace(answer, visits=before + 1)
        raise Unanswered(rule, f"round {asked.number}: {TRIES} visits ended without a report")

    async def again(self, asked: Asked, *, rule: str) -> Answer:
        """Wait for a report that the device sends again without being asked again."""
        visit = await self.visit(rule)
        answer = await self._wait_for(visit, asked, time.monotonic(), rule=rule, same=rule)
        if answer is None:
            raise Unanswered(rule, f"round {asked.number}: the visit ended, nothing came again")
        return answer

    async def settle(self, answer: Answer, disposition: int) -> None:
        """Give the receipt."""
        round_hash = answer.report.round_hash
        if disposition in FINAL:
            self._final.add(round_hash)
        elif disposition != report_pb2.DISPOSITION_TRY_LATER:
            self._accepted.add(round_hash)
        if self._visit is not None:
            await self._visit.receipt(answer.report.report_id, disposition)

    async def accepted(self, asked: Asked, *, rule: str, same: str = "retry-same") -> Answer:
        """`ask`, and count the report."""
        answer = await self.ask(asked, rule=rule, same=same)
        await self.settle(answer, report_pb2.DISPOSITION_ACCEPTED)
        return answer

    def copies(self, asked: Asked) -> int:
        """How often a report to this round came."""
        return self._copies[asked.defined.hash]

    async def push(self, asked: Asked, *, rule: str) -> None:
        """Push a round; what comes of it is seen while another is waited for."""
        self._asked[asked.defined.hash] = asked
        visit = await self.visit(rule)
        await visit.push(asked.defined)

    async def refuse(self, definition: bytes, *, rule: str, what: str, good: Asked) -> bool:
        """Push what must not be answered, and a sound round after it; whether that was answered.

        Args:
            definition: what claims to be a round.
            rule: what a report to it breaks.
            what: is wrong with it.
            good: the sound round.
        """
        self._asked[good.defined.hash] = good
        self._forbidden[hash_definition(ROUND_TAG, definition)] = rule, what
        visit = await self.visit(rule)
        await visit.push_bytes(definition)
        pushed_s = await visit.push(good.defined)
        answer = await self._wait_for(visit, good, pushed_s, rule=rule, same="retry-same")
        self.verdicts.check(rule, True, what)
        if answer is None:
            await self.restart()
            return False
        await self.settle(answer, report_pb2.DISPOSITION_ACCEPTED)
        return True

    async def begin(self, rule: str) -> None:
        """Wait for a device that may decline a study of this kind.

        Raises:
            Declined: it takes no part.
        """
        try:
            await self.visit(rule)
        except Unanswered as missing:
            if "Visit" in self.stand.calls:
                raise
            raise Declined(rule, f"it takes no part in such a study: {missing}") from None

    async def offered(self, asked: Asked, *, rule: str, before: Asked) -> None:
        """Ask a device a round of a kind that it need not know; a report to it is counted.

        Args:
            asked: the round.
            rule: what a device that answers neither breaks.
            before: the next round, of a kind that every device knows.

        Raises:
            Declined: it passes over such rounds.
        """
        for each in (asked, before):
            self._asked[each.defined.hash] = each
        visit = await self.visit(rule)
        await visit.push(asked.defined)
        pushed_s = await visit.push(before.defined)
        answer = await self._wait_for(visit, before, pushed_s, rule=rule, same="retry-same")
        if answer is None:
            raise Unanswered(rule, f"round {before.number}: the visit ended without a report")
        await self.settle(answer, report_pb2.DISPOSITION_ACCEPTED)
        report = self._first.get(asked.defined.hash)
        if report is None:
            raise Declined(rule, "it passes over such a round, and answers the next one")
        self._accepted.add(asked.defined.hash)
        await visit.receipt(report.report_id, report_pb2.DISPOSITION_ACCEPTED)

    def lose(self) -> None:
        """Break the connection off; receipts that were not given are lost."""
        if self._visit is not None:
            self._visit.end(lost=True)
            self._visit = None
        self._order = None

    async def kill(self) -> None:
        """Kill the device; what it had sent before is looked at all the same."""
        await self.runner.kill()
        visit, self._visit = self._visit, None
        if visit is not None:
            await self._drain(visit)
            visit.end(lost=True)
        while not self.stand.visits.empty():
            self.stand.visits.get_nowait().end(lost=True)
        self._order = None

    async def restart(self) -> None:
        """End the device in order and start it again."""
        await self.runner.terminate(self._patience_s)
        self.lose()

    async def visit(self, rule: str) -> Visit:
        """The visit that is going on, or the next one."""
        if self.verdicts.is_lost:
            raise Enough
        if self._visit is not None:
            return self._visit
        deadline = time.monotonic() + max(self._patience_s, START_S)
        nudge = time.monotonic() + NUDGE_S if self.stand.visits.empty() else deadline
        fresh, starts = self.runner.exit_code() is not None or not self.stand.calls, 1
        await self.runner.start()
        while time.monotonic() < deadline:
            visit: Visit | None = None
            with anyio.move_on_after(LOOK_S):
                visit = await self.stand.visits.get()
            if visit is not None:
                await self._begin(visit)
                return visit
            if self.runner.exit_code() is not None:
                if starts == TRIES:
                    break
                starts, fresh = starts + 1, True
                await self.runner.start()
            elif not fresh and time.monotonic() > nudge:
                fresh = True
                await self.runner.terminate(self._patience_s)
                await self.runner.start()
        code = self.runner.exit_code()
        ended = "" if code is None else f"; it ended with exit status {code}"
        raise Unanswered(rule, f"the device does not visit{ended}")

    # ---- what comes back ---------------------------------------------------------------------

    async def _begin(self, visit: Visit) -> None:
        self._visit = visit
        hello = visit.hello
        if hello.study_hash != self.stand.study.hash:
            self.stand.faults.setdefault("fields", "a hello names another study")
        await visit.welcome(len(self._asked))

    async def _wait_for(
        self, visit: Visit, asked: Asked, pushed_s: float, *, rule: str, same: str
    ) -> Answer | None:
        """The report to a round; None where the visit ends before."""
        while True:
            slot_s = asked.defined.value.answer_after_ms / 1000
            try:
                arrival = await visit.next(self._patience_s + slot_s)
            except TimeoutError:
                raise Unanswered(
                    rule, f"round {asked.number}: no report within {self._patience_s:g} s"
                ) from None
            if arrival is None:
                self._visit = None
                visit.end()
                return None
            report = self._received(arrival, same=same)
            if report is not None and report.round_hash == asked.defined.hash:
                words = words_of(asked.defined.value, report.words)
                if words is None:
                    raise Unanswered(
                        "report-form", f"round {asked.number}: {len(report.words)} bytes of words"
                    )
                return Answer(
                    asked=asked, report=report, words=words, pushed_s=pushed_s, at_s=arrival.at_s
                )

    async def _drain(self, visit: Visit) -> None:
        """Look at what has come and was not waited for."""
        while True:
            try:
                arrival = await visit.next(1.0)  # the end of a killed device's stream comes at once
            except TimeoutError:
                return
            if arrival is None:
                return
            self._received(arrival, same="crash-points")

    def _received(self, arrival: Arrival, *, same: str) -> report_pb2.Report | None:
        """Look at a message; the report that it is, or completes."""
        self.stand.look(arrival)
        kind = arrival.message.WhichOneof("message")
        if kind == "report":
            report = arrival.message.report
            if len(report.words) > LARGEST_FRAMED_BYTES:
                self.verdicts.check("chunks", False, f"{len(report.words)} bytes in one message")
        elif kind == "chunk":
            whole = self._chunk(arrival.message.chunk)
            if whole is None:
                return None
            report = whole
        else:
            self.verdicts.check("report-form", False, f"a message with {kind} after the hello")
            return None
        self._compare(report, same)
        return report

    def _compare(self, report: report_pb2.Report, same: str) -> None:
        """Hold a report against the rules about all of them."""
        known = self._asked.get(report.round_hash)
        if known is None:
            rule, what = self._forbidden.get(
                report.round_hash, ("wrong-rounds", "a round that was never asked")
            )
            self.verdicts.check(rule, False, f"a report came: {what}")
            return
        if report.round_hash in self._final:
            self.verdicts.check("settled", False, f"round {known.number} came again")
        self._copies[report.round_hash] += 1
        first = self._first.setdefault(report.round_hash, report)
        if first is not report:
            if report.round_hash in self._accepted:
                same = "repeated-round"
            is_same = (first.report_id, first.words) == (report.report_id, report.words)
            text = (
                f"round {known.number} came again, {'the same' if is_same else 'with other bytes'}"
            )
            self.verdicts.check(same, is_same, text)
            self.verdicts.check("crash-points", is_same, text)
        ids = {each.report_id for each in self._first.values()}
        size = known.defined.value.word_type.report_bytes(known.defined.value.query.value_length)
        self.verdicts.check(
            "report-form",
            len(report.report_id) == 16
            and len(ids) == len(self._first)
            and len(report.words) == size,
            "sizes and ids are those that the rounds give"
            if len(report.words) == size
            else f"round {known.number}: {len(report.words)} bytes of words, {size} are due",
        )

    def _chunk(self, chunk: report_pb2.ReportChunk) -> report_pb2.Report | None:
        asked = self._asked.get(chunk.round_hash)
        try:
            if asked is None:
                raise WireError("chunks of a round that was never asked")
            if self._order is None:
                size = asked.defined.value.word_type.report_bytes(
                    asked.defined.value.query.value_length
                )
                self._order, self._parts = ChunkOrder(chunk, size=size, from_gateway=False), []
            self._parts.append(self._order.take(chunk))
        except WireError as error:
            raise Unanswered("chunks", str(error)) from None
        if not self._order.complete:
            return None
        self.verdicts.check("chunks", True, f"{len(self._parts)} chunks of one report, in order")
        self._order = None
        return report_pb2.Report(
            round_hash=chunk.round_hash, report_id=chunk.report_id, words=b"".join(self._parts)
        )
