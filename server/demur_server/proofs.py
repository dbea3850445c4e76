"""Who made the reports that a gateway brings: a proof for each, checked many at a time."""

import hmac
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from demur_proto.credentials import DEVICE_ID_BYTES, PROOF_BYTES, make_proofs
from demur_proto.definition import REPORT_ID_BYTES
from demur_proto.errors import WireError
from demur_proto.hmacs import PreparedKey, hash_payloads, prepare_key
from demur_proto.v1 import report_pb2
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
    words: bytes | None = None,
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
    devices = split(frame.device_ids, DEVICE_ID_BYTES)
    payload_hashes = hash_payloads(words, reports=reports)
    right = make_proofs(
        map(prepare_key, device_secrets(master, devices)),
        frame.round_hash,
        split(frame.report_ids, REPORT_ID_BYTES),
        payload_hashes,
    )
    unproven: tuple[int, ...] = ()
    all_right = hmac.compare_digest(b"".join(right), frame.proofs)  # nearly always
    if not all_right or not revoked.isdisjoint(devices):
        shown = split(frame.proofs, PROOF_BYTES)
        unproven = tuple(
            i
            for i in range(reports)
            if not hmac.compare_digest(right[i], shown[i]) or devices[i] in revoked
        )
    return Senders(devices=frame.device_ids, payload_hashes=payload_hashes, unproven=unproven)
