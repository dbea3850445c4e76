"""Amounts in bins with public edges: which category an amount is in."""

import itertools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from demur_proto.arrays import Values
from demur_proto.errors import ParameterError

AMOUNT_BIN = "amount_bin"  #: the feature
EDGE = "edge_"  #: its parameters are edge_1, edge_2 and so on


def edges_of(parameters: Mapping[str, float]) -> tuple[float, ...]:
    """The edges among a feature's parameters, ascending.

    Args:
        parameters: of the feature; whatever is no edge is left alone.

    Raises:
        ParameterError: there is none, one is missing before the last, or they do not ascend.

    >>> edges_of({"period": 1.0, "edge_1": 15.0, "edge_2": 30.0})
    (15.0, 30.0)
    """
    given = [name for name in parameters if name.startswith(EDGE)]
    names = [f"{EDGE}{number}" for number in range(1, max(1, len(given)) + 1)]
    if any(name not in parameters for name in names):
        expected = f"{EDGE}1, {EDGE}2 and so on, none left out"
        raise ParameterError(f"parameters of {AMOUNT_BIN}", sorted(given), expected)
    edges = tuple(parameters[name] for name in names)
    if any(not low < high for low, high in itertools.pairwise(edges)):
        raise ParameterError(f"edges of {AMOUNT_BIN}", list(edges), "ascending, no two alike")
    return edges


def bins_of(amounts: npt.NDArray[np.float64], edges: tuple[float, ...]) -> Values:
    """The bin of each amount [m], as a float: how many edges it reaches, 0 to the number of edges.

    >>> bins_of(np.array([-1.0, 14.99, 15.0, 29.0, 30.0]), (15.0, 30.0)).tolist()
    [0.0, 0.0, 1.0, 1.0, 2.0]
    """
    return np.searchsorted(np.array(edges), amounts, side="right").astype(np.float64)


def bin_labels(edges: tuple[float, ...]) -> list[str]:
    """What a person calls the bins.

    >>> bin_labels((15.0, 30.0))
    ['below 15', '15 to 30', '30 and more']
    """
    between = [f"{low:g} to {high:g}" for low, high in itertools.pairwise(edges)]
    return [f"below {edges[0]:g}", *between, f"{edges[-1]:g} and more"]
