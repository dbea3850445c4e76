"""What a client knows of the reports it has sent: the oracle of the crash tests.

Each device has a coordinate of its own. Its honest report is 1 there and 0 elsewhere, so that a 2
in the sums is a report that counted twice and a 0 one that was lost. What conflicts with it would
leave its own mark: 1000 for other bytes under its id, 100 for a second id.
"""

from dataclasses import dataclass, field

import numpy as np

from demur_proto.release import Release, Withheld
from demur_proto.round import Round
from demur_proto.transport.credentials import DeviceCredential
from demur_proto.wire.definition import Defined
from demur_proto.wire.words import encode_words
from store_kit import ACCEPTED, CONFLICT, DUPLICATE, INVALID, ROUND_CLOSED, TRY_LATER

HONEST, OTHER_BYTES, SECOND_ID = 1, 1000, 100  #: the one word that is not 0


class Broken(AssertionError):
    """A promise of the collector's."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Sent:
    """A report as it travels; sent again, the same bytes."""

    place: int  #: the coordinate of its device
    device: DeviceCredential
    report_id: bytes
    word: int  #: HONEST, OTHER_BYTES or SECOND_ID
    words: bytes
    proof: bytes  #: for gateways

    def __str__(self) -> str:
        kind = {HONEST: "honest", OTHER_BYTES: "other bytes", SECOND_ID: "second id"}[self.word]
        return f"{kind} {self.place}"


def make_report(asked: Defined[Round], device: DeviceCredential, *, place: int, word: int) -> Sent:
    """A report of a device to a round."""
    dimension = asked.value.query.dimension  # type: ignore[attr-defined]  # it is linear
    row = np.zeros((1, dimension), dtype=np.int64)
    row[0, place] = word
    words = encode_words(row, asked.value.word_type)
    report_id = bytes([place, word == SECOND_ID]) + asked.hash[:14]
    return Sent(
        place=place,
        device=device,
        report_id=report_id,
        word=word,
        words=words,
        proof=device.proof(asked.hash, report_id, words),
    )


@dataclass(slots=True, repr=False)
class Book:
    """Of one round: what was sent, and what its senders were told, whoever of them heard it."""

    asked: Defined[Round]
    people: int
    sent: dict[int, set[Sent]] = field(default_factory=dict)  #: by place
    counted: dict[int, Sent] = field(default_factory=dict)  #: by place: told so, hence durable
    accepted: set[Sent] = field(default_factory=set)
    refused: set[Sent] = field(default_factory=set)
    conflicts: int = 0  #: CONFLICT was told so often
    closing: bool = False  #: the analyst has asked for it
    shut: bool = False  #: somebody was told that it is closed

    def sending(self, *reports: Sent) -> bool:
        """These leave now; whether the round is known to be closed."""
        for report in reports:
            self.sent.setdefault(report.place, set()).add(report)
        return self.shut

    def told(self, report: Sent, disposition: int, *, late: bool) -> bool:
        """What became of a report.

        Args:
            report: which.
            disposition: what its sender was told, or would have been.
            late: it left when the round was known to be closed.

        Returns:
            Whether that is settled now.

        Raises:
            Broken: that must not be said.
        """
        counted = self.counted.get(report.place)
        if late and disposition not in (ROUND_CLOSED, TRY_LATER):
            raise self._broken(report, f"told {disposition} after the close")
        if disposition in (ACCEPTED, DUPLICATE):
            if disposition == ACCEPTED and report in self.accepted:
                raise self._broken(report, "accepted twice")
            if report in self.refused:
                raise self._broken(report, "counted after a CONFLICT")
            if counted not in (None, report):
                raise self._broken(report, f"counted beside {counted}")
            self.counted[report.place] = report
            if disposition == ACCEPTED:
                self.accepted.add(report)
        elif disposition == CONFLICT:
            if counted is report or len(self.sent[report.place]) == 1:
                raise self._broken(report, "CONFLICT with itself")
            self.refused.add(report)
            self.conflicts += 1
        elif disposition == ROUND_CLOSED:
            if not self.closing:
                raise self._broken(report, "told that an open round is closed")
            self.shut = True
        elif disposition == INVALID or disposition != TRY_LATER:
            raise self._broken(report, f"told {disposition}")
        return disposition != TRY_LATER

    def check(self, release: Release, *, exact: bool) -> None:
        """See that a release holds what was acknowledged, once, and nothing that was not sent.

        Args:
            release: of this round.
            exact: nothing is in doubt any more.

        Raises:
            Broken: it does not.
        """
        if release.withheld is not Withheld.NOTHING or len(release.sums) != self.people:
            raise Broken(f"round {self._number}: withheld, or of {len(release.sums)} sums")
        for place, total in enumerate(release.sums):
            counted = self.counted.get(place)
            if counted is not None and total != counted.word:
                raise self._broken(counted, f"acknowledged, and adds up to {total}")
            possible = self.sent.get(place, set()) - self.refused
            if counted is None and total not in {0, *(each.word for each in possible)}:
                raise Broken(f"round {self._number}, device {place} adds up to {total}")
            if counted is None and exact and possible:
                raise Broken(f"round {self._number}, device {place} is still in doubt")
        if release.reports != np.count_nonzero(release.sums):
            raise Broken(f"round {self._number}: {release.reports} reports make {release.sums}")

    @property
    def _number(self) -> int:
        return self.asked.value.number

    def _broken(self, report: Sent, what: str) -> Broken:
        return Broken(f"round {self._number}, {report}: {what}")
