"""From the bytes of reports to a batch that a store can count."""

import hashlib
from collections.abc import Sequence

from demur_proto.arrays import Flags, Words
from demur_proto.definition import REPORT_ID_BYTES
from demur_proto.errors import WireError
from demur_proto.hmacs import PreparedKey, hmac_by_message
from demur_proto.words import Payload
from demur_server.live import LiveRound
from demur_server.store.base import Batch

DEVICE_ID_BYTES = 16


def report_count(report_ids: bytes) -> int:
    """How many reports these ids are of.

    Raises:
        WireError: they are not 16 bytes each.
    """
    reports, rest = divmod(len(report_ids), REPORT_ID_BYTES)
    if rest:
        raise WireError(f"report ids are 16 bytes each, got {len(report_ids)} in all")
    return reports


def check_words(live: LiveRound, words: Payload, *, reports: int) -> None:
    """See that the words are those of so many reports to a round.

    Raises:
        WireError: the length does not fit.
    """
    expected = reports * live.report_bytes
    if len(words) != expected:
        word_type, length = live.asked.value.word_type, live.mechanism.report_length
        raise WireError(
            f"{reports} reports of {length} {word_type} words take {expected} bytes, "
            f"got {len(words)}"
        )


def check_devices(devices: bytes | None, *, reports: int) -> list[bytes]:
    """The ids of the devices that sent reports.

    Raises:
        WireError: there are none, or not one for each report.
    """
    if devices is None:
        raise WireError("reports must say which device each is from")
    if len(devices) != DEVICE_ID_BYTES * reports:
        raise WireError(
            f"device ids are 16 bytes for each of {reports} reports, got {len(devices)} in all"
        )
    return split(devices, DEVICE_ID_BYTES)


def unauthenticated_devices(report_ids: Sequence[bytes]) -> list[bytes]:
    """A device of its own for every report id: first 16 bytes of SHA-256(report id).

    >>> unauthenticated_devices([bytes(16)])[0].hex()
    '374708fff7719dd5979ec875d56cd228'
    """
    sha256 = hashlib.sha256
    return [sha256(report_id).digest()[:DEVICE_ID_BYTES] for report_id in report_ids]


def make_batch(
    live: LiveRound,
    key: PreparedKey,
    *,
    report_ids: list[bytes],
    devices: list[bytes],
    rows: Words,
    payload_hashes: list[bytes],
) -> tuple[Batch, Flags]:
    """A batch of all these reports.

    Args:
        live: the round.
        key: that of its digests.
        report_ids: one of each report.
        devices: who sent each.
        rows: the words, decoded [n, w].
        payload_hashes: SHA-256 of each report's words as they came.

    Returns:
        The batch, and which of its reports the round's mechanism could have made.
    """
    batch = Batch(
        report_ids=report_ids,
        digests=hmac_by_message(key, payload_hashes),
        devices=devices,
        words=rows,
        tally=live.mechanism.tally,
        capacity=live.capacity,
    )
    return batch, live.mechanism.valid(rows)


def pick(batch: Batch, chosen: Sequence[int]) -> Batch:
    """Some reports of a batch."""
    return Batch(
        report_ids=[batch.report_ids[i] for i in chosen],
        digests=[batch.digests[i] for i in chosen],
        devices=[batch.devices[i] for i in chosen],
        words=batch.words[chosen],
        tally=batch.tally,
        capacity=batch.capacity,
    )


def split(data: bytes, size: int) -> list[bytes]:
    """Pieces of equal size.

    >>> split(b"aabb", 2)
    [b'aa', b'bb']
    """
    return [data[at : at + size] for at in range(0, len(data), size)]
