"""A device and gradients: whatever becomes of its owner's examples, what leaves it looks the same."""

import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import numpy as np
import pytest

from agent_kit import visit
from demur_client.connection import connected
from demur_client.device import Device
from demur_client.models import ModelCache
from demur_client.sources.base import evaluate_examples
from demur_proto.arrays import Bits, Values, Words
from demur_proto.errors import (
    ConnectionLost,
    ParameterError,
    UnsupportedError,
    WireError,
)
from demur_proto.models.architectures import Softmax
from demur_proto.models.definition import DefinedModel, ModelDefinition, Module, define_model
from demur_proto.queries import Feature, Gradient
from demur_proto.round import Round, round_of
from demur_proto.study import Policy, Study, design_study
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_proto.wire.words import WordType, decode_words
from demur_server.collector.collector import Collector
from demur_server.grpc.serving import served
from demur_server.store.memory import MemoryStore

DEADLINE_S = 10.0
STEP = 2.0**-15


def a_model(theta: float = 0.0) -> DefinedModel:
    architecture = Softmax(inputs=2, classes=2)
    return define_model(
        ModelDefinition(architecture=architecture, theta=np.array([theta] + 5 * [0.0]))
    )


MODEL = a_model()
"""Scores are zero: the gradient of one example is ±½ of its inputs, and ±½."""


def a_study(policy: Policy = Policy.SKIP, answers: int = 2) -> Defined[Study]:
    return define_study(
        design_study(
            name="learning",
            epsilon=1.0,
            delta=1e-6,
            answers=answers,
            minimum_cohort=1,
            grid_exponent=-15,
            maximum_dimension=6,
            policy=policy,
        )
    )


STUDY = a_study()


def asking(
    number: int, model: DefinedModel = MODEL, *, study: Defined[Study] = STUDY, **options: Any
) -> Defined[Round]:
    return define_round(
        round_of(study, Gradient(model_hash=model.hash, dimension=6, **options), number=number)
    )


class NoNoise:
    """A sampler that draws nothing, so that reports show what went into them."""

    name = "none"

    def words(self, count: int) -> Bits:
        raise AssertionError("a gradient round asks for no bits")

    def gaussian(self, steps: float, *, reports: int, dimension: int) -> Words:
        return np.zeros((reports, dimension), dtype=np.int64)

    def uniform(self, *, reports: int, dimension: int) -> Values:
        return np.zeros((reports, dimension))


class Owned:
    """A person's examples, or what happens instead."""

    def __init__(self, inputs: Any, labels: Any) -> None:
        self._owned = inputs, labels
        self.asked = 0

    def examples(self) -> tuple[Any, Any]:
        self.asked += 1
        inputs, labels = self._owned
        if isinstance(inputs, type):
            raise inputs("no such file")
        return inputs, labels


GOOD = ([[0.5, 0.25]], [1])


def words_of(device: Device, asked: Defined[Round], model: DefinedModel | None = MODEL) -> Words:
    report = device.report(asked, device.evaluate(asked, model))
    words, _ = decode_words(report.words, WordType.INT32, reports=1, dimension=6)
    return words


def test_a_report_holds_the_gradient_of_all_examples_rounded_to_the_grid() -> None:
    device = Device(STUDY, Owned([[0.5, 0.25], [0.25, -0.25]], [1, 0]), NoNoise())

    words = words_of(device, asking(1))

    # ½((½, ¼, 1)·½ − (¼, −¼, 1)·½) for class 0, and its negative for class 1.
    slopes = np.array([0.0625, 0.125, 0.0]) / STEP
    assert words.tolist() == [[s for each in slopes.tolist() for s in (each, -each)]]


@pytest.mark.parametrize(
    ("inputs", "labels"),
    [
        pytest.param([], [], id="none"),
        pytest.param(np.zeros((0, 2)), np.zeros(0, dtype=int), id="none, in arrays"),
        pytest.param([[np.nan, 0.0]], [0], id="NaN"),
        pytest.param([[np.inf, 0.0]], [0], id="infinity"),
        pytest.param([[1e308, 1e308]] * 2, [0, 1], id="too large"),
        pytest.param([[0.5, 0.25]], [2], id="a label that is no class"),
        pytest.param([[0.5, 0.25]], [-1], id="a negative label"),
        pytest.param([[0.5, 0.25]], [0.5], id="half a label"),
        pytest.param([[0.5, 0.25]], [0, 1], id="too many labels"),
        pytest.param([[0.5]], [0], id="too few inputs"),
        pytest.param([0.5, 0.25], [0], id="flat"),
        pytest.param("ab", "c", id="text"),
        pytest.param(None, None, id="nothing"),
        pytest.param(OSError, None, id="an error"),
        pytest.param(SystemExit, None, id="an exit"),
        pytest.param(MemoryError, None, id="no memory"),
    ],
)
def test_whatever_is_wrong_with_the_examples_is_a_cover_report_that_costs_nothing(
    inputs: Any, labels: Any
) -> None:
    device = Device(STUDY, Owned(inputs, labels), NoNoise())

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning would tell of somebody's data
        words = words_of(device, asking(1))

    if not isinstance(inputs, list) or len(inputs) != 2:
        assert words.tolist() == [[0] * 6]
        assert device.ledger.remaining_units(device.study.hash) == STUDY.value.budget_units
    assert words.shape == (1, 6)


def test_a_source_without_examples_is_a_failure_like_any_other() -> None:
    class Plain:
        def evaluate(self, feature: Feature) -> Values:
            return np.array([[1.0]])

    assert evaluate_examples(Gradient.about(MODEL), MODEL, Plain()) is None


def test_the_owner_can_still_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt):
        evaluate_examples(Gradient.about(MODEL), MODEL, Owned(KeyboardInterrupt, None))


def test_public_mistakes_are_refused_before_any_data_is_read() -> None:
    source = Owned(*GOOD)
    device = Device(STUDY, source, NoNoise())
    module = Module(path="nowhere.at_all:Net", inputs=2, classes=2, parameters=6)
    unknown = define_model(ModelDefinition(architecture=module, theta=np.zeros(6)))

    with pytest.raises(ParameterError, match="model must be the one that the round names"):
        device.evaluate(asking(1), None)
    with pytest.raises(WireError, match="another model"):
        device.evaluate(asking(1), a_model(1.0))
    with pytest.raises(UnsupportedError, match="nowhere"):
        device.evaluate(asking(1, unknown), unknown)

    assert source.asked == 0


def test_under_policy_clip_a_gradient_shrinks_to_what_is_left_and_then_to_nothing() -> None:
    study = a_study(Policy.CLIP, answers=1)
    device = Device(study, Owned([[3.0, 4.0]], [1]), NoNoise())
    squares = []

    for number in range(1, 5):
        words = words_of(device, asking(number, study=study, clip=0.75))
        squares.append(int((words**2).sum()))

    # A budget of one, in squared norms: .75² of it fits, then what is left, then nothing.
    full = (0.75 / STEP) ** 2
    left = STEP**-2 - squares[0]
    assert full * (1 - 2**-10) < squares[0] <= full
    assert left * (1 - 2**-10) < squares[1] <= left
    assert squares[2:] == [0, 0]


# ---- visits ------------------------------------------------------------------------------------


@asynccontextmanager
async def collecting(*asked: Defined[Round]) -> AsyncIterator[tuple[Collector, Any]]:
    collector = Collector(MemoryStore(), open_access=True)
    await collector.create_study(STUDY.definition)
    await collector.models.publish(MODEL.hash, MODEL.definition)
    for each in asked:
        await collector.open_round(each.definition)
    async with (
        served(collector, drain_s=0.1) as ports,
        connected(f"127.0.0.1:{ports.collector}") as channel,
    ):
        with anyio.fail_after(DEADLINE_S):
            yield collector, channel


async def test_a_visit_fetches_the_model_once_and_answers_every_round_about_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetched = counted_fetches(monkeypatch)
    models = ModelCache()
    sources = [Owned(*GOOD), Owned(OSError, None), Owned([], [])]

    async with collecting(asking(1), asking(2)) as (collector, channel):
        for source in sources:
            device = Device(STUDY, source, NoNoise())
            await visit(device, channel, last_round=2, models=models)
        sums = [(await collector.close_round(asking(number).hash)).sums for number in (1, 2)]

    one = [8192, -8192, 4096, -4096, 16384, -16384]
    assert [list(each) for each in sums] == [one, one]
    assert len(fetched) == 1


async def test_the_model_is_fetched_whatever_a_device_has_and_has_spent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetched = counted_fetches(monkeypatch)
    exhausted = Device(STUDY, Owned([[30.0, 40.0]], [1]), NoNoise())
    empty = Device(STUDY, Owned([], []), NoNoise())
    rounds = [
        define_round(replace(asking(number).value, answer_after_ms=60)) for number in (1, 2, 3)
    ]

    async with collecting(*rounds) as (_, channel):
        for device in (exhausted, empty):
            await visit(device, channel, last_round=3)

    assert exhausted.ledger.remaining_units(exhausted.study.hash) < 0.01 * STUDY.value.budget_units
    assert len(fetched) == 2  # each once, for all three rounds


async def test_a_fetch_that_fails_is_a_lost_connection_and_no_report() -> None:
    device = Device(STUDY, Owned(*GOOD), NoNoise())

    async with collecting(asking(1)) as (collector, channel):
        definition = collector.models
        await collector._store.close_round(asking(1).hash)  # another collector closed it
        definition.let_go(asking(1).value.query)  # type: ignore[arg-type]
        with pytest.raises(ConnectionLost, match="the round closed before its model came"):
            await visit(device, channel, last_round=1)

    assert device.ledger.remaining_units(device.study.hash) == STUDY.value.budget_units
    assert device.ledger.reached(STUDY.hash) == 0


def counted_fetches(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Which models were fetched, one after the other."""
    from demur_server.grpc.services import CollectorService

    seen: list[bytes] = []
    real = CollectorService.GetModel

    async def counting(self: Any, request: Any, context: Any) -> AsyncIterator[Any]:
        seen.append(request.model_hash)
        async for response in real(self, request, context):
            yield response

    monkeypatch.setattr(CollectorService, "GetModel", counting)
    return seen
