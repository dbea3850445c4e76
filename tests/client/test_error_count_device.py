"""A device and counts of a model's errors; and the flag that it ever gave less than its value."""

import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import numpy as np
import pytest

from agent_kit import visit
from demur_client.connection import connected
from demur_client.device import Device
from demur_client.models import ModelCache
from demur_client.sources.base import evaluate_examples
from demur_proto.accounting.histograms import design_histogram_study
from demur_proto.arrays import Bits, Values, Words
from demur_proto.errors import ParameterError, WireError
from demur_proto.mechanisms.registry import Randomiser
from demur_proto.models.architectures import Softmax
from demur_proto.models.definition import DefinedModel, ModelDefinition, define_model
from demur_proto.queries import ErrorCount, Feature, Gradient, Histogram, Linear
from demur_proto.round import Round, round_of
from demur_proto.study import Policy, Purpose, Study, design_study
from demur_proto.wire.definition import Defined, define_round, define_study
from demur_proto.wire.words import WordType, decode_words
from demur_server.collector.collector import Collector
from demur_server.grpc.serving import served
from demur_server.store.memory import MemoryStore

DEADLINE_S = 10.0
STEP = 2.0**-14

# Scores are (x, −x): class 0 for x above zero, else class 1.
SIGN = define_model(
    ModelDefinition(
        architecture=Softmax(inputs=1, classes=2), theta=np.array([1.0, -1.0, 0.0, 0.0])
    )
)


def a_study(policy: Policy = Policy.SKIP, *, name: str = "wrong", **options: Any) -> Defined[Study]:
    """Of errors, unless told otherwise."""
    settings = {
        "answers": 2,
        "purpose": Purpose.ERRORS,
        "grid_exponent": -14,
        "maximum_dimension": 4,
        **options,
    }
    return define_study(
        design_study(
            name=name, epsilon=1.0, delta=1e-6, minimum_cohort=1, policy=policy, **settings
        )
    )


STUDY = a_study()
GRADIENTS = a_study(Policy.CLIP, name="gradients", grid_exponent=-15, purpose=Purpose.DATA)


def asking(number: int, *, study: Defined[Study] = STUDY, **options: Any) -> Defined[Round]:
    return define_round(
        round_of(study, ErrorCount(model_hash=SIGN.hash, parameters=4, **options), number=number)
    )


class NoNoise:
    """A sampler that draws nothing, so that reports show what went into them."""

    name = "none"

    def words(self, count: int) -> Bits:
        return np.zeros(count, dtype=np.uint64)

    def gaussian(self, steps: float, *, reports: int, dimension: int) -> Words:
        return np.zeros((reports, dimension), dtype=np.int64)

    def uniform(self, *, reports: int, dimension: int) -> Values:
        return np.full((reports, dimension), 0.5)


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


class Told:
    """A person with one feature, or what happens instead."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def evaluate(self, feature: Feature) -> Values:
        if isinstance(self.value, type):
            raise self.value("no such file")
        return np.array([[self.value]])


RIGHT, WRONG = ([[1.0]], [0]), ([[1.0]], [1])


def words_of(device: Device, asked: Defined[Round], model: DefinedModel | None = SIGN) -> list[int]:
    report = device.report(asked, device.evaluate(asked, model))
    words, _ = decode_words(report.words, WordType.INT32, reports=1, dimension=1)
    return [int(each) for each in words[0]]


@pytest.mark.parametrize(
    ("labels", "share"), [([0], 0), ([1], 1), ([0, 1], 0.5), ([0, 1, 1, 0], 0.5), ([1] * 4, 1)]
)
def test_a_report_holds_the_share_of_the_examples_that_the_model_labels_wrongly(
    labels: list[int], share: float
) -> None:
    device = Device(STUDY, Owned([[1.0]] * len(labels), labels), NoNoise())

    assert words_of(device, asking(1)) == [share / STEP]
    assert not device.ever_covered


def test_a_share_between_grid_steps_is_rounded_and_is_a_value_all_the_same() -> None:
    device = Device(STUDY, Owned([[1.0]] * 3, [0, 0, 1]), NoNoise())

    (word,) = words_of(device, asking(1))

    assert abs(word - 1 / 3 / STEP) < 1
    assert not device.ever_covered


@pytest.mark.parametrize(
    ("inputs", "labels"),
    [
        pytest.param([[1.0]], [0.5], id="half a label"),
        pytest.param([[1.0]], [0, 1], id="too many labels"),
        pytest.param([[1.0, 2.0]], [0], id="too many inputs"),
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

    assert words == [0]
    assert device.ledger.remaining_units(STUDY.hash) == STUDY.value.budget_units
    assert device.ever_covered


@pytest.mark.parametrize("owned", [([], []), RIGHT], ids=["no example", "no error"])
def test_who_has_no_error_pays_nothing_and_has_answered_in_full(owned: Any) -> None:
    device = Device(STUDY, Owned(*owned), NoNoise())

    for number in range(1, 9):  # far more than the budget has answers
        assert words_of(device, asking(number)) == [0]

    assert device.ledger.remaining_units(STUDY.hash) == STUDY.value.budget_units
    assert not device.ever_covered


def test_a_broken_promise_about_the_grid_is_cover() -> None:
    device = Device(STUDY, Owned([[1.0]] * 3, [0, 0, 1]), NoNoise())

    assert words_of(device, asking(1, on_grid=True)) == [0]
    assert device.ever_covered


def test_public_mistakes_are_refused_before_any_data_is_read() -> None:
    source = Owned(*WRONG)
    device = Device(STUDY, source, NoNoise())
    other = define_model(
        ModelDefinition(architecture=Softmax(inputs=1, classes=2), theta=np.zeros(4))
    )

    with pytest.raises(ParameterError, match="model must be the one that the round names"):
        device.evaluate(asking(1), None)
    with pytest.raises(WireError, match="another model"):
        device.evaluate(asking(1), other)

    assert source.asked == 0
    assert not device.ever_covered


def test_the_owner_can_still_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt):
        evaluate_examples(ErrorCount.about(SIGN), SIGN, Owned(KeyboardInterrupt, None))


# ---- the flag ----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [Policy.SKIP, Policy.RETIRE, Policy.CLIP])
def test_the_flag_is_raised_by_the_first_answer_that_the_budget_cuts_and_stays(
    policy: Policy,
) -> None:
    study = a_study(policy, answers=2)
    source = Owned(*WRONG)
    device = Device(study, source, NoNoise())

    flags = []
    for number in range(1, 5):
        words_of(device, asking(number, study=study))
        flags.append(device.ever_covered)
    source._owned = RIGHT
    words_of(device, asking(5, study=study))

    assert flags == [False, False, True, True]
    assert device.ever_covered


def gradient(number: int) -> Defined[Round]:
    return define_round(
        round_of(GRADIENTS, Gradient(model_hash=SIGN.hash, dimension=4), number=number)
    )


@pytest.mark.parametrize(
    ("inputs", "labels", "flag"),
    [
        pytest.param([[1.0]], [1], False, id="a gradient"),
        pytest.param([], [], False, id="no example"),
        pytest.param([[np.nan]], [0], True, id="NaN"),
        pytest.param([[np.inf]], [1], True, id="infinity"),
        pytest.param([[1.0]], [2], True, id="a label that is no class"),
        pytest.param(OSError, None, True, id="an error"),
    ],
)
def test_a_gradient_that_is_none_raises_the_flag_though_the_filter_refused_nothing(
    inputs: Any, labels: Any, flag: bool
) -> None:
    device = Device(GRADIENTS, Owned(inputs, labels), NoNoise())

    device.report(gradient(1), device.evaluate(gradient(1), SIGN))

    assert device.ever_covered is flag
    assert not device.ledger.ever_refused(device.study.hash)


@pytest.mark.parametrize("value", [None, np.zeros((1, 3)), np.full((1, 4), np.nan)])
def test_a_value_that_came_too_late_or_is_none_raises_the_flag(value: Values | None) -> None:
    device = Device(GRADIENTS, Owned(*WRONG), NoNoise())

    device.report(gradient(1), value)

    assert device.ever_covered


@pytest.mark.parametrize(
    ("value", "flag"), [(0.0, False), (1.0, False), (0.3, True), (2.0, True), (OSError, True)]
)
def test_the_flag_knows_linear_values_that_are_none(value: Any, flag: bool) -> None:
    study = a_study(name="sums", purpose=Purpose.DATA)
    asked = define_round(
        round_of(study, Linear([Feature(name="active")], clip=1.0, on_grid=True), number=1)
    )
    device = Device(study, Told(value), NoNoise())

    device.report(asked, device.evaluate(asked))

    assert device.ever_covered is flag


@pytest.mark.parametrize(
    ("value", "flag"), [(1, False), (-1, False), (np.nan, False), (OSError, True)]
)
def test_having_no_category_is_a_value_and_failing_to_say_is_none(value: Any, flag: bool) -> None:
    study = define_study(
        design_histogram_study(name="h", epsilon=1.0, delta=1e-6, minimum_cohort=1, categories=4)
    )
    asked = define_round(
        round_of(
            study,
            Histogram(Feature(name="colour"), categories=4, mechanism=Randomiser.KRR, epsilon=0.1),
            number=1,
        )
    )
    device = Device(study, Told(value), NoNoise())

    device.report(asked, device.evaluate(asked))

    assert device.ever_covered is flag


def test_a_report_that_is_sent_again_changes_no_flag() -> None:
    device = Device(STUDY, Owned(*WRONG), NoNoise())
    first = device.report(asking(1), device.evaluate(asking(1), SIGN))

    assert device.report(asking(1), None) == first
    assert not device.ever_covered
    assert "cover" not in repr(device)


# ---- visits ------------------------------------------------------------------------------------


@asynccontextmanager
async def collecting(*studies: Defined[Study]) -> AsyncIterator[tuple[Collector, Any]]:
    collector = Collector(MemoryStore(), open_access=True)
    for study in studies:
        await collector.create_study(study.definition)
    await collector.models.publish(SIGN.hash, SIGN.definition)
    async with (
        served(collector, drain_s=0.1) as ports,
        connected(f"127.0.0.1:{ports.collector}") as channel,
    ):
        with anyio.fail_after(DEADLINE_S):
            yield collector, channel


async def test_devices_take_part_in_a_study_of_gradients_and_in_one_of_errors() -> None:
    people = [WRONG, RIGHT, ([], []), (OSError, None), ([[1.0]] * 2, [0, 1])]

    async with collecting(STUDY, GRADIENTS) as (collector, channel):
        await collector.open_round(asking(1).definition)
        await collector.open_round(gradient(1).definition)
        for owned in people:
            models = ModelCache()
            for study in (GRADIENTS, STUDY):
                device = Device(study, Owned(*owned), NoNoise())
                await visit(device, channel, last_round=1, models=models)
        count = await collector.close_round(asking(1).hash)
        kept = await collector.models.is_kept(SIGN.hash)
        gradients = await collector.close_round(gradient(1).hash)

    assert count.estimate.tolist() == [1.5]
    assert (count.reports, gradients.reports) == (5, 5)
    assert kept  # the round of the other study still names it


async def test_reports_are_alike_whatever_a_device_has_and_has_spent() -> None:
    sizes: dict[str, list[int]] = {}

    class Seen:
        def __init__(self, name: str) -> None:
            self.name = name

        def received(self, round_number: int) -> None:
            pass

        def sent(self, round_number: int, *, size_bytes: int) -> None:
            sizes.setdefault(self.name, []).append(size_bytes)

        def answered(self, round_number: int, *, disposition: int) -> None:
            pass

    async with collecting(STUDY) as (collector, channel):
        for number in range(1, 5):
            await collector.open_round(asking(number).definition)
        for name, owned in {"wrong": WRONG, "right": RIGHT, "failing": (OSError, None)}.items():
            device = Device(STUDY, Owned(*owned))
            await visit(device, channel, last_round=4, watcher=Seen(name))

    assert sizes["wrong"] == sizes["right"] == sizes["failing"]
    assert len(sizes["wrong"]) == 4
