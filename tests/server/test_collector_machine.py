"""Whatever happens in whatever order, a store counts what a model of ten lines counts.

Hypothesis draws studies, rounds, reports, closes, restarts, crashes and driver errors. A crash or
an error falls on any statement, before or after the database has done it; then it is open whether
what was under way took effect, but only as a whole, and the machine finds out which it was.
"""

import asyncio
import copy
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from demur_proto.errors import StorageError
from demur_server.collector.estimates import make_release
from demur_server.store import records
from demur_server.store.base import Counting, Store, Totals
from demur_server.store.durable import DurableStore
from demur_server.store.link import Link
from demur_server.store.postgres import PostgresLink
from demur_server.store.sqlite import SqliteLink
from demur_server.store.worker import Clerk, _Open
from store_kit import (
    ACCEPTED,
    CONFLICT,
    DUPLICATE,
    ROUND_CLOSED,
    STUDY,
    TRY_LATER,
    Crash,
    Fuse,
    MemoryPlace,
    Place,
    PostgresPlace,
    PostgresServer,
    Sent,
    SqlitePlace,
    a_round,
    batch,
)

ROUNDS = [a_round(STUDY, number) for number in (1, 2, 3)]
Outcome = list[int] | None  #: None: nobody was told


class Model:
    """A round. This is the specification."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[int, int]] = {}  # by report id: digest and device
        self.sums, self.conflicts, self.closed, self.released = [0, 0], 0, False, False

    def admit(self, report_id: int, digest: int, device: int, words: tuple[int, int]) -> int:
        if self.closed:
            return ROUND_CLOSED
        if self.known.get(report_id) == (digest, device):
            return DUPLICATE
        if report_id in self.known or device in {sender for _, sender in self.known.values()}:
            self.conflicts += 1
            return CONFLICT
        self.known[report_id] = digest, device
        self.sums = [self.sums[0] + words[0], self.sums[1] + words[1]]
        return ACCEPTED

    def agrees(self, totals: Totals) -> bool:
        sums = [] if self.released else self.sums
        expected = (len(self.known), self.conflicts, sums, self.closed)
        return (totals.reports, totals.conflicts, totals.sums.tolist(), totals.closed) == expected


few = st.integers(1, 5)
word = st.integers(-(1 << 50), 1 << 50)
honest = st.tuples(few, st.just(1), st.none(), st.tuples(word, word))  # one device, one id
wild = st.tuples(few, st.integers(1, 2), few, st.tuples(word, word))
report = st.one_of(honest, honest, wild)
batches = st.lists(st.lists(report, min_size=1, max_size=4), min_size=1, max_size=3)
which = st.integers(0, len(ROUNDS) - 1)
statements = st.one_of(st.integers(1, 2), st.integers(1, 8))  # PostgreSQL often needs only one


def as_sent(drawn: tuple[int, int, int | None, tuple[int, int]]) -> Sent:
    report_id, digest, device, words = drawn
    return report_id, digest, report_id if device is None else device, words


class StoreMachine(RuleBasedStateMachine):
    """Drives a store and its model side by side."""

    def __init__(self, place: Place, runner: asyncio.Runner, befallen: Counter[str]) -> None:
        super().__init__()
        self.place = place
        self.befallen = befallen
        self.do = runner.run
        self.fuse = Fuse()
        self.store: Store
        self.models: dict[int, Model] = {}
        self.releases: dict[int, Any] = {}
        self.last: dict[int, list[list[Any]]] = {}  # what was handed in last

    @initialize()
    def begin(self) -> None:
        self.place.clear()
        self.start()

    def start(self) -> None:
        self.fuse.defuse()
        self.store = self.do(self.place.open(fuse=self.fuse if self.place.durable else None))
        self.do(self.store.add_study(STUDY))

    def forget_unless_durable(self) -> None:
        if not self.place.durable:
            self.models.clear()
            self.releases.clear()

    # ---- what is asked of it -----------------------------------------------------------------

    @rule(index=which)
    def open_round(self, index: int) -> None:
        self.do(self.store.add_round(ROUNDS[index], sums_length=2))
        self.models.setdefault(index, Model())

    @precondition(lambda self: self.models)
    @rule(index=which, drawn=batches)
    def report(self, index: int, drawn: list[list[Any]]) -> None:
        if index in self.models:
            self.last[index] = drawn
            told = self.do(self.admit(index, drawn))
            expected = [[self.models[index].admit(*as_sent(r)) for r in each] for each in drawn]
            assert told == expected

    @precondition(lambda self: self.last)
    @rule(data=st.data())
    def resend(self, data: st.DataObject) -> None:
        """The same bytes once more, as after a response that was lost."""
        index = data.draw(st.sampled_from(sorted(self.last)))
        self.report(index, self.last[index])

    async def admit(self, index: int, drawn: list[list[Any]]) -> list[Outcome]:
        async def hand_in(reports: list[Any]) -> Outcome:
            try:
                told = await self.store.admit(ROUNDS[index].hash, batch(*map(as_sent, reports)))
            except StorageError:
                return None
            return None if told == [TRY_LATER] * len(reports) else told

        return await asyncio.gather(*map(hand_in, drawn))

    @precondition(lambda self: self.models)
    @rule(index=which)
    def close(self, index: int) -> None:
        if index in self.models:
            self.models[index].closed = True
            totals = self.do(self.store.close_round(ROUNDS[index].hash))
            assert self.models[index].agrees(totals)

    @precondition(lambda self: any(model.closed for model in self.models.values()))
    @rule(index=which, reports=st.integers(2, 9))
    def publish(self, index: int, reports: int) -> None:
        if index in self.models and self.models[index].closed:
            release = make_release(STUDY, ROUNDS[index], [reports, 7], reports=reports)
            kept = self.do(self.store.add_release(release))
            assert kept == self.releases.setdefault(index, release)
            self.models[index].released = True

    # ---- what befalls it ---------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        self.do(self.store.close())
        self.forget_unless_durable()
        self.start()

    @rule()
    def crash(self) -> None:
        self.do(self.place.crash(self.store))
        self.forget_unless_durable()
        self.start()

    @precondition(lambda self: self.models and self.place.durable)
    @rule(
        index=which,
        drawn=batches,
        statement=statements,
        after=st.booleans(),
        crashing=st.booleans(),
    )
    def report_interrupted(
        self, index: int, drawn: list[list[Any]], statement: int, after: bool, crashing: bool
    ) -> None:
        if index not in self.models:
            return
        self.last[index] = drawn
        self.blow(statement, after, crashing)
        told = self.do(self.admit(index, drawn))
        self.recover()
        # Whoever was told something was told the truth; of the rest, whole batches count or not.
        outcomes = [iter([True]) if each is not None else iter([False, True]) for each in told]
        possible = []
        for took_effect in itertools.product(*outcomes):
            model = copy.deepcopy(self.models[index])
            said = [
                [model.admit(*as_sent(r)) for r in each] if done else None
                for each, done in zip(drawn, took_effect, strict=True)
            ]
            if all(t in (None, s) for t, s in zip(told, said, strict=True)):
                possible.append(model)
        self.models[index] = self.whichever(index, possible)

    @precondition(lambda self: self.models and self.place.durable)
    @rule(index=which, statement=statements, after=st.booleans(), crashing=st.booleans())
    def close_interrupted(self, index: int, statement: int, after: bool, crashing: bool) -> None:
        if index not in self.models:
            return
        self.blow(statement, after, crashing)
        told = self.outcome(self.store.close_round(ROUNDS[index].hash))
        self.recover()
        closed = copy.deepcopy(self.models[index])
        closed.closed = True
        self.models[index] = self.whichever(
            index, [closed] if told is not None else [self.models[index], closed]
        )

    @precondition(lambda self: self.place.durable)
    @rule(
        index=which,
        statement=statements,
        after=st.booleans(),
        crashing=st.booleans(),
        reports=st.integers(2, 9),
    )
    def publish_interrupted(
        self, index: int, statement: int, after: bool, crashing: bool, reports: int
    ) -> None:
        if index not in self.models or not self.models[index].closed:
            return
        release = make_release(STUDY, ROUNDS[index], [reports, 7], reports=reports)
        self.blow(statement, after, crashing)
        told = self.outcome(self.store.add_release(release))
        self.recover()
        kept = self.do(self.store.release(ROUNDS[index].hash))
        before = self.releases.get(index)
        assert kept == before if before else kept in (release, told)
        if kept is not None:
            self.releases[index] = kept
            self.models[index].released = True

    def blow(self, statement: int, after: bool, crashing: bool) -> None:
        error = Crash() if crashing else self.place.driver_error()
        self.fuse.set(statement, after=after, error=error)

    def outcome(self, doing: Any) -> Any:
        async def tried() -> Any:
            try:
                return await doing
            except StorageError:
                return None

        return self.do(tried())

    def recover(self) -> None:
        blown, crashed = self.fuse.blown, isinstance(self.fuse.error, Crash)
        self.fuse.defuse()
        assert isinstance(self.store, DurableStore)
        self.befallen["crash" if crashed else "error"] += blown
        if blown and crashed:
            self.crash()
        else:
            self.store._clerk._retry_at = 0.0  # nobody has time to wait

    def whichever(self, index: int, possible: list[Model]) -> Model:
        """The model that agrees with the store, as one must."""
        totals = self.do(self.store.totals(ROUNDS[index].hash))
        agreeing = [model for model in possible if model.agrees(totals)]
        assert agreeing
        return agreeing[-1]

    # ---- what must hold ----------------------------------------------------------------------

    @invariant()
    def store_and_model_agree(self) -> None:
        for index, model in self.models.items():
            assert model.agrees(self.do(self.store.totals(ROUNDS[index].hash)))
        kept = self.do(self.store.releases(STUDY.hash)) if self.models else []
        assert kept == [self.releases[index] for index in sorted(self.releases)]

    def teardown(self) -> None:
        self.fuse.defuse()
        if hasattr(self, "store"):
            self.do(self.store.close())


EXAMPLES = {"memory": 30, "sqlite": 20, "postgres": 15}


def drive(place: Place, *, examples: int, steps: int = 25, **options: Any) -> Counter[str]:
    """Let the machine run; what befell its stores in the middle of something."""
    befallen: Counter[str] = Counter()
    with asyncio.Runner() as runner:

        class Here(StoreMachine):
            def __init__(self) -> None:
                super().__init__(place, runner, befallen)

        run_state_machine_as_test(
            Here,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                suppress_health_check=list(HealthCheck),
                **options,
            ),
        )
    return befallen


@pytest.fixture
def place(request: pytest.FixtureRequest, quick_path: Path) -> Place:
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        return PostgresPlace(server)
    return SqlitePlace(quick_path) if request.param == "sqlite" else MemoryPlace()


@pytest.mark.parametrize("place", sorted(EXAMPLES), indirect=True)
def test_a_store_counts_what_the_model_counts_whatever_happens(place: Place) -> None:
    befallen = drive(place, examples=EXAMPLES[place.kind])

    assert place.kind != "sqlite" or befallen.total() > 0  # about 25 in 20 examples


@pytest.mark.long
@pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)
def test_a_store_counts_what_the_model_counts_whatever_happens_for_long(place: Place) -> None:
    drive(place, examples=1_000 if place.kind == "sqlite" else 300, steps=40)


# ---- bugs that the machine must find ---------------------------------------------------------


def acknowledge_before_commit(patch: pytest.MonkeyPatch) -> None:
    """Each commit happens when the next one is due."""
    for kind in (SqliteLink, PostgresLink):
        patch.setattr(kind, "count", _hasty(kind.count))


def _hasty(original: Callable[..., set[int]]) -> Callable[..., set[int]]:
    waiting: dict[int, Any] = {}

    def count(link: Any, changes: Any) -> set[int]:
        due = waiting.pop(id(link), None)
        waiting[id(link)] = changes
        return original(link, due) if due else set()

    return count


def forget_the_index_on_reopen(patch: pytest.MonkeyPatch) -> None:
    """Sums and numbers are read again, and who sent what is not."""
    original = Clerk._recalled

    def recalled(self: Clerk, link: Link, row: records.RoundRow) -> Counting:
        empty = Counting(sums_length=0)
        empty.reports = original(self, link, row).reports
        return empty

    patch.setattr(Clerk, "_recalled", recalled)


def reopen_a_closed_round(patch: pytest.MonkeyPatch) -> None:
    """A round that was closed counts again after a restart."""
    original = Clerk._take_up

    def take_up(self: Clerk, link: Link, row: records.RoundRow) -> None:
        if not row.closed:
            original(self, link, row)
            return
        kept = records.shard_totals(link.sql, row, shard=link.shard)
        counting = Counting(sums_length=row.sums_length)
        counting.reports, counting.conflicts = kept.reports, kept.conflicts
        if kept.sums.size:
            counting.sums = kept.sums
        self._open[row.hash] = _Open(row, counting, kept.seq, conflicts=kept.conflicts)

    patch.setattr(Clerk, "_take_up", take_up)


def believe_memory_after_an_error(patch: pytest.MonkeyPatch) -> None:
    """What was decided for a commit that failed stays decided."""

    def drop(self: Clerk, link: Link) -> None:
        """Keep everything."""

    patch.setattr(Clerk, "_drop", drop)


def say_conflict_without_counting_it(patch: pytest.MonkeyPatch) -> None:
    """Conflicts are forgotten by a restart."""
    patch.setattr("demur_server.store.worker._new_conflicts", lambda mine: False)


def take_a_second_id_from_a_device(patch: pytest.MonkeyPatch) -> None:
    """Devices are only known until a restart."""
    original = Counting.recall

    def recall(self: Counting, ids: Any, digests: Any, devices: Any) -> None:
        original(self, ids, digests, [b"?" + device for device in devices])

    patch.setattr(Counting, "recall", recall)


BUGS = (
    acknowledge_before_commit,
    forget_the_index_on_reopen,
    reopen_a_closed_round,
    take_a_second_id_from_a_device,
)


def find(place: Place) -> None:
    with pytest.raises((AssertionError, StorageError)):
        drive(
            place,
            examples=1_000,
            phases=[Phase.generate],
            derandomize=True,
            database=None,
            verbosity=Verbosity.quiet,
            report_multiple_bugs=False,
        )


@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_the_machine_finds_a_planted_bug(
    place: Place, bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)

    find(place)


# PostgreSQL asks its database whether a round is closed, and so survives that bug.
@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "bug"),
    [
        ("sqlite", say_conflict_without_counting_it),
        ("sqlite", believe_memory_after_an_error),
        ("postgres", acknowledge_before_commit),
        ("postgres", forget_the_index_on_reopen),
        ("postgres", take_a_second_id_from_a_device),
    ],
    indirect=["place"],
)
def test_the_machine_finds_more_planted_bugs(
    place: Place, bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)

    find(place)
