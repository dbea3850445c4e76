"""An answer's row in a ledger, which is as long whatever the answer was.

All that is secret in it has a fixed width: else the size of the file, or a disk that it fills to the
last byte, would tell what was charged, that a device is exhausted, or that its data went wrong. Only
the round's definition, which is public, has a length of its own.
"""

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from demur_client.ledger.base import Identity, Settled
from demur_client.ledger.scope import Declared
from demur_proto.study import Measure
from demur_proto.transport.credentials import DeviceCredential

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


# What can happen to a ledger, and how that is written down.
#
# As JSON, bytes in hexadecimal; but for the beginning of an evaluation, and for an answer, which
# `charged.py` writes. In files of version 1 answers
# were JSON as well, of another kind: they are read as they are, since no link of a chain may change.


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Made:
    """A ledger begins."""

    secret: bytes  #: the device's, 32 bytes
    start: bytes  #: 32 bytes, which its first link follows
    doubt: str = ""  #: why what was spent before is not known; empty where nothing was


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Agreed:
    """The device takes part in a study."""

    definition: bytes


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Begun:
    """The owner's data are about to be read for a round."""

    study_hash: bytes  #: 32 bytes
    number: int  #: of the round
    round_hash: bytes  #: 32 bytes


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Dropped:
    """A report is settled, and its bytes are gone."""

    report_id: bytes
    how: Settled


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Identified:
    """The device belongs to a collector."""

    identity: Identity


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Forgot:
    """Studies were forgotten: their budgets are spent."""

    studies: tuple[tuple[bytes, Declared], ...]  #: hashes, with what is spent
    erased: tuple[int, ...]  #: numbers of the entries that were emptied
    identity: bool  #: the collector was forgotten as well


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Doubted:
    """The ledger is found not to be the newest: from now on every budget is spent."""

    doubt: str


Change = Made | Agreed | Begun | Charged | Dropped | Identified | Forgot | Doubted

_BEGUN = struct.Struct(">I32s32s")  #: number of the round, hashes of the study and of the round


def write_change(change: Change) -> tuple[str, bytes]:
    """A change's kind and body.

    >>> write_change(Doubted(doubt="old"))
    ('doubted', b'{"doubt":"old"}')
    """
    if isinstance(change, Charged):
        return "answered", write_charged(change)
    if isinstance(change, Begun):
        return "begun", _BEGUN.pack(change.number, change.study_hash, change.round_hash)
    return type(change).__name__.lower(), _ENCODER.encode(_fields(change)).encode()


def read_change(kind: str, body: bytes) -> Change:
    """The change that was written down.

    Raises:
        ValueError: it is none.
    """
    if kind == "answered":
        return read_charged(body)
    if kind == "begun":
        return _begun(body)
    try:
        return _READERS[kind](json.loads(body))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no change of the kind {kind!r}") from error


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in type(value).__slots__}


def _plain(value: Any) -> Any:
    """What JSON has for what it does not have."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Identity | Declared | DeviceCredential):
        return _fields(value)
    raise TypeError(f"nothing to be written down: {type(value).__name__}")


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_plain)


def _begun(body: bytes) -> Begun:
    if len(body) != _BEGUN.size:
        raise ValueError("no beginning: of another length")
    number, study_hash, round_hash = _BEGUN.unpack(body)
    return Begun(study_hash=study_hash, number=number, round_hash=round_hash)


def _charged_in_json(fields: Mapping[str, Any]) -> Charged:
    """An answer in a file of version 1."""
    held: dict[str, Any] = {
        name: bytes.fromhex(fields[name])
        for name in ("study_hash", "round_hash", "definition", "report_id", "report_digest")
    }
    return Charged(
        **held,
        number=int(fields["number"]),
        charge=int(fields["charge"]),
        wanted=int(fields["wanted"]),
        given=bool(fields["given"]),
        shrunk=bool(fields["shrunk"]),
        refused=bool(fields["refused"]),
        covered=bool(fields["covered"]),
        change=None if fields["change"] is None else int(fields["change"]),
        planned=int(fields["planned"]),
        held=int(fields["held"]),
        at_unix_ms=int(fields["at_unix_ms"]),
        note=str(fields["note"]),
    )


def _forgot(fields: Mapping[str, Any]) -> Forgot:
    return Forgot(
        studies=_spent(fields["studies"]),
        erased=tuple(map(int, fields["erased"])),
        identity=bool(fields["identity"]),
    )


def _identity(fields: Mapping[str, Any]) -> Identity:
    def held(name: str) -> bytes | None:
        return None if fields[name] is None else bytes.fromhex(fields[name])

    credential = fields["credential"]
    return Identity(
        target=str(fields["target"]),
        certificate=held("certificate"),
        own_certificate=fields.get("own_certificate"),
        own_key=fields.get("own_key"),
        nonce=held("nonce"),
        credential=None
        if credential is None
        else DeviceCredential(
            device_id=bytes.fromhex(credential["device_id"]),
            secret=bytes.fromhex(credential["secret"]),
        ),
    )


def _spent(pairs: Any) -> tuple[tuple[bytes, Declared], ...]:
    return tuple((bytes.fromhex(study_hash), _declared(each)) for study_hash, each in pairs)


def _declared(fields: Mapping[str, Any]) -> Declared:
    return Declared(
        measure=Measure(fields["measure"]),
        budget=fields["budget"],
        gaussian=bool(fields["gaussian"]),
        budget_units=int(fields["budget_units"]),
    )


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Change]] = {
    "made": lambda fields: Made(
        secret=bytes.fromhex(fields["secret"]),
        start=bytes.fromhex(fields["start"]),
        doubt=str(fields["doubt"]),
    ),
    "agreed": lambda fields: Agreed(definition=bytes.fromhex(fields["definition"])),
    "charged": _charged_in_json,
    "dropped": lambda fields: Dropped(
        report_id=bytes.fromhex(fields["report_id"]), how=Settled(fields["how"])
    ),
    "identified": lambda fields: Identified(identity=_identity(fields["identity"])),
    "forgot": _forgot,
    "doubted": lambda fields: Doubted(doubt=str(fields["doubt"])),
}
