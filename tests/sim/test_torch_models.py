"""Modules of torch as models, against torch's own derivatives in double precision, one by one."""

import sys
from typing import Any

import numpy as np
import pytest

from demur_proto.arrays import Integers, Values, Vector
from demur_proto.errors import ParameterError, UnsupportedError
from demur_proto.models.base import Examples
from demur_proto.models.definition import ModelDefinition, Module
from demur_proto.study import Measure, Policy, Study, View
from demur_sim.engine.float_cohort import FloatCohort
from demur_sim.people.labelled import LabelledPeople
from demur_sim.training.torch_models import TorchModel, load_torch
from demur_sim.training.torch_networks import TWO_CONVOLUTIONS

CHAIN = Module(path="torch_kit:small_chain", inputs=42, classes=3, parameters=558)
WRAPPED = Module(path="torch_kit:small_module", inputs=42, classes=3, parameters=558)
MIXING = Module(path="torch_kit:mixing_module", inputs=4, classes=3, parameters=15)
SHARED = Module(path="torch_kit:shared_chain", inputs=4, classes=3, parameters=35)
NORMALISED = Module(path="torch_kit:normalised_chain", inputs=4, classes=3, parameters=53)
PLACES = Module(path="torch_kit:places_chain", inputs=4, classes=3, parameters=48)
FLATTENED = Module(path="torch_kit:flattened_chain", inputs=4, classes=3, parameters=15)
ALL = [CHAIN, WRAPPED, SHARED, NORMALISED, PLACES, FLATTENED]
SINGLE = 2.0**-23  # single precision


@pytest.fixture
def torch() -> Any:
    """The package; where it is not installed, the test is skipped with a line that says so."""
    return pytest.importorskip("torch", reason="torch is not installed: see make test-torch")


def example_people(rng: np.random.Generator, module: Module, sizes: list[int]) -> Examples:
    rows = sum(sizes)
    return Examples(
        inputs=rng.normal(size=(rows, module.inputs)).astype(np.float32),
        labels=rng.integers(0, module.classes, rows),
        people=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
    )


def one_by_one(torch: Any, module: Module, theta: Vector, examples: Examples) -> Values:
    """Every person's gradient by torch's own backward pass, in double precision."""
    name = module.path.split(":")[1]
    network = getattr(sys.modules["torch_kit"], name)().double().eval()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(theta), network.parameters())
    rows = np.zeros((examples.number_of_people, module.parameters))
    for person in range(examples.number_of_people):
        own = examples.of_people(person, person + 1)
        for number in range(len(own.labels)):
            network.zero_grad()
            scores = network(torch.from_numpy(own.inputs[number : number + 1].astype(np.float64)))
            label = torch.from_numpy(own.labels[number : number + 1])
            torch.nn.functional.cross_entropy(scores, label).backward()
            flat = [each.grad.flatten().numpy() for each in network.parameters()]
            rows[person] += np.concatenate(flat) / len(own.labels)
    return rows


@pytest.mark.parametrize("module", ALL, ids=lambda module: module.path)
def test_rows_are_the_derivatives_of_each_persons_mean_loss(
    torch: Any, rng: np.random.Generator, module: Module
) -> None:
    model = TorchModel(module=module, device="cpu")
    theta = model.initial(rng)
    examples = example_people(rng, module, [1, 0, 3, 1, 2, 5, 0, 2])

    rows = model.gradients(theta, examples)

    expected = one_by_one(torch, module, theta, examples)
    np.testing.assert_allclose(rows, expected, rtol=0, atol=200 * SINGLE * np.abs(expected).max())
    assert not rows[[1, 6]].any()


def test_the_loss_rises_along_a_row_as_the_row_says(torch: Any, rng: np.random.Generator) -> None:
    model = TorchModel(module=CHAIN, device="cpu")
    theta = model.initial(rng)
    examples = example_people(rng, CHAIN, [4])
    network = sys.modules["torch_kit"].small_chain().double().eval()

    def loss(at: Vector) -> float:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(at), network.parameters())
        scores = network(torch.from_numpy(examples.inputs.astype(np.float64)))
        found = torch.nn.functional.cross_entropy(scores, torch.from_numpy(examples.labels))
        return float(found.detach())

    (row,) = model.gradients(theta, examples)

    for direction in rng.normal(size=(5, len(theta))):
        step = 1e-6 * direction
        slope = (loss(theta + step) - loss(theta - step)) / 2e-6
        assert slope == pytest.approx(row @ direction, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("module", ALL, ids=lambda module: module.path)
@pytest.mark.parametrize("sizes", [[1] * 300, [1, 0, 3, 1, 2, 5, 0, 2] * 5])
def test_clipped_sums_are_those_of_the_rows(
    torch: Any, rng: np.random.Generator, module: Module, sizes: list[int]
) -> None:
    model = TorchModel(module=module, device="cpu")
    theta = model.initial(rng)
    examples = example_people(rng, module, sizes)
    rows = model.gradients(theta, examples)
    lengths = np.linalg.norm(rows, axis=1)
    radii = rng.choice([0.0, 0.3, 1.0, np.inf], len(sizes))

    total, norms, clipped = model.clipped_sum(theta, examples, radii)

    # Norms come from single-precision slopes and inputs, the rows from products of those: these differ.
    np.testing.assert_allclose(norms, lengths, rtol=60 * SINGLE)
    np.testing.assert_array_equal(clipped, np.minimum(norms, radii))
    factors = np.minimum(1, radii / np.where(lengths > 0, lengths, 1))
    np.testing.assert_allclose(
        total, factors @ rows, rtol=0, atol=len(sizes) * 10 * SINGLE * np.abs(rows).max()
    )


@pytest.mark.parametrize("module", [CHAIN, WRAPPED, SHARED, NORMALISED])
def test_weights_that_clip_never_lengthen_a_row(
    torch: Any, rng: np.random.Generator, module: Module
) -> None:
    model = TorchModel(module=module, device="cpu")
    theta = model.initial(rng)
    examples = example_people(rng, module, [1] * 40)
    radius = 1e-3

    for person in range(40):
        alone = examples.of_people(person, person + 1)
        total, _, _ = model.clipped_sum(theta, alone, np.array([radius]))
        # Single precision in d products and sums; in real arithmetic it is at most the radius.
        assert np.linalg.norm(total) <= radius * (1 + 4 * SINGLE)
        assert np.linalg.norm(total) >= radius * (1 - 20 * SINGLE)


@pytest.mark.parametrize(
    ("module", "fast"),
    [
        (CHAIN, True),
        (PLACES, True),
        (TWO_CONVOLUTIONS, True),
        (WRAPPED, False),
        (MIXING, False),
        (SHARED, False),
        (NORMALISED, False),
        (FLATTENED, False),
    ],
)
def test_only_chains_that_keep_examples_apart_go_the_fast_way(
    torch: Any, module: Module, fast: bool
) -> None:
    assert (TorchModel(module=module, device="cpu")._leaves is not None) is fast


def test_nobodys_gradient_depends_on_anybody_else(torch: Any, rng: np.random.Generator) -> None:
    model = TorchModel(module=MIXING, device="cpu")
    theta = model.initial(rng)
    examples = example_people(rng, MIXING, [1] * 6)
    far = examples.inputs.copy()
    far[1:] += 100
    others = Examples(inputs=far, labels=examples.labels, people=examples.people)

    mine, same = (model.gradients(theta, each)[0] for each in (examples, others))

    np.testing.assert_array_equal(mine, same)


def test_nobodys_prediction_depends_on_anybody_else(torch: Any, rng: np.random.Generator) -> None:
    model = TorchModel(module=MIXING, device="cpu")
    theta = model.initial(rng)
    inputs = rng.normal(size=(300, 4))

    together = model.predict(theta, inputs)

    alone = [model.predict(theta, inputs[row : row + 1])[0] for row in range(300)]
    assert together.tolist() == alone
    assert len(set(alone)) > 1


@pytest.mark.parametrize(
    "module", [CHAIN, WRAPPED, TWO_CONVOLUTIONS], ids=lambda module: module.path
)
def test_what_is_not_finite_or_no_class_stays_with_its_owner(
    torch: Any, rng: np.random.Generator, module: Module
) -> None:
    model = TorchModel(module=module, device="cpu")
    theta = model.initial(rng)
    good = example_people(rng, module, [1, 1, 1, 1, 2, 1])
    inputs, labels = good.inputs.copy(), good.labels.copy()
    inputs[0, 3], inputs[2, 0], labels[4] = np.nan, np.inf, module.classes
    odd = [0, 2, 4]
    examples = Examples(inputs=inputs, labels=labels, people=good.people)

    rows = model.gradients(theta, examples)
    total, norms, clipped = model.clipped_sum(theta, examples, np.full(6, 0.5))

    assert np.isnan(norms).tolist() == [True, False, True, False, True, False]
    assert not np.isfinite(rows[odd]).all(axis=1).any()
    assert not clipped[odd].any()
    fine = np.delete(model.gradients(theta, good), odd, axis=0)
    np.testing.assert_allclose(np.delete(rows, odd, axis=0), fine, rtol=0, atol=20 * SINGLE)
    expected = np.minimum(1, 0.5 / np.linalg.norm(fine, axis=1)) @ fine
    np.testing.assert_allclose(total, expected, rtol=0, atol=60 * SINGLE)


def test_predictions_are_those_of_the_module(torch: Any, rng: np.random.Generator) -> None:
    model = TorchModel(module=CHAIN, device="cpu")
    theta = model.initial(rng)
    examples = example_people(rng, CHAIN, [1] * 200)
    network = sys.modules["torch_kit"].small_chain().eval()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(theta).float(), network.parameters())

    found: Integers = model.predict(theta, examples.inputs)

    scores = network(torch.from_numpy(examples.inputs)).detach().numpy()
    assert (found == scores.argmax(axis=1)).mean() > 0.99  # but for near ties
    wrong = model.errors(theta, examples.inputs, examples.labels)
    np.testing.assert_array_equal(wrong, found != examples.labels)


def test_the_papers_network_has_its_parameters_and_learns_from_the_same_start(torch: Any) -> None:
    model = TorchModel(module=TWO_CONVOLUTIONS, device="cpu")

    first, same, other = (model.initial(np.random.default_rng(seed)) for seed in (1, 1, 2))

    assert first.shape == (26_010,)
    assert first.tobytes() == same.tobytes()
    assert first.tobytes() != other.tobytes()
    # Glorot: 16 filters of 64 weights, fan-in 64 and fan-out 16 · 64.
    assert 0.06 < np.abs(first[:1024]).max() <= np.sqrt(6 / (64 + 1024)) + 1e-7
    assert not first[1024:1040].any()


@pytest.mark.parametrize("module", [TWO_CONVOLUTIONS, WRAPPED], ids=lambda module: module.path)
def test_a_network_trains_alike_on_any_number_of_threads(
    torch: Any, rng: np.random.Generator, module: Module
) -> None:
    people = LabelledPeople.one_each(
        rng.random((8300, module.inputs)), rng.integers(0, module.classes, 8300)
    )
    study = Study(
        name="float",
        view=View.AGGREGATE,
        measure=Measure.ZCDP,
        policy=Policy.CLIP,
        budget=1e-2,
        epsilon=1.0,
        delta=1e-5,
        minimum_cohort=8300,
        base_sigma=20.0,
        base_grid_exponent=-12,
        maximum_dimension=module.parameters,
    )
    found = []

    for threads in (1, 3):
        cohort = FloatCohort(study, people, clip=1.0, seed=3, threads=threads)
        blank = ModelDefinition(architecture=module, theta=np.zeros(module.parameters))
        theta = cohort.model(blank).initial(np.random.default_rng(1))
        for number in (1, 2):
            defined = ModelDefinition(architecture=module, theta=theta)
            theta = theta - cohort.noisy_sum(defined, number=number) / 8300
        found.append(theta.tobytes())
        assert (cohort.spent <= study.budget_units).all()

    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"path": "torch_kit:nothing"}, "path"),
        ({"path": "torch_kits:small_chain"}, "path"),
        ({"path": "torch_kit:no_module"}, "path"),
        ({"parameters": 559}, "parameters"),
        ({"inputs": 41}, "inputs"),
        ({"classes": 4}, "classes"),
    ],
)
def test_a_module_that_is_not_what_it_says_is_refused_in_one_line(
    torch: Any, changed: dict[str, Any], name: str
) -> None:
    good = {"path": CHAIN.path, "inputs": 42, "classes": 3, "parameters": 558}

    with pytest.raises(ParameterError, match=f"^{name} must be ") as caught:
        TorchModel(module=Module(**{**good, **changed}))

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "radii", [np.ones(2), np.array([1.0, -1.0, 1.0]), np.array([1, np.nan, 1])]
)
def test_radii_that_are_none_are_refused(torch: Any, rng: np.random.Generator, radii: Any) -> None:
    model = TorchModel(module=CHAIN, device="cpu")

    with pytest.raises(ParameterError, match=r"^radii must be "):
        model.clipped_sum(model.initial(rng), example_people(rng, CHAIN, [1, 1, 1]), radii)


def test_without_torch_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(UnsupportedError, match="pip install 'demur\\[torch\\]'") as caught:
        load_torch()

    assert "\n" not in str(caught.value)
