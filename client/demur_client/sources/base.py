"""Where a device's answers come from: its owner's own data."""

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from demur_proto.arrays import Values
from demur_proto.errors import ParameterError
from demur_proto.mechanisms.categorical import categories_of, encode_categories
from demur_proto.models.definition import DefinedModel
from demur_proto.queries import (
    Feature,
    Histogram,
    ModelQuery,
    Query,
    Reads,
)


class DataSource(Protocol):
    """Computes features of one person's data."""

    def evaluate(self, feature: Feature) -> Values:
        """The feature's value for this person: shape [1, d], data units; or [1, 1], a category.

        A plain number will do for one coordinate. Whoever has no category gives −1 or NaN; with one
        category 1 is yes, and 0 or none is no. Whatever
        this raises is treated like a value: the device answers with a cover report, and nobody
        else can tell. So a mistake in it is seen by calling it, not by asking the device.
        """


class ExampleSource(Protocol):
    """Knows what a model can learn from one person."""

    def examples(self) -> tuple[npt.ArrayLike, npt.ArrayLike]:
        """All of this person's examples, k of them: inputs [k, …] and labels [k], 0 to classes − 1.

        An input is as the model wants it before its feature map. Whoever has none gives none, or
        raises: that is treated like a value, as in a `DataSource`.
        """


LONGEST_NOTE = 500  #: characters of what went wrong

Noted = Callable[[str], None]
"""Takes what went wrong, in words for the owner's eyes only: they may tell of the data. Secret."""

Function = Callable[[Mapping[str, float]], npt.ArrayLike]
"""Computes one feature from its parameters: a number, or [d]; or a category, −1 for none."""


class FunctionSource:
    """A source of one function for each feature, for an app that holds its owner's data itself.

    >>> source = FunctionSource({"active": lambda parameters: parameters["period"] in {3, 5}})
    >>> source.evaluate(Feature(name="active", parameters={"period": 3}))
    array([[1.]])
    """

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self._functions = dict(functions)

    def evaluate(self, feature: Feature) -> Values:
        """The feature's value [1, d].

        Raises:
            KeyError: there is no function for it.
        """
        value = self._functions[feature.name](feature.parameters)
        return np.asarray(value, dtype=np.float64).reshape(1, -1)


def evaluate_round(
    query: Query,
    model: DefinedModel | None,
    source: DataSource | ExampleSource,
    *,
    noted: Noted | None = None,
) -> Values | None:
    """What a round asks of its owner's data [1, v]; None where that fails.

    Args:
        query: of the round; one that asks for data, so no `HaltCount`.
        model: the one that it names, checked against it; None where it names none.
        source: its owner's data.
        noted: as in `evaluate_query`, and of a number that is no category, which is told as none.

    Raises:
        ParameterError: the query asks for no data, or names a model and there is none.
    """
    if query.reads is Reads.HALTS:
        raise ParameterError("query", "a halt count", "one that asks for the owner's data")
    if isinstance(query, ModelQuery):
        if model is None:
            raise ParameterError("model", model, "the one that the round names")
        return evaluate_examples(query, model, source, noted=noted)
    value = evaluate_query(query, source, noted=noted)
    if isinstance(query, Histogram) and value is not None and noted is not None:
        _note_category(value, query.categories, noted)
    return value


def evaluate_query(
    query: Query,
    source: DataSource | ExampleSource,
    *,
    noted: Noted | None = None,
) -> Values | None:
    """All features of a query side by side [1, v], weighted where it has weights; None where any fails.

    A value that arrives here may still be none: a mechanism encodes as nothing what is no number, or
    no category.

    An error that depends on a person's data is just another value, and must not show: no kind of
    failure may leave this function, not even the source's own exit. `noted` is told of it, for the
    owner's own eyes.
    """

    def value() -> Values:
        evaluate = source.evaluate  # type: ignore[union-attr]  # one without it fails like any other
        parts = [np.asarray(evaluate(feature), float) for feature in query.features]
        side_by_side = np.concatenate([part.reshape(1, -1) for part in parts], axis=1)
        return query.weighted(side_by_side)

    return _or_none(value, length=query.value_length, noted=noted)


def evaluate_examples(
    query: ModelQuery,
    model: DefinedModel,
    source: DataSource | ExampleSource,
    *,
    noted: Noted | None = None,
) -> Values | None:
    """What a query asks about a model, of all of a person's examples [1, d]; None where it fails.

    Failures are treated as in `evaluate_query`, and so is having no example. A value that is not
    finite may arrive here: the mechanism encodes it as nothing.
    """

    def value() -> Values:
        inputs, labels = source.examples()  # type: ignore[union-attr]  # as above
        return query.value_of(model.value, inputs, labels)

    return _or_none(value, length=query.value_length, noted=noted)


def _or_none(evaluate: Callable[[], Values], *, length: int, noted: Noted | None) -> Values | None:
    """What this gives, if that is one row of so many numbers."""
    try:
        with np.errstate(all="ignore"):  # a warning would tell of somebody's data
            value = evaluate()
    except KeyboardInterrupt:  # the owner's
        raise
    except BaseException as error:  # noqa: BLE001  any failure is the same cover report to everyone outside
        _note(noted, error)
        return None
    if value.shape == (1, length):
        return value
    if noted is not None:
        noted(f"the data source gave {value.size} numbers, and {length} were asked for")
    return None


def _note_category(value: Values, categories: int, noted: Noted) -> None:
    """Say that a number names no category: it is told as none, like −1 and NaN, which mean that."""
    symbols, _ = encode_categories(
        categories_of(value, categories=categories), categories=categories
    )
    [number] = value.ravel().tolist()
    if symbols[0, 0] or math.isnan(number) or number == -1 or (categories == 1 and number == 0):
        return
    if categories == 1:
        noted(f"{number:.15g} is neither 1 (yes) nor 0 (no): told as no")
    else:
        noted(f"{number:.15g} is no category of {categories}: told as none")


def _note(noted: Noted | None, error: BaseException) -> None:
    """Say what went wrong in one line, unless even that fails."""
    if noted is None:
        return
    try:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST_NOTE]
    except BaseException:  # noqa: BLE001  an error of the source's own that cannot say what it is
        text = type(error).__name__
    # Names of files may hold what cannot be printed, and then the owner could read no note at all.
    noted(text.encode(errors="replace").decode())
