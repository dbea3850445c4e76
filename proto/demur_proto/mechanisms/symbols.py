"""Categories as symbols: 0 is null, outside the domain; category c is symbol c + 1."""

from typing import Any

import numpy as np

from demur_proto.arrays import Integers, Values, Words
from demur_proto.errors import ParameterError


def encode_categories(values: Values, *, categories: int) -> tuple[Words, Integers]:
    """Values [n, 1] to symbols [n, 1], and what each costs in round weights [n]: 1, or 0 for null.

    Whatever is no integer from 0 to categories − 1 has no category: it becomes null.

    Raises:
        ParameterError: the values are not of shape [n, 1].

    >>> symbols, charges = encode_categories(np.array([[0.0], [2.0], [np.nan]]), categories=2)
    >>> symbols.ravel().tolist(), charges.tolist()
    ([1, 0, 0], [1, 0, 0])
    """
    check_one_column(values)
    with np.errstate(invalid="ignore"):
        inside = (values >= 0) & (values < categories) & (np.rint(values) == values)
    symbols: Words = np.where(inside, values, -1.0).astype(np.int64) + 1
    charges: Integers = (symbols[:, 0] > 0).astype(np.int64)
    return symbols, charges


def categories_of(values: Values, *, categories: int) -> Values:
    """The categories that values name [any shape]: these themselves, but with one category 1, which is yes.

    >>> categories_of(np.array([1.0, 0.0]), categories=1), categories_of(np.array([1.0]), categories=2)
    (array([ 0., -1.]), array([1.]))
    """
    return values - 1 if categories == 1 else values


def check_one_column(values: Values) -> None:
    """Refuse values that are not one number each.

    Raises:
        ParameterError: the values are not of shape [n, 1].
    """
    if values.ndim != 2 or values.shape[1] != 1:
        raise ParameterError("values", values.shape, "of shape [n, 1]")


def check_symbols(words: Words, *, categories: int) -> Integers:
    """The symbols [n] of words [n, 1].

    Raises:
        ParameterError: the words are not of that shape or hold no symbols. Without the values,
            which are secret.
    """
    if words.ndim != 2 or words.shape[1] != 1 or words.dtype.kind not in "iu":
        raise ParameterError("words", f"{words.dtype} {words.shape}", "integers of shape [n, 1]")
    symbols: Integers = words[:, 0]
    check_range("words", symbols, categories=categories)
    return symbols


def check_range(name: str, symbols: np.ndarray[tuple[int], Any], *, categories: int) -> None:
    """Refuse integers [n] that are not all symbols; the error does not repeat them."""
    if symbols.size and not (symbols.min() >= 0 and symbols.max() <= categories):
        raise ParameterError(name, "another value", f"symbols from 0 to {categories}")
