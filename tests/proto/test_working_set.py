"""What evaluating a round about a model takes of memory: a public bound, whatever a person's examples are."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from demur_proto.errors import ParameterError, UnsupportedError
from demur_proto.models import features as feature_maps
from demur_proto.models.architectures import HiddenLayer, Softmax
from demur_proto.models.base import Examples
from demur_proto.models.definition import Architecture, Features, ModelDefinition, Module
from demur_proto.models.features import OrientedGradients, Pixels
from demur_proto.models.gradients import (
    examples_at_once,
    person_error_share,
    person_gradient,
    prepare,
    working_set,
)
from demur_proto.models.whitened_gradients import WhitenedGradients, _fit

SMALL = 1 << 18  # bytes; objects that are no arrays, which a bound of a map alone does not hold
WIDE = HiddenLayer(inputs=1, hidden=65_000, classes=2)


def a_model(architecture: Architecture, features: Features | None = None) -> ModelDefinition:
    theta = np.random.default_rng(3).normal(size=architecture.parameters)
    return ModelDefinition(architecture=architecture, features=features, theta=theta)


def peak(evaluate: Callable[[], Any]) -> int:
    """The most bytes at once, beyond those before; numpy tells `tracemalloc` of its arrays."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        evaluate()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def same(row: Any, number: int) -> Any:
    """So many examples that are all alike, and take the memory of one."""
    return np.broadcast_to(row, (number, *np.shape(row)))


# ---- the bound ---------------------------------------------------------------------------------


def test_a_wide_layer_takes_the_same_memory_for_20_examples_and_for_400() -> None:
    """It took 2 MiB for each example: 20 were evaluated on a small device, and 400 killed it."""
    model = a_model(WIDE)

    person_gradient(model, np.ones((20, 1)), np.zeros(20, dtype=int))  # what comes once

    few, many = (
        peak(lambda k=k: person_gradient(model, np.ones((k, 1)), np.zeros(k, dtype=int)))  # type: ignore[misc]
        for k in (20, 400)
    )

    assert many == pytest.approx(few, rel=0.01)
    assert many <= working_set(model) < 64 << 20


@pytest.mark.parametrize(
    "architecture",
    [
        Softmax(inputs=1, classes=2),
        Softmax(inputs=784, classes=10),
        Softmax(inputs=32_767, classes=8),
        Softmax(inputs=63, classes=4096),
        HiddenLayer(inputs=1, hidden=1, classes=2),
        HiddenLayer(inputs=784, hidden=32, classes=10),
        HiddenLayer(inputs=32_767, hidden=7, classes=2),
        HiddenLayer(inputs=1, hidden=60, classes=4096),
        HiddenLayer(inputs=1, hidden=65_535, classes=2),
    ],
)
def test_an_architecture_takes_no_more_than_its_bound_and_not_much_less(
    architecture: Architecture,
) -> None:
    model = a_model(architecture)
    number = examples_at_once(model) + 1
    labels = np.zeros(number, dtype=np.int32)
    row = np.ones(architecture.inputs, dtype=np.int16)
    found = [
        peak(lambda: person_gradient(model, same(row.astype(np.float32), number), labels)),
        peak(lambda: person_gradient(model, same(row.astype(float), number).T.copy().T, labels)),
        peak(lambda: person_error_share(model, same(row, number), labels)),
    ]

    assert max(found) <= working_set(model) < 4 * max(found)


@settings(max_examples=40, deadline=None)
@given(
    inputs=st.integers(1, 300),
    hidden=st.integers(0, 300),
    classes=st.integers(2, 60),
    number=st.integers(1, 200),
)
def test_no_batch_ever_takes_more_than_is_counted_for_its_examples(
    inputs: int, hidden: int, classes: int, number: int
) -> None:
    architecture = (
        HiddenLayer(inputs=inputs, hidden=hidden, classes=classes)
        if hidden
        else Softmax(inputs=inputs, classes=classes)
    )
    model = a_model(architecture)
    missing = examples_at_once(model) - number  # of a whole batch
    data = np.ones((number, inputs), dtype=np.int64)

    found = peak(lambda: person_gradient(model, data, np.zeros(number, dtype=int)))

    assert found <= working_set(model) - missing * architecture.bytes_each


def peak_of(features: Features, images: Any) -> int:
    """What a map takes, its fit included, what comes out not."""
    _fit.cache_clear()
    fit = peak(features.prepare)
    return max(fit, peak(lambda: features.of(images)) - 4 * len(images) * features.length)


IMAGE_MAPS = [
    Pixels(height=28, width=28),
    Pixels(height=32, width=1024),
    OrientedGradients(height=14, width=14, cell=2),
    OrientedGradients(height=28, width=28),
    OrientedGradients(height=1, width=1, cell=1, block=1, bins=2),
    OrientedGradients(height=28, width=28, cell=14, block=1, bins=64),
    OrientedGradients(height=28, width=28, cell=1, block=5, bins=2),
    OrientedGradients(height=200, width=200, cell=20, block=3),
    OrientedGradients(height=1024, width=16, cell=1, block=1, bins=2),
    OrientedGradients(height=1024, width=1024, cell=8, block=1, bins=2),
    WhitenedGradients(height=8, width=8, cells=1, bins=2, synthetic=100),
    WhitenedGradients(height=28, width=28, synthetic=1000),
    WhitenedGradients(height=64, width=64, cells=1, bins=2, synthetic=100),
    WhitenedGradients(height=16, width=16, cells=4, bins=16, synthetic=100),
]
SLOW_MAPS = [
    OrientedGradients(height=16, width=1024, cell=1, block=1, bins=2),
    OrientedGradients(height=1024, width=1024, cell=256, bins=64),
    OrientedGradients(height=1, width=1024, cell=1, block=1, bins=32),
    OrientedGradients(height=256, width=256, cell=4, block=1, bins=8),
    WhitenedGradients(height=28, width=28),
    WhitenedGradients(height=64, width=64, cells=4, bins=64, synthetic=100),
    WhitenedGradients(height=64, width=64, cells=22, bins=2, synthetic=100),
    WhitenedGradients(height=8, width=8, cells=4, bins=64, synthetic=100),
    WhitenedGradients(height=8, width=8, cells=4, bins=64, synthetic=1 << 14),
]


@pytest.mark.parametrize(
    "features",
    [*IMAGE_MAPS, *(pytest.param(each, marks=pytest.mark.long) for each in SLOW_MAPS)],
    ids=str,
)
def test_a_feature_map_takes_no_more_than_its_bound_and_not_much_less(features: Features) -> None:
    image = np.arange(features.height * features.width, dtype=np.uint8)
    images = same(image.reshape(features.height, features.width), 33)
    images = images if features.height * features.width < 1 << 16 else images[:2]

    found = max(peak_of(features, images), peak_of(features, np.asfortranarray(images, float)))

    assert found <= features.working_set + SMALL
    assert features.working_set <= 4 * found


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_no_feature_map_ever_takes_more_than_its_bound(data: st.DataObject) -> None:
    cell = data.draw(st.integers(1, 16))
    height, width = (cell * data.draw(st.integers(1, 64 // cell)) for _ in range(2))
    block = data.draw(st.integers(1, min(4, height // cell, width // cell)))
    bins = data.draw(st.integers(2, 64))
    blocks = (height // cell - block + 1) * (width // cell - block + 1)
    assume(2 * blocks * block**2 <= 1 << 15)  # the most features that a map may have
    bins = max(2, min(bins, (1 << 15) // (blocks * block**2)))
    features = OrientedGradients(height=height, width=width, cell=cell, block=block, bins=bins)

    assert peak_of(features, np.ones((33, height, width))) <= features.working_set + SMALL


@pytest.mark.parametrize(
    "features",
    [
        Pixels(height=28, width=28),
        OrientedGradients(height=28, width=28),
        pytest.param(
            WhitenedGradients(height=16, width=16, cells=3, synthetic=100), marks=pytest.mark.long
        ),
    ],
    ids=str,
)
def test_a_model_of_images_takes_no_more_than_its_bound_and_not_much_less(
    features: Features,
) -> None:
    model = a_model(Softmax(inputs=features.length, classes=10), features)
    number = examples_at_once(model) + 1
    images = same(np.eye(features.height, features.width, dtype=np.uint8), number)
    _fit.cache_clear()

    found = peak(lambda: person_gradient(model, images, np.zeros(number, dtype=int)))

    assert found <= working_set(model) < 4 * found


def test_examples_of_another_width_are_refused_before_they_take_memory() -> None:
    model = a_model(Softmax(inputs=2, classes=2))
    broad = same(np.float32(0), 1 << 26).reshape(1, -1)

    def refused() -> None:
        with pytest.raises(ParameterError, match=r"inputs must be of shape \[m, 2\]"):
            person_gradient(model, broad, [0])

    assert peak(refused) < SMALL


def test_a_module_has_no_bound() -> None:
    path = Module(path="nowhere.at_all:Net", inputs=2, classes=2, parameters=6)

    with pytest.raises(UnsupportedError, match=r"nowhere\.at_all:Net is not supported"):
        working_set(a_model(path))


# ---- several batches ---------------------------------------------------------------------------


def test_several_batches_give_the_gradient_of_all_examples_to_within_rounding(
    rng: np.random.Generator,
) -> None:
    # At θ = 0 all classes are equally likely, so the slopes are ¼ and -¾: integers tell the sum.
    architecture = Softmax(inputs=1000, classes=4)
    model = ModelDefinition(architecture=architecture, theta=np.zeros(architecture.parameters))
    number = 2 * examples_at_once(model) + 77
    inputs = rng.integers(-9, 10, size=(number, 1000)).astype(np.float32)
    labels = rng.integers(0, 4, size=number)
    whole = np.concatenate([inputs, np.ones((number, 1))], axis=1).astype(np.int64)
    quarters = 1 - 4 * np.eye(4, dtype=np.int64)[labels]

    found = person_gradient(model, inputs, labels)

    expected = (whole.T @ quarters).reshape(1, -1) / (4 * number)
    # Each sum of k terms, wherever it is cut, is off by at most k + 8 roundings of their mean size.
    sizes = (np.abs(whole).T @ np.abs(quarters)).reshape(1, -1) / (4 * number)
    assert (np.abs(found - expected) <= 2.0**-53 * (number + 8) * sizes).all()


def test_one_batch_gives_the_bits_of_one_call(rng: np.random.Generator) -> None:
    architecture = HiddenLayer(inputs=5, hidden=20_000, classes=3)
    model = a_model(architecture)
    number = examples_at_once(model)
    inputs, labels = rng.normal(size=(number, 5)), rng.integers(0, 3, size=number)

    found = person_gradient(model, inputs, labels)

    mine = Examples(inputs=inputs, labels=labels, people=np.array([0, number]))
    expected = architecture.gradients(model.theta, mine)
    np.testing.assert_array_equal(found, expected)


def test_several_batches_give_the_share_of_all_errors() -> None:
    architecture = Softmax(inputs=4095, classes=2)  # scores (x_0, 0): class 0 where x_0 > 0
    theta = np.zeros(architecture.parameters)
    theta[0] = 1.0
    model = ModelDefinition(architecture=architecture, theta=theta)
    number = 2 * examples_at_once(model) + 3
    labels = np.arange(number) % 5 % 2  # of five examples, two are of class 1

    found = person_error_share(model, same(np.ones(4095, dtype=np.float32), number), labels)

    assert found.tolist() == [[int(labels.sum()) / number]]


@pytest.mark.parametrize(("value", "label"), [(1.0, 2), (np.inf, 0), (np.nan, 0)])
def test_one_bad_example_of_the_last_batch_spoils_the_gradient(value: float, label: int) -> None:
    model = a_model(WIDE)
    inputs, labels = np.ones((30, 1)), np.zeros(30, dtype=int)
    inputs[-1], labels[-1] = value, label

    found = person_gradient(model, inputs, labels)

    assert 2 * examples_at_once(model) < 30
    assert np.isnan(found).any()


@pytest.mark.parametrize("number", [1, 3])
def test_as_many_examples_as_labels_are_wanted(number: int) -> None:
    model = a_model(Softmax(inputs=2, classes=2))

    for of in (person_gradient, person_error_share):
        with pytest.raises(ParameterError, match="data must be one example for each of 2 labels"):
            of(model, np.ones((number, 2)), [0, 1])


# ---- feature maps ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "features",
    [
        OrientedGradients(height=28, width=28, signed=True),
        OrientedGradients(height=64, width=48, cell=16, bins=7),
        WhitenedGradients(height=24, width=24, cells=3, synthetic=120),
    ],
    ids=str,
)
def test_features_are_the_same_whatever_is_computed_at_once(
    features: Features, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = rng.integers(0, 256, size=(40, features.height, features.width))
    _fit.cache_clear()
    found = features.of(images)

    monkeypatch.setattr(feature_maps, "PIECE_BYTES", 1)  # one image, and one bin
    _fit.cache_clear()

    np.testing.assert_array_equal(features.of(images), found)


FITTED = WhitenedGradients(height=12, width=12, cells=2, bins=4, synthetic=100)
MAPPED = a_model(Softmax(inputs=FITTED.length, classes=2), FITTED)
IMAGES = np.eye(12)[None]


def kept() -> tuple[int, int]:
    """How many fits there were, and how many are kept."""
    info = _fit.cache_info()
    return info.misses, info.currsize


def test_what_is_prepared_is_not_fitted_again() -> None:
    _fit.cache_clear()
    prepare(MAPPED)
    before = kept()

    person_gradient(MAPPED, IMAGES, [1])
    person_error_share(MAPPED, IMAGES, [1])
    prepare(MAPPED)

    assert before == kept() == (1, 1)


@pytest.mark.parametrize("of", [person_gradient, person_error_share])
def test_who_has_no_examples_fits_what_everybody_fits(of: Any) -> None:
    after = []
    for number in (0, 1):
        _fit.cache_clear()
        of(MAPPED, IMAGES[:number], [1][:number])
        after.append(kept())

    assert after == [(1, 1), (1, 1)]


def test_models_with_nothing_to_fit_are_prepared_by_doing_nothing() -> None:
    _fit.cache_clear()

    prepare(a_model(Softmax(inputs=2, classes=2)))
    prepare(a_model(Softmax(inputs=4, classes=2), Pixels(height=2, width=2)))
    prepare(
        a_model(
            Softmax(inputs=2, classes=2),
            OrientedGradients(height=2, width=2, cell=2, block=1, bins=2),
        )
    )

    assert kept() == (0, 0)
