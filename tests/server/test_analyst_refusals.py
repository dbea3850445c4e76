"""The analyst's side over real gRPC on loopback: what is refused."""

from typing import Any

import anyio
import grpc
import pytest

from analyst_kit import DEADLINE_S, Ask, X, refusal
from demur_proto.errors import (
    NotFoundError,
    ParameterError,
    StateError,
    UnsupportedError,
    WireError,
)
from demur_proto.queries import Linear
from demur_proto.study import Study
from demur_proto.v1 import analyst_pb2, round_pb2, study_pb2
from demur_proto.wire.definition import Defined
from demur_server.analyst import Analyst
from demur_server.collector.collector import Collector
from demur_server.grpc.serving import Ports


@pytest.mark.parametrize("version", [0, 2])
async def test_an_unsupported_protocol_version_is_refused_with_the_supported_range(
    analysts: Any, study: Defined[Study], version: int
) -> None:
    request = analyst_pb2.CreateStudyRequest(protocol_version=version, definition=study.definition)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await analysts.CreateStudy(request, timeout=DEADLINE_S)

    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "this side speaks 1 to 1" in (caught.value.details() or "")


async def test_what_this_version_does_not_do_is_unimplemented_and_says_so(
    analysts: Any, ask: Ask
) -> None:
    message = round_pb2.Round.FromString(ask(1).definition)
    message.on_grid = False
    message.prefix.feature.name = "online"
    message.prefix.segment.factorisation = 99  # type: ignore[assignment]  # from the future
    message.prefix.admission = round_pb2.ADMISSION_COMMIT
    request = analyst_pb2.OpenRoundRequest(definition=message.SerializeToString())

    error = await refusal(analysts.OpenRound(request, timeout=DEADLINE_S))

    assert isinstance(error, UnsupportedError)
    assert str(error) == "factorisation 99 is not supported by this version"


async def test_a_misstated_weight_is_refused_with_the_right_one(analysts: Any, ask: Ask) -> None:
    message = round_pb2.Round.FromString(ask(1).definition)
    right = message.weight
    message.weight -= 1
    request = analyst_pb2.OpenRoundRequest(definition=message.SerializeToString())

    error = await refusal(analysts.OpenRound(request, timeout=DEADLINE_S))

    assert isinstance(error, WireError)
    assert f"weight must be {right}" in str(error)


async def test_a_number_out_of_turn_is_refused_with_the_next_one(analysts: Any, ask: Ask) -> None:
    request = analyst_pb2.OpenRoundRequest(definition=ask(3).definition)

    error = await refusal(analysts.OpenRound(request, timeout=DEADLINE_S))

    assert isinstance(error, StateError)
    assert str(error) == "round 3 cannot open: the next number is 1"


async def test_opening_the_same_definition_again_gives_the_same_hash(
    analysts: Any, collector: Collector, study: Defined[Study], ask: Ask
) -> None:
    request = analyst_pb2.OpenRoundRequest(definition=ask(1).definition)
    hashes: list[bytes] = []

    async def open_round() -> None:
        response = await analysts.OpenRound(request, timeout=DEADLINE_S)
        hashes.append(response.round_hash)

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(open_round)

    assert hashes == [ask(1).hash] * 8
    assert collector.rounds_opened(study.hash) == 1


async def test_what_does_not_exist_is_not_found(analysts: Any) -> None:
    unknown = bytes(32)

    for call in (
        analysts.GetRound(analyst_pb2.GetRoundRequest(round_hash=unknown), timeout=DEADLINE_S),
        analysts.CloseRound(analyst_pb2.CloseRoundRequest(round_hash=unknown), timeout=DEADLINE_S),
        analysts.GetRelease(analyst_pb2.GetReleaseRequest(round_hash=unknown), timeout=DEADLINE_S),
        analysts.WatchReleases(
            analyst_pb2.WatchReleasesRequest(study_hash=unknown), timeout=DEADLINE_S
        ).read(),
    ):
        assert isinstance(await refusal(call), NotFoundError)


async def test_the_release_of_an_open_round_does_not_exist_yet(
    analyst: Analyst, analysts: Any
) -> None:
    asked = await analyst.open(Linear([X], on_grid=True))
    request = analyst_pb2.GetReleaseRequest(round_hash=asked.hash)

    error = await refusal(analysts.GetRelease(request, timeout=DEADLINE_S))

    assert isinstance(error, StateError)
    assert str(error) == "round 1 is still open"


async def test_a_study_that_misstates_its_integers_is_refused(
    analysts: Any, study: Defined[Study]
) -> None:
    message = study_pb2.Study.FromString(study.definition)
    message.base_weight *= 2
    request = analyst_pb2.CreateStudyRequest(
        protocol_version=1, definition=message.SerializeToString()
    )

    error = await refusal(analysts.CreateStudy(request, timeout=DEADLINE_S))

    assert isinstance(error, WireError)
    assert "(budget_units, base_weight) must be" in str(error)


async def test_a_huge_mistake_is_refused_in_a_few_words(
    analysts: Any, study: Defined[Study]
) -> None:
    message = study_pb2.Study.FromString(study.definition)
    message.name = "n" * 50_000
    request = analyst_pb2.CreateStudyRequest(
        protocol_version=1, definition=message.SerializeToString()
    )

    error = await refusal(analysts.CreateStudy(request, timeout=DEADLINE_S))

    assert isinstance(error, WireError)
    assert "name must be 1 to 200 printable characters" in str(error)
    assert len(str(error)) <= 1001


async def test_bytes_that_do_not_parse_are_refused(ports: Ports) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{ports.analyst}") as channel:
        for method in ("CreateStudy", "OpenRound", "GetRound", "CloseRound", "GetRelease"):
            raw: Any = channel.unary_unary(f"/demur_proto.v1.Analyst/{method}")

            error = await refusal(raw(b"\xff\xff", timeout=DEADLINE_S))

            assert str(error) == "the message does not parse"
        watch: Any = channel.unary_stream("/demur_proto.v1.Analyst/WatchReleases")
        error = await refusal(watch(b"\xff\xff", timeout=DEADLINE_S).read())
        assert str(error) == "the message does not parse"


async def test_an_argument_out_of_range_never_reaches_the_collector(analyst: Analyst) -> None:
    with pytest.raises(ParameterError, match="clip"):
        await analyst.open(Linear([X], clip=-1.0))

    assert (await analyst.open(Linear([X], on_grid=True))).value.number == 1
