"""Cross-entropy of scores, the loss of every classifier here."""

import numpy as np

from demur_proto.arrays import Flags, Integers, Values


def slopes(scores: Values, labels: Integers) -> Values:
    """The derivative of each example's loss by its scores [m, classes].

        loss = −ln p_label,  p = softmax(scores),  ∂loss/∂scores = p − e_label

    Examples whose label is no class have no loss: their rows are NaN.

    Args:
        scores: [m, classes]; any.
        labels: [m]; any.

    >>> slopes(np.zeros((2, 2)), np.array([1, 7]))
    array([[ 0.5, -0.5],
           [ nan,  nan]])
    """
    with np.errstate(all="ignore"):
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        found: Values = powers / powers.sum(axis=1, keepdims=True)
    known = np.flatnonzero((labels >= 0) & (labels < scores.shape[1]))
    found[known, labels[known]] -= 1
    found[(labels < 0) | (labels >= scores.shape[1])] = np.nan
    return found


def best(scores: Values) -> Integers:
    """The class with the highest score [m], the first of equals.

    >>> best(np.array([[0.0, 2.0, 2.0]]))
    array([1])
    """
    classes: Integers = np.argmax(scores, axis=1)
    return classes


def wrong(scores: Values, labels: Integers) -> Flags:
    """Whether the label of an example is not its best class [m]; where a score is NaN, it is not.

    >>> wrong(np.array([[0.0, 2.0], [0.0, 2.0], [np.nan, 0.0]]), np.array([1, 0, 0]))
    array([False,  True,  True])
    """
    flags: Flags = (best(scores) != labels) | np.isnan(scores).any(axis=1)
    return flags
