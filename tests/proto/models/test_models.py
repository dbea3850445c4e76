import math
import os
import subprocess
import sys
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.models.oracle import hidden_loss, softmax_loss, some_examples

from demur_proto.arrays import Vector
from demur_proto.errors import ParameterError
from demur_proto.models.architectures import HiddenLayer, Softmax
from demur_proto.models.base import Examples, Model

SOFTMAX = Softmax(inputs=5, classes=3)
HIDDEN = HiddenLayer(inputs=5, hidden=4, classes=3)
LOSSES = {
    SOFTMAX: partial(softmax_loss, classes=3),
    HIDDEN: partial(hidden_loss, hidden=4, classes=3),
}
SIZES = [1, 2, 0, 1, 7, 40, 1]
both = pytest.mark.parametrize("model", [SOFTMAX, HIDDEN], ids=lambda each: type(each).__name__)


def theta_of(model: Model, rng: np.random.Generator) -> Vector:
    return rng.normal(size=model.parameters)


@both
def test_gradients_are_the_slopes_of_the_mean_loss_over_a_persons_examples(
    model: Any, rng: np.random.Generator
) -> None:
    theta = theta_of(model, rng)
    examples = some_examples(rng, sizes=[1, 3, 0], inputs=5, classes=3)

    found = model.gradients(theta, examples)

    step = 1e-5  # the error of a central difference is about step² and 1e-16/step
    for person, (start, stop) in enumerate([(0, 1), (1, 4)]):
        for at in range(model.parameters):
            moved = [theta.copy(), theta.copy()]
            moved[0][at] += step
            moved[1][at] -= step
            up, down = (
                sum(
                    LOSSES[model](each, examples.inputs[row], int(examples.labels[row]))
                    for row in range(start, stop)
                )
                / (stop - start)
                for each in moved
            )
            assert found[person, at] == pytest.approx((up - down) / (2 * step), abs=1e-8)
    assert not found[2].any()


def test_a_softmax_gradient_is_what_hand_algebra_gives() -> None:
    # Scores (ln 3, 0) for x = 2, so p = (3/4, 1/4); label 0 leaves slopes (−1/4, 1/4).
    theta = np.array([math.log(3) / 2, 0.0, 0.0, 0.0])
    one = Examples.one_each(np.array([[2.0]]), np.array([0]))

    found = Softmax(inputs=1, classes=2).gradients(theta, one)

    np.testing.assert_allclose(found, [[-0.5, 0.5, -0.25, 0.25]], rtol=1e-15)


def test_a_hidden_gradient_is_what_hand_algebra_gives() -> None:
    # u = tanh(ln 2 · 1) = 3/5; scores (5/3 ln 3 · u, 0) = (ln 3, 0); label 1 leaves (3/4, −3/4).
    slope = 5 / 3 * math.log(3)
    theta = np.array([math.log(2), 0.0, slope, 0.0, 0.0, 0.0])
    one = Examples.one_each(np.array([[1.0]]), np.array([1]))

    found = HiddenLayer(inputs=1, hidden=1, classes=2).gradients(theta, one)

    back = 0.75 * slope * (1 - 0.36)
    np.testing.assert_allclose(found, [[back, back, 0.45, -0.45, 0.75, -0.75]], rtol=1e-14)


@both
@pytest.mark.parametrize("radius", [0.0, 0.3, math.inf])
def test_a_clipped_sum_is_that_of_the_rows(
    model: Any, radius: float, rng: np.random.Generator
) -> None:
    theta = theta_of(model, rng)
    examples = some_examples(rng, sizes=SIZES, inputs=5, classes=3)
    radii = np.full(len(SIZES), radius)
    radii[0] = 0.01

    total, norms, clipped = model.clipped_sum(theta, examples, radii)

    rows = model.gradients(theta, examples)
    lengths = np.linalg.norm(rows, axis=1)
    factors = np.minimum(1, radii / np.where(lengths > 0, lengths, 1))
    np.testing.assert_allclose(norms, lengths, rtol=1e-12)
    np.testing.assert_allclose(clipped, np.minimum(lengths, radii), rtol=1e-12)
    np.testing.assert_allclose(total, (rows * factors[:, None]).sum(axis=0), atol=1e-13)
    assert (clipped <= radii).all()


@both
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), nearly=st.sampled_from([0.0, 1e-16, 1e-12, 1e-6, 1.0]))
def test_a_norm_is_never_below_that_of_what_is_added_even_where_examples_cancel(
    model: Any, seed: int, nearly: float
) -> None:
    """Two examples at θ = 0 whose slopes are opposite: (½, −½, 0)-like parts cancel."""
    rng = np.random.default_rng(seed)
    theta = theta_of(model, rng)
    theta[-3:] = 0
    theta[:-3] *= nearly
    pair = np.repeat(rng.normal(size=(1, 5)), 6, axis=0)
    pair[0] += nearly * rng.normal(size=5)
    person = Examples(inputs=pair, labels=np.array([0, 1, 2, 0, 1, 2]), people=np.array([0, 6]))

    total, norms, _ = model.clipped_sum(theta, person, np.array([math.inf]))

    exact = math.fsum(float(part) ** 2 for part in total)
    assert norms[0] ** 2 >= exact
    assert norms[0] <= math.sqrt(exact) * (1 + 1e-11) + 1e-6


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("score", [330.0, 345.0, 360.0, 372.0, 373.0, 400.0, 700.0])
def test_slopes_whose_squares_are_no_floats_count_beside_long_inputs(
    score: float, size: int
) -> None:
    model, long = Softmax(inputs=1, classes=2), 1e150
    theta = np.array([0.0, score / long, 0.0, 0.0])  # so the slopes are ± about exp(-score)
    person = Examples(
        inputs=np.full((size, 1), long), labels=np.ones(size, np.int64), people=np.array([0, size])
    )

    total, norms, _ = model.clipped_sum(theta, person, np.array([math.inf]))

    exact = sum(Fraction(float(part)) ** 2 for part in total)
    assert (
        exact
        <= Fraction(float(norms[0])) ** 2
        <= exact * (1 if size == 1 else 4) * Fraction(1 + 1e-9)
    )


def test_norms_of_larger_layers_take_both_ways_and_agree(rng: np.random.Generator) -> None:
    model = HiddenLayer(inputs=60, hidden=40, classes=10)  # inner products up to 23 examples
    theta = model.initial(rng)
    examples = some_examples(rng, sizes=[1, 2, 22, 23, 24, 25, 60], inputs=60, classes=10)

    total, norms, _ = model.clipped_sum(theta, examples, np.full(7, math.inf))

    rows = model.gradients(theta, examples)
    np.testing.assert_allclose(norms, np.linalg.norm(rows, axis=1), rtol=1e-11)
    np.testing.assert_allclose(total, rows.sum(axis=0), atol=1e-13)


@both
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200])
def test_an_input_without_a_usable_gradient_adds_nothing_and_touches_nobody_else(
    model: Any, bad: float, rng: np.random.Generator
) -> None:
    theta = theta_of(model, rng)
    theta[2] = 0.0  # infinity times zero
    examples = some_examples(rng, sizes=[1, 3, 1], inputs=5, classes=3)
    radii = np.full(3, 0.5)
    clean = model.clipped_sum(theta, examples.of_people(0, 1), radii[:1])[0]
    clean = clean + model.clipped_sum(theta, examples.of_people(2, 3), radii[:1])[0]
    before = model.gradients(theta, examples)

    examples.inputs[2, 0] = bad
    total, norms, clipped = model.clipped_sum(theta, examples, radii)
    after = model.gradients(theta, examples)

    assert np.isnan(norms[1])
    assert clipped[1] == 0
    np.testing.assert_allclose(total, clean, atol=1e-13)
    if bad != 1e200:  # a finite gradient, whose squared norm is not
        assert not np.isfinite(after[1]).all()
    np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])


@both
@pytest.mark.parametrize("label", [-1, 3, 2**62, -(2**62)])
def test_a_label_that_is_no_class_is_a_gradient_that_is_not_finite(
    model: Any, label: int, rng: np.random.Generator
) -> None:
    theta = theta_of(model, rng)
    examples = some_examples(rng, sizes=[1, 2], inputs=5, classes=3)
    examples.labels[1] = label

    rows = model.gradients(theta, examples)
    _, norms, clipped = model.clipped_sum(theta, examples, np.ones(2))

    assert np.isfinite(rows[0]).all()
    assert np.isnan(rows[1]).any()
    assert np.isnan(norms[1])
    assert clipped[1] == 0
    assert model.errors(theta, examples.inputs, examples.labels)[1]


@both
def test_a_theta_that_is_not_finite_makes_no_finite_gradient_and_no_error(
    model: Any, rng: np.random.Generator
) -> None:
    theta = np.full(model.parameters, math.nan)
    examples = some_examples(rng, sizes=[1, 2], inputs=5, classes=3)

    total, norms, _ = model.clipped_sum(theta, examples, np.ones(2))

    assert not total.any()
    assert np.isnan(norms).all()
    assert model.errors(theta, examples.inputs, examples.labels).all()


@both
def test_predictions_are_the_class_with_the_smallest_loss(
    model: Any, rng: np.random.Generator
) -> None:
    theta = theta_of(model, rng)
    examples = some_examples(rng, sizes=[1] * 30, inputs=5, classes=3)

    found = model.predict(theta, examples.inputs)

    losses = [[LOSSES[model](theta, x, c) for c in range(3)] for x in examples.inputs]
    assert found.tolist() == np.argmin(losses, axis=1).tolist()
    errors = model.errors(theta, examples.inputs, examples.labels)
    assert errors.tolist() == (found != examples.labels).tolist()


@both
def test_single_precision_inputs_give_the_gradients_of_the_same_numbers(
    model: Any, rng: np.random.Generator
) -> None:
    theta = theta_of(model, rng)
    inputs = rng.normal(size=(9, 5)).astype(np.float32)
    labels = rng.integers(0, 3, 9)

    single = model.gradients(theta, Examples.one_each(inputs, labels))
    double = model.gradients(theta, Examples.one_each(inputs.astype(np.float64), labels))

    np.testing.assert_array_equal(single, double)


@both
def test_nobody_at_all_adds_up_to_zero(model: Any) -> None:
    theta = np.zeros(model.parameters)
    nobody = Examples.one_each(np.zeros((0, 5)), np.zeros(0, dtype=np.int64))

    total, norms, clipped = model.clipped_sum(theta, nobody, np.zeros(0))

    assert total.tolist() == [0.0] * model.parameters
    assert len(norms) == len(clipped) == 0
    assert model.gradients(theta, nobody).shape == (0, model.parameters)
    assert len(model.predict(theta, nobody.inputs)) == 0


@both
def test_what_is_of_another_size_is_refused_in_one_line(
    model: Any, rng: np.random.Generator
) -> None:
    theta = theta_of(model, rng)
    examples = some_examples(rng, sizes=[1, 1], inputs=5, classes=3)
    narrow = some_examples(rng, sizes=[1, 1], inputs=4, classes=3)

    for wrong in (theta[:-1], theta[None], theta.astype(np.float32)):
        with pytest.raises(ParameterError, match="theta must be float64 of shape"):
            model.gradients(wrong, examples)
        with pytest.raises(ParameterError, match="theta must be float64 of shape"):
            model.errors(wrong, examples.inputs, examples.labels)
    with pytest.raises(ParameterError, match=r"inputs must be of shape \[m, 5\], got"):
        model.clipped_sum(theta, narrow, np.ones(2))
    with pytest.raises(ParameterError, match=r"inputs must be of shape \[m, 5\], got"):
        model.predict(theta, narrow.inputs)
    for radii in (np.ones(3), np.array([1.0, -1.0]), np.array([1.0, math.nan])):
        with pytest.raises(ParameterError, match="radii must be 2 numbers >= 0"):
            model.clipped_sum(theta, examples, radii)


def test_learning_starts_where_its_description_says(rng: np.random.Generator) -> None:
    wide = HiddenLayer(inputs=100, hidden=100, classes=10)

    theta = wide.initial(rng)

    assert not Softmax(inputs=3, classes=2).initial(rng).any()
    weights = theta[:10_000]
    # The mean square of 10,000 normals is off by √(2/10,000) of itself; 5 sigma.
    assert np.mean(weights**2) == pytest.approx(0.01, rel=5 * math.sqrt(2 / 10_000))
    assert not theta[10_000:10_100].any()
    assert np.std(theta[10_100:11_100]) == pytest.approx(0.1, rel=5 / math.sqrt(2_000))
    assert not theta[-10:].any()
    again = wide.initial(np.random.default_rng(20261127))
    np.testing.assert_array_equal(theta, again)


def test_a_model_with_too_many_parameters_is_refused() -> None:
    assert Softmax(inputs=2**15, classes=7).parameters == 229_383
    with pytest.raises(ParameterError, match="parameters must be an integer >= 1 and <= 262144"):
        Softmax(inputs=2**15, classes=8)
    with pytest.raises(ParameterError, match="parameters must be"):
        HiddenLayer(inputs=2000, hidden=200, classes=10)


THREADS = """
import hashlib, numpy as np
from demur_proto.models.base import Examples
from demur_proto.models.architectures import HiddenLayer
from demur_proto.models.architectures import Softmax

rng = np.random.default_rng(7)
digest = hashlib.sha256()
for model in (Softmax(inputs=784, classes=10), HiddenLayer(inputs=784, hidden=100, classes=10)):
    theta = rng.normal(size=model.parameters) / 30
    inputs, labels = rng.random((1000, 784)), rng.integers(0, 10, 1000)
    for sizes in ([1] * 1000, [10] * 100):
        people = np.concatenate([[0], np.cumsum(sizes)])
        examples = Examples(inputs=inputs, labels=labels, people=people)
        for part in model.clipped_sum(theta, examples, np.ones(len(sizes))):
            digest.update(part.tobytes())
        digest.update(model.gradients(theta, examples.of_people(0, 64)).tobytes())
print(digest.hexdigest())
"""


def test_not_a_bit_depends_on_the_number_of_threads() -> None:
    def run(threads: int) -> str:
        names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
        done = subprocess.run(
            [sys.executable, "-c", THREADS],
            env={**os.environ, **dict.fromkeys(names, str(threads))},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    assert run(1) == run(2)


@both
def test_a_block_gives_the_same_bits_wherever_it_stands(
    model: Any, rng: np.random.Generator
) -> None:
    theta = theta_of(model, rng)
    examples = some_examples(rng, sizes=[2] * 50, inputs=5, classes=3)

    alone = Examples(
        inputs=examples.inputs[40:80].copy(),
        labels=examples.labels[40:80].copy(),
        people=np.arange(0, 41, 2),
    )
    views = [
        model.clipped_sum(theta, block, np.ones(20))
        for block in (examples.of_people(20, 40), alone)
    ]

    for one, other in zip(*views, strict=True):
        np.testing.assert_array_equal(one, other)
