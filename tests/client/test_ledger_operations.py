"""Thousands of operations on a ledger and on a model of a few lines, which always agree."""

import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from demur_client.ledger.counter import FileCounter
from demur_client.ledger.file import LedgerFile
from demur_client.ledger.scope import Purse
from demur_proto.errors import StateError
from demur_proto.v1.report_pb2 import Report
from ledger_kit import FULL, answer, ask, quick_folder
from ledger_model import STUDIES, Event, Model, differences

SUITE_OPERATIONS = 10_000
LONG_OPERATIONS = 1_000_000
BATCH = 96  #: of answers at most, in one step of the machine

whiches = st.integers(0, len(STUDIES) - 1)
counts = st.integers(1, BATCH)
dice = st.integers(0, 1 << 32).map(random.Random)


class Operations(RuleBasedStateMachine):
    """A ledger in a file with a counter, and what it should be."""

    total = 0  #: over all machines

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(dir=quick_folder(Path(tempfile.gettempdir()))))
        self.folder = self.base / "device"
        self.folder.mkdir()
        self.model = Model()
        self.sent: dict[tuple[int, int], bytes] = {}
        self.next = [1] * len(STUDIES)
        self.old: Path | None = None
        self.open()

    def open(self) -> None:
        self.ledger = LedgerFile(self.folder / "ledger", counter=FileCounter(self.base / "counter"))

    def teardown(self) -> None:
        if self.ledger.trusted:  # or something has failed before
            assert differences(self.ledger, self.model) == []
        self.ledger.close()
        shutil.rmtree(self.base)

    def do(self, event: Event) -> bytes | None:
        Operations.total += 1
        sent = event.to_ledger(self.ledger)
        event.to_model(self.model)
        return sent

    @initialize()
    def agree_to_all(self) -> None:
        for which in range(len(STUDIES)):
            self.do(Event(verb="agree", which=which))

    @rule(which=whiches, count=counts, dice=dice)
    def answer_many(self, which: int, count: int, dice: random.Random) -> None:
        for _ in range(count):
            number = self.next[which]
            self.next[which] += 1
            norm = dice.choice((0, 1, FULL - 1, FULL, FULL + 1, 3 * FULL, dice.randint(0, FULL)))
            sent = self.do(Event(verb="seal", which=which, number=number, norm=norm))
            assert sent is not None
            self.sent[which, number] = sent

    @rule(which=whiches, count=counts, gap=st.integers(0, BATCH // 2))
    def begin_many(self, which: int, count: int, gap: int) -> None:
        for number in range(self.next[which], self.next[which] + count // 4):
            number += gap * (number % 2)  # some of them long before they are answered
            told: list[str] = []
            side = self.model.sides[which]
            event = Event(verb="begin", which=which, number=number)
            event.to_ledger(self.ledger, tell=told.append)
            event.to_model(self.model)
            assert bool(told) == (number not in side.answers.keys() | side.stopped)
            Operations.total += 1

    @rule(which=whiches, count=counts, dice=dice)
    def answer_again(self, which: int, count: int, dice: random.Random) -> None:
        side = self.model.sides[which]
        for number in dice.sample(sorted(side.answers), min(count, len(side.answers))):
            event = Event(verb="seal", which=which, number=number, norm=dice.randint(0, FULL))
            if number in side.settled:
                with pytest.raises(StateError):
                    event.to_ledger(self.ledger)
            else:
                assert self.do(event) == self.sent[which, number]

    @rule(which=whiches, count=counts)
    def settle_some(self, which: int, count: int) -> None:
        side = self.model.sides[which]
        for number in sorted(side.answers.keys() - side.settled)[:count]:
            self.do(Event(verb="settle", which=which, number=number))

    @rule(how=st.sampled_from(["stopped", "crashed", "back up", "an old one", "an old one"]))
    def start_again(self, how: str) -> None:
        if how != "back up" or self.old is not None:
            self.model.restart()
        if how == "back up" and self.old is None:
            self.old = self.base / "old"
            shutil.copytree(self.folder, self.old)
            self.do(Event(verb="identify", number=Operations.total))
        elif how == "an old one" and self.old is not None:
            self.put_back_for_a_while(self.old)
            self.old = None
        elif how == "crashed":
            copy = self.base / "copy"
            shutil.copytree(self.folder, copy)  # as it is, its log and all
            self.ledger.close()
            shutil.rmtree(self.folder)
            copy.rename(self.folder)
            self.open()
        else:
            self.ledger.close()
            self.open()

    def put_back_for_a_while(self, old: Path) -> None:
        self.ledger.close()
        self.folder.rename(self.base / "newest")
        counter = (self.base / "counter").read_bytes()
        old.rename(self.folder)
        self.open()
        assert not self.ledger.trusted
        for study in STUDIES:
            self.ledger.agree(study)
            answer(self.ledger, ask(study, 1), 1)
            assert [row.charge for row in self.ledger.history(study.hash)] == [0]
        self.ledger.close()
        shutil.rmtree(self.folder)
        (self.base / "newest").rename(self.folder)
        (self.base / "counter").write_bytes(counter)
        self.open()

    @precondition(lambda self: any(number > BATCH for number in self.next))
    @rule(which=whiches, forget=st.booleans())
    def fail_or_forget(self, which: int, forget: bool) -> None:
        if not forget:
            with pytest.raises(ArithmeticError):
                self.ledger.seal(ask(STUDIES[which], self.next[which]), fail)
            return
        self.do(Event(verb="forget", which=which))
        self.do(Event(verb="agree", which=which))
        self.sent = {key: sent for key, sent in self.sent.items() if key[0] != which}
        for number in range(1, 4):  # the rounds may come again, and cost nothing
            sent = self.do(Event(verb="seal", which=which, number=number, norm=FULL))
            assert sent is not None
            self.sent[which, number] = sent
        self.next[which] = max(self.next[which], 4)

    @invariant()
    def as_much_is_left_as_should_be(self) -> None:
        assert self.ledger.trusted
        for study, side in zip(STUDIES, self.model.sides, strict=True):
            if side.agreed:
                assert self.ledger.remaining_units(study.hash) == side.left
                assert self.ledger.ever_refused(study.hash) == side.refused
                assert self.ledger.reached(study.hash) == max(side.answers, default=0)


def fail(purse: Purse) -> Report:
    """Spend, and then be unable to answer."""
    purse.try_spend(FULL, weight=1)
    raise ArithmeticError


def run(*, examples: int, steps: int, operations: int) -> None:
    before = Operations.total
    while Operations.total - before < operations:
        run_state_machine_as_test(
            Operations,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                derandomize=operations == SUITE_OPERATIONS,
                phases=[Phase.generate],  # shrinking these takes minutes
                suppress_health_check=list(HealthCheck),
            ),
        )


def test_no_sequence_of_operations_spends_too_much_or_answers_twice() -> None:
    run(examples=10, steps=25, operations=SUITE_OPERATIONS)


@pytest.mark.long
def test_device_ledgers_over_a_million_operations() -> None:
    run(examples=200, steps=40, operations=LONG_OPERATIONS)
