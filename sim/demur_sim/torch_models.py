"""Any module of torch by its import path, as a model."""

import copy
import importlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from demur_proto.arrays import Flags, Integers, Values, Vector
from demur_proto.errors import ParameterError
from demur_proto.models.base import as_doubles
from demur_proto.models.cross_entropy import best, wrong
from demur_proto.models.definition import Module
from demur_proto.models.examples import Examples, Inputs
from demur_sim.torch_layers import Part, Rows, Tensor, leaves_of, parts_of
from demur_sim.torch_loading import best_device, load_torch

EXAMPLES_AT_ONCE = 128  #: so that what they leave in every layer stays in the cache
EXAMPLES_AT_ONCE_ELSEWHERE = 4096  #: on a GPU, which small pieces would leave idle
_ROUNDING = 2.0**-52


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchModel:
    """A module that takes flat inputs [m, inputs] and gives scores [m, classes].

    It is used as in evaluation: nothing is dropped, and statistics of batches are not taken. All of it
    is in single precision, but norms are worked out in double precision from the numbers that are
    added up. θ is its parameters one after the other, in torch's order.

    A chain (`nn.Sequential`) of linear and convolutional layers and of layers without parameters goes
    the fast way of `torch_layers`. Any other module gets one example at a time, by `torch.func.vmap`:
    so its gradients cannot mix people either.

    On a GPU, sums may differ in their last bits from run to run.

    Raises:
        ParameterError: there is no such module, or it has not the sizes that are stated.
        UnsupportedError: torch is not installed.
    """

    module: Module  #: importing it runs its code
    device: str | None = None  #: as torch names it; by default the GPU where there is one
    _torch: Any = field(init=False, repr=False, compare=False)
    _network: Any = field(init=False, repr=False, compare=False)
    _leaves: list[Any] | None = field(init=False, repr=False, compare=False)
    _place: str = field(init=False, repr=False, compare=False)
    _own: threading.local = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        torch = load_torch()
        network = made(torch, self.module.path)
        parameters = [each for _, each in network.named_parameters()]
        number = sum(each.numel() for each in parameters)
        if number != self.parameters:
            raise ParameterError("parameters", self.parameters, f"{number}, those of the module")
        leaves = leaves_of(torch, network)
        if leaves is not None:
            own = [each for leaf in leaves for each in leaf.parameters()]
            if len(own) != len(parameters):  # a layer that occurs twice
                leaves = None
        place = best_device(torch) if self.device is None else self.device
        for name, value in (
            ("_torch", torch),
            ("_network", network.to(place)),
            ("_leaves", leaves),
            ("_place", place),
            ("_own", threading.local()),
        ):
            object.__setattr__(self, name, value)
        self._probe()

    @property
    def parameters(self) -> int:
        """How many numbers θ is."""
        return self.module.parameters

    @property
    def inputs(self) -> int:
        """How many numbers one example is."""
        return self.module.inputs

    @property
    def classes(self) -> int:
        """How many labels there are."""
        return self.module.classes

    def initial(self, rng: np.random.Generator) -> Vector:
        """θ as the module itself starts, with torch's generator seeded from this one. Public."""
        with self._torch.random.fork_rng(devices=[]):
            self._torch.manual_seed(int(rng.integers(1 << 63)))
            network = made(self._torch, self.module.path)
        flat = [each.detach().double().flatten().numpy() for each in network.parameters()]
        theta: Vector = np.concatenate(flat)
        return theta

    def gradients(self, theta: Vector, examples: Examples) -> Values:
        """Every person's gradient [n, d]; see `Model`."""
        rows: Values = np.zeros((examples.number_of_people, self.parameters))
        for persons, parts in self._batches(theta, examples):
            stop = 0
            for part in parts:
                found = part.rows.double().cpu().numpy()
                start, stop = stop, stop + found.shape[1]
                rows[persons, start:stop] = found
        return rows

    def clipped_sum(
        self, theta: Vector, examples: Examples, radii: Vector
    ) -> tuple[Vector, Vector, Vector]:
        """The sum of clipped gradients [d], their norms [n], before and after; see `Model`."""
        people = examples.number_of_people
        if radii.shape != (people,) or not (radii >= 0).all():
            raise ParameterError("radii", radii.shape, f"{people} numbers >= 0")
        norms: Vector = np.zeros(people)
        clipped: Vector = np.zeros(people)
        total: Vector = np.zeros(self.parameters)
        for persons, parts in self._batches(theta, examples):
            squares = sum(part.squares() for part in parts).cpu().numpy()
            found = np.sqrt(squares) * (1 + _ROUNDING * (self.parameters + 8))
            usable = np.isfinite(found * found)
            kept = np.where(usable, np.minimum(found, radii[persons]), 0.0)
            norms[persons], clipped[persons] = np.where(usable, found, np.nan), kept
            weights = _rounded_down(kept / np.where(usable & (found > 0), found, 1.0))
            if not usable.all():  # zero times infinity would not be zero
                parts = [part.only(self._torch.from_numpy(usable)) for part in parts]
                weights = weights[usable]
            given = self._tensor(weights)
            total += (
                self._torch.cat([part.weighted(given) for part in parts]).double().cpu().numpy()
            )
        return total, norms, clipped

    def predict(self, theta: Vector, inputs: Inputs) -> Integers:
        """The likeliest class of every example [m]."""
        return best(self._scores(theta, inputs))

    def errors(self, theta: Vector, inputs: Inputs, labels: Integers) -> Flags:
        """Which examples are predicted wrongly [m]."""
        return wrong(self._scores(theta, inputs), labels)

    @property
    def _at_once(self) -> int:
        """Examples that are worked on together."""
        return EXAMPLES_AT_ONCE if self._place == "cpu" else EXAMPLES_AT_ONCE_ELSEWHERE

    def _probe(self) -> None:
        """Refuse a module of other sizes than stated, by a pass over one example of zeros."""
        weights, blank = self._weights(np.zeros(self.parameters)), np.zeros((1, self.inputs))
        try:
            found = tuple(self._called(weights, self._tensor(blank)).shape)
        except Exception as error:  # whatever the code of a module raises
            raise ParameterError(
                "inputs", self.inputs, f"what the module takes ({_told(error)})"
            ) from error
        if found != (1, self.classes):
            shown = f"such that one example has the scores {list(found)}"
            raise ParameterError("classes", self.classes, shown)

    def _tensor(self, values: np.ndarray[Any, Any]) -> Tensor:
        """In single precision, where the module is."""
        with np.errstate(all="ignore"):
            single = np.ascontiguousarray(values, dtype=np.float32)
        return self._torch.from_numpy(single).to(self._place)

    def _weights(self, theta: Vector) -> list[Tensor]:
        """θ as the module's parameters."""
        shapes = [each.shape for each in self._network.parameters()]
        flat = self._tensor(theta).split([shape.numel() for shape in shapes])
        return [part.view(shape) for part, shape in zip(flat, shapes, strict=True)]

    def _scores(self, theta: Vector, inputs: Inputs) -> Values:
        """Scores [m, classes]."""
        as_doubles(self, theta, inputs[:0])
        weights = self._weights(theta)
        scores: Values = np.zeros((len(inputs), self.classes))
        for start in range(0, len(inputs), self._at_once):
            some = slice(start, start + self._at_once)
            flow = self._tensor(inputs[some])
            if self._leaves is not None:
                found = self._called(weights, flow)
            else:  # a count of errors is as private as a gradient: nobody's may depend on others
                found = self._torch.func.vmap(lambda one: self._called(weights, one[None])[0])(flow)
            scores[some] = found.double().cpu().numpy()
        return scores

    def _called(self, weights: list[Tensor], flow: Tensor) -> Tensor:
        # A call puts the parameters into the module for a while, so each thread has one of its own.
        network = getattr(self._own, "network", None)
        if network is None:
            network = self._own.network = copy.deepcopy(self._network)
        names = [name for name, _ in network.named_parameters()]
        given = dict(zip(names, weights, strict=True))
        return self._torch.func.functional_call(network, given, (flow,))

    def _batches(
        self, theta: Vector, examples: Examples
    ) -> Iterator[tuple[Integers, Sequence[Part | Rows]]]:
        """Some people at a time who own equally many examples: who, and their gradients."""
        as_doubles(self, theta, examples.inputs[:0])
        weights = self._weights(theta)
        sizes = examples.sizes
        for size in np.unique(sizes[sizes > 0]).tolist():
            alike = np.flatnonzero(sizes == size)
            most = max(1, self._at_once // size)
            for start in range(0, len(alike), most):
                persons = alike[start : start + most]
                owned = (examples.people[persons][:, None] + np.arange(size)).reshape(-1)
                flow, labels = self._tensor(examples.inputs[owned]), examples.labels[owned]
                if self._leaves is not None:
                    yield (
                        persons,
                        parts_of(self._torch, self._leaves, weights, flow, labels, size=size),
                    )
                else:
                    yield persons, [Rows(rows=self._rows(weights, flow, labels, size))]

    def _rows(self, weights: list[Tensor], flow: Tensor, labels: Integers, size: int) -> Tensor:
        """Gradients of people with `size` examples each [g, d], an example at a time."""
        torch = self._torch
        known = (labels >= 0) & (labels < self.classes)
        chosen = torch.from_numpy(np.where(known, labels, 0)).to(flow.device)

        def loss(weights: list[Tensor], one: Tensor, label: Tensor) -> Tensor:
            scores = self._called(weights, one[None])[0]
            return scores.logsumexp(0) - scores.gather(0, label[None])[0]

        slopes = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, flow, chosen)
        rows = torch.cat([each.flatten(1) for each in slopes], dim=1)
        rows[torch.from_numpy(~known).to(flow.device)] = torch.nan
        return rows if size == 1 else rows.unflatten(0, (-1, size)).mean(1)


def module_of(path: str, *, inputs: int, classes: int) -> Module:
    """A module by its path, with the number of its parameters, which is found by making it.

    Args:
        path: package.module:name, of what makes an `nn.Module` when it is called.
        inputs: numbers of one example.
        classes: labels.

    Raises:
        UnsupportedError: torch is not installed.
        ParameterError: there is no such module, or it is too large to be asked for.
    """
    network = made(load_torch(), path)
    number = sum(each.numel() for each in network.parameters())
    return Module(path=path, inputs=inputs, classes=classes, parameters=number)


def made(torch: Any, path: str) -> Any:
    """A fresh module, as it is in evaluation; importing it runs its code.

    Raises:
        ParameterError: there is no such module, or its own code fails.
    """
    package, name = path.split(":")
    try:
        make = getattr(importlib.import_module(package), name)
    except Exception as error:  # importing runs somebody else's code, and so does a call
        raise ParameterError(
            "path", path, f"a module that can be imported ({_told(error)})"
        ) from error
    kind = torch.nn.Module
    try:
        network = make() if callable(make) and not isinstance(make, kind) else None
    except Exception as error:
        raise ParameterError(
            "path", path, f"what can be called without arguments ({_told(error)})"
        ) from error
    if not isinstance(network, kind):
        raise ParameterError("path", path, "what makes an nn.Module when it is called")
    return network.eval().float().requires_grad_(False)


def _told(error: Exception) -> str:
    """What somebody else's code raised, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _rounded_down(weights: Vector) -> Vector:
    """Weights that are exact in single precision, none larger than before."""
    single = weights.astype(np.float32)
    over = single > weights
    single[over] = np.nextafter(single[over], np.float32(0))
    return single.astype(np.float64)
