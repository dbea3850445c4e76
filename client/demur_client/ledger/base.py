"""What every ledger does, and the records that it gives.

A round is BEGUN before anything of its owner's data is read for it. Its report then goes through two
states: SEALED, when its charge and its bytes are kept and it may be sent, as often as needed; then
ACKED or EXPIRED, when nobody wants it any more and its bytes are dropped. Charges are never given
back, and no round is ever answered with other bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from demur_client.ledger.scope import Purse
from demur_proto.errors import ParameterError
from demur_proto.round import Round
from demur_proto.study import Study
from demur_proto.transport.credentials import NONCE_BYTES, DeviceCredential
from demur_proto.v1.report_pb2 import Report
from demur_proto.wire.definition import Defined


class Settled(StrEnum):
    """Why a report is not sent any more."""

    ACKED = "acked"  #: the collector has it
    EXPIRED = "expired"  #: the collector will never take it


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """That a round was answered, and with what."""

    number: int  #: of the round
    round_hash: bytes  #: 32 bytes
    report_id: bytes  #: 16 bytes
    settled: Settled | None  #: None: it is still to be sent
    report: Report | None = field(repr=False)  #: a copy; None once it is settled


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Answered:
    """One answer, for the eyes of the device's owner only. All of it but the round is secret."""

    number: int  #: of the round
    at_unix_ms: int  #: when it was sealed, by the device's clock
    definition: bytes  #: of the round: what was asked
    report_id: bytes  #: 16 bytes
    charge: int  #: what it has cost, units of the study's budget
    wanted: int
    """What it would have taken of what was left, units. In a running count, for all words of a change
    that are still to come as well."""
    given: bool  #: False: it did not fit: the report is cover, or without the change
    covered: bool  #: less is in the report than the owner's value, for whatever reason
    shrunk: bool  #: it was shrunk to what still fitted
    change: int | None  #: what a running count took up, units of the state; None in other rounds
    held: int  #: for words of running counts that are still to come, after it, units
    left: int  #: of the study's budget after it and beside all that is held, units
    settled: Settled | None
    note: str  #: what went wrong when the owner's data were asked; mostly empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whom a device belongs to: its collector, and how it is known there.

    Of the device's own certificate the paths are kept: such files are renewed.

    Raises:
        ParameterError: the nonce is not 16 bytes, or a certificate comes without its key.
    """

    target: str  #: the collector's HOST:PORT
    certificate: bytes | None = None  #: PEM, the only one that the collector may show; or None
    own_certificate: str | None = None  #: path of the device's own, PEM, where its collector asks
    own_key: str | None = None  #: path of its private key
    nonce: bytes | None = field(default=None, repr=False)  #: kept before enrolment
    credential: DeviceCredential | None = field(default=None, repr=False)  #: kept after it

    def __post_init__(self) -> None:
        if self.nonce is not None and len(self.nonce) != NONCE_BYTES:
            raise ParameterError("nonce", f"{len(self.nonce)} bytes", f"{NONCE_BYTES} bytes")
        if (self.own_certificate is None) != (self.own_key is None):
            raise ParameterError("own_certificate and own_key", "one of them", "both, or neither")


class Ledger(Protocol):
    """What a device remembers. Safe under threads.

    Whatever a method changes is kept for good when it returns. Where it raises StorageError nothing
    may leave the device, whether the change was kept or not.
    """

    @property
    def secret(self) -> bytes:
        """The device's secret, from which report ids follow: 32 bytes."""

    @property
    def trusted(self) -> bool:
        """Whether what it says was spent is all that was. Secret.

        Otherwise every budget counts as spent, and all answers that would cost something are cover.
        """

    @property
    def doubt(self) -> str:
        """Why it is not trusted, in words for the device's owner; empty where it is.

        It follows from what became of files, never from data. Only that there is a doubt is public, and
        only by `control_refusal`: answers that are cover do not show it.
        """

    @property
    def control_refusal(self) -> str:
        """Why the device answers no control question; empty where it answers them. Public.

        A ledger in doubt, and a lifetime cap that does not hold all that the device's studies have
        declared, may refuse the change that a control question asks for. The device would then count
        as one that never gave less than its value, which nobody knows. So it takes no part, for all to
        see, and whoever counts adds it. This follows from files, caps and declared budgets; what was
        spent has no part in it.
        """

    @property
    def identity(self) -> Identity | None:
        """The last that was kept; None before, and after everything was forgotten."""

    def keep_identity(self, identity: Identity) -> None:
        """Remember who this device is, in place of what was kept before.

        Raises:
            StorageError: it cannot be kept.
        """

    def agree(self, study: Defined[Study]) -> None:
        """Take part in a study; nothing new where the device does already.

        A study for control questions needs its whole budget under every lifetime cap, whatever other
        studies spend. So from then on all that studies have declared fits under every cap, those that
        were forgotten included: a study with which it would not is refused. Without control questions
        any number of studies may share a cap, which then holds what they really spend.

        Raises:
            ParameterError: a lifetime cap cannot measure this study; that is public.
            PolicyError: its declared budget does not fit beside those of the others, and it or one of
                them is for control questions; or it is, and the device answers none. That is public
                too: what was spent has no part in it.
            StorageError: it cannot be kept.
        """

    def studies(self) -> Sequence[Defined[Study]]:
        """What was agreed to and not forgotten, in that order."""

    def forgotten(self, study_hash: bytes) -> bool:
        """Whether the device took part in this study once, and does not any more."""

    def sealed(self, study_hash: bytes, number: int) -> Sealed | None:
        """What the round of this number was answered with; None where it was not.

        Raises:
            StorageError: nothing can be read.
        """

    def answered(self, study_hash: bytes, number: int) -> bytes | None:
        """The hash of the round of this number that was answered; None where none was."""

    def begun(self, study_hash: bytes, number: int) -> bytes | None:
        """The hash of the round of this number that was begun and not answered; None where none is."""

    def begin(self, asked: Defined[Round]) -> bool:
        """Note that the owner's data are about to be read for a round; before any of them are.

        An evaluation may end its process. A round that an earlier process began and never sealed is
        not evaluated again, or it would end every process to come, and the silence would show the
        data: `seal` answers it with cover, for nothing.

        Args:
            asked: the round.

        Returns:
            True where the round may be evaluated: nobody has begun it, or this very object has, as
            when a visit lost its connection. False where an earlier process has; and where the
            round is sealed, since the same bytes are sent again.

        Raises:
            ParameterError: its study was not agreed to, or another round had its number.
            StateError: it was answered, and the report is settled.
            StorageError: it cannot be kept. Nothing of the owner's may be read.
        """

    def seal(
        self, asked: Defined[Round], make: Callable[[Purse], Report], *, note: str = ""
    ) -> Report:
        """Answer a round: charge it, keep the report, and only then give it out; all or nothing.

        A round that was answered gets the same report again, and nothing is made. To one that an
        earlier process began, the purse gives nothing: see `begin`.

        Args:
            asked: the round.
            make: makes the report, and spends what it costs from the purse, at most once.
            note: what went wrong when the owner's data were asked, for `history`. Secret.

        Returns:
            A report of the caller's own.

        Raises:
            ParameterError: its study was not agreed to, another round had its number, or what was
                made has no id of 16 bytes.
            StateError: it was answered, and the report is settled: no bytes are left to send.
            StorageError: it cannot be kept. What was made must not leave.
        """

    def unsettled(self, study_hash: bytes) -> Sequence[Report]:
        """The reports to be sent again, byte for byte, in the order of their rounds.

        Raises:
            StorageError: nothing can be read.
        """

    def waiting(self, study_hash: bytes) -> Sequence[int]:
        """The numbers of the rounds whose reports are to be sent again, in order.

        Takes as long as the device has answered rounds, however far apart a collector put their
        numbers.
        """

    def settle(self, report_id: bytes, how: Settled) -> None:
        """Drop a report's bytes, as nobody wants them. Nothing new where they are dropped already.

        Raises:
            NotFoundError: no such report was sealed.
            StorageError: it cannot be kept.
        """

    def last_in_count(self, study_hash: bytes, count: int) -> Round | None:
        """The last round that was answered of a running count; None before the first. Public.

        Args:
            study_hash: of its study.
            count: the number of the round that began it.
        """

    def counts(self, study_hash: bytes) -> Sequence[Round]:
        """The last round that was answered of each of a study's running counts. Public."""

    def reached(self, study_hash: bytes) -> int:
        """The largest number of a round that was answered; 0 before the first."""

    def history(self, study_hash: bytes) -> Sequence[Answered]:
        """What was answered, in that order, for the device's owner. Secret."""

    def remaining_units(self, study_hash: bytes) -> int:
        """What is left of a study's budget beside what is held; 0 where in doubt. Secret."""

    def held_units(self, study_hash: bytes) -> int:
        """What of a study's budget is held for words of running counts to come. Secret."""

    def ever_refused(self, study_hash: bytes) -> bool:
        """Whether an answer was ever refused or shrunk in a study that is not forgotten. Secret."""

    def ever_covered(self, study_hash: bytes) -> bool | None:
        """Whether an answer was ever less than its owner's value. See `Device.ever_covered`. Secret.

        Where the ledger is in doubt, so is every answer. None where the device does not take part in
        the study, or not any more.
        """

    def forget(self, study_hash: bytes | None = None) -> None:
        """Erase what is remembered of a study, or of all of them and of the collector.

        The budget of what is forgotten stays spent, all of it, for ever: that alone is remembered.

        Raises:
            StorageError: it cannot be kept.
        """
