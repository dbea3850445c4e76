"""Many devices' reports in one message."""

from collections.abc import Iterator

from demur_proto.credentials import DEVICE_ID_BYTES, PROOF_BYTES
from demur_proto.definition import LARGEST_REPORT_BYTES, REPORT_ID_BYTES
from demur_proto.errors import ParameterError, WireError
from demur_proto.v1 import report_pb2
from demur_proto.words import Payload

MAXIMUM_FRAME_REPORTS = 4096
MAXIMUM_FRAME_BYTES = 1 << 20  #: of ids and words
LARGEST_FRAMED_BYTES = MAXIMUM_FRAME_BYTES - REPORT_ID_BYTES  #: of one report; others need chunks
MAXIMUM_PROVEN_BYTES = MAXIMUM_FRAME_REPORTS * (DEVICE_ID_BYTES + PROOF_BYTES)  #: beside them


def split_frames(
    round_hash: bytes,
    report_ids: bytes,
    words: bytes,
    *,
    first_number: int,
    device_ids: bytes = b"",
    proofs: bytes = b"",
) -> Iterator[report_pb2.ReportFrame]:
    """Frames of at most 4,096 reports and 1 MiB, numbered from `first_number`.

    Where one report alone is larger than that, every report gets a frame of its own, which
    `chunks.frame_messages` sends in parts.

    Args:
        round_hash: the round they answer.
        report_ids: 16 bytes each.
        words: the encoded words of the same reports, in the same order.
        first_number: the first frame's number.
        device_ids: who made each report, 16 bytes each; empty under open access.
        proofs: that they did, 16 bytes each; empty under open access.

    Raises:
        ParameterError: the lengths do not match, or one report alone is larger than any may be.

    >>> [len(f.report_ids) // 16 for f in split_frames(bytes(32), bytes(16 * 5000), bytes(20000),
    ...                                                first_number=1)]
    [4096, 904]
    """
    for name, each in (("device_ids", device_ids), ("proofs", proofs)):
        if each and len(each) != len(report_ids):
            raise ParameterError(name, len(each), "16 bytes for each report")
    size, frames = frame_reports(report_ids, len(words))
    for number, reports in enumerate(frames, start=first_number):
        start, stop = reports.start, reports.stop
        yield report_pb2.ReportFrame(
            frame_number=number,
            round_hash=round_hash,
            report_ids=report_ids[start * REPORT_ID_BYTES : stop * REPORT_ID_BYTES],
            words=words[start * size : stop * size],
            device_ids=device_ids[start * DEVICE_ID_BYTES : stop * DEVICE_ID_BYTES],
            proofs=proofs[start * PROOF_BYTES : stop * PROOF_BYTES],
        )


def frame_reports(report_ids: bytes, words_bytes: int) -> tuple[int, list[slice]]:
    """Bytes of each report's words, and which reports each frame of `split_frames` holds.

    Args:
        report_ids: 16 bytes each.
        words_bytes: how many bytes the encoded words of these reports take, in all.

    Raises:
        ParameterError: as there.

    >>> frame_reports(bytes(16 * 5000), 20000)
    (4, [slice(0, 4096, None), slice(4096, 5000, None)])
    """
    reports, rest = divmod(len(report_ids), REPORT_ID_BYTES)
    if rest or (words_bytes % reports if reports else words_bytes):
        raise ParameterError("report_ids", len(report_ids), "16 bytes for each report")
    size = words_bytes // reports if reports else 0
    if size > LARGEST_REPORT_BYTES:
        raise ParameterError("words", f"{size} bytes a report", f"at most {LARGEST_REPORT_BYTES}")
    fit = min(MAXIMUM_FRAME_REPORTS, MAXIMUM_FRAME_BYTES // (size + REPORT_ID_BYTES))
    fit = max(1, fit)
    return size, [slice(start, min(start + fit, reports)) for start in range(0, reports, fit)]


def check_frame(frame: report_pb2.ReportFrame, *, words: Payload | None = None) -> int:
    """The number of reports in a frame.

    Args:
        frame: the frame.
        words: those of the frame, if the caller has read them; each reading copies them.

    Raises:
        WireError: the frame is larger than allowed, or its ids or proofs are not 16 bytes each.

    >>> check_frame(report_pb2.ReportFrame(report_ids=bytes(32)))
    2
    """
    reports, rest = divmod(len(frame.report_ids), REPORT_ID_BYTES)
    if rest:
        raise WireError(f"report ids are 16 bytes each, got {len(frame.report_ids)} in all")
    for name, each in (("device ids", frame.device_ids), ("proofs", frame.proofs)):
        if each and len(each) != len(frame.report_ids):
            raise WireError(f"{name} are 16 bytes for each of {reports} reports, got {len(each)}")
    size = len(frame.report_ids) + len(frame.words if words is None else words)
    if reports > MAXIMUM_FRAME_REPORTS or size > MAXIMUM_FRAME_BYTES:
        raise WireError(
            f"a frame holds at most {MAXIMUM_FRAME_REPORTS} reports and {MAXIMUM_FRAME_BYTES} "
            f"bytes, got {reports} and {size}"
        )
    return reports
