"""What all ledgers share: every question and every change, on top of a book of changes."""

import hashlib
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import final

from demur_client.ledger.base import Answered, Identity, Sealed, Settled
from demur_client.ledger.counter import Mark
from demur_client.ledger.records import (
    Agreed,
    Begun,
    Change,
    Charged,
    Dropped,
    Forgot,
    Identified,
    Made,
    fitting_note,
)
from demur_client.ledger.scope import Declared, LifetimeCap, Purse
from demur_client.ledger.state import Book, Entry, Membership, history_of
from demur_proto.errors import NotFoundError, ParameterError, PolicyError, StateError
from demur_proto.round import Round
from demur_proto.study import Policy, Study
from demur_proto.v1.report_pb2 import Report
from demur_proto.wire.definition import REPORT_ID_BYTES, Defined

SECRET_BYTES = 32
STOPPED = "the device stopped while this round was being evaluated"
OTHER_ROUND = "the round that had this number before"


def secret_of(given: bytes | None) -> bytes:
    """A device's secret: the one that is given, or a new one.

    Raises:
        ParameterError: it is not 32 bytes.
    """
    if given is None:
        return secrets.token_bytes(SECRET_BYTES)
    if len(given) != SECRET_BYTES:
        raise ParameterError("secret", f"{len(given)} bytes", f"{SECRET_BYTES} bytes")
    return given


class KeptLedger(ABC):
    """A ledger, but for where it keeps its changes. See `base.Ledger` for what methods do."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._begun_here: set[tuple[bytes, int]] = set()  # study's hash, round's number

    def __repr__(self) -> str:
        return f"{type(self).__name__}(secret)"

    @abstractmethod
    def _read(self) -> Book:
        """What is kept, once everything that it tells is kept for good.

        Raises:
            StorageError: nothing can be kept or read.
        """

    @abstractmethod
    def _keep(
        self,
        change: Change,
        *,
        sealed: bytes | None = None,
        dropped: Sequence[int] = (),
        erased: Sequence[int] = (),
    ) -> None:
        """Keep a change for good, all of it or nothing, and add it to the book.

        Args:
            change: what happens.
            sealed: the bytes of the report that it charges.
            dropped: numbers of changes whose reports' bytes go.
            erased: numbers of changes that are emptied.

        Raises:
            StorageError: it cannot be kept.
        """

    @abstractmethod
    def _bytes(self, entry: Entry) -> bytes:
        """The sealed bytes of a report that is not settled."""

    def _scrub(self) -> None:  # noqa: B027  in memory nothing is left anyway
        """Let nothing be read any more, by any means, that was emptied or dropped.

        Raises:
            StorageError: it may still be read; try again.
        """

    @abstractmethod
    def _changes(self) -> Iterator[Change]:
        """All changes in order, but for those that were emptied."""

    # ---- who -------------------------------------------------------------------------------

    @property
    def secret(self) -> bytes:
        """As `Ledger.secret`."""
        with self._lock:
            return self._read().secret

    @property
    def trusted(self) -> bool:
        """As `Ledger.trusted`."""
        return not self.doubt

    @property
    def doubt(self) -> str:
        """As `Ledger.doubt`."""
        with self._lock:
            return self._read().doubt

    @property
    def control_refusal(self) -> str:
        """As `Ledger.control_refusal`."""
        with self._lock:
            return self._read().control_refusal

    @property
    def identity(self) -> Identity | None:
        """As `Ledger.identity`."""
        with self._lock:
            return self._read().identity

    def keep_identity(self, identity: Identity) -> None:
        """As `Ledger.keep_identity`."""
        with self._lock:
            book = self._read()
            if identity != book.identity:
                self._keep(Identified(identity=identity))

    # ---- studies ---------------------------------------------------------------------------

    def agree(self, study: Defined[Study]) -> None:
        """As `Ledger.agree`."""
        with self._lock:
            book = self._read()
            for cap in book.caps:
                if not cap.measures(Declared.of(study.value)):
                    raise ParameterError(
                        "study",
                        study.value.name,
                        f"one of Gaussian noise only, under a lifetime cap in {cap.measure}",
                    )
            if book.member(study.hash) is None:
                refusal = book.refusal_of(study)
                if refusal:
                    raise PolicyError(f"study {study.value.name!r} is refused: {refusal}")
                self._keep(Agreed(definition=study.definition))

    def studies(self) -> Sequence[Defined[Study]]:
        """As `Ledger.studies`."""
        with self._lock:
            return self._read().studies()

    def forgotten(self, study_hash: bytes) -> bool:
        """As `Ledger.forgotten`."""
        with self._lock:
            return self._read().forgotten(study_hash)

    # ---- answers ---------------------------------------------------------------------------

    def sealed(self, study_hash: bytes, number: int) -> Sealed | None:
        """As `Ledger.sealed`."""
        with self._lock:
            member = self._read().member(study_hash)
            entry = member and member.entries.get(number)
            if not entry:
                return None
            return Sealed(
                number=number,
                round_hash=entry.round_hash,
                report_id=entry.report_id,
                settled=entry.settled,
                report=None if entry.settled else self._report(entry),
            )

    def answered(self, study_hash: bytes, number: int) -> bytes | None:
        """As `Ledger.answered`."""
        with self._lock:
            entry = self._entries(study_hash).get(number)
            return None if entry is None else entry.round_hash

    def begun(self, study_hash: bytes, number: int) -> bytes | None:
        """As `Ledger.begun`."""
        with self._lock:
            member = self._read().member(study_hash)
            return None if member is None else member.begun.get(number)

    def begin(self, asked: Defined[Round]) -> bool:
        """As `Ledger.begin`."""
        study_hash, number = asked.value.study_hash, asked.value.number
        with self._lock:
            member, _ = self._member_of(asked)
            entry = member.entries.get(number)
            if entry is not None:
                self._check_again(entry, asked)
                return False
            if number in member.begun:
                return (study_hash, number) in self._begun_here
            # Before it is kept: where that fails, it may be kept all the same, and nobody else did it.
            self._begun_here.add((study_hash, number))
            self._keep(Begun(study_hash=study_hash, number=number, round_hash=asked.hash))
            return True

    def seal(
        self, asked: Defined[Round], make: Callable[[Purse], Report], *, note: str = ""
    ) -> Report:
        """As `Ledger.seal`."""
        study_hash, number = asked.value.study_hash, asked.value.number
        with self._lock:
            member, policy = self._member_of(asked)
            entry = member.entries.get(number)
            if entry is not None:
                self._check_again(entry, asked)
                return self._report(entry)
            stopped = number in member.begun and (study_hash, number) not in self._begun_here
            if stopped:
                note = STOPPED
            purse = self._read().purse(member, policy, asked.value, stopped=stopped)
            report = make(purse)
            if len(report.report_id) != REPORT_ID_BYTES:
                raise ParameterError(
                    "report_id", f"{len(report.report_id)} bytes", f"{REPORT_ID_BYTES} bytes"
                )
            sealed = report.SerializeToString(deterministic=True)
            self._keep(
                Charged(
                    study_hash=study_hash,
                    number=number,
                    round_hash=asked.hash,
                    definition=asked.definition,
                    report_id=report.report_id,
                    report_digest=hashlib.sha256(sealed).digest(),
                    charge=purse.charge,
                    wanted=purse.wanted,
                    given=bool(purse.given),
                    shrunk=purse.shrunk,
                    refused=purse.refused,
                    covered=purse.covered,
                    change=None if purse.told is None else purse.told.change,
                    planned=0 if purse.told is None else purse.told.state.planned,
                    held=member.held + purse.newly_held,
                    at_unix_ms=time.time_ns() // 1_000_000,
                    note=fitting_note(note) if note else note,
                ),
                sealed=sealed,
            )
            self._begun_here.discard((study_hash, number))
        return report

    def unsettled(self, study_hash: bytes) -> Sequence[Report]:
        """As `Ledger.unsettled`."""
        with self._lock:
            entries = self._entries(study_hash)
            return [self._report(entries[number]) for number in self.waiting(study_hash)]

    def waiting(self, study_hash: bytes) -> Sequence[int]:
        """As `Ledger.waiting`."""
        with self._lock:
            entries = self._entries(study_hash)
            return sorted(number for number, entry in entries.items() if not entry.settled)

    def settle(self, report_id: bytes, how: Settled) -> None:
        """As `Ledger.settle`."""
        with self._lock:
            entry = self._read().entry(report_id)
            if entry is None:
                raise NotFoundError("no report with this id was sealed")
            if entry.settled is None:
                self._keep(Dropped(report_id=report_id, how=how), dropped=[entry.at])

    def reached(self, study_hash: bytes) -> int:
        """As `Ledger.reached`."""
        with self._lock:
            return max(self._entries(study_hash), default=0)

    def last_in_count(self, study_hash: bytes, count: int) -> Round | None:
        """As `Ledger.last_in_count`."""
        with self._lock:
            member = self._read().member(study_hash)
            state = member and member.counts.get(count)
            return state.last if state else None

    def counts(self, study_hash: bytes) -> Sequence[Round]:
        """As `Ledger.counts`."""
        with self._lock:
            member = self._read().member(study_hash)
            states = [] if member is None else member.counts.values()
            return [state.last for state in states if state.last is not None]

    # ---- for the owner ---------------------------------------------------------------------

    def history(self, study_hash: bytes) -> Sequence[Answered]:
        """As `Ledger.history`."""
        with self._lock:
            doubted = bool(self._read().doubt)
            return history_of(self._changes(), study_hash, doubted=doubted)

    def remaining_units(self, study_hash: bytes) -> int:
        """As `Ledger.remaining_units`."""
        with self._lock:
            book = self._read()
            member = book.member(study_hash)
            return 0 if member is None else book.remaining(member)

    def ever_refused(self, study_hash: bytes) -> bool:
        """As `Ledger.ever_refused`."""
        with self._lock:
            member = self._read().member(study_hash)
            return member is not None and member.refused

    def held_units(self, study_hash: bytes) -> int:
        """As `Ledger.held_units`."""
        with self._lock:
            member = self._read().member(study_hash)
            return 0 if member is None or self._read().doubt else member.held

    def ever_covered(self, study_hash: bytes) -> bool | None:
        """As `Ledger.ever_covered`."""
        with self._lock:
            book = self._read()
            member = book.member(study_hash)
            return None if member is None else member.covered or bool(book.doubt)

    def forget(self, study_hash: bytes | None = None) -> None:
        """As `Ledger.forget`."""
        with self._lock:
            book = self._read()
            if study_hash is None:
                self._forget(dict(book.members()), identity=True)
            elif (member := book.member(study_hash)) is not None:
                self._forget({study_hash: member}, identity=False)
            elif not book.forgotten(study_hash):
                raise NotFoundError("the device never took part in a study of this hash")
            self._scrub()

    def _forget(self, members: dict[bytes, Membership], *, identity: bool) -> None:
        erased = [at for member in members.values() for at in member.changes]
        if identity:
            erased += self._read().identified
        entries = [entry for member in members.values() for entry in member.entries.values()]
        self._keep(
            Forgot(
                studies=tuple((each, member.declared) for each, member in members.items()),
                erased=tuple(erased),
                identity=identity,
            ),
            dropped=[entry.at for entry in entries],
            erased=erased,
        )

    def _entries(self, study_hash: bytes) -> dict[int, Entry]:
        member = self._read().member(study_hash)
        return {} if member is None else member.entries

    def _member_of(self, asked: Defined[Round]) -> tuple[Membership, Policy]:
        """What is known of a round's study, and its policy, where no other round had its number."""
        number, member = asked.value.number, self._read().member(asked.value.study_hash)
        if member is None or member.study is None:
            raise ParameterError("round", number, "a round of a study that was agreed to")
        if member.begun.get(number, asked.hash) != asked.hash:
            raise ParameterError("round", number, OTHER_ROUND)
        return member, member.study.value.policy

    def _check_again(self, entry: Entry, asked: Defined[Round]) -> None:
        """Refuse an answered round whose report cannot be given once more."""
        if entry.round_hash != asked.hash:
            raise ParameterError("round", entry.number, OTHER_ROUND)
        if entry.settled is not None:
            raise StateError(
                f"round {entry.number} was answered, and its report is {entry.settled}"
            )

    def _report(self, entry: Entry) -> Report:
        return Report.FromString(self._bytes(entry))


# A ledger that lasts as long as its process: for simulations and tests.


@final
class MemoryLedger(KeptLedger):
    """Keeps everything in memory. A restart forgets what was spent, so no device may be shipped with it.

    Args:
        secret: the device's; drawn when not given.
        caps: over all studies together.

    Raises:
        ParameterError: the secret is not 32 bytes.
    """

    def __init__(self, secret: bytes | None = None, *, caps: Iterable[LifetimeCap] = ()) -> None:
        super().__init__()
        self._book = Book(caps)
        self._number = 0
        self._kept: dict[int, Change] = {}
        self._sealed: dict[int, bytes] = {}
        self._keep(Made(secret=secret_of(secret), start=Mark.first().digest))

    def _read(self) -> Book:
        return self._book

    def _keep(
        self,
        change: Change,
        *,
        sealed: bytes | None = None,
        dropped: Sequence[int] = (),
        erased: Sequence[int] = (),
    ) -> None:
        at = self._number + 1
        self._book.apply(at, change)
        self._number = at
        self._kept[at] = change
        if sealed is not None:
            self._sealed[at] = sealed
        for number in dropped:
            self._sealed.pop(number, None)
        for number in erased:
            self._kept.pop(number, None)

    def _bytes(self, entry: Entry) -> bytes:
        return self._sealed[entry.at]

    def _changes(self) -> Iterator[Change]:
        return iter(self._kept.values())
