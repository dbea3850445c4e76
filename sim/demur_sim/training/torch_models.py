"""Torch, which comes with the extra of that name and is only loaded on use."""

import copy
import importlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from demur_proto.arrays import Flags, Integers, Values, Vector
from demur_proto.errors import ParameterError, UnsupportedError
from demur_proto.models.architectures import best, slopes, wrong
from demur_proto.models.base import Examples, Inputs, as_doubles
from demur_proto.models.definition import Module


def load_torch() -> Any:
    """The package torch, set to one thread for each operation.

    What several threads work out together is rounded by their number. Blocks of people are what runs at
    the same time.

    Raises:
        UnsupportedError: it is not installed. One line that says what to install.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UnsupportedError(
            "modules by their path need torch, which is not installed: pip install 'demur[torch]'"
        ) from error
    torch.set_num_threads(1)
    return torch


def best_device(torch: Any) -> str:
    """Where arithmetic is fastest: cuda where torch sees a GPU, else cpu."""
    return "cuda" if torch.cuda.is_available() else "cpu"


# Gradients of people in a chain of torch layers: their norms, and their weighted sum.
#
# A layer with weights W has at each place p the inputs x_p [k] and the derivative s_p [c] of the loss by its
# outputs. A linear layer has one place for each example, a convolution has one wherever its window stops.
# The gradient is Σ_p s_p x_pᵀ, and Σ_p s_p that of the biases.

Tensor = Any  #: torch is not there to be named

_ROUNDING = 2.0**-52
_HARMLESS = (
    *("Flatten", "Unflatten", "Identity", "Dropout", "Dropout2d"),
    *("ReLU", "LeakyReLU", "ELU", "GELU", "SiLU", "Sigmoid", "Tanh", "Softplus"),
    *("MaxPool2d", "AvgPool2d"),
)  # what comes out for one example is of that example alone


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Gradients of g people, one row for each."""

    rows: Tensor = field(repr=False)  #: [g, d]

    def squares(self) -> Tensor:
        """Squared norms [g], in double precision."""
        return _squared_lengths(self.rows)

    def weighted(self, weights: Tensor) -> Tensor:
        """The sum over people of their gradients times their weights [g]; to [d]."""
        return weights @ self.rows

    def only(self, people: Tensor) -> "Rows":
        """Some of the people, flagged [g]."""
        return Rows(rows=self.rows[people])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """What one layer adds to the gradients of g people, each with equally many places."""

    inputs: Tensor = field(repr=False)  #: x [g, k, places]
    slopes: Tensor = field(repr=False)  #: s [g, c, places], of each person's mean loss
    bias: bool
    made: Tensor | None = field(repr=False)  #: the gradients by the weights [g, c k], if needed

    @classmethod
    def of(cls, inputs: Tensor, slopes: Tensor, *, bias: bool) -> "Part":
        """With the gradients themselves where that is cheaper.

        Inner products of p places are p² (k + c) multiplications in double precision, and then the
        gradients still have to be made for their sum; made before, they are looked at three times.
        """
        (_, k, places), c = inputs.shape, slopes.shape[1]
        made = None
        if 2 * places * places * (k + c) > 3 * k * c:
            made = (slopes @ inputs.transpose(1, 2)).flatten(1)
        return cls(inputs=inputs, slopes=slopes, bias=bias, made=made)

    def only(self, people: Tensor) -> "Part":
        """Some of the people, flagged [g]."""
        return Part(
            inputs=self.inputs[people],
            slopes=self.slopes[people],
            bias=self.bias,
            made=None if self.made is None else self.made[people],
        )

    @property
    def rows(self) -> Tensor:
        """The gradients [g, c k], or [g, c (k + 1)] with those by the biases at the end."""
        made = self.made
        if made is None:
            made = (self.slopes @ self.inputs.transpose(1, 2)).flatten(1)
        if not self.bias:
            return made
        wide = made.new_empty((len(made), made.shape[1] + self.slopes.shape[1]))
        wide[:, : made.shape[1]] = made
        wide[:, made.shape[1] :] = self.slopes.sum(2)
        return wide

    def squares(self) -> Tensor:
        """Squared norms of the gradients [g], in double precision.

            ‖Σ_p s_p (x_p, 1)ᵀ‖² = Σ_pq (x_p·x_q + 1)(s_p·s_q)

        Terms on the right may cancel, so a bound of the rounding error is added.

        Source: Goodfellow 2015, arXiv:1510.01799, for one place; Bu, Mao & Xu 2022, arXiv:2205.10683,
        for several, and for choosing the cheaper way.
        """
        if self.made is not None:
            squares = _squared_lengths(self.made)
            return squares + _squared_lengths(self.slopes.sum(2)) if self.bias else squares
        flat, steep = self.inputs.double(), self.slopes.double()
        left = flat.transpose(1, 2) @ flat + float(self.bias)
        right = steep.transpose(1, 2) @ steep
        (_, k, places), c = flat.shape, steep.shape[1]
        lengths = (left.diagonal(dim1=1, dim2=2) * right.diagonal(dim1=1, dim2=2)).sqrt().sum(1)
        squares = (left * right).sum((1, 2)).clamp(min=0)
        return squares + _ROUNDING * (k + c + places * places + 16) * lengths.square()

    def weighted(self, weights: Tensor) -> Tensor:
        """The sum over people of their gradients times their weights [g]; to [c (k + 1)] or [c k]."""
        if self.made is not None:
            total = weights @ self.made
        else:
            scaled = (self.slopes * weights[:, None, None]).transpose(0, 1).flatten(1)
            total = (scaled @ self.inputs.transpose(1, 2).flatten(0, 1)).flatten()
        if not self.bias:
            return total
        both = total.new_empty(len(total) + self.slopes.shape[1])
        both[: len(total)] = total
        both[len(total) :] = weights @ self.slopes.sum(2)
        return both


def leaves_of(torch: Any, module: Any) -> list[Any] | None:
    """The layers of a chain in which no example can see another; None of any other module.

    Only what is known is let through: a layer that averages over examples would give each person the
    data of others, and no clipping of gradients would see it.
    """
    nn = torch.nn
    if type(module) is nn.Sequential:
        parts = [leaves_of(torch, each) for each in module]
        return None if None in parts else [leaf for part in parts if part for leaf in part]
    if type(module) is nn.Linear:
        return [module]
    if type(module) is nn.Conv2d:
        plain = module.groups == 1 and module.padding_mode == "zeros"
        return [module] if plain and not isinstance(module.padding, str) else None
    known = any(type(module) is getattr(nn, name) for name in _HARMLESS)
    # Flatten and Unflatten could reach the dimension of examples, which is the first.
    first = min(_number(getattr(module, name, 1)) for name in ("start_dim", "dim"))
    return [module] if known and first > 0 and not getattr(module, "inplace", False) else None


def parts_of(
    torch: Any,
    leaves: Sequence[Any],
    parameters: Sequence[Tensor],
    inputs: Tensor,
    labels: Integers,
    *,
    size: int,
) -> list[Part]:
    """What every layer with weights adds to the gradients of people with `size` examples each.

    Args:
        torch: the package.
        leaves: as `leaves_of` gives them.
        parameters: weights and biases of the leaves, in order.
        inputs: [g size, inputs], person after person.
        labels: [g size].
        size: examples of each person; >= 1.
    """
    wide, outputs, scores = _forward(torch, leaves, parameters, inputs)
    back = slopes(scores.detach().double().cpu().numpy(), labels) / size
    given = torch.from_numpy(back).to(scores)
    steep = torch.autograd.grad(scores, outputs, given)
    return [
        Part.of(_by_person(seen, size), _by_person(_places(leaf, slope), size), bias=bias)
        for (leaf, seen, bias), slope in zip(wide, steep, strict=True)
    ]


def _forward(
    torch: Any, leaves: Sequence[Any], parameters: Sequence[Tensor], inputs: Tensor
) -> tuple[list[tuple[Any, Tensor, bool]], list[Tensor], Tensor]:
    """What went into each layer with weights, place by place, what came out, and the scores."""
    functional = torch.nn.functional
    left, wide, outputs, flow = list(parameters), [], [], inputs
    for leaf in leaves:
        kind = type(leaf)
        if kind is not torch.nn.Linear and kind is not torch.nn.Conv2d:
            flow = leaf(flow)
            continue
        weight, bias = left.pop(0), None if leaf.bias is None else left.pop(0)
        seen = flow.detach()
        if kind is torch.nn.Linear:
            places = _places(leaf, seen)
            flow = functional.linear(flow, weight, bias)
        else:
            places = _windows(functional, leaf, seen)
            flow = functional.conv2d(flow, weight, bias, leaf.stride, leaf.padding, leaf.dilation)
            # Channel after channel at each place: pooling is several times faster that way.
            flow = flow.contiguous(memory_format=torch.channels_last)
        wide.append((leaf, places, bias is not None))
        if not flow.requires_grad:  # the first: nothing before it is differentiated
            flow.requires_grad_()
        outputs.append(flow)
    return wide, outputs, flow


def _places(leaf: Any, values: Tensor) -> Tensor:
    """What a layer takes or gives for each example, place by place [m, k, places]."""
    if values.ndim == 2:
        return values[..., None]
    if hasattr(leaf, "in_features"):  # linear: its numbers are the last dimension
        return values.flatten(1, -2).transpose(1, 2)
    return values.flatten(2)


def _by_person(places: Tensor, size: int) -> Tensor:
    """[g size, k, p] to [g, k, size p]."""
    if size == 1:
        return places
    return places.unflatten(0, (-1, size)).transpose(1, 2).flatten(2)


def _windows(functional: Any, leaf: Any, images: Tensor) -> Tensor:
    """What a convolution sees at each of its places [m, k, places]."""
    if leaf.dilation != (1, 1):
        return functional.unfold(images, leaf.kernel_size, leaf.dilation, leaf.padding, leaf.stride)
    down, across = leaf.padding
    if down or across:
        images = functional.pad(images, (across, across, down, down))
    (height, width), (below, aside) = leaf.kernel_size, leaf.stride
    windows = images.unfold(2, height, below).unfold(3, width, aside)
    return windows.permute(0, 1, 4, 5, 2, 3).flatten(4).flatten(1, 3)


def _squared_lengths(rows: Tensor) -> Tensor:
    """‖row‖² of every row [g], in double precision."""
    return rows.norm(dim=1, dtype=load_torch().float64).square()


def _number(dimension: Any) -> int:
    """A dimension by number; those by name count as unknown."""
    return dimension if isinstance(dimension, int) else 0


# Any module of torch by its import path, as a model.

EXAMPLES_AT_ONCE = 128  #: so that what they leave in every layer stays in the cache
EXAMPLES_AT_ONCE_ELSEWHERE = 4096  #: on a GPU, which small pieces would leave idle


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
