"""Small modules of torch for tests, found by their import path. Importing this needs no torch."""

from typing import Any

from demur_sim.training.torch_models import load_torch


def small_chain() -> Any:
    """Two convolutions and two linear layers, one of each without biases."""
    nn = load_torch().nn
    return nn.Sequential(
        nn.Unflatten(1, (1, 6, 7)),
        nn.Sequential(nn.Conv2d(1, 2, (3, 2), stride=(2, 1), padding=(1, 0)), nn.Tanh()),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(2, 3, 2, dilation=(1, 2), bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(9, 40),
        nn.Dropout(0.5),
        nn.Tanh(),
        nn.Linear(40, 3, bias=False),
    )


def small_module() -> Any:
    """The same chain inside a module that is none, as far as anybody can tell."""
    torch = load_torch()

    class Wrapped(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = small_chain()

        def forward(self, inputs: Any) -> Any:
            return self.inner(inputs)

    return Wrapped()


def mixing_module() -> Any:
    """A module that takes from every example the mean of its batch."""
    torch = load_torch()

    class Mixing(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.scores = torch.nn.Linear(4, 3)

        def forward(self, inputs: Any) -> Any:
            return self.scores(inputs - inputs.mean(0) / 2)

    return Mixing()


def shared_chain() -> Any:
    """A chain in which one layer occurs twice."""
    nn = load_torch().nn
    twice = nn.Linear(4, 4)
    return nn.Sequential(twice, nn.Tanh(), twice, nn.Tanh(), nn.Linear(4, 3))


def places_chain() -> Any:
    """A chain in which a linear layer sees two places of each example."""
    nn = load_torch().nn
    return nn.Sequential(
        nn.Unflatten(1, (2, 2)), nn.Linear(2, 5), nn.Tanh(), nn.Flatten(), nn.Linear(10, 3)
    )


def flattened_chain() -> Any:
    """A chain that lets examples see each other, and puts them apart again."""
    nn = load_torch().nn
    return nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (-1, 4)), nn.Linear(4, 3))


def normalised_chain() -> Any:
    """A chain with a layer that knows what a batch is."""
    nn = load_torch().nn
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


NOT_A_MODULE = 3


def no_module() -> Any:
    """Something else."""
    return NOT_A_MODULE
