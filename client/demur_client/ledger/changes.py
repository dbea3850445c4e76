"""What can happen to a ledger, and how that is written down.

As JSON, bytes in hexadecimal; but for the beginning of an evaluation, and for an answer, which
`charged.py` writes. In files of version 1 answers
were JSON as well, of another kind: they are read as they are, since no link of a chain may change.
"""

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from demur_client.ledger.base import Identity, Settled
from demur_client.ledger.charged import Charged, read_charged, write_charged
from demur_client.ledger.purse import Declared
from demur_proto.credentials import DeviceCredential
from demur_proto.study import Measure


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
