"""Gradients of people in a chain of torch layers: their norms, and their weighted sum.

A layer with weights W has at each place p the inputs x_p [k] and the derivative s_p [c] of the loss by its
outputs. A linear layer has one place for each example, a convolution has one wherever its window stops.
The gradient is Σ_p s_p x_pᵀ, and Σ_p s_p that of the biases.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from demur_proto.arrays import Integers
from demur_proto.models.cross_entropy import slopes
from demur_sim.torch_loading import load_torch

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
