"""Losses and gradients the slow way: one person, one example, one number at a time."""

import math

import numpy as np

from demur_proto.arrays import Vector
from demur_proto.models.base import Examples


def softmax_loss(theta: Vector, x: Vector, label: int, *, classes: int) -> float:
    """−ln softmax(xW + b)[label], by Python's own arithmetic."""
    scores = [
        sum(x[i] * theta[i * classes + c] for i in range(len(x))) + theta[len(x) * classes + c]
        for c in range(classes)
    ]
    return float(math.log(sum(math.exp(score) for score in scores)) - scores[label])


def hidden_loss(theta: Vector, x: Vector, label: int, *, hidden: int, classes: int) -> float:
    """The same of tanh(xW + b)V + c."""
    first = (len(x) + 1) * hidden
    units = [
        math.tanh(
            sum(x[i] * theta[i * hidden + h] for i in range(len(x))) + theta[len(x) * hidden + h]
        )
        for h in range(hidden)
    ]
    return softmax_loss(theta[first:], np.array(units), label, classes=classes)


def some_examples(
    rng: np.random.Generator, *, sizes: list[int], inputs: int, classes: int
) -> Examples:
    """People who own this many examples each."""
    rows = sum(sizes)
    return Examples(
        inputs=rng.normal(size=(rows, inputs)),
        labels=rng.integers(0, classes, rows),
        people=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
    )
