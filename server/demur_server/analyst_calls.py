"""An analyst's calls to a collector, one by one; `Analyst` puts them together."""

import grpc

from demur_proto.checks import check_integer, check_positive
from demur_proto.errors import StateError, WireError
from demur_proto.queries import RunningCount
from demur_proto.release import Release
from demur_proto.study import Study
from demur_proto.transport.calls import CALL_S, PEER, calling
from demur_proto.transport.channels import ClientTls, open_channel
from demur_proto.transport.credentials import Metadata, NamedSecret, metadata_of
from demur_proto.v1 import analyst_pb2, analyst_pb2_grpc
from demur_proto.wire.definition import (
    LARGEST_REPORT_WORDS,
    PROTOCOL_VERSION,
    Defined,
    read_round,
    read_study,
)

# Of the largest round: sums and estimates, 8 bytes each, and what is not numbers.
LARGEST_RELEASE_BYTES = 16 * LARGEST_REPORT_WORDS + (1 << 20)
CHANNEL_OPTIONS = (("grpc.max_receive_message_length", LARGEST_RELEASE_BYTES),)
MOST_REPORTS = 2**63 - 1


async def list_studies(
    target: str,
    *,
    credential: NamedSecret | None = None,
    tls: ClientTls | None = None,
    insecure_plaintext: bool = False,
) -> list[tuple[Defined[Study], int]]:
    """Every study of a collector, and how many rounds each has had.

    Args:
        target: the collector's analyst port, `HOST:PORT`.
        credential: an analyst's; None where the collector takes questions from anybody.
        tls: how to know the collector; None for plaintext, which stays on this machine.
        insecure_plaintext: allow plaintext to another machine; see `Analyst.create`.

    Raises:
        ParameterError: not a target, or plaintext that would leave this machine.
        DemurError: the collector refuses, is not there, or has a study that this version cannot do.
    """
    async with open_channel(
        target, tls=tls, insecure_plaintext=insecure_plaintext, options=CHANNEL_OPTIONS
    ) as channel:
        return await listed(analyst_pb2_grpc.AnalystStub(channel), credential)


async def fixed(
    stub: "analyst_pb2_grpc.AnalystAsyncStub", study: Defined[Study], metadata: Metadata
) -> analyst_pb2.CreateStudyResponse:
    """Fix a study; one that is fixed already stays as it is, with its number of rounds."""
    request = analyst_pb2.CreateStudyRequest(
        protocol_version=PROTOCOL_VERSION, definition=study.definition
    )
    async with calling(PEER):
        return await stub.CreateStudy(request, timeout=CALL_S, metadata=metadata)


async def listed(
    stub: "analyst_pb2_grpc.AnalystAsyncStub", credential: NamedSecret | None
) -> list[tuple[Defined[Study], int]]:
    """Every study, in the order in which they were fixed, and how many rounds each has had."""
    request = analyst_pb2.ListStudiesRequest(protocol_version=PROTOCOL_VERSION)
    call = stub.ListStudies(request, timeout=CALL_S, metadata=metadata_of(credential))
    found = []
    async with calling(PEER):
        async for response in call:
            found.append((read_study(response.definition), response.rounds))
    return found


async def last_count(
    stub: "analyst_pb2_grpc.AnalystAsyncStub",
    study: Defined[Study],
    feature: str,
    *,
    metadata: Metadata,
) -> tuple[tuple[RunningCount, Release] | None, tuple[str, ...]]:
    """What the newest running count of a feature asked last, and its release.

    Before any it is None, and beside it are the features that the study does have running counts of,
    each once and the last one first.

    Raises:
        StateError: that round is open.
    """
    request = analyst_pb2.ListRoundsRequest(study_hash=study.hash)
    call = stub.ListRounds(request, timeout=CALL_S, metadata=metadata)
    others: dict[str, None] = {}
    async with calling(PEER):
        try:
            async for response in call:
                asked = read_round(response.definition, study=study)
                query = asked.value.query
                if not isinstance(query, RunningCount):
                    continue
                if query.feature.name == feature:
                    break
                others[query.feature.name] = None
            else:
                return None, tuple(others)
        finally:
            call.cancel()
    if not response.released:
        name = f"round {asked.value.number} of the running count"
        raise StateError(f"{name} is open; close it first: demur close {asked.hash.hex()}")
    wanted = analyst_pb2.GetReleaseRequest(round_hash=asked.hash)
    async with calling(PEER):
        found = await stub.GetRelease(wanted, timeout=CALL_S, metadata=metadata)
    return (query, Release.of(found.release)), ()


async def close_round(
    target: str,
    round_hash: bytes,
    *,
    after_reports: int = 0,
    timeout_s: float = CALL_S,
    credential: NamedSecret | None = None,
    tls: ClientTls | None = None,
    insecure_plaintext: bool = False,
) -> Release:
    """Close a round that somebody left open, once it has so many reports; `Analyst.close`.

    Args:
        target: the collector's analyst port, `HOST:PORT`.
        round_hash: SHA-256 of the round's definition, 32 bytes; or its first 8 or more.
        after_reports: how many to wait for.
        timeout_s: how long to wait for them, seconds.
        credential: an analyst's; None where the collector takes questions from anybody.
        tls: how to know the collector; None for plaintext, which stays on this machine.
        insecure_plaintext: allow plaintext to another machine; see `Analyst.create`.

    Raises:
        ParameterError: an argument is outside its range.
        NotFoundError: the collector has no such round.
        StateError: it did not get them in time; it stays open.
        DemurError: the collector refuses, or is not there.
    """
    async with open_channel(
        target, tls=tls, insecure_plaintext=insecure_plaintext, options=CHANNEL_OPTIONS
    ) as channel:
        return await closed(
            analyst_pb2_grpc.AnalystStub(channel),
            round_hash,
            "the round",
            metadata=metadata_of(credential),
            after_reports=after_reports,
            timeout_s=timeout_s,
        )


async def closed(
    stub: "analyst_pb2_grpc.AnalystAsyncStub",
    round_hash: bytes,
    name: str,
    *,
    metadata: Metadata,
    after_reports: int,
    timeout_s: float,
) -> Release:
    """Close a round, once it has this many reports, and return its release.

    Raises:
        ParameterError: an argument is outside its range.
        StateError: it did not get them in time; it stays open.
    """
    check_integer("after_reports", after_reports, 0, MOST_REPORTS)
    check_positive("timeout_s", timeout_s)
    request = analyst_pb2.CloseRoundRequest(round_hash=round_hash, after_reports=after_reports)
    async with calling(PEER):
        try:
            response = await stub.CloseRound(request, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
            raise StateError(
                f"{name} did not get {after_reports} reports within {timeout_s:g} s; it stays open"
            ) from None
    release = Release.of(response.release)
    if not release.round_hash.startswith(round_hash):
        raise WireError(f"{PEER} sent the release of another round than the one it closed")
    return release


def check_waiting(reports: int | None, timeout_s: float) -> None:
    """Refuse before a round is opened what would only fail when it is to be closed.

    Raises:
        ParameterError: an argument is outside its range.
    """
    if reports is not None:
        check_integer("reports", reports, 0, MOST_REPORTS)
    check_positive("timeout_s", timeout_s)
