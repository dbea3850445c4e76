"""Who made the reports that a gateway brings: a proof for each, checked many at a time."""

import hmac
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from demur_proto.credentials import DEVICE_ID_BYTES, PROOF_BYTES, make_proofs
from demur_proto.definition import REPORT_ID_BYTES
from demur_proto.errors import WireError
from demur_proto.hmacs import PreparedKey, hash_payloads, prepare_key
from demur_proto.v1 import report_pb2
from demur_proto.words import Payload
from demur_server.admission import split
from demur_server.tokens import device_secrets


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Senders:
    """Who made the reports of a frame."""

    devices: bytes | None  #: 16 bytes each; None under open access
    payload_hashes: list[bytes] | None  #: SHA-256 of each report's words, where they were needed
    unproven: tuple[int, ...]  #: reports that must not be counted


UNKNOWN_SENDERS = Senders(devices=None, payload_hashes=None, unproven=())


def check_senders(
    frame: report_pb2.ReportFrame,
    master: PreparedKey,
    *,
    reports: int,
    revoked: AbstractSet[bytes],
    words: Payload | None = None,
) -> Senders:
    """Check the proof of every report in a frame.

    Args:
        frame: within its limits, `check_frame`.
        master: the key from which device secrets follow.
        reports: how many the frame holds.
        revoked: devices whose reports are not taken.
        words: those of the frame, if the caller has read them; each reading copies them.

    Raises:
        WireError: not every report has a device id and a proof, or their words are not equally
            long.
    """
    if len(frame.device_ids) != reports * DEVICE_ID_BYTES or len(frame.proofs) != (
        reports * PROOF_BYTES
    ):
        raise WireError("every report in a frame needs the id of its device, and a proof")
    if not reports:
        return Senders(devices=b"", payload_hashes=[], unproven=())
    words = frame.words if words is None else words
    if not words or len(words) % reports:
        raise WireError(f"{len(words)} bytes are no words of {reports} reports")
    payload_hashes = hash_payloads(words, reports=reports)
    return Senders(
        devices=frame.device_ids,
        payload_hashes=payload_hashes,
        unproven=_unproven(
            master,
            frame.round_hash,
            split(frame.report_ids, REPORT_ID_BYTES),
            payload_hashes,
            devices=frame.device_ids,
            proofs=frame.proofs,
            revoked=revoked,
        ),
    )


def check_chunk_sender(chunk: report_pb2.ReportChunk) -> None:
    """See that a chunk from a gateway says who made its report.

    Raises:
        WireError: it lacks the id of a device, or a proof.
    """
    if len(chunk.device_id) != DEVICE_ID_BYTES or len(chunk.proof) != PROOF_BYTES:
        raise WireError("every chunk in a frame needs the id of its device, and a proof")


def check_sender(
    chunk: report_pb2.ReportChunk,
    payload_hash: bytes,
    master: PreparedKey,
    *,
    revoked: AbstractSet[bytes],
) -> Senders:
    """Check the proof of a report that a gateway brought in chunks; as `check_senders`.

    Args:
        chunk: any of them.
        payload_hash: SHA-256 of the words of all of them.
        master: the key from which device secrets follow.
        revoked: devices whose reports are not taken.
    """
    return Senders(
        devices=chunk.device_id,
        payload_hashes=[payload_hash],
        unproven=_unproven(
            master,
            chunk.round_hash,
            [chunk.report_id],
            [payload_hash],
            devices=chunk.device_id,
            proofs=chunk.proof,
            revoked=revoked,
        ),
    )


def _unproven(
    master: PreparedKey,
    round_hash: bytes,
    report_ids: Sequence[bytes],
    payload_hashes: Sequence[bytes],
    *,
    devices: bytes,
    proofs: bytes,
    revoked: AbstractSet[bytes],
) -> tuple[int, ...]:
    """Which reports nobody proves to have made, or a revoked device made."""
    makers = split(devices, DEVICE_ID_BYTES)
    keys = map(prepare_key, device_secrets(master, makers))
    right = make_proofs(keys, round_hash, report_ids, payload_hashes)
    all_right = hmac.compare_digest(b"".join(right), proofs)  # nearly always
    if all_right and revoked.isdisjoint(makers):
        return ()
    shown = split(proofs, PROOF_BYTES)
    return tuple(
        i
        for i, maker in enumerate(makers)
        if not hmac.compare_digest(right[i], shown[i]) or maker in revoked
    )
