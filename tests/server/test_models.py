"""Models over the wire: published, named by rounds, handed out; and the mean of their gradients."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anyio
import grpc
import numpy as np
import pytest

from agent_kit import visit
from demur_client.connection import connected
from demur_client.device import Device
from demur_client.models import ModelCache, fetch_model
from demur_proto.errors import ConnectionLost, NotFoundError, ParameterError, StateError, WireError
from demur_proto.models.architectures import Softmax
from demur_proto.models.definition import (
    MODEL_TAG,
    DefinedModel,
    ModelDefinition,
    Module,
    define_model,
)
from demur_proto.queries import ErrorCount, Gradient
from demur_proto.release import Estimand, Release, Withheld
from demur_proto.study import Study
from demur_proto.transport.calls import PEER, calling
from demur_proto.v1 import analyst_pb2, collector_pb2
from demur_proto.wire.definition import Defined
from demur_proto.wire.frames import PIECE_BYTES
from demur_proto.wire.hmacs import hash_definition
from demur_server.analyst import Analyst
from demur_server.collector.collector import Collector
from demur_server.collector.estimates import mean_gradient
from demur_server.grpc.services import CollectorService
from demur_server.grpc.serving import Ports, served
from demur_server.store.memory import MemoryStore
from model_kit import COUNTS, DEADLINE_S, MODEL, STUDY, a_model, asking, counting

# ---- over the wire -----------------------------------------------------------------------------


@pytest.fixture
async def study(collector: Collector) -> Defined[Study]:
    return await collector.create_study(STUDY.definition)


@pytest.fixture
async def collector() -> Collector:
    made = Collector(MemoryStore(), open_access=True)
    for study in (STUDY, COUNTS):
        await made.create_study(study.definition)
    return made


@pytest.fixture
async def analyst(ports: Ports) -> AsyncIterator[Analyst]:
    async with Analyst.create(f"127.0.0.1:{ports.analyst}", STUDY.value, answer_after_ms=0) as made:
        yield made


@pytest.fixture
async def counts(ports: Ports) -> AsyncIterator[Analyst]:
    """Of the study of errors."""
    async with Analyst.create(f"127.0.0.1:{ports.analyst}", COUNTS.value) as made:
        yield made


def query_of(model: DefinedModel, dimension: int = 6) -> Gradient:
    query = asking(model, dimension=dimension).value.query
    assert isinstance(query, Gradient)
    return query


class Examples:
    def examples(self) -> tuple[list[list[float]], list[int]]:
        return [[3.0, 4.0]], [1]


async def test_a_device_passes_over_a_model_that_it_cannot_do_and_answers_the_next_round(
    analyst: Analyst, collector: Collector, channel: grpc.aio.Channel
) -> None:
    module = Module(path="nowhere.at_all:Net", inputs=2, classes=2, parameters=6)
    unknown = define_model(ModelDefinition(architecture=module, theta=np.zeros(6)))
    for number, model in enumerate((unknown, MODEL), start=1):
        await analyst.publish_model(model)
        await collector.open_round(asking(model, number).definition)

    with anyio.fail_after(DEADLINE_S):
        await visit(Device(STUDY, Examples()), channel, last_round=2)

    totals = [
        await collector.totals(asking(unknown, 1).hash),
        await collector.totals(asking(MODEL, 2).hash),
    ]
    assert [each.reports for each in totals] == [0, 1]


async def test_what_is_published_is_what_devices_fetch(
    analyst: Analyst, channel: grpc.aio.Channel
) -> None:
    large = a_model(3, inputs=100_000 // 4)  # several hundred kilobytes

    await analyst.publish_model(MODEL)
    await analyst.publish_model(large)
    await analyst.publish_model(large)
    asked = await analyst.open(Gradient.about(MODEL, clip=0.5))

    assert asked.value.query == Gradient(
        model_hash=MODEL.hash,
        dimension=6,
        clip=0.5,
        sigma=STUDY.value.base_sigma,
        grid_exponent=-15,
    )
    fetched = await fetch_model(channel, query_of(large, large.value.architecture.parameters))
    assert fetched.definition == large.definition
    np.testing.assert_array_equal(fetched.value.theta, large.value.theta)


async def test_a_model_of_several_pieces_arrives_whole(
    analyst: Analyst, channel: grpc.aio.Channel
) -> None:
    architecture = Softmax(inputs=(1 << 15) - 1, classes=8)
    theta = np.random.default_rng(1).normal(size=architecture.parameters)
    wide = define_model(ModelDefinition(architecture=architecture, theta=theta))
    assert len(wide.definition) > PIECE_BYTES

    await analyst.publish_model(wide)
    fetched = await fetch_model(channel, query_of(wide, architecture.parameters))

    assert fetched.hash == wide.hash


async def test_a_round_about_no_model_or_one_of_another_size_is_refused_in_one_line(
    analyst: Analyst, collector: Collector
) -> None:
    with pytest.raises(NotFoundError, match=r"there is no model [0-9a-f]{16}; publish it first"):
        await analyst.open(query_of(MODEL))
    await analyst.publish_model(MODEL)
    with pytest.raises(WireError) as caught:
        await collector.open_round(asking(MODEL, dimension=7).definition)

    assert str(caught.value) == (
        "not a valid round: dimension must be 6, the number of the model's parameters, got 7"
    )
    assert collector.rounds_opened(STUDY.hash) == 0


async def test_an_error_count_names_a_published_model_and_states_its_size(
    counts: Analyst, collector: Collector, channel: grpc.aio.Channel
) -> None:
    with pytest.raises(NotFoundError, match=r"there is no model [0-9a-f]{16}; publish it first"):
        await counts.open(ErrorCount(model_hash=MODEL.hash, parameters=6))
    await counts.publish_model(MODEL)
    with pytest.raises(WireError) as caught:
        await collector.open_round(counting(MODEL, parameters=7).definition)
    asked = await counts.open(ErrorCount.about(MODEL, on_grid=True))

    assert str(caught.value) == (
        "not a valid round: parameters must be 6, the number of the model's parameters, got 7"
    )
    query = asked.value.query
    assert query == ErrorCount(
        model_hash=MODEL.hash,
        parameters=6,
        sigma=COUNTS.value.base_sigma,
        grid_exponent=-15,
        on_grid=True,
    )
    assert isinstance(query, ErrorCount)
    assert (await fetch_model(channel, query)).definition == MODEL.definition
    wide = a_model(3, inputs=100_000 // 4)
    await counts.publish_model(wide)
    with pytest.raises(WireError, match="takes at most"):  # nobody fetches more than was stated
        await fetch_model(channel, replace(query, model_hash=wide.hash))


@pytest.mark.parametrize("options", [{"reports": -1}, {"timeout_s": 0.0}])
async def test_waiting_that_makes_no_sense_is_refused_before_anybody_is_asked(
    analyst: Analyst, counts: Analyst, collector: Collector, options: dict[str, Any]
) -> None:
    with pytest.raises(ParameterError):
        await counts.ask(ErrorCount.about(MODEL), **options)
    with pytest.raises(ParameterError):
        await analyst.ask(Gradient.about(MODEL), **options)

    assert collector.rounds_opened(STUDY.hash) == 0
    assert not await collector.models.is_kept(MODEL.hash)


async def test_a_closed_rounds_model_is_gone(
    analyst: Analyst, collector: Collector, channel: grpc.aio.Channel
) -> None:
    await analyst.publish_model(MODEL)
    asked = await analyst.open(Gradient.about(MODEL))
    cache = ModelCache(most=1)
    await cache.of(channel, query_of(MODEL))

    await analyst.close(asked)

    with pytest.raises(NotFoundError):
        await fetch_model(channel, query_of(MODEL))
    assert (await cache.of(channel, query_of(MODEL))).hash == MODEL.hash  # kept by the device
    other = a_model(1)
    await analyst.publish_model(other)
    await cache.of(channel, query_of(other))
    with pytest.raises(ConnectionLost, match="the round closed before its model came"):
        await cache.of(channel, query_of(MODEL))


async def publishing(analysts: Any, *messages: analyst_pb2.PublishModelRequest) -> bytes:
    async def requests() -> AsyncIterator[analyst_pb2.PublishModelRequest]:
        for message in messages:
            yield message

    async with calling(PEER):
        response = await analysts.PublishModel(requests(), timeout=DEADLINE_S)
    model_hash: bytes = response.model_hash
    return model_hash


def header(**changes: Any) -> analyst_pb2.PublishModelRequest:
    fields = {
        "protocol_version": 1,
        "model_hash": MODEL.hash,
        "size": len(MODEL.definition),
        **changes,
    }
    return analyst_pb2.PublishModelRequest(header=analyst_pb2.ModelHeader(**fields))


def piece(data: bytes = MODEL.definition) -> analyst_pb2.PublishModelRequest:
    return analyst_pb2.PublishModelRequest(piece=data)


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([], "the first message about a model is its header"),
        ([piece()], "the first message about a model is its header"),
        ([header(size=0), piece()], "a model takes 1 to"),
        ([header(size=1 << 40), piece()], "a model takes 1 to"),
        ([header(), header()], "after its header a model comes in pieces"),
        ([header(), piece(b"")], "a piece of a model is 1 to"),
        ([header(), piece(b"x"), piece()], "takes at most"),
        ([header(), piece(MODEL.definition[:-1])], "bytes of a model came"),
        ([header(), piece(MODEL.definition[:-1] + b"x")], "the model that came is"),
        ([header(model_hash=bytes(32)), piece()], "the model that came is"),
        ([header(model_hash=b""), piece()], "the model that came is"),
    ],
)
async def test_what_is_not_the_model_that_was_announced_is_refused(
    analysts: Any, collector: Collector, messages: list[Any], complaint: str
) -> None:
    with pytest.raises(WireError, match=complaint) as caught:
        await publishing(analysts, *messages)

    assert len(str(caught.value).splitlines()) == 1
    assert not await collector.models.is_kept(MODEL.hash)


async def test_bytes_that_are_no_model_are_refused_whatever_their_hash(analysts: Any) -> None:
    nonsense = b"\xff" * 10
    first = header(model_hash=hash_definition(MODEL_TAG, nonsense), size=10)

    with pytest.raises(WireError, match="not a model"):
        await publishing(analysts, first, piece(nonsense))


async def test_a_model_that_is_kept_need_not_come_again(analysts: Any) -> None:
    assert await publishing(analysts, header(), piece()) == MODEL.hash
    assert await publishing(analysts, header()) == MODEL.hash


async def test_many_devices_fetch_one_model_with_one_look_into_the_store() -> None:
    looks = 0

    class Counting(MemoryStore):
        async def model(self, model_hash: bytes) -> bytes | None:
            nonlocal looks
            looks += 1
            await anyio.sleep(0.01)
            return await super().model(model_hash)

    collector = Collector(Counting(), open_access=True)
    await collector.models.publish(MODEL.hash, MODEL.definition)

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(collector.models.definition, MODEL.hash)

    assert looks == 1


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        ([a_model(1).definition], "another model than the one that the round names"),
        ([MODEL.definition, b"more"], "another model than the one that the round names"),
        ([bytes(PIECE_BYTES)], "takes at most 1072 bytes, and more of it came"),
        ([b""], "a piece of a model is 1 to"),
        ([], "another model than the one that the round names"),
    ],
)
async def test_a_device_believes_no_collector(
    collector: Collector, sent: list[bytes], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lying(
        self: object, request: collector_pb2.GetModelRequest, context: object
    ) -> AsyncIterator[collector_pb2.GetModelResponse]:
        for each in sent:
            yield collector_pb2.GetModelResponse(piece=each)

    monkeypatch.setattr(CollectorService, "GetModel", lying)
    async with (
        served(collector, drain_s=0.1) as ports,
        connected(f"127.0.0.1:{ports.collector}") as channel,
    ):
        with pytest.raises(WireError, match=complaint):
            await fetch_model(channel, query_of(MODEL))


# ---- the mean ----------------------------------------------------------------------------------


def release(**changes: Any) -> Release:
    fields = {
        "study_hash": bytes(32),
        "round_hash": bytes(32),
        "number": 1,
        "reports": 3,
        "withheld": Withheld.NOTHING,
        "sums": (1, 2),
        "estimate": (1.0, -2.0),
        "standard_error": (0.5,),
        "half_width": (1.0,),
        "estimand": Estimand.S_ACTIVE,
        "confidence": 0.95,
        "guarantee": "",
        **changes,
    }
    return Release(**fields)


def test_the_mean_is_over_the_public_cohort_whoever_reported() -> None:
    mean = mean_gradient(release(), cohort=4)

    assert mean.gradient.tolist() == [0.25, -0.5]
    assert mean.standard_error == 0.125


def test_there_is_no_mean_of_nothing_or_over_nobody() -> None:
    hidden = {"sums": (), "estimate": (), "standard_error": (), "half_width": ()}
    withheld = release(withheld=Withheld.BELOW_MINIMUM_COHORT, **hidden)

    with pytest.raises(StateError, match="round 1 has no sum: only 3 reports came"):
        mean_gradient(withheld, cohort=4)
    for cohort in (0, -1, 1.0, True, float("nan"), None):
        with pytest.raises(ParameterError, match="cohort"):
            mean_gradient(release(), cohort=cohort)  # type: ignore[arg-type]
