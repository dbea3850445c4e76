"""Networks of torch that come along, each made by calling its name. They take flat inputs."""

from typing import Any

from demur_proto.models.definition import Module
from demur_sim.training.torch_models import load_torch

TWO_CONVOLUTIONS = Module(
    path="demur_sim.training.torch_networks:two_convolutions",
    inputs=784,
    classes=10,
    parameters=26_010,
)
"""What the experiments of Feldman & Zrnic train on MNIST."""


def two_convolutions() -> Any:
    """A small network for images of 28 × 28 pixels, with 26,010 parameters.

        16 filters of 8 × 8, every second pixel, with a border of 3      1,040 parameters; 14 × 14
        the largest of 2 × 2 neighbours                                                    13 × 13
        32 filters of 4 × 4, every second place, without a border        8,224              5 × 5
        the largest of 2 × 2 neighbours                                                     4 × 4
        32 units that see all of it                                     16,416
        10 scores                                                          330

    with max(0, ·) after each but the last. Weights start uniform on ±√(6/(fan-in + fan-out)), biases at
    zero.

    Source of the layers: the MNIST tutorial of TensorFlow Privacy, which has as many parameters as
    Feldman & Zrnic 2021, arXiv:2008.11193, say that theirs has. Of the start: Glorot & Bengio 2010.
    """
    nn = load_torch().nn
    network = nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )
    for weight in network.parameters():
        if weight.ndim > 1:
            nn.init.xavier_uniform_(weight)
        else:
            nn.init.zeros_(weight)
    return network
