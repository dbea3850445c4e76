"""An answer's row in a ledger, which is as long whatever the answer was.

All that is secret in it has a fixed width: else the size of the file, or a disk that it fills to the
last byte, would tell what was charged, that a device is exhausted, or that its data went wrong. Only
the round's definition, which is public, has a length of its own.
"""

import struct
from dataclasses import dataclass

NOTE_BYTES = 240
_LAYOUT = struct.Struct(f">I32s32s16s32s6qB{NOTE_BYTES}s")
_GIVEN, _SHRUNK, _REFUSED, _COVERED, _CHANGED = (1 << bit for bit in range(5))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Charged:
    """A round was answered: the charge, and the digest of the sealed report."""

    study_hash: bytes
    number: int
    round_hash: bytes
    definition: bytes  #: of the round
    report_id: bytes  #: 16 bytes
    report_digest: bytes  #: SHA-256 of the sealed bytes
    charge: int
    wanted: int
    given: bool
    shrunk: bool
    refused: bool  #: whether the study's filter has now ever refused or shrunk an answer
    covered: bool  #: less is in the report than the owner's value, for whatever reason
    change: int | None  #: of a running count, what was taken up; None in other rounds
    planned: int  #: energy of the words of its segment that are still to come, grid steps²
    held: int  #: for words to come in all running counts of the study, units
    at_unix_ms: int
    note: str  #: as `fitting_note` gives it


def fitting_note(note: str) -> str:
    """What of a note fits a row, which has no room for what cannot be written.

    >>> len(fitting_note("é" * 500))
    120
    """
    return note.encode(errors="replace")[:NOTE_BYTES].decode(errors="ignore").rstrip("\x00")


def write_charged(change: Charged) -> bytes:
    """An answer as the body of a row: a fixed part, then the definition."""
    flags = (
        change.given * _GIVEN
        | change.shrunk * _SHRUNK
        | change.refused * _REFUSED
        | change.covered * _COVERED
        | (change.change is not None) * _CHANGED
    )
    fixed = _LAYOUT.pack(
        change.number,
        change.study_hash,
        change.round_hash,
        change.report_id,
        change.report_digest,
        change.charge,
        change.wanted,
        change.change or 0,
        change.planned,
        change.held,
        change.at_unix_ms,
        flags,
        change.note.encode(),
    )
    return fixed + change.definition


def read_charged(body: bytes) -> Charged:
    """The answer that was written down.

    Raises:
        ValueError: it is none.
    """
    try:
        number, study, asked, report_id, digest, *amounts, flags, note = _LAYOUT.unpack_from(body)
    except struct.error as error:
        raise ValueError("no answer: too short") from error
    charge, wanted, change, planned, held, at_unix_ms = amounts
    return Charged(
        study_hash=study,
        number=number,
        round_hash=asked,
        definition=body[_LAYOUT.size :],
        report_id=report_id,
        report_digest=digest,
        charge=charge,
        wanted=wanted,
        given=bool(flags & _GIVEN),
        shrunk=bool(flags & _SHRUNK),
        refused=bool(flags & _REFUSED),
        covered=bool(flags & _COVERED),
        change=change if flags & _CHANGED else None,
        planned=planned,
        held=held,
        at_unix_ms=at_unix_ms,
        note=note.rstrip(b"\x00").decode(),
    )
