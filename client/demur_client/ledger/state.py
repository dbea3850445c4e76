"""What a ledger's changes add up to: who the device is, what it has spent, what it still has to send."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from demur_client.budget.running_counts import UNTOLD, RunningState, count_of
from demur_client.ledger.base import Answered, Identity, Settled
from demur_client.ledger.records import (
    Agreed,
    Begun,
    Change,
    Charged,
    Doubted,
    Dropped,
    Forgot,
    Identified,
    Made,
)
from demur_client.ledger.scope import Declared, LifetimeCap, Purse
from demur_proto.accounting.calibration import GRAIN
from demur_proto.round import Round
from demur_proto.study import Policy, Purpose, Study
from demur_proto.wire.definition import Defined, read_round, read_study


@dataclass(slots=True, kw_only=True, repr=False)
class Entry:
    """What is kept at hand of a round that was answered."""

    at: int  #: number of the change that charged it
    number: int  #: of the round
    round_hash: bytes
    report_id: bytes
    report_digest: bytes
    settled: Settled | None = None


@dataclass(slots=True, kw_only=True, repr=False)
class Membership:
    """What is known of one study."""

    declared: Declared
    study: Defined[Study] | None  #: None: it was forgotten
    spent: int = 0  #: units of its budget
    refused: bool = False  #: whether its filter has ever refused or shrunk an answer
    covered: bool = False  #: whether an answer was ever less than its owner's value
    counts: dict[int, RunningState] = field(default_factory=dict)
    """Running counts, by the number of the round that began each."""
    held: int = 0  #: by all of them for words to come, units; kept, as there may be any number
    begun: dict[int, bytes] = field(default_factory=dict)
    """Hashes of the rounds that were begun and not answered, by their numbers."""
    entries: dict[int, Entry] = field(default_factory=dict)  #: by the round's number
    changes: list[int] = field(default_factory=list)  #: numbers of all changes that tell of it

    @property
    def taken(self) -> int:
        """What no other answer can spend any more, units: spent, or held."""
        return self.spent + self.held

    def forget(self) -> None:
        """Keep nothing but that all of it is spent."""
        self.study = None
        self.spent = self.declared.budget_units
        self.refused = True
        self.covered = True
        self.counts.clear()
        self.held = 0
        self.begun.clear()
        self.entries.clear()
        self.changes.clear()


class Book:
    """The sum of all changes so far. Secret, all but the studies.

    Args:
        caps: over all studies together, whenever they were agreed to.
    """

    def __init__(self, caps: Iterable[LifetimeCap] = ()) -> None:
        self.caps = tuple(caps)
        self.secret = b""
        self.doubt = ""
        self.identity: Identity | None = None
        self.identified: list[int] = []  #: numbers of the changes that tell of the collector
        self.erased: set[int] = set()  #: numbers of the changes that were emptied
        self._binding: tuple[LifetimeCap, ...] = ()  # caps that may refuse something; public
        self._members: dict[bytes, Membership] = {}  # by the study's hash
        self._owners: dict[bytes, tuple[Membership, Entry]] = {}  # by the report's id

    def apply(self, at: int, change: Change) -> None:
        """Add the change of this number.

        Raises:
            ValueError: it cannot have followed what came before.
            DemurError: a study is of a kind that this version does not do.
        """
        match change:
            case Made():
                self.secret, self.doubt = change.secret, change.doubt
            case Agreed():
                self._agree(at, change.definition)
            case Begun():
                self._begin(at, change)
            case Charged():
                self._charge(at, change)
            case Dropped():
                self._drop(at, change)
            case Identified():
                self.identity = change.identity
                self.identified.append(at)
            case Forgot():
                self._forget(change.studies)
                self.erased.update(change.erased)
                if change.identity:
                    self.identity = None
                    self.identified.clear()
            case Doubted():
                self.doubt = change.doubt

    def member(self, study_hash: bytes) -> Membership | None:
        """What is known of a study that the device takes part in."""
        member = self._members.get(study_hash)
        return None if member is None or member.study is None else member

    def forgotten(self, study_hash: bytes) -> bool:
        """Whether the device once took part in this study, and does not any more."""
        return study_hash in self._members and self.member(study_hash) is None

    def members(self) -> Iterator[tuple[bytes, Membership]]:
        """All studies, the forgotten ones too, by their hashes."""
        return iter(self._members.items())

    def studies(self) -> Sequence[Defined[Study]]:
        """Those that the device takes part in."""
        return [each.study for each in self._members.values() if each.study is not None]

    def entry(self, report_id: bytes) -> Entry | None:
        """The answer with this report."""
        owner = self._owners.get(report_id)
        return None if owner is None else owner[1]

    def unsettled(self) -> Iterator[Entry]:
        """Every answer whose bytes must be there."""
        return (entry for _, entry in self._owners.values() if entry.settled is None)

    @property
    def control_refusal(self) -> str:
        """As `Ledger.control_refusal`."""
        if self.doubt:
            return "its ledger cannot be relied on"
        if self._binding:
            return "a lifetime cap does not hold all that its studies have declared"
        return ""

    def refusal_of(self, study: Defined[Study]) -> str:
        """Why a study cannot be agreed to, beside those before; empty where it can. Public."""
        control = study.value.purpose is not Purpose.DATA
        if control and self.control_refusal:
            return f"this device answers no control questions: {self.control_refusal}"
        others = (each.value.purpose is not Purpose.DATA for each in self.studies())
        if not (control or any(others)):
            return ""
        declared = {study_hash: each.declared for study_hash, each in self._members.items()}
        declared[study.hash] = Declared.of(study.value)
        if self._too_small(declared.values()):
            return (
                "a lifetime cap does not hold what it declares beside all other studies, which it must "
                "where one of them is for control questions"
            )
        return ""

    def remaining(self, member: Membership) -> int:
        """What is left of a study's budget beside what is held, units."""
        return 0 if self.doubt else member.declared.budget_units - member.taken

    def purse(
        self, member: Membership, policy: Policy, asked: Round, *, stopped: bool = False
    ) -> Purse:
        """What the next answer in a study of this policy may be paid from; `stopped` as in `Purse`."""
        others = [each for each in self._members.values() if each is not member]
        caps = [
            (cap, sum(cap.units(each.declared, each.taken) for each in others))
            for cap in self._binding
        ]
        running = member.counts.get(count_of(asked) or 0, UNTOLD)
        if self.doubt:  # the words of what was taken up may have been sent already: none goes on
            running = RunningState(last=running.last)
        spent = member.declared.budget_units - self.remaining(member)
        refused = member.refused or bool(self.doubt)
        return Purse.of(
            member.declared,
            policy,
            spent=spent,
            refused=refused,
            caps=caps,
            running=running,
            stopped=stopped,
        )

    def _agree(self, at: int, definition: bytes) -> None:
        study = read_study(definition)
        member = self._members.get(study.hash)
        if member is None:
            member = Membership(declared=Declared.of(study.value), study=study)
            self._members[study.hash] = member
            self._find_binding()
        member.study = study
        member.changes.append(at)

    def _begin(self, at: int, change: Begun) -> None:
        member = self.member(change.study_hash)
        if member is None:
            raise ValueError("a beginning in no study")
        if change.number in member.begun or change.number in member.entries:
            raise ValueError("a round begun twice, or after it was answered")
        member.begun[change.number] = change.round_hash
        member.changes.append(at)

    def _charge(self, at: int, change: Charged) -> None:
        member = self.member(change.study_hash)
        if member is None or member.study is None:
            raise ValueError("an answer in no study")
        if change.number in member.entries or change.report_id in self._owners:
            raise ValueError("an answer twice")
        if member.begun.pop(change.number, change.round_hash) != change.round_hash:
            raise ValueError("an answer to another round than was begun")
        held, told = member.held, {}
        if change.change is not None:
            asked = read_round(change.definition, study=member.study).value
            count = count_of(asked) or 0
            before = member.counts.get(count, UNTOLD)
            after = before.after(asked, change=change.change, planned=change.planned)
            held, told = held + after.held - before.held, {count: after}
        if change.charge < 0 or member.spent + change.charge + held > member.declared.budget_units:
            raise ValueError("more was spent than there was")
        member.spent += change.charge
        member.held = held
        member.counts.update(told)
        member.refused = change.refused
        member.covered |= change.covered
        entry = Entry(
            at=at,
            number=change.number,
            round_hash=change.round_hash,
            report_id=change.report_id,
            report_digest=change.report_digest,
        )
        member.entries[change.number] = entry
        member.changes.append(at)
        self._owners[change.report_id] = member, entry

    def _drop(self, at: int, change: Dropped) -> None:
        owner = self._owners.get(change.report_id)
        if owner is None or owner[1].settled is not None:
            raise ValueError("a report settled twice, or never sealed")
        member, entry = owner
        entry.settled = change.how
        member.changes.append(at)

    def _forget(self, studies: Iterable[tuple[bytes, Declared]]) -> None:
        for study_hash, declared in studies:
            member = self._members.setdefault(study_hash, Membership(declared=declared, study=None))
            for entry in member.entries.values():
                del self._owners[entry.report_id]
            member.forget()
        self._find_binding()

    def _find_binding(self) -> None:
        """Leave out caps that hold all that was ever declared: they refuse nothing that a study allows.

        Which these are follows from the studies alone, so what an answer takes to decide does too.
        """
        self._binding = self._too_small(each.declared for each in self._members.values())

    def _too_small(self, declared: Iterable[Declared]) -> tuple[LifetimeCap, ...]:
        """The caps that do not hold all of this."""
        known = list(declared)
        return tuple(
            cap
            for cap in self.caps
            if sum(cap.units(each, each.budget_units) for each in known) > GRAIN
        )


def history_of(changes: Iterable[Change], study_hash: bytes, *, doubted: bool) -> list[Answered]:
    """What was answered in a study, told for its owner.

    Args:
        changes: all of them, in order; those that were emptied are missing.
        study_hash: of the study.
        doubted: whether nothing counts as left.
    """
    settled: dict[bytes, Settled] = {}
    charged: list[Charged] = []
    total, forgotten = 0, False
    for change in changes:
        match change:
            case Agreed() if (study := read_study(change.definition)).hash == study_hash:
                total = study.value.budget_units
            case Forgot() if study_hash in dict(change.studies):
                forgotten = True
            case Charged() if change.study_hash == study_hash:
                charged.append(change)
            case Dropped():
                settled[change.report_id] = change.how
            case _:
                pass
    rows = []
    for each in charged:
        total -= each.charge
        rows.append(
            Answered(
                number=each.number,
                at_unix_ms=each.at_unix_ms,
                definition=each.definition,
                report_id=each.report_id,
                charge=each.charge,
                wanted=each.wanted,
                given=each.given,
                covered=each.covered,
                shrunk=each.shrunk,
                change=each.change,
                held=0 if doubted or forgotten else each.held,
                left=0 if doubted or forgotten else total - each.held,
                settled=settled.get(each.report_id),
                note=each.note,
            )
        )
    return rows
